"""Gives each search one driver at a time, which obeys the orders of `gram search` and limits on hours and cost."""

import time
from collections.abc import Callable

from gram_platform.config.identity import invalid, require_choice
from gram_platform.config.terminal import one_line
from gram_platform.engine.execution import owner
from gram_platform.engine.trials import CANCEL, GO, STOP, WAIT
from gram_platform.planner import Budget
from gram_platform.store import Store
from gram_platform.store.files import CorruptFile, Folder
from gram_platform.store.leases import Lease, is_fresh, read_lease

# orders to a search's driver, by the action of `gram search` that gives each
RUNNING, PAUSED, CANCELLED = "running", "paused", "cancelled"
ORDERS = {"pause": PAUSED, "resume": RUNNING, "cancel": CANCELLED}
LOST = "lost"  # no order: another driver leads the search
DECISIONS = {RUNNING: GO, PAUSED: WAIT, CANCELLED: CANCEL, LOST: CANCEL}
DRIVER_LEASE_S = 30.0
LOOK_EVERY_S = 1.0


class DriverLease:
    """Holds the lease of a search for the length of a block; ValueError while another driver holds it.

    A new driver waits until the old lease expires: after `DRIVER_LEASE_S`, or at once if its process on this machine is
    gone. A driver that was suspended for longer may have lost its lease to another.
    """

    def __init__(self, folder: Folder, name: str):
        self.folder, self.name = folder, name

    def __enter__(self) -> "DriverLease":
        deadline = time.monotonic() + DRIVER_LEASE_S + 1.0
        while not self._take():
            if time.monotonic() > deadline:
                who = (read_lease(self.folder) or {}).get("owner")
                raise invalid("search", self.name, f"one driver at a time: {who} leads it (`gram search` can stop it)")
            time.sleep(LOOK_EVERY_S)
        return self

    def __exit__(self, *_) -> None:
        self._lease.release()

    def is_lost(self) -> bool:
        """Tells whether another driver has taken the lease."""
        return self._lease.is_lost()

    def _take(self) -> bool:
        with self.folder.lock("driver"):
            if is_fresh(read_lease(self.folder)):
                return False
            self._lease = Lease(self.folder, owner(), DRIVER_LEASE_S, contested=True)
        return True


def order(folder: Folder, state: str) -> None:
    """Orders a search's driver to go on, to start no more trials for now, or to end."""
    require_choice("order", state, tuple(ORDERS.values()))
    folder.write_json("control.json", {"state": state})


def last_order(folder: Folder) -> str:
    """Returns the last order to a search's driver; running if there is none, or none that can be read."""
    try:
        state = (folder.read_json("control.json") or {}).get("state")
    except CorruptFile:
        return RUNNING
    return state if state in ORDERS.values() else RUNNING


class Control:
    """Decides before each trial whether the driver goes on: by orders from outside, then by limits."""

    def __init__(
        self,
        folder: Folder,
        spent_hours: Callable[[], float],
        budget: Budget,
        is_lost: Callable[[], bool] = lambda: False,
    ):
        self.folder, self.spent_hours, self.budget, self.is_lost = folder, spent_hours, budget, is_lost
        self.state = RUNNING
        self._next_look = 0.0

    def resume(self) -> str:
        """Withdraws the last order to an earlier driver; returns it."""
        was = last_order(self.folder)
        order(self.folder, RUNNING)
        return was

    def may_go_on(self) -> bool:
        """Tells whether more trials may start; waits while the search is paused."""
        while (decision := self.decide()) == WAIT:
            time.sleep(LOOK_EVERY_S)
        return decision == GO

    def decide(self) -> str:
        """Returns GO, WAIT, STOP or CANCEL; reads the files about once a second."""
        if self.state != LOST and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + LOOK_EVERY_S
            self.state = LOST if self.is_lost() else last_order(self.folder)
        decision = DECISIONS[self.state]
        return STOP if decision == GO and self.limit_reached() else decision

    def limit_reached(self) -> str:
        """Returns the limit that ends the search, in words; "" while none does."""
        return self.budget.reached(self.spent_hours())


# --------------------------------------------------------------------------------------------------------- gram search


ACTIONS = ("list", *ORDERS)


def search_lines(store: Store) -> list[str]:
    """Returns one line for each search: id, name, preset, and the state of its driver."""
    lines = []
    for search_id in store.list_searches():
        folder = store.search_dir(search_id)
        facts, lease = folder.read_spare("search.json"), read_lease(folder)
        state = f"{last_order(folder)}, led by {lease['owner']}" if is_fresh(lease) else "no driver"
        lines.append(one_line(f"{search_id}  {facts.get('name', '?')!s:16} {facts.get('preset', '?')!s:8} {state}"))
    return lines


def give_order(store: Store, action: str, search: str) -> str:
    """Orders the driver of a search, by id or name, to pause, resume or cancel; returns the search's id.

    ValueError for another action, an unknown or ambiguous search, or one without a driver.
    """
    require_choice("action", action, tuple(ORDERS))
    names = {i: store.search_dir(i).read_spare("search.json").get("name") for i in store.list_searches()}
    found = [i for i, name in names.items() if search in (i, name)]
    led = [i for i in found if is_fresh(read_lease(store.search_dir(i)))]
    if len(led) != 1:
        known = ", ".join(f"{i} ({name})" for i, name in names.items() if i in led or not led) or "none"
        raise invalid("search", search, f"one search that a driver leads, by id or name; there are: {known}")
    order(store.search_dir(led[0]), ORDERS[action])
    return led[0]
