"""Who works on a run at the moment. A lease only saves work: with a wrong one two attempts train the same bytes.

A lease is fresh while its owner's clock and ours differ by at most `lease_seconds` from its last heartbeat, so a clock
that is wrong by more makes every lease stale (work is done twice) and never blocks a run. On the machine and in the
process namespace that wrote it a lease is stale at once when its process is gone.
"""

import contextlib
import os
import socket
import time

from gram_platform.store.files import CorruptFile, Folder

LONGEST_STEP_S = 3600.0  # an attempt that is silent for longer hangs, and its lease is left to expire
GONE_AFTER_S = 2 * LONGEST_STEP_S  # a lease of another machine that is this old: nobody works on the attempt any more


class LeaseHeld(RuntimeError):
    """Another attempt at the run is at work; `lease` says whose."""

    def __init__(self, run_id: str, lease: dict) -> None:
        super().__init__(f"run {run_id} is being trained by {lease['owner']} (pid {lease['pid']} on {lease['host']})")
        self.run_id, self.lease = run_id, lease

    def __reduce__(self):
        return LeaseHeld, (self.run_id, self.lease)  # an exception that cannot travel is a crash to Ray


def new_lease(owner: str, lease_seconds: float) -> dict:
    """The lease of this process, before its first step."""
    return {
        "owner": owner,
        "host": socket.gethostname(),
        "place": _place(),
        "pid": os.getpid(),
        "process_start": _process_start(os.getpid()),
        "lease_seconds": float(lease_seconds),
        "time": time.time(),
        "step": 0,
        "num_steps": 0,
        "tokens_per_second": 0.0,
        "released": False,
    }


def read_lease(attempt: Folder) -> dict | None:
    """The attempt's last heartbeat; an unreadable one counts as absent, since nothing depends on it."""
    try:
        return attempt.read_json("lease.json")
    except CorruptFile:
        return None


def is_fresh(lease: dict | None) -> bool:
    """Whether the lease's owner can be assumed at work."""
    if not lease or lease["released"] or process_is_gone(lease):
        return False
    return abs(time.time() - lease["time"]) <= lease["lease_seconds"]


def has_ended(lease: dict | None) -> bool:
    """Whether the lease's owner has certainly ended, so that what it left half-written can go."""
    if not lease:
        return False
    return lease["released"] or process_is_gone(lease) or time.time() - lease["time"] > GONE_AFTER_S


def process_is_gone(lease: dict) -> bool:
    """True only for a process of this machine that certainly ended; its pid may be in use again."""
    if lease["place"] != _place():
        return False
    try:
        os.kill(lease["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return _process_start(lease["pid"]) != lease["process_start"]


def _place() -> str:
    """The running kernel and process namespace, which together give a pid its meaning."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        parts.append(file.read().strip())
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _process_start(pid: int) -> int:
    """Clock ticks from boot to the start of a process (proc(5), stat, field 22); 0 for zombies and without /proc."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
        return 0 if fields[0] in "ZX" else int(fields[19])
    return 0
