"""Keeps the processes that execute nodes of one rank.

A slot is a Ray actor with the threads of a rank, or a GPU or a share of one. It executes one task
after another and holds its GPU as long as it lives. So two runs never share a GPU while another one
is idle, and CUDA starts once. Slots wait for a machine without a time limit, and are the demand
that an autoscaler sees. A slot without work ends after `IDLE_S`, so that its machine can be
released. A slot probes its device before its first task, and ends after an unforeseen error,
because its process may be of no use.
"""

import time

import ray
import torch
from ray.actor import ActorHandle
from ray.exceptions import RayError, RayTaskError

from gram_platform.engine.capacity import Cordon
from gram_platform.engine.devices import ProbeReport, probe_after_error, probe_here
from gram_platform.engine.evaluation import Task
from gram_platform.engine.execution import ON_ONE_RANK, Execution, Placement, Resources
from gram_platform.engine.executor import execute_task
from gram_platform.store import LeaseHeld
from gram_platform.train.loop import TrainingDiverged

# A slot without work is kept so long, because the next node is often ready in a moment.
IDLE_S = 10.0
MAX_FAILED_STARTS = 4
MOST_S_TO_NEXT_START = 60.0
# Seconds in which a process may start on a machine that was chosen before it was cordoned.
LAST_STARTS_S = 60.0
# Errors of a task that say nothing about its process.
FORESEEN = (LeaseHeld, TrainingDiverged, ValueError)


def task_name(task: Task) -> str:
    return task[0].name if len(task) == 1 else f"{task[0].name} and {len(task) - 1} more profiles"


@ray.remote(max_restarts=0, max_task_retries=0)
class Slot:
    """The process of one slot."""

    def probe(self, execution: Execution) -> ProbeReport:
        """Names the machine and probes the device. This is the first call."""
        return probe_here(execution)

    def execute(self, task: Task, execution: Execution, resources: Resources) -> list[str]:
        """Executes a task; returns the warnings. DeviceError if the device failed."""
        with probe_after_error(execution.device):
            try:
                return execute_task(task, execution, resources)
            finally:
                # Another process may share the GPU.
                if execution.device == "cuda":
                    torch.cuda.empty_cache()


