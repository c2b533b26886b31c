"""Finds what this process may use of its machine: cores and ports."""

import contextlib
import math
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def free_port(*wanted: int) -> int:
    """Returns a port without a listener: a wanted one, or one that neither system nor Ray draws."""
    candidates = list(wanted)
    while True:
        port = candidates.pop(0) if candidates else random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port


def num_cpus() -> int:
    """Counts the cores that this process may use: its affinity, capped by its control groups."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, math.floor(min([cores, *_quotas()])))


def _quotas(
    proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> Iterator[float]:
    """Yields the quota in cores of every control group of this process, of version 1 and 2."""
    with contextlib.suppress(OSError):
        for line in proc.read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            group = PurePosixPath(path.lstrip("/"))
            # The last is the root, which a container sees as its own group.
            for folder in (group, *group.parents):
                yield from (
                    _quota(root / folder) if not controllers else _quota_v1(root / "cpu" / folder)
                )


def _quota(folder: Path) -> Iterator[float]:
    # The file says `max` where there is no quota.
    with contextlib.suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text(encoding="utf-8").split()
        yield int(quota) / int(period)


def _quota_v1(folder: Path) -> Iterator[float]:
    with contextlib.suppress(OSError, ValueError):
        quota, period = (
            int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period")
        )
        # The file says -1 where there is no quota.
        if quota > 0:
            yield quota / period


def safe_path(*folders: str) -> dict[str, str]:
    """Returns variables with which no Python that is started imports from the current folder.

    `folders` are on its path (default: those of this process's PYTHONPATH).
    """
    path = folders or os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(filter(None, path))}
