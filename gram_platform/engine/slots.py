"""Manages slots, the processes that execute single-rank nodes.

A slot is a Ray actor with the CPU threads of one rank and, if there are GPUs, one GPU or a share of
one. It executes one task after another and keeps its GPU until it exits, so that it initialises
CUDA only once.

A slot waits indefinitely for a machine, so that an autoscaler can start one. Before its
first task, a slot probes its device. It ends after `IDLE_S` without work, so that its machine can
be released. It also ends after an unexpected error, because its process may be unusable.
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

# How long a slot without work is kept, because the next node is often ready soon.
IDLE_S = 10.0
MAX_FAILED_STARTS = 4
MOST_S_TO_NEXT_START = 60.0
LAST_STARTS_S = 60.0
# Errors of a task after which its process is still usable.
FORESEEN = (LeaseHeld, TrainingDiverged, ValueError)


def task_name(task: Task) -> str:
    return task[0].name if len(task) == 1 else f"{task[0].name} and {len(task) - 1} more profiles"


@ray.remote(max_restarts=0, max_task_retries=0)
class Slot:
    def probe(self, execution: Execution) -> ProbeReport:
        return probe_here(execution)

    def execute(self, task: Task, execution: Execution, resources: Resources) -> list[str]:
        """Executes a task; returns its warnings. Raises DeviceError if the device failed."""
        with probe_after_error(execution.device):
            try:
                return execute_task(task, execution, resources)
            finally:
                # Returns the memory, because another process may share the GPU.
                if execution.device == "cuda":
                    torch.cuda.empty_cache()


class SlotPool:
    """Starts and stops the slots of one driver, and assigns tasks to them."""

    def __init__(self, execution: Execution, cordon: Cordon):
        self.execution, self.cordon = execution, cordon
        self.starting: dict[ray.ObjectRef, ActorHandle] = {}
        # The monotonic time at which each idle slot became idle.
        self.idle: dict[ActorHandle, float] = {}
        self.busy: dict[ray.ObjectRef, ActorHandle] = {}
        self.probes: dict[ActorHandle, ProbeReport] = {}
        self._requested: dict[ActorHandle, Resources] = {}
        self._reserved_machine = ""
        self._failed_starts = 0
        self._next_start = 0.0

    def request(self, number: int, reserved: str = "") -> None:
        """Starts or stops slots, so that `number` slots are idle or starting.

        Surplus slots stop at once if they have not started, otherwise after `IDLE_S` without work.
        After a failed start, no slot starts for 1 s, then for 2 s, 4 s and so on. `reserved` is the
        id of a machine that is being freed for a multi-rank run, or "". The machine's slots stop
        after their tasks. While a machine is reserved, no slot starts on any machine.
        """
        now = time.monotonic()
        self._reserved_machine = reserved
        if reserved:
            for slot in [s for s in self.idle if self.probes[s].machine == reserved]:
                self._end_idle(slot)
        # Outdated requests may wait for a machine that is cordoned now.
        if not self.may_come:
            for reference in self._list_outdated():
                self._end(self.starting.pop(reference))
        missing = number - len(self.idle) - len(self.starting)
        if not reserved and now >= self._next_start:
            for _ in range(missing):
                slot = Slot.options(**self.cordon.resources.of_slot).remote()
                self._requested[slot] = self.cordon.resources
                self.starting[slot.probe.remote(self.execution)] = slot
        surplus = len(self.starting) if reserved else len(self.idle) + len(self.starting) - number
        for reference in list(self.starting)[::-1][: max(0, surplus)]:
            self._end(self.starting.pop(reference))
        surplus = len(self.idle) - number
        overdue = [slot for slot, since in self.idle.items() if now - since >= IDLE_S]
        for slot in overdue[: max(0, surplus)]:
            self._end_idle(slot)

    def machines_in_use(self) -> dict[str, int]:
        """Returns the number of busy slots on each machine with slots, by machine id."""
        counts = {probe.machine: 0 for probe in self.probes.values()}
        for slot in self.busy.values():
            counts[self.probes[slot].machine] += 1
        return counts

    @property
    def may_come(self) -> bool:
        """Returns True if slots requested before a machine was last cordoned may still start.

        Such slots may start for `LAST_STARTS_S`, even on the cordoned machine, because another GPU
        of this machine may work.
        """
        return (
            bool(self._list_outdated()) and time.monotonic() - self.cordon.changed < LAST_STARTS_S
        )

    def _list_outdated(self) -> list[ray.ObjectRef]:
        current = self.cordon.resources.cordoned
        return [
            reference
            for reference, slot in self.starting.items()
            if self._requested[slot].cordoned != current
        ]

    def _end_idle(self, slot: ActorHandle) -> None:
        del self.idle[slot]
        self._end(slot)

    def note_start(self, reference: ray.ObjectRef) -> None:
        """Records that a slot has started; cordons its machine if the device does not work.

        Raises Ray's error after `MAX_FAILED_STARTS` failed starts in a row. Slots that fail at the
        same time, for example on a lost machine, are counted as one failed start.
        """
        slot = self.starting.pop(reference)
        try:
            probe = ray.get(reference)
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
        if not self.cordon.note(probe):
            self._end(slot)
            return
        del self._requested[slot]
        self.probes[slot] = probe
        self.idle[slot] = time.monotonic()

    def submit(
        self, task: Task, placement: Placement = ON_ONE_RANK, avoided: ProbeReport | None = None
    ) -> ray.ObjectRef | None:
        """Submits a task to an idle slot; returns a Ray reference to the task's warnings.

        Returns None if no suitable slot is idle. `avoided` is the probe of a device on which the
        task ran out of memory. Slots on this device are used only if no slot is on another device.
        """
        # The slot used last gets the task, so that the others can end.
        slot = next((s for s in reversed(self.idle) if self.probes[s] != avoided), None)
        if slot is None and all(probe == avoided for probe in self.probes.values()):
            slot = next(reversed(self.idle), None)
        if slot is None:
            return None
        del self.idle[slot]
        execute = slot.execute.options(name=task_name(task))
        execution = self.execution.with_placement(placement)
        reference = execute.remote(task, execution, self.cordon.resources)
        self.busy[reference] = slot
        return reference

    def release(self, reference: ray.ObjectRef) -> ProbeReport | None:
        """Releases the slot of an ended task; returns the slot's probe.

        Stops the slot if it crashed, if the task's error was unexpected, or if its machine is
        reserved. Returns None for a multi-rank run, which has no slot.
        """
        slot = self.busy.pop(reference, None)
        if slot is None:
            return None
        probe = self.probes[slot]
        if _has_survived(reference) and probe.machine != self._reserved_machine:
            self.idle[slot] = time.monotonic()
        else:
            self._end(slot)
        return probe

    def kill(self, reference: ray.ObjectRef) -> None:
        ray.kill(self.busy[reference])

    def close(self) -> None:
        for slot in [*self.idle, *self.starting.values()]:
            self._end(slot)
        self.idle.clear()
        self.starting.clear()

    def _end(self, slot: ActorHandle) -> None:
        self.probes.pop(slot, None)
        self._requested.pop(slot, None)
        ray.kill(slot)


def _has_survived(reference: ray.ObjectRef) -> bool:
    try:
        ray.get(reference)
    except RayTaskError as error:
        return isinstance(error.cause, FORESEEN)
    except RayError:
        return False
    return True