class SlotPool:
    """Starts, fills and ends the slots of one driver."""

    def __init__(self, execution: Execution, cordon: Cordon):
        self.execution, self.cordon = execution, cordon
        self.starting: dict[ray.ObjectRef, ActorHandle] = {}
        # Since when each slot is idle, by the monotonic clock.
        self.idle: dict[ActorHandle, float] = {}
        self.busy: dict[ray.ObjectRef, ActorHandle] = {}
        self.places: dict[ActorHandle, ProbeReport] = {}
        # The resources requested for starting slots.
        self._asked: dict[ActorHandle, Resources] = {}
        self._reserved_machine = ""
        self._failed_starts = 0
        # When the next slot may start, by the monotonic clock.
        self._next_start = 0.0

    def request(self, number: int, reserved: str = "") -> None:
        """Sets how many slots should be free: starts missing ones, and ends surplus ones.

        Idle ones end later. `reserved`: a machine kept free for a run of several ranks. Its slots
        end without another task, and no slot starts anywhere. After a failed start none starts for
        1, 2, 4 s and so on.
        """
        now = time.monotonic()
        self._reserved_machine = reserved
        if reserved:
            for slot in [each for each in self.idle if self.places[each].machine == reserved]:
                self._end_idle(slot)
        # They may wait for the machine that is cordoned now.
        if not self.may_come:
            for reference in self._list_outdated():
                self._end(self.starting.pop(reference))
        missing = number - len(self.idle) - len(self.starting)
        for _ in range(0 if reserved or now < self._next_start else missing):
            slot = Slot.options(**self.cordon.resources.of_slot).remote()
            self._asked[slot] = self.cordon.resources
            self.starting[slot.probe.remote(self.execution)] = slot
        surplus = len(self.starting) if reserved else len(self.idle) + len(self.starting) - number
        for reference in list(self.starting)[::-1][: max(0, surplus)]:
            self._end(self.starting.pop(reference))
        surplus = len(self.idle) - number
        overdue = [slot for slot, since in self.idle.items() if now - since >= IDLE_S]
        for slot in overdue[: max(0, surplus)]:
            self._end_idle(slot)

    def machines_in_use(self) -> dict[str, int]:
        counts = {place.machine: 0 for place in self.places.values()}
        for slot in self.busy.values():
            counts[self.places[slot].machine] += 1
        return counts

    @property
    def may_come(self) -> bool:
        """Whether slots may yet start on a machine that has just been cordoned.

        Perhaps only one of its GPUs is broken.
        """
        return (
            bool(self._list_outdated()) and time.monotonic() - self.cordon.changed < LAST_STARTS_S
        )

    def _list_outdated(self) -> list[ray.ObjectRef]:
        current = self.cordon.resources.cordoned
        return [
            reference
            for reference, slot in self.starting.items()
            if self._asked[slot].cordoned != current
        ]

    def _end_idle(self, slot: ActorHandle) -> None:
        del self.idle[slot]
        self._end(slot)

    def note_start(self, reference: ray.ObjectRef) -> None:
        """Notes that a slot is ready, or cordons its machine if its device does not work.

        Raises Ray's error once `MAX_FAILED_STARTS` in a row failed. Slots that fail together, as on
        a lost machine, count as one.
        """
        slot = self.starting.pop(reference)
        try:
            place = ray.get(reference)
        except RayError:
            self._end(slot)
            now = time.monotonic()
            if now >= self._next_start:
                self._next_start = now + min(2**self._failed_starts, MOST_S_TO_NEXT_START)
                self._failed_starts += 1
            if self._failed_starts >= MAX_FAILED_STARTS:
                raise
            return
        self._failed_starts = 0
        if not self.cordon.note(place):
            self._end(slot)
            return
        del self._asked[slot]
        self.places[slot] = place
        self.idle[slot] = time.monotonic()

    def submit(
        self, task: Task, placement: Placement = ON_ONE_RANK, avoided: ProbeReport | None = None
    ) -> ray.ObjectRef | None:
        """Gives a task to an idle slot; returns the reference to its warnings, None without a slot.

        `avoided`: a place that the task only gets if there is no other.
        """
        # The slot used last: the others may end.
        slot = next((each for each in reversed(self.idle) if self.places[each] != avoided), None)
        if slot is None and all(place == avoided for place in self.places.values()):
            slot = next(reversed(self.idle), None)
        if slot is None:
            return None
        del self.idle[slot]
        named = slot.execute.options(name=task_name(task))
        reference = named.remote(
            task, self.execution.with_placement(placement), self.cordon.resources
        )
        self.busy[reference] = slot
        return reference

    def release(self, reference: ray.ObjectRef) -> ProbeReport | None:
        """Notes that a task has ended; returns its place, None for a gang's.

        Its slot is idle, or ends if it crashed, failed in an unforeseen way, or shall make room.
        """
        slot = self.busy.pop(reference, None)
        if slot is None:
            return None
        place = self.places[slot]
        if _has_survived(reference) and place.machine != self._reserved_machine:
            self.idle[slot] = time.monotonic()
        else:
            self._end(slot)
        return place

    def kill(self, reference: ray.ObjectRef) -> None:
        """Kills a task's slot, which counts as a crash."""
        ray.kill(self.busy[reference])

    def close(self) -> None:
        for slot in [*self.idle, *self.starting.values()]:
            self._end(slot)
        self.idle.clear()
        self.starting.clear()

    def _end(self, slot: ActorHandle) -> None:
        self.places.pop(slot, None)
        self._asked.pop(slot, None)
        ray.kill(slot)


def _has_survived(reference: ray.ObjectRef) -> bool:
    try:
        ray.get(reference)
    except RayTaskError as error:
        return isinstance(error.cause, FORESEEN)
    except RayError:
        return False
    return True
