"""The life of a node: done, diverged, held, crashed or ready, and what follows. This policy is written here alone.

- done: the storage has its result, whoever made it. Nothing is executed again.
- diverged: a run whose loss became non-finite. Training it again would end the same, so it stays failed.
- held: another process has its lease. Look again after `HELD_RETRY_S`.
- crashed: its process, machine or memory went away. Start it again; after `MAX_CRASHES` crashes without a new
  checkpoint in between it has failed, so machines that come and go do not fail a run that makes progress.
- ready: none of these.

The driver of a graph, a trial of a search and the supervisor of several ranks all ask here.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gram_platform.methods.nodes import Node
from gram_platform.store import Store
from gram_platform.train.loop import TrainingDiverged

MAX_CRASHES = 4
HELD_RETRY_S = 2.0


@dataclass(frozen=True)
class Crashes:
    """How often the processes of one node have crashed since its last checkpoint."""

    number: int = 0
    step: int = 0  # committed

    def another(self, committed_step: int) -> "Crashes":
        return Crashes(1 if committed_step > self.step else self.number + 1, committed_step)


class Lives:
    """Where the nodes of one driver stand. The storage is the truth; only crashes are counted here."""

    def __init__(self, store: Store, retry_diverged: bool = False):
        self._store, self._retry_diverged = store, retry_diverged
        self._crashes: dict[str, Crashes] = {}

    def result(self, node: Node) -> dict | None:
        """The result of a node that is done, else None. Adds the node's tags to those it was made with."""
        directory = self._store.node(node.kind, node.id)
        result = directory.result()
        if result is not None:
            directory.add_tags(node.names)
        return result

    def divergence(self, node: Node) -> str:
        """The message of a run that has diverged, else ""; always "" where diverged runs are to be trained again."""
        failure = self._store.run(node.id).failure() if node.kind == "run" and not self._retry_diverged else None
        return failure["message"] if is_divergence(failure) else ""

    def require_not_diverged(self, node: Node) -> None:
        """TrainingDiverged for a run that has diverged."""
        if message := self.divergence(node):
            raise TrainingDiverged(message)

    def starts_again(self, node: Node) -> bool:
        """Counts a crash of the node; False when it has failed by it."""
        step = self._store.run(node.id).committed_step() if node.kind == "run" else 0
        self._crashes[node.id] = self._crashes.get(node.id, Crashes()).another(step)
        return self._crashes[node.id].number < MAX_CRASHES


def is_divergence(failure: Mapping | None) -> bool:
    """Whether a run's failure is a non-finite loss."""
    return failure is not None and failure.get("details", {}).get("kind") == "diverged"
