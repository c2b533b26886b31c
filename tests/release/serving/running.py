"""`gram serve` as people start it: a process of its own with a Ray of its own, on a free port."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.ending import STACKS, exit_code
from tests.release.serving.http import Served
from tests.release.serving.planted import planted, write_storage

ROOT = Path(__file__).resolve().parents[3]
GRAM = [sys.executable, "-c", "from gram_platform.cli import main; main()"]
START_TIMEOUT_S = 240.0  # on a machine with much else to do


@dataclass(frozen=True)
class Running:
    """The server, its process and what it says."""

    site: Served
    process: subprocess.Popen
    log: Path

    def replicas(self, deployment: str) -> list[psutil.Process]:
        """The living processes of a deployment, `Model` or `Ingress`."""
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if re.search(
                    rf"ServeReplica:gram-\w+-\w+:{deployment}", " ".join(process.cmdline())
                ):
                    found.append(process)
        return found

    def wait_until_ready(self) -> None:
        """Until its health says so: a new model is loaded in a process of its own."""
        self.wait_until(lambda: self.site.ask("GET", "/healthz").status == 200, START_TIMEOUT_S)

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.2)


def environment() -> dict[str, str]:
    return os.environ | STACKS | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


@contextlib.contextmanager
def gram_serve(folder: Path, *arguments: str) -> Iterator[Running]:
    """Of a planted run in `folder`; afterwards none of its processes is left, or it fails."""
    plan, storage = planted(), folder / "storage"
    run_id = write_storage(storage, plan)
    places = ("--storage", str(storage), "--policy", str(storage / "policy.toml"))
    command = [*GRAM, "serve", run_id, *places, "--port", "0", *arguments]
    log = folder / "serve.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield Running(Served(wait_for_port(process, log), plan), process, log)
    finally:
        stop(process, log)


def wait_for_port(process: subprocess.Popen, log: Path) -> int:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        if ready := re.search(r"ready: http://127\.0\.0\.1:(\d+)", log.read_text()):
            return int(ready[1])
        time.sleep(0.1)
    raise AssertionError(f"it did not start: {log.read_text()[-3000:]}")


def stop(process: subprocess.Popen, log: Path) -> None:
    if process.poll() is None:
        below = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        try:
            assert exit_code(process, log) == 0
        finally:
            process.kill()
            _, alive = psutil.wait_procs(below, timeout=10)
            for child in alive:
                child.kill()
        assert not alive, f"left running: {alive}"
