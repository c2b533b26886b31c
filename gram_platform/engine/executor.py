"""Executes the nodes of a source, and yields what happens to them.

`RayExecutor` and `LocalExecutor` do it on Ray and in this process. The storage is the truth; an
executor only decides which node starts next. The driver reads the events, and decides whether
anything more is started.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gram_platform.engine.evaluation import Task
from gram_platform.engine.execution import ALL_ON_ONE_RANK, ON_ONE_RANK, Execution, Placement
from gram_platform.engine.life import NodeLifecycle, Progress, WaitingNodes
from gram_platform.methods.nodes import Node

# A node is executed from now on. It has ended: done, or failed with a text. Something was said of
# it: a warning, or why it starts again. Some time has passed.
STARTED, ENDED, WARNED, WAITED = "started", "ended", "warned", "waited"


@dataclass(frozen=True)
class Event:
    """What happened to a node; `text` is a warning, or why the node has failed."""

    kind: str
    node: Node | None = None
    text: str = ""


class NodeSource(Protocol):
    """Where an executor takes nodes from."""

    def next(self) -> Sequence[Node] | None:
        """Returns the nodes to execute when those of before have ended; None when there are no
        more."""


class ListedNodes:
    """The source of a study: all of its nodes at once."""

    def __init__(self, nodes: Sequence[Node]):
        self._left = [nodes]

    def next(self) -> Sequence[Node] | None:
        return self._left.pop() if self._left else None


class Executor:
    """Executes nodes one by one; each subclass says where.

    The storage is not asked about nodes that are known to be `done`. `placements`: of nodes, by id;
    the others have one rank.
    """

    def __init__(
        self,
        execution: Execution,
        placements: Mapping[str, Placement] = ALL_ON_ONE_RANK,
        retry_diverged: bool = False,
        done: Collection[str] = (),
    ):
        self.execution, self.placements, self.store = execution, placements, execution.store()
        self.progress, self.lifecycle = Progress(), NodeLifecycle(self.store, retry_diverged)
        self.waiting = WaitingNodes(self.progress, self.lifecycle, placements)
        self.is_stopping, self._known, self._happened = False, frozenset(done), list[Event]()
        # Called about once a second, while a node is executed in this process too.
        self.look: Callable[[], None] = lambda: None

    def __enter__(self) -> "Executor":
        return self

    def __exit__(self, *_) -> None:
        """Ends the processes that execute nothing."""

    def events(self, source: NodeSource) -> Iterator[Event]:
        """Executes the nodes of the source that are not done; yields what happens."""
        while (nodes := source.next()) is not None:
            self.progress.done |= self._known & {node.id for node in nodes}
            self.waiting.add(nodes)
            # Who reads the events may stop before the first node starts.
            yield Event(WAITED)
            while self.advance():
                yield from self._take()
                self.wait()
                yield from self._take() or (Event(WAITED),)

    def stop_starting(self) -> None:
        """Starts no node any more; those that are running end."""
        self.is_stopping = True

    def advance(self) -> bool:
        """Starts nodes; False when no node is left to execute."""
        raise NotImplementedError

    def wait(self) -> None:
        """Waits until a node ends, or for about a second."""
        raise NotImplementedError

    def _take(self) -> list[Event]:
        happened, self._happened = self._happened, []
        return happened

    def note_start(self, task: Task) -> None:
        self.waiting.start(task)
        self.progress.running |= {node.id: time.time() for node in task}
        self._happened += [Event(STARTED, node) for node in task]

    def note_end(self, node: Node) -> None:
        """Notes that a node is done or failed."""
        self._happened.append(Event(ENDED, node, self.progress.failed.get(node.id, "")))

    def warn(self, node: Node, texts: Sequence[str]) -> None:
        self._happened += [Event(WARNED, node, text) for text in texts]

    def placement(self, task: Task) -> Placement:
        return self.placements.get(task[0].id, ON_ONE_RANK)
