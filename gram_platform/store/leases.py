"""Manages leases, which name the process that is training a run or leading a search.

Leases only avoid duplicate work: two attempts at a run give the same result (bit for bit on CPUs).

A lease is fresh if its last heartbeat is at most `lease_seconds` before or after the current time.
A wrong clock therefore makes leases stale, which may duplicate work but never blocks a run. A lease
from this machine and pid namespace is also stale if its process is gone.
"""

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import TypedDict

from gram_platform.config.crash_safe import process_is_alive, process_start, this_place
from gram_platform.config.terminal import warn
from gram_platform.store.files import CorruptFile, Folder

LEASE = "lease.json"
HEARTBEAT_INTERVAL_S = 1.0
# Owners keep a lease at least this long, even in tests with shorter leases.
SHORTEST_LEASE_S = 10.0
RENEWALS_A_LEASE = 3
# An attempt whose step takes longer has stalled, and its lease is no longer renewed.
LONGEST_STEP_S = 3600.0
# A stored lease with a longer duration is damaged, and counts as absent.
LONGEST_LEASE_S = 3600.0
GONE_AFTER_S = 2 * LONGEST_STEP_S


class LeaseFields(TypedDict):
    owner: str
    host: str
    place: str
    pid: int
    process_start: int
    lease_seconds: float
    time: float
    step: int
    num_steps: int
    tokens_per_second: float
    released: bool


class LeaseHeld(RuntimeError):
    """Raised if another process is training the run. `lease` is that process's lease."""

    def __init__(self, run_id: str, lease: dict) -> None:
        # Pickling, as between Ray's processes, needs both arguments.
        super().__init__(run_id, lease)
        self.run_id, self.lease = run_id, lease

    @property
    def owner(self) -> str:
        return "{owner} (pid {pid} on {host})".format(**self.lease)

    def __str__(self) -> str:
        return f"run {self.run_id} is being trained by {self.owner}"


class LeaseLost(LeaseHeld):
    """Raised if the attempt's lease has expired. Another attempt may continue the run."""

    def __str__(self) -> str:
        late = f"could not renew its lease of {self.lease['lease_seconds']:.0f} s in time"
        return f"run {self.run_id}: {self.owner} {late}, so others may continue it"


class Lease:
    """This process's lease on a folder, written immediately and renewed until `release`.

    A thread renews the lease while `is_working()` is true, and writes each `report` within
    `interval_s`. Raises OSError if the first write fails. If a later write fails and `warning` is
    not "", warns once with a message that begins with `warning`.

    A lease is `contested` if other processes write the same file. An expired contested lease can be
    renewed, because the file shows whether another process has taken it. Any other lease stays
    expired, because a new attempt may have written its own lease in another folder.
    """

    def __init__(
        self,
        folder: Folder,
        owner: str,
        lease_seconds: float,
        is_working: Callable[[], bool] = lambda: True,
        interval_s: float = HEARTBEAT_INTERVAL_S,
        warning: str = "",
        contested: bool = False,
    ) -> None:
        self.fields = new_lease(owner, lease_seconds)
        self._folder, self._is_working, self._interval_s = folder, is_working, interval_s
        self._warning, self._contested = warning, contested
        self._unwritten: dict = {}
        self._renewed = _boot_time()
        self._writing, self._released = threading.Lock(), threading.Event()
        self._folder.write_json(LEASE, self.fields, durable=False)
        threading.Thread(target=self._renew, name="lease", daemon=True).start()

    def report(self, progress: dict[str, float]) -> None:
        """Sets progress fields, such as `step`, for the next heartbeat to write."""
        self._unwritten = progress

    def is_overdue(self) -> bool:
        """Returns True if the lease has expired."""
        return _boot_time() - self._renewed > max(self.fields["lease_seconds"], SHORTEST_LEASE_S)

    def is_lost(self) -> bool:
        lease = read_lease(self._folder)
        return lease is not None and any(
            lease[key] != self.fields[key] for key in ("place", "pid", "process_start")
        )

    def release(self) -> None:
        if not self._released.is_set():
            self._released.set()
            self.fields["released"] = True
            self._write()

    def _renew(self) -> None:
        renewal_s = max(self.fields["lease_seconds"], self._interval_s) / RENEWALS_A_LEASE
        written = time.monotonic()
        while not self._released.wait(min(self._interval_s, renewal_s)):
            if self.is_overdue() and not self._contested:
                return
            now = time.monotonic()
            if not (self._unwritten or self._is_working()):
                # The stored lease may expire, but the owner has not lost it and may continue.
                self._renewed = _boot_time()
            elif self._unwritten or now - written >= renewal_s:
                self._write()
                written = now

    def _write(self) -> None:
        try:
            with self._writing:
                if self._contested and self.is_lost():
                    return
                progress, self._unwritten = self._unwritten, {}
                started = _boot_time()
                self.fields |= {**progress, "time": time.time()}
                self._folder.write_json(LEASE, self.fields, durable=False)
                self._renewed = started
        except OSError as error:
            with self._writing:
                # `release` and the thread may both fail.
                warning, self._warning = self._warning, ""
            if warning:
                warn(f"{warning}: {error}", stacklevel=2)


def new_lease(owner: str, lease_seconds: float) -> dict:
    return {
        "owner": owner,
        "host": socket.gethostname(),
        "place": this_place(),
        "pid": os.getpid(),
        "process_start": process_start(os.getpid()),
        "lease_seconds": float(lease_seconds),
        "time": time.time(),
        "step": 0,
        "num_steps": 0,
        "tokens_per_second": 0.0,
        "released": False,
    }


def read_lease(folder: Folder) -> dict | None:
    """Reads a folder's lease. Returns None if it is missing or damaged."""
    try:
        lease = folder.read_json(LEASE, LeaseFields)
    except CorruptFile:
        return None
    is_possible = lease and 0 < lease["pid"] < 2**31 and lease["lease_seconds"] <= LONGEST_LEASE_S
    return lease if is_possible else None


def is_fresh(lease: dict | None) -> bool:
    """Returns True if the lease's owner is presumed to be still working."""
    if not lease or lease["released"] or _process_is_gone(lease):
        return False
    return abs(time.time() - lease["time"]) <= lease["lease_seconds"]


def has_ended(lease: dict | None) -> bool:
    """Returns True if the lease's owner has ended and its half-written files can be removed.

    The answer is certain for a released lease, and for a process in this pid namespace. Any other
    process is presumed to have ended if its last heartbeat is older than GONE_AFTER_S.
    """
    if not lease:
        return False
    if lease["released"] or lease["place"] == this_place():
        return lease["released"] or _process_is_gone(lease)
    return time.time() - lease["time"] > GONE_AFTER_S


def _boot_time() -> float:
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def _process_is_gone(lease: dict) -> bool:
    return lease["place"] == this_place() and not process_is_alive(
        lease["pid"], lease["process_start"]
    )
