"""Finds the cores and ports that this process can use, and creates a folder for Ray.

If a driver is killed, two of its Ray processes run on for a minute, and Ray's files remain. So a
second process waits for the driver's exit, then kills Ray's remaining workers and removes the
folder. The second process executes this file, which therefore imports only the standard library.
"""

import contextlib
import math
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

KEEP = b"keep\n"
# The beginning of the command lines of Ray's worker processes.
TITLE = b"ray::"
# After this time the folder is removed even if some of its files are open.
CLEARING_S = 10.0


def free_port(*wanted: int) -> int:
    """Returns the first free port of `wanted`, otherwise a random free port.

    Random ports are outside the ranges from which the system and Ray choose.
    """
    candidates = list(wanted)
    while True:
        port = candidates.pop(0) if candidates else random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port


def num_cpus() -> int:
    """Returns how many cores CPU affinity and control groups allow this process to use."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, math.floor(min([cores, *_quotas()])))


def _quotas(
    proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> Iterator[float]:
    """Yields the CPU quotas of this process, in cores, from control groups version 1 and 2."""
    with contextlib.suppress(OSError):
        for line in proc.read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            group = PurePosixPath(path.lstrip("/"))
            # The last folder is the root, which a container sees as its own group.
            for folder in (group, *group.parents):
                place = root / "cpu" / folder if controllers else root / folder
                names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
                with contextlib.suppress(OSError, ValueError):
                    words = " ".join((place / name).read_text(encoding="utf-8") for name in names)
                    quota, period = map(int, words.split())
                    # Without a quota, version 1 has -1, and version 2 `max`.
                    if quota > 0:
                        yield quota / period


def safe_path(*folders: str) -> dict[str, str]:
    """Returns environment variables that prevent Python from importing from the current folder.

    PYTHONPATH is set to `folders`, by default to the folders in this process's PYTHONPATH.
    """
    path = folders or os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(filter(None, path))}


class OwnFolder:
    """A new folder that only this user can enter, removed when this process exits.

    `path` is a folder inside the new one. Ray makes `path` accessible to all users, but other
    users cannot enter the outer folder.
    """

    def __init__(self, place: Path) -> None:
        outer = Path(tempfile.mkdtemp(prefix="ray-", dir=place))
        self.path = outer / "r"
        self._remover = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, outer],
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Otherwise Ctrl-C in the terminal would end the remover too.
            start_new_session=True,
        )

    def keep(self) -> None:
        self._remover.communicate(KEEP)

    def remove(self) -> None:
        self._remover.communicate()


def remove_at_end(folder: Path) -> None:
    """Waits until standard input closes, then kills Ray's last workers and removes the folder.

    If the input's first line is KEEP, does neither.
    """
    if sys.stdin.buffer.readline() == KEEP:
        return
    deadline = time.monotonic() + CLEARING_S
    while time.monotonic() < deadline and (users := set(users_of(folder)) - {os.getppid()}):
        for process in users:
            with contextlib.suppress(OSError):
                if Path(f"/proc/{process}/cmdline").read_bytes().startswith(TITLE):
                    os.kill(process, signal.SIGKILL)
        time.sleep(0.1)
    shutil.rmtree(folder, ignore_errors=True)


def users_of(folder: Path) -> Iterator[int]:
    """Yields the ids of visible processes that have a file in the folder open."""
    for process in Path("/proc").glob("[0-9]*"):
        # Other users' processes are not visible, and some exit meanwhile.
        with contextlib.suppress(OSError):
            for file in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.readlink(file).startswith(f"{folder}/"):
                        yield int(process.name)
                        break


if __name__ == "__main__":
    remove_at_end(Path(sys.argv[1]))
