"""Implements `gram ui`, which opens the MLflow UI of a storage."""

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from gram_platform.cli.flags import Storage, open_existing
from gram_platform.config.endings import Stopped
from gram_platform.config.identity import invalid, require_int
from gram_platform.config.provenance import Submissions
from gram_platform.config.terminal import say
from gram_platform.engine.machine import free_port, safe_path
from gram_platform.pages.link_page import HOST, MLFLOW_PORT, leave_link_page, write_link_page
from gram_platform.store import Store
from gram_platform.studies.flags import Number

RECORDS = ("study.json", "search.json")
# Without this path, MLflow opens the traces of language models.
RUNS_PAGE = "/#/experiments/1/runs?workflowType=machine_learning"
ANSWER_TIMEOUT_S = 60.0
ENDING_S = 5.0
# Environment variables which show that a window can be opened.
DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
PR_SET_PDEATHSIG = 1


def ui_command(storage: Storage = "", port: Number = 0) -> None:
    """Open MLflow for a storage in a browser, at the newest study, and serve it until Ctrl-C.

    Links in reports work whichever port is used. MLflow is reachable only from this machine.

    Args:
        storage: folder of the storage
        port: port for MLflow (default: 5000, or another port if 5000 is in use)
    """
    require_int("port", port, 0, 65_535)
    store = open_existing(storage)
    database = Path(store.root) / "mlflow.db"
    if not store.is_local:
        expected = "a folder: runs of an object store are in the MLflow of --tracking-uri"
        raise invalid("storage", store.root, expected)
    if not database.is_file():
        expected = "a storage with an mlflow.db, which a submission or `gram sync` makes"
        raise invalid("storage", store.root, expected)
    listening = free_port(port or MLFLOW_PORT)
    if port and listening != port:
        raise invalid("port", port, f"a free port of {HOST}")
    signal.signal(signal.SIGHUP, signal.getsignal(signal.SIGTERM))
    with tempfile.TemporaryFile() as log, _running(database, listening, log) as server:
        address = f"http://{HOST}:{listening}"
        if not _answers(server, address):
            raise Stopped(f"MLflow does not open: {_last_line(log)}")
        write_link_page(database, address)
        name, page = _newest(store, database, address)
        say(f"MLflow of {store.root}{name}: {page}\nCtrl-C closes it")
        # A browser in the terminal would replace this output.
        if sys.platform == "darwin" or any(map(os.environ.get, DISPLAYS)):
            webbrowser.open(page)
        with suppress(KeyboardInterrupt):
            server.wait()
            raise Stopped(f"MLflow has ended: {_last_line(log)}")
    say("MLflow is closed")


@contextmanager
def _running(database: Path, port: int, log: IO[bytes]) -> Iterator[subprocess.Popen]:
    from gram_platform.tracking.database import database_uri

    def end_with_parent() -> None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    environment = os.environ | safe_path()
    environment |= {
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", database_uri(database)]
    command += ["--host", HOST, "--port", str(port), "--workers", "1"]
    # MLflow's server imports from its folder, whatever its environment says.
    folder = tempfile.TemporaryDirectory()
    server = subprocess.Popen(
        command,
        cwd=folder.name,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        # The server ends with this process, even if that is killed.
        preexec_fn=end_with_parent if sys.platform == "linux" else None,
    )
    try:
        yield server
    finally:
        # Another Ctrl-C must not leave it running.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(server.pid, number)
            with suppress(subprocess.TimeoutExpired):
                server.wait(ENDING_S)
        leave_link_page(database, f"http://{HOST}:{port}")
        folder.cleanup()


def _answers(server: subprocess.Popen, address: str) -> bool:
    directly = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + ANSWER_TIMEOUT_S
    while time.monotonic() < deadline and server.poll() is None:
        with suppress(OSError), directly.open(address + "/health", timeout=5.0):
            return True
        time.sleep(0.2)
    return False


def _newest(store: Store, database: Path, address: str) -> tuple[str, str]:
    """Finds the newest study with saved views; returns (", NAME", URL of its charts).

    If there is none, returns ("", URL of MLflow's list of runs).
    """
    from gram_platform.tracking import Tracker, TrackingUnavailable
    from gram_platform.tracking.database import database_uri

    starts = {}
    for name in store.list_studies():
        records = [store.study_dir(name).read_spare(file, Submissions) for file in RECORDS]
        rows = (row for record in records for row in record.get("submissions", ()))
        starts[name] = max((row["started"] for row in rows), default="")
    tracker = Tracker(database_uri(database))
    with suppress(TrackingUnavailable):
        for name in sorted(starts, key=starts.__getitem__, reverse=True):
            if views := tracker.view_urls(name, address + "/"):
                return f", {name}", views.get("ratios", next(iter(views.values())))
    return "", address + RUNS_PAGE


def _last_line(log: IO[bytes]) -> str:
    log.seek(0)
    text = log.read().decode(errors="replace").strip()
    return text.splitlines()[-1] if text else "it says nothing"
