"""One driver for each search, and what it is told from outside: pause, resume, cancel. Limits on hours and cost."""

import time
from collections.abc import Callable, Mapping

from gram_platform.config.identity import invalid, require_choice
from gram_platform.engine.execution import owner
from gram_platform.engine.trials import CANCEL, GO, STOP, WAIT
from gram_platform.store.files import CorruptFile, Folder
from gram_platform.store.leases import Lease, is_fresh, read_lease

RUNNING, PAUSED, CANCELLED = "running", "paused", "cancelled"
STATES = (RUNNING, PAUSED, CANCELLED)
LOST = "lost"  # no order: another driver leads the search
DECISIONS = {RUNNING: GO, PAUSED: WAIT, CANCELLED: CANCEL, LOST: CANCEL}
LEASE_S = 30.0
LOOK_EVERY_S = 1.0


class Driver:
    """The right to lead a search, for as long as the block lasts; ValueError while another driver has it.

    The right of a driver whose machine is gone ends after `LEASE_S`, which is waited for; that of a process of this
    machine ends with the process. One that was suspended for as long may find that another driver leads: it is `lost`.
    """

    def __init__(self, folder: Folder, name: str):
        self.folder, self.name = folder, name

    def __enter__(self) -> "Driver":
        deadline = time.monotonic() + LEASE_S + 1.0
        while not self._take():
            if time.monotonic() > deadline:
                who = (read_lease(self.folder) or {}).get("owner")
                raise invalid("search", self.name, f"one driver at a time: {who} leads it (`gram search` can stop it)")
            time.sleep(LOOK_EVERY_S)
        return self

    def __exit__(self, *_) -> None:
        self._lease.release()

    def is_lost(self) -> bool:
        """Whether another driver has taken the right."""
        return self._lease.is_lost()

    def _take(self) -> bool:
        with self.folder.lock("driver"):
            if is_fresh(read_lease(self.folder)):
                return False
            self._lease = Lease(self.folder, owner(), LEASE_S, contested=True)
        return True


def order(folder: Folder, state: str) -> None:
    """Tell a search's driver to go on, to start no more trials for now, or to end."""
    require_choice("order", state, STATES)
    folder.write_json("control.json", {"state": state})


def ordered(folder: Folder) -> str:
    """What a search's driver was told last; running where nothing or nonsense stands."""
    try:
        state = (folder.read_json("control.json") or {}).get("state")
    except CorruptFile:
        return RUNNING
    return state if state in STATES else RUNNING


def machine_hours(timing: Mapping) -> float:
    """Of a node that has ended, all its ranks together."""
    return timing.get("elapsed_s", 0.0) * timing.get("num_ranks", 1) / 3600


class Control:
    """What the driver asks before each trial: orders from outside, then limits."""

    def __init__(
        self,
        folder: Folder,
        spent_hours: Callable[[], float],
        max_hours: float,
        max_cost: float,
        dollars_per_hour: float,
    ):
        self.folder, self.spent_hours = folder, spent_hours
        self.max_hours, self.max_cost, self.dollars_per_hour = max_hours, max_cost, dollars_per_hour
        self.is_lost: Callable[[], bool] = lambda: False  # its driver's
        self.state = RUNNING
        self._next_look = 0.0

    def resume(self) -> str:
        """Takes back what an earlier driver was told; returns that."""
        was = ordered(self.folder)
        order(self.folder, RUNNING)
        return was

    def may_go_on(self) -> bool:
        """Whether more trials may start; asks again for as long as the search is paused."""
        while (decision := self.decide()) == WAIT:
            time.sleep(LOOK_EVERY_S)
        return decision == GO

    def decide(self) -> str:
        """go, wait, stop or cancel; the files are looked at about once a second."""
        if self.state != LOST and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + LOOK_EVERY_S
            self.state = LOST if self.is_lost() else ordered(self.folder)
        decision = DECISIONS[self.state]
        return STOP if decision == GO and self.limit_reached() else decision

    def limit_reached(self) -> str:
        """Which limit ends the search, in words; "" while none does."""
        hours = self.spent_hours()
        if self.max_hours and hours >= self.max_hours:
            return f"{hours:.2f} machine hours are used, max_hours is {self.max_hours:g}"
        if self.max_cost and hours * self.dollars_per_hour >= self.max_cost:
            return f"${hours * self.dollars_per_hour:.2f} are used, max_cost is {self.max_cost:g}"
        return ""
