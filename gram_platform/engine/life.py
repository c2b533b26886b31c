"""Decides the life of a node for graphs, trials and sharded runs: done, diverged, held, crashed or ready.

- done: the storage has its result, whichever process made it. It is not executed again.
- diverged: a run whose loss became non-finite. Training it again would end the same, so it stays failed.
- held: another process has its lease. Look again after `HELD_RETRY_S`.
- crashed: its process or machine died, or memory ran out. Start it again. After `MAX_CRASHES` crashes without a new
  checkpoint in between it has failed: preempted machines do not fail a run that makes progress.
- ready: none of these.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gram_platform.config import State
from gram_platform.engine.process import OutOfMemory
from gram_platform.methods.nodes import Node
from gram_platform.store import Store
from gram_platform.train.loop import TrainingDiverged

MAX_CRASHES = 4
HELD_RETRY_S = 2.0
DIVERGENCE = {"kind": State.DIVERGED}  # the details of a recorded failure
SUBMIT_AGAIN = "Submit again: finished runs are kept, and the others continue from their last checkpoints."


@dataclass
class Progress:
    """The progress of a study, for its live view."""

    nodes: Sequence[Node]
    done: set[str] = field(default_factory=set)
    running: dict[str, float] = field(default_factory=dict)  # node id -> Unix time of its submission
    failed: dict[str, str] = field(default_factory=dict)  # node id -> message
    reused: int = 0  # nodes that were complete before
    warnings: dict[str, list[str]] = field(default_factory=dict)  # node id -> its process's warnings

    @property
    def blocked(self) -> dict[str, list[str]]:
        """Nodes that can never start, each with the failed or blocked ids that it needs."""
        blocked: dict[str, list[str]] = {}
        for node in self.nodes:
            culprits = [i for i in node.needs if i in self.failed or i in blocked]
            if culprits and node.id not in self.done:
                blocked[node.id] = culprits
        return blocked


@dataclass(frozen=True)
class Crashes:
    """How often one node has crashed since its last checkpoint."""

    number: int = 0
    step: int = 0  # of the last checkpoint

    def another(self, committed_step: int) -> "Crashes":
        """Counts one more crash, from 1 again if there is a new checkpoint."""
        return Crashes(1 if committed_step > self.step else self.number + 1, committed_step)


class NodeLifecycle:
    """Applies the policy to the nodes of one driver. The storage is the truth; only crashes are counted in memory."""

    def __init__(self, store: Store, retry_diverged: bool = False):
        self._store, self._retry_diverged = store, retry_diverged
        self._crashes: dict[str, Crashes] = {}

    def result(self, node: Node) -> dict | None:
        """Reads the result of a node that is done, else None. Adds the node's tags to the stored ones."""
        directory = self._store.node(node.kind, node.id)
        result = directory.result()
        if result is not None:
            directory.add_tags(node.names)
        return result

    def progress(self, node: Node) -> dict | None:
        """Reads a run's last heartbeat; None before the first."""
        return self._store.run(node.id).progress()

    def divergence(self, node: Node) -> str:
        """Reads the message of a run that has diverged, else ""; always "" if diverged runs are trained again."""
        failure = self._store.run(node.id).failure() if node.kind == "run" and not self._retry_diverged else None
        return failure["message"] if is_divergence(failure) else ""

    def settles(self, node: Node, progress: Progress) -> bool:
        """Records a node that has ended by the storage, whichever driver executed it; False when it has not."""
        if self.result(node) is not None:
            progress.done.add(node.id)
        elif message := self.divergence(node):
            progress.failed[node.id] = message
        else:
            return False
        return True

    def require_not_diverged(self, node: Node) -> None:
        """Raises TrainingDiverged for a run that has diverged."""
        if message := self.divergence(node):
            raise TrainingDiverged(message)

    def starts_again(self, node: Node) -> bool:
        """Counts a crash of the node; False when that was one too many and it has failed."""
        step = self._store.run(node.id).committed_step() if node.kind == "run" else 0
        self._crashes[node.id] = self._crashes.get(node.id, Crashes()).another(step)
        return self._crashes[node.id].number < MAX_CRASHES


def is_divergence(failure: Mapping | None) -> bool:
    """Tells whether a run failed with a non-finite loss."""
    return failure is not None and failure.get("details", {}).get("kind") == DIVERGENCE["kind"]


def failure_message(error: BaseException) -> str:
    """Writes why a node failed: an error for users speaks for itself, any other needs its class's name."""
    is_for_users = isinstance(error, TrainingDiverged | OutOfMemory | ValueError)
    return str(error) if is_for_users else f"{type(error).__name__}: {error}"
