"""Executes a study's nodes on Ray: each once, after the nodes that it needs, as many at once as the cluster holds.

The storage is the truth; the graph only decides which node starts next. A node whose process crashes is started again
and continues from its last checkpoint. A node that fails is reported and blocks only its dependants. Nodes of one rank
are executed by slots, nodes of several by Ray Train workers.
"""

import time
from collections.abc import Callable, Sequence

import ray
from ray.exceptions import LocalRayletDiedError, OutOfMemoryError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gram_platform.engine.capacity import Admission
from gram_platform.engine.evaluation import Task, common_work
from gram_platform.engine.execution import Execution, Resources
from gram_platform.engine.life import (
    HELD_RETRY_S,
    MAX_CRASHES,
    SUBMIT_AGAIN,
    NodeLifecycle,
    Progress,
    failure_message,
)
from gram_platform.engine.process import memory_advice
from gram_platform.engine.slots import SlotPool, execute_plain, plain_nodes, task_name
from gram_platform.methods.nodes import Node
from gram_platform.store import LeaseHeld

# runs of several ranks (a gang: all start or none) at once; each keeps a process on the driver's machine
MAX_GANGS = 16
LOOK_FOR_STALLS_S = 30.0


class ClusterLost(RuntimeError):
    """The study's Ray cluster is gone; submitting again continues."""


def run_graph(
    nodes: Sequence[Node],
    execution: Execution,
    resources: Resources,
    on_change: Callable[[Progress, Node | None], None] = lambda progress, node: None,
    poll_s: float = 1.0,
    retry_diverged: bool = False,
    may_start: Callable[[], bool] = lambda: True,
) -> Progress:
    """Executes all nodes that are not done and returns the final progress. Needs an initialised Ray.

    `on_change(progress, node)` is called when a node ends (done or failed) and, with None, every `poll_s` seconds. When
    `may_start()` is False no node is started, and the graph ends with the nodes that are running.
    """
    progress = Progress(nodes)
    graph = _Graph(progress, execution, resources, retry_diverged)
    try:
        while graph.advance(may_start()):
            for node in graph.wait(poll_s) or (None,):
                on_change(progress, node)
    finally:
        graph.slots.close()
    return progress


