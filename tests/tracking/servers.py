"""Servers of our own for a test: PostgreSQL behind a socket that only its owner reaches, and MLflow
on a free port."""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PATIENCE_S = 180.0  # of a machine with more work than cores
ENDING_S = 15.0  # of a server, which waits for open connections


def postgres_programs() -> Path | None:
    """The folder of `postgres` and `initdb`, of the newest version where there are several.

    None without any.
    """
    on_path = shutil.which("postgres")
    debian = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3])
    )
    found = [*debian, *([Path(on_path).resolve()] if on_path else [])]
    return found[-1].parent if found else None


def _owner() -> dict:
    """Who the server runs as, for `subprocess`: PostgreSQL refuses to be root."""
    if os.geteuid() != 0:
        return {}
    users = {user.pw_name: user for user in pwd.getpwall()}
    user = users.get("postgres") or users["nobody"]
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


class Postgres:
    """A private server: no network, no password, nothing synced to disk."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder, self._programs = folder, programs
        self._process: subprocess.Popen | None = None
        self._as_owner = {"cwd": folder, **_owner()}
        if os.geteuid() == 0:
            os.chown(folder, self._as_owner["user"], self._as_owner["group"])
        command = [
            programs / "initdb",
            "-D",
            "data",
            "-U",
            "gram",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "-N",
        ]
        subprocess.run(command, check=True, capture_output=True, **self._as_owner)

    def start(self) -> None:
        """Returns when it answers."""
        command = [self._programs / "postgres", "-D", "data", "-k", self.folder, "-h", "", "-F"]
        with (self.folder / "log").open("a") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, **self._as_owner
            )
        deadline = time.monotonic() + PATIENCE_S
        while not self._answers():
            assert self._process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline, (self.folder / "log").read_text()
            time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Disconnect everybody and end; SIGQUIT is a crash, from which the next start recovers."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait(PATIENCE_S)

    def uri(self, database: str) -> str:
        return f"postgresql+psycopg://gram@/{database}?host={self.folder}"

    def execute(self, statement: str, database: str = "postgres") -> list[tuple]:
        """The rows of one SQL statement, in a transaction of its own only where it can be in
        one."""
        import psycopg

        address = {"host": str(self.folder), "user": "gram", "dbname": database}
        with psycopg.connect(**address, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def _answers(self) -> bool:
        import psycopg

        with contextlib.suppress(psycopg.OperationalError):
            return self.execute("SELECT 1") == [(1,)]
        return False


@contextlib.contextmanager
def running_postgres() -> Iterator[Postgres]:
    """A new server, ended and removed after the block.

    Skips the test where PostgreSQL or its driver is missing.
    """
    pytest.importorskip(
        "psycopg", reason="psycopg, MLflow's driver for PostgreSQL, is not installed"
    )
    programs = postgres_programs()
    if programs is None:
        pytest.skip(
            "PostgreSQL is not installed: neither `postgres` nor /usr/lib/postgresql/*/bin is there"
        )
    # The path is short: those of AF_UNIX hold 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="gram-pg-", dir="/tmp"))
    try:
        server = Postgres(folder, programs)
        try:
            server.start()
            yield server
        finally:
            server.stop(signal.SIGQUIT)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class MlflowServer:
    """`mlflow server` on a database, artifacts in a folder.

    Started again it has the same address.
    """

    def __init__(self, database_uri: str, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self._port}"
        self._command = [
            sys.executable,
            "-m",
            "mlflow",
            "server",
            "--backend-store-uri",
            database_uri,
        ]
        self._command += ["--artifacts-destination", f"{folder}/artifacts", "--workers", "1"]
        self._command += ["--host", "127.0.0.1", "--port", str(self._port)]
        self._log = folder / "server.log"
        self._process: subprocess.Popen | None = None

    def start(self) -> None:
        """Returns when it listens."""
        environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        deadline = time.monotonic() + PATIENCE_S
        while not self._listens():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.1)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """The server and its workers.

        SIGKILL ends them in the middle of a request, and when they do not end.
        """
        if self._process is None:
            return
        for signal_number, patience_s in ((how, ENDING_S), (signal.SIGKILL, PATIENCE_S)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal_number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience_s)
                return
        raise AssertionError(f"the server does not end:\n{self._log.read_text()}")

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0


@contextlib.contextmanager
def running_mlflow(database_uri: str, folder: Path) -> Iterator[MlflowServer]:
    """A server, ended after the block."""
    server = MlflowServer(database_uri, folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()
