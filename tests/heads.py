"""Starts a cluster on this machine as docs/cluster.md says: a head with free ports and a token of
its own.
"""

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from gram_platform.engine.machine import free_port

START_S = 120.0
STORE_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Head:
    """A running head: `port` is Ray's own, `address` takes jobs, `environment` is that of its
    processes and clients.
    """

    folder: Path
    port: int
    address: str
    environment: Mapping[str, str]

    @property
    def token(self) -> str:
        return self.environment["RAY_AUTH_TOKEN"]

    def ask(self, path: str) -> dict | None:
        """Asks the head over HTTP; None if it does not answer."""
        request = urllib.request.Request(
            self.address + path, headers={"Authorization": f"Bearer {self.token}"}
        )
        with (
            contextlib.suppress(OSError, ValueError),
            urllib.request.urlopen(request, timeout=10) as answer,
        ):
            return json.load(answer)
        return None

    def num_machines(self) -> int:
        """Counts the machines that Ray calls alive, the head among them."""
        answer = self.ask("/nodes?view=summary")
        return (
            sum(node["raylet"]["state"] == "ALIVE" for node in answer["data"]["summary"])
            if answer
            else 0
        )

    def job(
        self, *command: str | Path, flags: tuple[str, ...] = (), working_dir: str | Path = ""
    ) -> list[str]:
        """Returns the command that submits another one as a job."""
        upload = ("--working-dir", str(working_dir)) if working_dir else ()
        return [
            "ray",
            "job",
            "submit",
            "--address",
            self.address,
            *upload,
            *flags,
            "--",
            *map(str, command),
        ]

    def submit(
        self,
        *command: str | Path,
        timeout_s: float = 600.0,
        environment: Mapping[str, str] | None = None,
        **how,
    ) -> subprocess.CompletedProcess:
        """Runs a command as a job to its end; what the job prints is in `stdout`.

        `how` as in `job`.
        """
        return subprocess.run(
            self.job(*command, **how),
            env={**self.environment, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=timeout_s,
        )

    def spawn(self, *command: str) -> subprocess.Popen:
        """Starts a process of the cluster, whose output goes to a log in the folder."""
        with (self.folder / "log.txt").open("a") as log:
            return subprocess.Popen(
                command,
                # Otherwise a job would also find what lies in the current folder.
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def processes(self) -> list[psutil.Process]:
        """Finds the processes of the cluster by its token, which they inherit."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("RAY_AUTH_TOKEN") == self.token:
                    found.append(process)
        return found


def start_command(head: Head, **options: object) -> list[str]:
    """Returns `ray start` of a head without default ports: 0 lets Ray choose, and some ports must
    be chosen here.
    """
    all_options = {
        "port": head.port,
        "dashboard-port": head.address.rpartition(":")[2],
        "dashboard-agent-listen-port": 0,
        "ray-client-server-port": free_port(),
        "min-worker-port": 0,
        "max-worker-port": 0,
        "num-cpus": 2,
        "object-store-memory": STORE_BYTES,
        "temp-dir": head.folder / "ray",
        **options,
    }
    return [
        "ray",
        "start",
        "--head",
        "--block",
        *(f"--{name}={value}" for name, value in all_options.items()),
    ]


@contextlib.contextmanager
def running_head(
    python: str | Path = sys.executable,
    environment: Mapping[str, str] | None = None,
    port: int = 0,
    **options: object,
) -> Iterator[Head]:
    """Runs a head for the length of a block, then ends its cluster.

    `port`: Ray's own, 0 for a free one. `options`: others of `ray start`, with _ for -.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    own = {
        "PATH": os.pathsep.join([str(Path(python).parent), os.environ["PATH"]]),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Otherwise the titles of processes overwrite their environment, by which they are found.
        "SPT_NOENV": "1",
    }
    folder = Path(tempfile.mkdtemp(prefix="gram-head-", dir="/tmp"))
    address = f"http://127.0.0.1:{free_port()}"
    head = Head(folder, port or free_port(), address, {**inherited, **own, **(environment or {})})
    named = {name.replace("_", "-"): value for name, value in options.items()}
    process = head.spawn(*start_command(head, **named))
    try:
        deadline = time.monotonic() + START_S
        while head.ask("/api/version") is None:
            assert process.poll() is None, (folder / "log.txt").read_text()
            assert time.monotonic() < deadline, (folder / "log.txt").read_text()
            time.sleep(0.1)
        yield head
    finally:
        end(head, process)
        shutil.rmtree(folder, ignore_errors=True)


def end(head: Head, process: subprocess.Popen) -> None:
    """Ends a head as Ctrl-C in its terminal does, then whatever its cluster has left."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(30)
    # A dying raylet may still start a worker.
    while left := head.processes():
        for one in left:
            with contextlib.suppress(psutil.Error):
                one.kill()
        psutil.wait_procs(left, timeout=5)
