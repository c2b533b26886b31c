"""Executes a study's nodes on Ray: each once, after the nodes that it needs, as many at once as the cluster holds.

The storage is the truth; the graph only decides which node starts next. A node whose process crashes is started again
and continues from its last checkpoint. A node that fails is reported and blocks only its dependants.
"""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence

import ray
from ray.exceptions import LocalRayletDiedError, OutOfMemoryError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gram_platform.config import evaluation_from_plain, run_from_plain
from gram_platform.config.identity import to_plain
from gram_platform.engine.capacity import capacity
from gram_platform.engine.dispatch import execute_node
from gram_platform.engine.evaluation import common_work, execute_profiles
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
from gram_platform.methods.nodes import Node
from gram_platform.store import LeaseHeld

Task = tuple[Node, ...]  # executed by one Ray task: a node, or evaluations with common work


class ClusterLost(RuntimeError):
    """The study's Ray cluster is gone; submitting again continues."""


def run_graph(
    nodes: Sequence[Node],
    execution: Execution,
    resources: Resources,
    on_change: Callable[[Progress, Node | None], None] = lambda progress, node: None,
    poll_s: float = 1.0,
    retry_diverged: bool = False,
) -> Progress:
    """Executes all nodes that are not done and returns the final progress. Needs an initialised Ray.

    `on_change(progress, node)` is called when a node ends (done or failed) and, with None, every `poll_s` seconds.
    """
    progress = Progress(nodes)
    graph = _Graph(progress, execution, resources, retry_diverged)
    while graph.advance():
        for node in graph.wait(poll_s) or (None,):
            on_change(progress, node)
    return progress


class _Graph:
    def __init__(self, progress: Progress, execution: Execution, resources: Resources, retry_diverged: bool):
        self.progress, self.execution, self.resources = progress, execution, resources
        self.lifecycle = NodeLifecycle(execution.store(), retry_diverged)
        self.ranks = {node.id: execution.of_node(node.config, node.names).num_ranks for node in progress.nodes}
        self.waiting: list[Node] = []
        self.in_flight: dict[ray.ObjectRef, Task] = {}
        self.alone: set[str] = set()  # evaluations whose common task failed: each is retried alone
        self.held: set[str] = set()  # nodes that another driver works on
        self.ended: list[Node] = []  # held nodes that the other driver has ended, not reported yet
        self.not_before: dict[str, float] = {}
        self.waiting = [node for node in progress.nodes if not self._is_settled(node)]
        progress.reused = len(progress.done)

    def _is_settled(self, node: Node) -> bool:
        return self.lifecycle.settles(node, self.progress)

    def advance(self) -> bool:
        """Submits ready nodes that fit on the cluster; False when no node is left to execute."""
        self._settle_held()
        blocked = self.progress.blocked
        self.waiting = [node for node in self.waiting if node.id not in blocked]
        ready = [node for node in self.waiting if node.needs <= self.progress.done and self._is_due(node)]
        # evaluations first: they are short and fill the table; then the widest runs, else narrow ones take their room
        ready.sort(key=lambda node: (node.kind, -self.ranks[node.id]))
        for task in self._fitting(self._tasks(ready)):
            self.in_flight[self._submit(task)] = task
            self.progress.running |= {node.id: time.time() for node in task}
        self.waiting = [node for node in self.waiting if node.id not in self.progress.running]
        return bool(self.in_flight or self.waiting or self.ended)

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
        """Chooses tasks whose ranks fit on the cluster, now or after it has grown."""
        if not tasks:
            return []
        room, submitted = capacity(self.resources), [self.ranks[task[0].id] for task in self.in_flight.values()]
        chosen = []
        for task in tasks:
            ranks = self.ranks[task[0].id]
            if sum(submitted) + ranks <= room.at_once(max([ranks, *submitted])):
                submitted.append(ranks)
                chosen.append(task)
        return chosen

    def _is_due(self, node: Node) -> bool:
        return time.monotonic() >= self.not_before.get(node.id, 0.0)

    def _submit(self, task: Task) -> ray.ObjectRef:
        reserved = {"num_cpus": self.resources.cpus_per_rank, "num_gpus": self.resources.gpus_per_rank}
        placed = _on_the_driver_node() if self.ranks[task[0].id] > 1 else reserved
        name = task[0].name if len(task) == 1 else f"{task[0].name} and {len(task) - 1} more profiles"
        nodes = [(node.kind, to_plain(node.config), node.names) for node in task]
        return _execute.options(name=name, **placed).remote(nodes, self.execution, self.resources)

    def wait(self, timeout_s: float) -> list[Node]:
        """Waits for the next task and returns those of its nodes that ended; none after `timeout_s`."""
        if self.ended:
            ended, self.ended = self.ended, []
            return ended
        if not self.in_flight:
            time.sleep(timeout_s)
            return []
        finished, _ = ray.wait(list(self.in_flight), num_returns=1, timeout=timeout_s)
        if not finished:
            return []
        task = self.in_flight.pop(finished[0])
        for node in task:
            self.progress.running.pop(node.id, None)
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
        message = f"{type(error).__name__} {MAX_CRASHES} times without a checkpoint in between: {error}"
        if isinstance(error, OutOfMemoryError) and node.kind == "run":
            message = memory_advice(error, node.config, self.execution.of_node(node.config, node.names))
        self.progress.failed[node.id] = message
        return True

    def _queue_again(self, node: Node, after_s: float = HELD_RETRY_S) -> bool:
        self.not_before[node.id] = time.monotonic() + after_s
        self.waiting.insert(0, node)
        return False


def _on_the_driver_node() -> dict:
    """Places the task that waits for a sharded run's workers on the driver's machine, which is not preempted."""
    here = ray.get_runtime_context().get_node_id()
    return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=True)}


@ray.remote(max_retries=0)
def _execute(
    nodes: Sequence[tuple[str, Mapping, Mapping[str, str]]], execution: Execution, resources: Resources
) -> list[str]:
    """Executes a task as a Ray task and returns the warnings. Ray reuses the process, so imports are paid once.

    `nodes`: kind, plain config and tags of one node, or of evaluations with common work.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        from_plain = {"evaluation": evaluation_from_plain, "run": run_from_plain}
        configs = [from_plain[kind](plain) for kind, plain, _ in nodes]
        tags = [node_tags for _, _, node_tags in nodes]
        if len(nodes) > 1:
            execute_profiles(configs, tags, execution.of_node(configs[0], tags[0]))
        else:
            execute_node(configs[0], tags[0], execution, resources)
    return [str(warning.message) for warning in caught if issubclass(warning.category, RuntimeWarning)]
