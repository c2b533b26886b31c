"""Executes nodes on Ray, as many at the same time as the cluster can hold.

A node starts after the nodes that it needs. If a node's process crashes, the node restarts from its
last checkpoint. A failed node blocks only its dependants. Slots execute single-rank nodes.
Ray Train workers execute multi-rank runs.
"""

import time
from collections.abc import Collection, Mapping, Sequence

import ray
from ray.exceptions import LocalRayletDiedError, OutOfMemoryError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gram_platform.config.endings import SUBMIT_AGAIN
from gram_platform.config.terminal import one_line
from gram_platform.engine.capacity import Admission, Cordon
from gram_platform.engine.cluster import CLUSTER_LOST, ClusterLost, require_ray
from gram_platform.engine.devices import DeviceError, ProbeReport
from gram_platform.engine.evaluation import Task
from gram_platform.engine.execution import ALL_ON_ONE_RANK, Execution, Placement
from gram_platform.engine.executor import Executor, execute_task
from gram_platform.engine.life import (
    AGAIN,
    CRASHED,
    ELSEWHERE,
    FAILED,
    HELD,
    CrashPolicy,
    failure_message,
    kind_of,
)
from gram_platform.engine.process import memory_advice
from gram_platform.engine.slots import MAX_FAILED_STARTS, SlotPool, task_name
from gram_platform.methods.nodes import Node

NOTICE_RAY_S = 0.1


