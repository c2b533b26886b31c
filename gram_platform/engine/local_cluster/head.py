"""Starts the head of a private Ray on this machine, submits one job to it, returns the job's exit code.

The Ray is private: it has its own token, free ports and folder, and ignores other clusters.
"""

import contextlib
import json
import math
import os
import random
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

import psutil

from gram_platform.config.endings import Stopped
from gram_platform.config.provenance import COMMIT_VARIABLE, code_of_process
from gram_platform.engine.local_cluster.state import MARK, TEMPORARY, Cluster, default_storage, stop, write_state

# Holds small values: weights and data go through the storage.
HEAD_STORE_BYTES = 256 * 2**20
START_TIMEOUT_S = 120.0
START_ATTEMPTS = 3
# A socket's path has at most 107 bytes.
MAX_TMPDIR_BYTES = 107 - len("/pymp-12345678/listener-12345678")
JOB_ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


def free_port(*wanted: int) -> int:
    """Returns a port without a listener: a wanted one, else below the range from which the system and Ray draw."""
    candidates = list(wanted)
    while True:
        port = candidates.pop(0) if candidates else random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port


def num_cpus() -> int:
    """Counts the cores that this process may use: its affinity, capped by the quotas of its control groups."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.floor(min([cores, *_quotas()])))


def _quotas(proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> Iterator[float]:
    """Yields the quota in cores of every control group that this process is in, of version 1 and 2."""
    with contextlib.suppress(OSError):
        for line in proc.read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            group = PurePosixPath(path.lstrip("/"))
            for folder in (group, *group.parents):
                # The last is the root, which a container sees as its own group.
                yield from _quota(root / folder) if not controllers else _quota_v1(root / "cpu" / folder)


def _quota(folder: Path) -> Iterator[float]:
    with contextlib.suppress(OSError, ValueError):
        # The file says `max` where there is no quota.
        quota, period = (folder / "cpu.max").read_text(encoding="utf-8").split()
        yield int(quota) / int(period)


def _quota_v1(folder: Path) -> Iterator[float]:
    with contextlib.suppress(OSError, ValueError):
        quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        if quota > 0:
            # The file says -1 where there is no quota.
            yield quota / period


def short_tmpdir() -> dict[str, str]:
    """Returns another $TMPDIR where this process's has too long a path for the sockets of Python's processes."""
    is_short = len(os.fsencode(os.environ.get("TMPDIR", ""))) <= MAX_TMPDIR_BYTES
    return {} if is_short else {"TMPDIR": str(TEMPORARY)}


def environment(cluster: Cluster) -> dict[str, str]:
    """Returns the environment of every process of the cluster: ours without Ray settings, plus mark, token, storage."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    no_proxy = ",".join(filter(None, [os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), "127.0.0.1"]))
    return (
        inherited
        | short_tmpdir()
        | {
            MARK: cluster.mark,
            "GRAM_STORAGE": default_storage(),
            # The job's upload has no .git.
            COMMIT_VARIABLE: code_of_process().commit,
            "no_proxy": no_proxy,
            "NO_PROXY": no_proxy,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(cluster.token_file),
            "RAY_USAGE_STATS_ENABLED": "0",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            # Keeps setproctitle from overwriting the environment, which has the mark.
            "SPT_NOENV": "1",
        }
    )


def head_command(cluster: Cluster) -> list[str]:
    """Builds `ray start` of a head without default ports: 0 lets a component choose, two need a number."""
    options = {
        "port": 0,
        "dashboard-host": "127.0.0.1",
        "dashboard-port": cluster.address.rpartition(":")[2],
        "dashboard-agent-listen-port": 0,
        "ray-client-server-port": free_port(),
        "min-worker-port": 0,
        "max-worker-port": 0,
        "include-dashboard": "true",
        "num-cpus": num_cpus(),
        "object-store-memory": HEAD_STORE_BYTES,
        "temp-dir": cluster.ray_folder,
    }
    return ["ray", "start", "--head", "--block", *(f"--{name}={value}" for name, value in options.items())]


