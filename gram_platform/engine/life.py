"""Decides which nodes can start, and what to do when a node ends or crashes.

`docs/architecture.md` has a table of a node's states. A node fails after `MAX_CRASHES` crashes.
Preemptions are counted as crashes, but each new checkpoint of a run resets the count, so a run that
makes progress does not fail. A crash on a machine that is cordoned afterwards is not counted.
"""

import functools
import heapq
import math
import time
from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gram_platform.config import State
from gram_platform.config.endings import Unavailable
from gram_platform.engine.devices import DeviceError, ProbeReport, is_device_error
from gram_platform.engine.evaluation import Task, common_work
from gram_platform.engine.execution import ALL_ON_ONE_RANK, ON_ONE_RANK, Placement
from gram_platform.engine.process import OutOfMemory, is_out_of_memory
from gram_platform.methods.nodes import Node, longest_paths, tags_to_add
from gram_platform.store import LeaseHeld, Store
from gram_platform.store.root import Finished
from gram_platform.train.loop import TrainingDiverged

if TYPE_CHECKING:
    # This module imports Ray, which a machine that only trains lacks.
    from gram_platform.engine.capacity import Cordon

MAX_CRASHES = 4
HELD_RETRY_S = 2.0
HELD, CRASHED, LACKS_MEMORY, FAILED, BUG = "held", "crashed", "lacks memory", "failed", "bug"
# Other actions after an error, besides HELD and FAILED.
AGAIN, ELSEWHERE = "again", "elsewhere"
DIVERGENCE = {"kind": State.DIVERGED}