class RayExecutor(Executor):
    """Executes nodes on an initialised Ray cluster, except on cordoned machines.

    Raises ClusterLost if Ray dies, or if no machine has a working device.
    """

    def __init__(
        self,
        execution: Execution,
        cordon: Cordon,
        placements: Mapping[str, Placement] = ALL_ON_ONE_RANK,
        retry_diverged: bool = False,
        done: Collection[str] = (),
        poll_s: float = 1.0,
    ):
        super().__init__(execution, placements, retry_diverged, done)
        self.cordon, self.poll_s = cordon, poll_s
        self.policy = CrashPolicy(cordon)
        self.slots, self.admission = SlotPool(execution, cordon), Admission(cordon.resources)
        self.in_flight: dict[ray.ObjectRef, Task] = {}
        # Nodes that another driver has ended, not yet reported.
        self.ended: list[Node] = []
        self.stalls: dict[str, str] = {}
        self.lacked_memory: dict[str, ProbeReport | None] = {}
        # A node's last step, and when this step was first seen, by node id.
        self.last_step: dict[str, tuple[int, float]] = {}
        self.next_look_for_ray = 0.0

    def __exit__(self, *_) -> None:
        self.slots.close()

    def advance(self) -> bool:
        if time.monotonic() >= self.next_look_for_ray:
            require_ray()
            self.next_look_for_ray = time.monotonic() + NOTICE_RAY_S
        if self.look_at_runs():
            self._kill_stalled()
        self.ended += self.waiting.look_again()
        self._start([] if self.is_stopping else self._fitting())
        is_waiting = bool(self.waiting) and not self.is_stopping
        return bool(self.in_flight or self.ended or is_waiting)

    def wait(self) -> None:
        ended, self.ended = self.ended, []
        references = [*self.in_flight, *self.slots.starting]
        if not (ended or references):
            time.sleep(self.poll_s)
        elif not ended:
            finished, rest = ray.wait(references, num_returns=1, timeout=self.poll_s)
            if finished and rest:
                finished += ray.wait(rest, num_returns=len(rest), timeout=0.0)[0]
            ended = [node for reference in finished for node in self._take_back(reference)]
        for node in ended:
            self.note_end(node)

    def _start(self, tasks: Sequence[Task]) -> None:
        gangs = [task for task in tasks if self._num_ranks(task) > 1]
        others = [task for task in tasks if self._num_ranks(task) == 1]
        if others and not (self.in_flight or self.slots.idle or self.slots.may_come):
            self.cordon.require_machines()
        for task in gangs:
            self._note(self._submit_gang(task), task)
        reserved = self.admission.machine_to_reserve(self.slots.machines_in_use)
        self.slots.request(len(others), reserved)
        for task in others:
            if not self.slots.idle:
                break
            reference = self.slots.submit(
                task, self.placement(task), self.lacked_memory.get(task[0].id)
            )
            if reference is not None:
                self._note(reference, task)

    def _note(self, reference: ray.ObjectRef, task: Task) -> None:
        self.note_start(task)
        self.in_flight[reference] = task
        self.admission.in_flight[self._num_ranks(task)] += 1
        self.last_step.pop(task[0].id, None)
        self.stalls.pop(task[0].id, None)

    def _num_ranks(self, task: Task) -> int:
        return self.placement(task).fewest.num_ranks

    def _fitting(self) -> list[Task]:
        """Chooses the tasks that fit on the cluster, now or after it gets more machines.

        Raises ClusterLost if nothing else can run, and a multi-rank run would fit only on cordoned
        machines.
        """
        free, chosen, too_wide = None, [], 0
        for ranks, tasks in self.waiting.tasks():
            for task in tasks:
                if ranks > 1 and self.cordon.lacks_capacity(ranks):
                    too_wide = ranks
                    break
                if free is None:
                    self.admission.resources = self.cordon.resources
                    free = self.admission.free_resources(self.cordon.may_grow)
                if not free.take(ranks):
                    break
                chosen.append(task)
        if not (chosen or self.in_flight or self.waiting.delayed):
            self.cordon.require_machines(too_wide)
        return chosen

    def _submit_gang(self, task: Task) -> ray.ObjectRef:
        """Starts a Ray task that executes a multi-rank run; returns a reference to its warnings.

        The task only waits for the ranks. It is placed on the driver's machine, which is not
        preempted.
        """
        here = ray.get_runtime_context().get_node_id()
        execute = _execute_gang.options(
            name=task_name(task),
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=True),
        )
        execution = self.execution.with_placement(self.placement(task))
        return execute.remote(task, execution, self.cordon.resources)

    def _kill_stalled(self) -> None:
        for reference in list(self.slots.busy):
            node = self.in_flight[reference][0]
            step = self.progress.heartbeats.get(node.id, {}).get("step", 0)
            before, since = self.last_step.get(node.id, (-1, 0.0))
            if step != before:
                self.last_step[node.id] = step, time.monotonic()
            elif time.monotonic() - since >= self.execution.stall_timeout_s:
                del self.last_step[node.id]
                event = "step" if node.is_run else "end"
                limit = f"{self.execution.stall_timeout_s:.0f} s (--stall-timeout)"
                self.stalls[node.id] = f"no {event} in {limit}"
                self.slots.kill(reference)

    def _take_back(self, reference: ray.ObjectRef) -> list[Node]:
        if reference in self.slots.starting:
            try:
                self.slots.note_start(reference)
            except RayError as error:
                # If other slots work, only one machine is at fault.
                if self.in_flight or self.slots.idle:
                    return []
                text = f"Ray could not start a process, {MAX_FAILED_STARTS} times in a row"
                raise ClusterLost(f"{text}: {error}\n{SUBMIT_AGAIN}") from error
            return []
        task = self.in_flight.pop(reference)
        self.admission.in_flight[self._num_ranks(task)] -= 1
        for node in task:
            self.progress.running.pop(node.id, None)
        probe = self.slots.release(reference)
        return [node for node in task if self._settle(node, reference, task, probe)]

    def _settle(
        self, node: Node, reference: ray.ObjectRef, task: Task, probe: ProbeReport | None
    ) -> bool:
        try:
            warnings = ray.get(reference)
            self.warn(node, warnings if node is task[0] else [])
        except LocalRayletDiedError as error:
            raise ClusterLost(CLUSTER_LOST) from error
        except RayError as error:
            return self._settle_error(node, error, task, probe)
        self.waiting.finish(node)
        return True

    def _settle_error(
        self, node: Node, error: RayError, task: Task, probe: ProbeReport | None
    ) -> bool:
        if isinstance(error, RayTaskError):
            cause = error.cause
            kind, text = kind_of(cause), failure_message(cause)
            probe = cause.probe if isinstance(cause, DeviceError) else probe
        else:
            # The process or its machine died, or the process was killed for its memory.
            kind, text = CRASHED, self.stalls.get(node.id) or type(error).__name__
        if len(task) > 1 and kind not in (HELD, CRASHED):
            self.waiting.retry(node, 0.0, alone=True)
            return False
        step = self.store.run(node.id).read_committed_step() if node.is_run else 0
        next_step = self.policy.after(node.id, kind, text, step, probe)
        if next_step.action == FAILED:
            text = next_step.text
            if not isinstance(error, RayTaskError):
                text += f": {error}"
            if isinstance(error, OutOfMemoryError) and node.is_run:
                text = memory_advice(error, self.placement((node,)).fewest)
            self.waiting.fail(node, text)
            return True
        if next_step.action == AGAIN:
            start = " from its last checkpoint" if node.is_run else ""
            self.warn(node, [f"{one_line(next_step.text)}; it starts again{start}"])
        if next_step.action == ELSEWHERE:
            # Another process may have used the memory of that machine.
            self.lacked_memory[node.id] = probe
        self.waiting.retry(node, held=next_step.action == HELD, alone=next_step.action == AGAIN)
        return False


_execute_gang = ray.remote(max_retries=0)(execute_task)