def ask(cluster: Cluster, path: str) -> dict | None:
    """Queries the cluster's job server; None if it cannot be reached."""
    headers = {"Authorization": f"Bearer {cluster.token_file.read_text()}"}
    request = urllib.request.Request(cluster.address + path, headers=headers)
    try:
        with open_directly(request) as answer:
            return json.load(answer)
    except (OSError, ValueError):
        return None


def open_directly(request: urllib.request.Request | str, timeout_s: float = 10.0) -> IO:
    """Opens an address of this machine through no proxy; URLError, an OSError, if that fails."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=timeout_s)


def spawn(cluster: Cluster, command: list[str], log: Path) -> subprocess.Popen:
    """Starts a process of the cluster that outlives this one and writes to a log."""
    with log.open("w") as file:
        return subprocess.Popen(
            command,
            env=environment(cluster),
            # A job then sees its upload alone, not the current directory.
            cwd=cluster.folder,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def start() -> Cluster:
    """Starts a head and waits until it accepts jobs.

    Stopped, with the end of the head's log, if three attempts fail.
    """
    created = psutil.Process().create_time()
    for _ in range(START_ATTEMPTS):
        cluster = Cluster(secrets.token_hex(16), os.getpid(), created, f"http://127.0.0.1:{free_port()}")
        write_state(cluster)
        cluster.token_file.touch(mode=0o600)
        cluster.token_file.write_text(secrets.token_hex(32))
        if comes_up(cluster, spawn(cluster, head_command(cluster), cluster.head_log)):
            if not refuses_strangers(cluster):
                stop(cluster)
                raise Stopped("Ray answers without its token, so anybody on this machine could run code")
            return cluster
        tail = cluster.head_log.read_text()[-2000:]
        stop(cluster)
    raise Stopped(f"Ray did not start in {START_ATTEMPTS} attempts; end of the last log:\n{tail}")


def comes_up(cluster: Cluster, head: subprocess.Popen) -> bool:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and head.poll() is None:
        if ask(cluster, "/api/version") is not None:
            return True
        time.sleep(0.1)
    return False


def refuses_strangers(cluster: Cluster) -> bool:
    """Returns whether a request without the token is refused; Ray before 2.52 knows no token and answers."""
    try:
        open_directly(cluster.address + "/api/jobs/")
    except urllib.error.HTTPError as error:
        return error.code == 401
    return False


def _terminal() -> dict[str, str]:
    """Returns the variables with which a job prints for this terminal: results in short, in its width and colours."""
    if not sys.stdout.isatty():
        return {}
    of_rich = {"TTY_COMPATIBLE": "1", "TTY_INTERACTIVE": "0", "COLUMNS": str(shutil.get_terminal_size().columns)}
    return of_rich | {name: os.environ[name] for name in ("TERM", "COLORTERM", "NO_COLOR") if name in os.environ}


def submit(cluster: Cluster, command: list[str]) -> int:
    """Runs the command as a Ray job that uploads the current directory; shows its log, returns its exit code."""
    job = "gram-" + secrets.token_hex(4)
    ray = ["ray", "job", "submit", "--address", cluster.address, "--submission-id", job, "--working-dir", "."]
    style = ["--log-style", "pretty", "--log-color", "auto" if sys.stdout.isatty() else "false"]
    of_job = ["--runtime-env-json", json.dumps({"env_vars": _terminal()})]
    code = subprocess.run(
        [*ray, *style, *of_job, "--", *command], env=environment(cluster), stdin=subprocess.DEVNULL, check=False
    ).returncode
    # The client returns 1 for every failure and 0 for a stopped job, and returns early if it loses the connection.
    info = ask(cluster, f"/api/jobs/{job}")
    while info and info["status"] not in JOB_ENDED:
        time.sleep(1)
        info = ask(cluster, f"/api/jobs/{job}")
    if info is None:
        return code or 1
    if info["status"] == "SUCCEEDED":
        return 0
    exit_code = info["driver_exit_code"] or 1
    return 128 - exit_code if exit_code < 0 else exit_code
