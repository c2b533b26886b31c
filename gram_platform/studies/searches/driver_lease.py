"""Limits each search to one driver at a time, and lists a storage's searches."""

import time
from collections.abc import Iterator

from gram_platform.config.endings import Stopped
from gram_platform.config.identity import invalid
from gram_platform.config.terminal import one_line
from gram_platform.engine.execution import owner
from gram_platform.store import Folder, Store
from gram_platform.store.leases import Lease, is_fresh, read_lease

DRIVER_LEASE_S = 30.0
LOOK_EVERY_S = 1.0


class DriverLease:
    """Context manager that holds a search's lease. Raises ValueError if another driver holds it.

    A lease expires after `DRIVER_LEASE_S` without renewal, or at once if its driver ran on this
    machine and has exited.
    """

    def __init__(self, folder: Folder, name: str):
        self.folder, self.name = folder, name
        self._next_look = 0.0

    def __enter__(self) -> "DriverLease":
        deadline = time.monotonic() + DRIVER_LEASE_S + 1.0
        while not self._take():
            if time.monotonic() > deadline:
                who = (read_lease(self.folder) or {}).get("owner")
                raise invalid("search", self.name, f"one driver at a time: {who} leads it")
            time.sleep(LOOK_EVERY_S)
        return self

    def __exit__(self, *_) -> None:
        self._lease.release()

    def require(self) -> None:
        """Raises Stopped if another driver took the lease. Checks at most once a second."""
        if time.monotonic() < self._next_look:
            return
        if self._lease.is_lost():
            raise Stopped("another driver leads this search since this one was suspended")
        self._next_look = time.monotonic() + LOOK_EVERY_S

    def _take(self) -> bool:
        with self.folder.lock("driver"):
            if is_fresh(read_lease(self.folder)):
                return False
            self._lease = Lease(self.folder, owner(), DRIVER_LEASE_S, contested=True)
        return True


def search_lines(store: Store) -> Iterator[str]:
    for search_id in store.list_searches():
        folder = store.search_dir(search_id)
        facts, lease = folder.read_spare("search.json"), read_lease(folder)
        name, preset = facts.get("name", "?"), facts.get("preset", "?")
        driver = f"led by {lease['owner']}" if is_fresh(lease) else "no driver"
        yield one_line(f"{search_id}  {name!s:16} {preset!s:8} {driver}")
