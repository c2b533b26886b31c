"""The Ray that a command starts for itself: it is no other one, answers nobody else, and nothing of
it stays.
"""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT
from tests.ending import STACKS, exit_code

pytestmark = pytest.mark.ray
MARK = "GRAM_TEST_MARK"
# Of Ray: its head, dashboard, server of clients, and agent of the dashboard.
DEFAULT_PORTS = (6379, 8265, 10001, 52365)
END_S = 60.0
DRIVER = """
import json, os, sys, time
import ray
from gram_platform.config.endings import exit_with
from gram_platform.engine.cluster import connect

def compute():
    print("COMPUTING", flush=True)
    while True:
        time.sleep(0.01)

def work():
    connect(is_verbose=True)
    nodes, address = ray.nodes(), ray.get_runtime_context().gcs_address
    print("REPORT", json.dumps({"num_nodes": len(nodes), "address": address}), flush=True)
    if sys.argv[1] == "compute":
        ray.get(ray.remote(compute).remote())
    return 7

exit_with(work)
"""


@dataclass(frozen=True)
class Driver:
    """A command with a Ray of its own, whose files are below `place`."""

    process: subprocess.Popen
    place: Path
    errors: Path
    mark: str

    def read_until(self, word: str) -> str:
        """Returns the first line of its output with the word."""
        for line in self.process.stdout:
            if word in line:
                return line
        raise AssertionError(self.errors.read_text())

    def processes(self) -> list[psutil.Process]:
        """Finds what it has started, and itself, by a variable of the environment."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark:
                    found.append(process)
        return found

    def wait_until_nothing_is_left(self) -> None:
        deadline = time.monotonic() + END_S
        while (left := self.processes()) or list(self.place.iterdir()):
            assert time.monotonic() < deadline, (left, list(self.place.iterdir()))
            time.sleep(0.1)


@contextlib.contextmanager
def running_driver(what: str, **variables: str) -> Iterator[Driver]:
    place, mark = Path(tempfile.mkdtemp(prefix="gram-own-", dir="/tmp")), uuid.uuid4().hex
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    # Otherwise the titles of processes overwrite their environment.
    environment |= {
        MARK: mark,
        "SPT_NOENV": "1",
        "PYTHONPATH": str(ROOT),
        "HOME": str(place.with_suffix(".home")),
    }
    environment |= {"RAY_ADDRESS": "local", "RAY_TMPDIR": str(place), **STACKS, **variables}
    errors = place.with_suffix(".txt")
    with errors.open("w") as output:
        command = [sys.executable, "-c", DRIVER, what]
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=output, text=True
        )
    driver = Driver(process, place, errors, mark)
    try:
        yield driver
        driver.wait_until_nothing_is_left()
        place.rmdir()
        errors.unlink()
    finally:
        for left in driver.processes():
            with contextlib.suppress(psutil.Error):
                left.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.slow
def test_it_is_another_one_than_any_that_runs(ray_cluster):
    """Default ports are in use, and another Ray is running: neither is touched or joined."""
    with contextlib.ExitStack() as stack:
        for port in DEFAULT_PORTS:
            listener = stack.enter_context(socket.socket())
            # Somebody else may have the port already.
            with contextlib.suppress(OSError):
                listener.bind(("0.0.0.0", port))
                listener.listen()
        driver = stack.enter_context(running_driver("end"))
        report = json.loads(driver.read_until("REPORT").removeprefix("REPORT"))
        assert exit_code(driver.process, driver.errors) == 7
        assert not list(driver.place.iterdir()), "its folder is gone when the command ends"
    assert report["num_nodes"] == 1
    assert report["address"] != ray_cluster.get_runtime_context().gcs_address
    assert ray_cluster.get(ray_cluster.remote(lambda: 1).remote()) == 1


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow),
        (signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_nothing_is_left_of_it_however_its_command_ends(number, code):
    with running_driver("compute") as driver:
        driver.read_until("COMPUTING")
        assert len(driver.processes()) > 3
        assert [path.stat().st_mode & 0o777 for path in driver.place.iterdir()] == [0o700]
        driver.process.send_signal(number)
        assert exit_code(driver.process, driver.errors) == code


def test_nobody_without_its_token_is_answered():
    """Its dashboard is on the loopback alone."""
    with running_driver("compute") as driver:
        driver.read_until("COMPUTING")
        titles = {process.pid: " ".join(process.cmdline()) for process in driver.processes()}
        pages = [c for c in psutil.net_connections("tcp") if c.pid in titles and is_page(c)]
        # Beside the dashboard, its agent answers the machine's other processes.
        of_dashboard = [page for page in pages if not titles[page.pid].startswith("ray::")]
        assert {page.laddr.ip for page in of_dashboard} == {"127.0.0.1"}
        driver.process.send_signal(signal.SIGINT)
        assert exit_code(driver.process, driver.errors) == 130


def is_page(connection) -> bool:
    """Returns whether Ray's pages are at a port, which ask for a token; metrics ask for none."""
    if connection.status != psutil.CONN_LISTEN:
        return False
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{connection.laddr.port}/api/jobs/", timeout=5
        ) as answer:
            assert answer.read().startswith(b"# HELP"), (
                f"port {connection.laddr.port} answers a stranger"
            )
    except urllib.error.HTTPError as error:
        return error.code == 401
    except (OSError, http.client.HTTPException):
        return False
    return False