@dataclass
class Progress:
    done: set[str] = field(default_factory=set)
    # The Unix time of each node's start, by id.
    running: dict[str, float] = field(default_factory=dict)
    heartbeats: Mapping[str, Mapping] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    # Ids of the failed or blocked nodes that prevent a node from starting, by the node's id.
    blocked: dict[str, list[str]] = field(default_factory=dict)
    # The number of nodes that were done before this driver started.
    reused: int = 0
    dependants: dict[str, list[Node]] = field(default_factory=lambda: defaultdict(list))

    def add(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            for needed in node.needs:
                self.dependants[needed].append(node)

    def fail(self, node_id: str, message: str) -> list[str]:
        """Records that a node failed; returns the ids of all nodes that become blocked."""
        self.failed[node_id] = message
        culprits = [node_id]
        for culprit in culprits:
            needing = [
                node.id for node in self.dependants.get(culprit, ()) if node.id not in self.done
            ]
            culprits += [i for i in needing if i not in self.blocked]
            for i in needing:
                self.blocked.setdefault(i, []).append(culprit)
        return culprits[1:]


@dataclass(frozen=True)
class NextStep:
    # HELD, AGAIN, ELSEWHERE or FAILED.
    action: str
    text: str = ""


class CrashPolicy:
    """Decides what a driver does after an error of a node or trial.

    Crashes are counted only in memory, so a new submission starts from 0.
    """

    def __init__(self, cordon: "Cordon | None" = None):
        self._cordon = cordon
        # Machines of the crashes since the last checkpoint, and its step, by node or trial name.
        self._crashes: dict[str, tuple[list[str], int]] = {}
        self._lacked_memory: set[str] = set()

    def after(
        self, name: str, kind: str, text: str, saved_step: int, probe: ProbeReport | None = None
    ) -> NextStep:
        """Returns what to do after an error of the node or trial `name`.

        `kind` is what `kind_of` returns for the error, `text` the error's message, and `saved_step`
        the step of the last checkpoint. `probe` is the last probe of the machine's device. If the
        probe failed, cordons the machine.
        """
        if kind == HELD:
            return NextStep(HELD)
        if self._cordon and probe and not self._cordon.note(probe):
            return NextStep(AGAIN, text)
        if kind == LACKS_MEMORY and name not in self._lacked_memory:
            self._lacked_memory.add(name)
            return NextStep(ELSEWHERE, text)
        if kind != CRASHED:
            return NextStep(FAILED, text)
        if self._count(name, saved_step, probe.machine if probe else "") < MAX_CRASHES:
            return NextStep(AGAIN, text)
        return NextStep(FAILED, f"{text} ({MAX_CRASHES} crashes without a checkpoint in between)")

    def _count(self, name: str, saved_step: int, machine: str) -> int:
        machines, step = self._crashes.get(name, ([], 0))
        machines = [*(machines if saved_step <= step else ()), machine]
        self._crashes[name] = machines, saved_step
        cordoned = self._cordon.resources.cordoned if self._cordon else ()
        return sum(machine not in cordoned for machine in machines)


def kind_of(error: BaseException | None) -> str:
    """Returns the kind of an error: HELD, CRASHED, LACKS_MEMORY, FAILED or BUG.

    FAILED means that the node would fail on any machine. BUG is any unexpected error.
    """
    if isinstance(error, LeaseHeld):
        return HELD
    if is_device_error(error) or isinstance(error, Unavailable):
        return CRASHED
    if is_out_of_memory(error):
        return LACKS_MEMORY
    return FAILED if isinstance(error, ValueError | TrainingDiverged) else BUG


class NodeLifecycle:
    """Reads from the storage how nodes ended. Adds tags and missing configs to ended nodes."""

    def __init__(self, store: Store, retry_diverged: bool = False):
        self._store, self._retry_diverged = store, retry_diverged

    def result(self, node: Node) -> dict | None:
        result = self._store.current_result(self._store.node(node.kind, node.id))
        if result is not None:
            self._describe(node)
        return result

    def _describe(self, node: Node) -> None:
        directory = self._store.node(node.kind, node.id)
        directory.ensure_config(node.config)
        directory.add_tags(tags_to_add(directory.tags(), node.names))

    def divergence(self, node: Node) -> str:
        """Returns why a run diverged. If it did not, or if `retry_diverged` is true, returns ""."""
        if self._retry_diverged or not node.is_run:
            return ""
        failure = self._store.run(node.id).failure()
        if not is_divergence(failure):
            return ""
        self._describe(node)
        return failure["message"]

    def ends(self, nodes: Iterable[Node]) -> dict[str, str | None]:
        """Returns how each node ended, by id. Lists an object store only once for all nodes.

        The value is "" for a done node, the reason for a diverged run, and None for any other node.
        """
        nodes = list(nodes)
        stored, done = _read_finished(nodes, self._store)

        def end(node: Node) -> str | None:
            finished = stored.get(node.id)
            if finished is None:
                return self.divergence(node) or None if node.id in stored else None
            if node.id not in done:
                return None
            if not finished.has_config or not node.names.items() <= finished.tags.items():
                self._describe(node)
            return ""

        ends = self._store.concurrently(end, nodes)
        return {node.id: end for node, end in zip(nodes, ends, strict=True)}

    def require_not_diverged(self, node: Node) -> None:
        if message := self.divergence(node):
            raise TrainingDiverged(message)


# A sort key in a queue: (minus the hours of the longest path from a node, the node's number).
Place = tuple[float, int]


class WaitingNodes:
    """The nodes that one driver still has to execute, and the tasks that can start now.

    A task is one node, or all evaluations with equal `common_work`. When a node ends, only its
    dependants are checked.
    """

    def __init__(
        self,
        progress: Progress,
        lifecycle: NodeLifecycle,
        placements: Mapping[str, Placement] = ALL_ON_ONE_RANK,
    ):
        self._progress, self._lifecycle, self._placements = progress, lifecycle, placements
        # The number of the node that was last put first in its queue.
        self._first = 0
        # The nodes of each task that can start, by the task's key.
        self._tasks: dict[object, list[Node]] = {}
        # Sorted (place, key) pairs by (kind, -ranks).
        self._queues: dict[tuple[str, int], list[tuple[Place, object]]] = {}
        # The number of needed nodes that are not done, by node id.
        self._open: dict[str, int] = {}
        # Nodes that wait for a retry, as a heap of (monotonic time, place, node).
        self.delayed: list[tuple[float, Place, Node]] = []
        self._held: set[str] = set()
        self._alone: set[str] = set()
        self._place: dict[str, Place] = {}

    def add(self, nodes: Sequence[Node]) -> None:
        """Adds nodes, and reads from the storage which of them have already ended."""
        progress = self._progress
        progress.add(nodes)
        ends = self._lifecycle.ends(n for n in nodes if n.id not in progress.done)
        progress.done.update(node_id for node_id, end in ends.items() if end == "")
        progress.reused += len({node.id for node in nodes} & progress.done)
        for node_id, message in ends.items():
            if message:
                progress.fail(node_id, message)
        left = [n for n in nodes if ends.get(n.id, "") is None and n.id not in progress.blocked]
        hours = {node.id: self._placement(node).hours for node in left}
        paths = longest_paths({node.id: node.needs for node in left}, hours)
        self._place |= {node.id: (-paths[node.id], number) for number, node in enumerate(left)}
        for node in left:
            self._open[node.id] = len(node.needs - progress.done)
            self._make_ready_if_open(node, 0)

    def __bool__(self) -> bool:
        return bool(self._tasks or self._open or self.delayed)

    def tasks(self) -> Iterator[tuple[int, Iterator[Task]]]:
        """Yields (number of ranks, tasks that can start), in the order in which to start them.

        The caller calls `start` for each task. Evaluations come first, because they are short. Then
        come runs with the most ranks, because smaller runs would take their resources. Among runs
        with equally many ranks, the one with the longest chain of dependants, in hours, is first.
        """
        for (_, minus_ranks), queue in sorted(self._queues.items()):
            yield -minus_ranks, (tuple(self._tasks[key]) for _, key in queue)

    def start(self, task: Task) -> None:
        key = self._key(task[0])
        del self._tasks[key]
        queue = self._queues[self._queue_of(task[0])]
        del queue[next(i for i, (_, other) in enumerate(queue) if other == key)]

    def finish(self, node: Node) -> None:
        self._progress.done.add(node.id)
        for dependant in self._progress.dependants.get(node.id, ()):
            self._make_ready_if_open(dependant, 1)

    def fail(self, node: Node, message: str) -> None:
        """Records that a node has failed, and removes all nodes that depend on it."""
        for blocked in self._progress.fail(node.id, message):
            self._open.pop(blocked, None)

    def retry(
        self, node: Node, after_s: float = HELD_RETRY_S, held: bool = False, alone: bool = False
    ) -> None:
        """Retries a node after a delay, ahead of all other nodes in its queue.

        `held` means that another driver is executing the node. `alone` means that the node no
        longer shares a task with other evaluations.
        """
        self._held |= {node.id} if held else set()
        self._alone |= {node.id} if alone else set()
        self._first -= 1
        self._place[node.id] = (-math.inf, self._first)
        heapq.heappush(self.delayed, (time.monotonic() + after_s, self._place[node.id], node))

    def look_again(self) -> list[Node]:
        """Makes nodes ready to start after their delay.

        If another driver has already ended a node, returns this node instead.
        """
        ended = []
        while self.delayed and self.delayed[0][0] <= time.monotonic():
            _, _, node = heapq.heappop(self.delayed)
            end = self._lifecycle.ends([node])[node.id] if node.id in self._held else None
            self._held.discard(node.id)
            if end is None:
                self._make_ready(node)
                continue
            if end:
                self.fail(node, end)
            else:
                self.finish(node)
            ended.append(node)
        return ended

    def _make_ready_if_open(self, node: Node, num_done: int) -> None:
        if node.id in self._open:
            self._open[node.id] -= num_done
            if not self._open[node.id]:
                del self._open[node.id]
                self._make_ready(node)

    def _make_ready(self, node: Node) -> None:
        key = self._key(node)
        if key not in self._tasks:
            insort(self._queues.setdefault(self._queue_of(node), []), (self._place[node.id], key))
        self._tasks.setdefault(key, []).append(node)

    def _key(self, node: Node) -> object:
        is_alone = node.is_run or node.id in self._alone
        return (None if is_alone else common_work(node.config)) or node.id

    def _queue_of(self, node: Node) -> tuple[str, int]:
        return node.kind, -self._placement(node).fewest.num_ranks

    def _placement(self, node: Node) -> Placement:
        return self._placements.get(node.id, ON_ONE_RANK)


def find_done_ids(nodes: Iterable[Node], store: Store) -> set[str]:
    return _read_finished(list(nodes), store)[1]


def _read_finished(
    nodes: Sequence[Node], store: Store
) -> tuple[Mapping[str, Finished | None], set[str]]:
    """Reads the stored state of nodes and of the runs that they need.

    Returns (result of `store.read_finished`, ids of done nodes). A node is done if all nodes that
    it needs are done, and it has a result that was made from the current weights of these nodes.
    """
    needs_of = {node.id: node.needs for node in nodes}
    keys = [(node.kind, node.id) for node in nodes]
    keys += [("run", needed) for needs in needs_of.values() for needed in needs]
    stored = store.read_finished(dict.fromkeys(keys))

    @functools.cache
    def is_done(node_id: str) -> bool:
        finished = stored.get(node_id)
        # A needed run that is neither stored nor among the nodes cannot contradict the result.
        return finished is not None and all(
            is_done(i) and finished.sources.get(i) in (None, stored[i].weights_sha256)
            for i in needs_of.get(node_id, ())
            if stored.get(i) or i in needs_of
        )

    return stored, {node.id for node in nodes if is_done(node.id)}


def with_stored_tags(nodes: Iterable[Node], store: Store) -> list[Node]:
    """Adds the stored tags to nodes, so that a driver prints the same node names as `gram`."""
    nodes = list(nodes)
    stored = store.concurrently(lambda node: store.node(node.kind, node.id).tags(), nodes)
    return [
        Node.of(node.config, tags | tags_to_add(tags, node.names))
        for node, tags in zip(nodes, stored, strict=True)
    ]


def find_ended_ids(nodes: Iterable[Node], store: Store, retry_diverged: bool = False) -> set[str]:
    """Returns the ids of nodes that are done.

    If `retry_diverged` is false, also returns those of diverged runs and of nodes that need them.
    """
    nodes = list(nodes)
    stored, done = _read_finished(nodes, store)
    progress = Progress(done)
    progress.add(nodes)
    unfinished = set() if retry_diverged else stored.keys() - done
    begun = [node.id for node in nodes if node.is_run and node.id in unfinished]
    failures = store.concurrently(lambda run_id: store.run(run_id).failure(), begun)
    for run_id, failure in zip(begun, failures, strict=True):
        if is_divergence(failure):
            progress.fail(run_id, "")
    return progress.done | progress.failed.keys() | progress.blocked.keys()


def is_divergence(failure: Mapping | None) -> bool:
    return failure is not None and failure.get("details", {}).get("kind") == DIVERGENCE["kind"]


def failure_message(error: BaseException) -> str:
    """Returns an error's message. If it is not meant for users, the error's class precedes it."""
    for_users = TrainingDiverged | OutOfMemory | ValueError | DeviceError | Unavailable
    return str(error) if isinstance(error, for_users) else f"{type(error).__name__}: {error}"