class _Graph:
    def __init__(self, progress: Progress, execution: Execution, resources: Resources, retry_diverged: bool):
        self.progress, self.execution, self.resources = progress, execution, resources
        self.lifecycle = NodeLifecycle(execution.store(), retry_diverged)
        self.ranks = {node.id: execution.of_node(node.config, node.names).num_ranks for node in progress.nodes}
        self.slots, self.admission = SlotPool(execution, resources), Admission(resources)
        self.waiting: list[Node] = []
        self.in_flight: dict[ray.ObjectRef, Task] = {}
        self.alone: set[str] = set()  # evaluations whose common task failed: each is retried alone
        self.held: set[str] = set()  # nodes that another driver works on
        self.ended: list[Node] = []  # held nodes that the other driver has ended, not reported yet
        self.not_before: dict[str, float] = {}
        self.stalls: dict[str, str] = {}  # node id -> why its process was killed
        self.last_step: dict[str, tuple[int, float]] = {}  # node id -> step, and since when
        self.next_look = 0.0
        self.waiting = [node for node in progress.nodes if not self._is_settled(node)]
        progress.reused = len(progress.done)

    def _is_settled(self, node: Node) -> bool:
        return self.lifecycle.settles(node, self.progress)

    def advance(self, may_start: bool = True) -> bool:
        """Starts ready nodes that fit on the cluster; False when no node is left to execute."""
        self._settle_held()
        blocked = self.progress.blocked
        self.waiting = [node for node in self.waiting if node.id not in blocked]
        ready = [node for node in self.waiting if may_start and self._is_ready(node)]
        # evaluations first: they are short and fill the table; then the widest runs, else narrow ones take their room
        ready.sort(key=lambda node: (node.kind, -self.ranks[node.id]))
        self._start(self._fitting(self._tasks(ready)))
        self.waiting = [node for node in self.waiting if node.id not in self.progress.running]
        self._kill_stalled()
        return bool(self.in_flight or self.ended or (self.waiting and may_start))

    def _is_ready(self, node: Node) -> bool:
        return node.needs <= self.progress.done and self._is_due(node)

    def _start(self, tasks: Sequence[Task]) -> None:
        """Starts gangs, and as many other tasks as there are free slots; asks for slots for the rest."""
        gangs = [task for task in tasks if self._num_ranks(task) > 1]
        others = [task for task in tasks if self._num_ranks(task) == 1]
        for task in gangs:
            self._note(self._submit_gang(task), task)
        cleared = self.admission.machine_to_clear(self.slots.machines_in_use())
        self.slots.want(len(others), cleared)
        for task in others[: len(self.slots.idle)]:
            self._note(self.slots.submit(task), task)

    def _note(self, reference: ray.ObjectRef, task: Task) -> None:
        self.in_flight[reference] = task
        self.last_step.pop(task[0].id, None)
        self.progress.running |= {node.id: time.time() for node in task}

    def _num_ranks(self, task: Task) -> int:
        return self.ranks[task[0].id]

    def _settle_held(self) -> None:
        """Looks again at nodes that another driver was working on: they may have ended."""
        due = [node for node in self.waiting if node.id in self.held and self._is_due(node)]
        self.held -= {node.id for node in due}
        found = [node for node in due if self._is_settled(node)]
        self.ended += found
        self.waiting = [node for node in self.waiting if node not in found]

    def _tasks(self, ready: Sequence[Node]) -> list[Task]:
        """Makes one task for each node, but one for all evaluations with common work."""
        tasks: dict[object, Task] = {}
        for node in ready:
            is_alone = node.kind == "run" or node.id in self.alone
            key = (None if is_alone else common_work(node.config)) or node.id
            tasks[key] = (*tasks.get(key, ()), node)
        return list(tasks.values())

    def _fitting(self, tasks: Sequence[Task]) -> list[Task]:
        """Chooses tasks that fit on the cluster beside those in flight, now or after it has grown."""
        if not tasks:
            return []
        room = self.admission.room(self._num_ranks(task) for task in self.in_flight.values())
        num_gangs = sum(self._num_ranks(task) > 1 for task in self.in_flight.values())
        chosen = []
        for task in tasks:
            ranks = self._num_ranks(task)
            if (ranks == 1 or num_gangs < MAX_GANGS) and room.take(ranks):
                num_gangs += ranks > 1
                chosen.append(task)
        return chosen

    def _is_due(self, node: Node) -> bool:
        return time.monotonic() >= self.not_before.get(node.id, 0.0)

    def _submit_gang(self, task: Task) -> ray.ObjectRef:
        """Starts a task that waits for a sharded run's workers on the driver's machine, which is not preempted."""
        here = ray.get_runtime_context().get_node_id()
        placed = {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=True)}
        execute = _execute_gang.options(name=task_name(task), **placed)
        return execute.remote(plain_nodes(task), self.execution, self.resources)

    def _kill_stalled(self) -> None:
        """Kills the slots of runs that have made no step for `stall_timeout_s`; that counts as a crash."""
        if time.monotonic() < self.next_look:
            return
        self.next_look = time.monotonic() + min(LOOK_FOR_STALLS_S, self.execution.stall_timeout_s / 4)
        for reference in list(self.slots.busy):
            node = self.in_flight[reference][0]
            if not node.is_run:
                continue
            step = (self.lifecycle.progress(node) or {}).get("step", 0)
            before, since = self.last_step.get(node.id, (-1, 0.0))
            if step != before:
                self.last_step[node.id] = step, time.monotonic()
            elif time.monotonic() - since >= self.execution.stall_timeout_s:
                del self.last_step[node.id]
                self.stalls[node.id] = f"no step in {self.execution.stall_timeout_s:.0f} s (--stall-timeout)"
                self.slots.kill(reference)

    def wait(self, timeout_s: float) -> list[Node]:
        """Waits for the next task and returns those of its nodes that ended; none after `timeout_s`."""
        if self.ended:
            ended, self.ended = self.ended, []
            return ended
        awaited = [*self.in_flight, *self.slots.starting]
        if not awaited:
            time.sleep(timeout_s)
            return []
        finished, _ = ray.wait(awaited, num_returns=1, timeout=timeout_s)
        if not finished:
            return []
        if finished[0] in self.slots.starting:
            self.slots.started(finished[0])
            return []
        task = self.in_flight.pop(finished[0])
        for node in task:
            self.progress.running.pop(node.id, None)
        self.slots.release(finished[0])
        return [node for node in task if self._settle(node, finished[0], task)]

    def _settle(self, node: Node, reference: ray.ObjectRef, task: Task) -> bool:
        """Records a node's end; False when it is queued again. The task's warnings count as its first node's."""
        try:
            caught = ray.get(reference)
            self.progress.warnings[node.id] = caught if node is task[0] else []
        except RayTaskError as error:
            if isinstance(error.cause, LeaseHeld):
                self.held.add(node.id)
                return self._queue_again(node)
            if len(task) > 1:
                self.alone.add(node.id)
                return self._queue_again(node, 0.0)
            self.progress.failed[node.id] = failure_message(error.cause)
            return True
        except LocalRayletDiedError as error:
            raise ClusterLost("Ray's process on this machine died. " + SUBMIT_AGAIN) from error
        except RayError as error:  # the process or its machine crashed, or memory ran out
            self.alone.add(node.id)
            return self._record_crash(node, error)
        self.progress.done.add(node.id)
        return True

    def _record_crash(self, node: Node, error: RayError) -> bool:
        """Counts a crash; False when the node is queued again."""
        if self.lifecycle.starts_again(node):
            return self._queue_again(node)
        name = self.stalls.get(node.id) or type(error).__name__
        message = f"{name} {MAX_CRASHES} times without a checkpoint in between: {error}"
        if isinstance(error, OutOfMemoryError) and node.kind == "run":
            message = memory_advice(error, node.config, self.execution.of_node(node.config, node.names))
        self.progress.failed[node.id] = message
        return True

    def _queue_again(self, node: Node, after_s: float = HELD_RETRY_S) -> bool:
        self.not_before[node.id] = time.monotonic() + after_s
        self.waiting.insert(0, node)
        return False


_execute_gang = ray.remote(max_retries=0)(execute_plain)
