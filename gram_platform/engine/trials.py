"""One trial of a search: a point becomes nodes, the nodes results, the results a score.

Nodes are those of the studies: what is finished is reused, whoever asked for it first, and what a dead process left is
continued from its last checkpoint.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gram_platform.engine.dispatch import execute_node
from gram_platform.engine.execution import Execution, Resources, owner
from gram_platform.engine.life import HELD_RETRY_S, Lives
from gram_platform.methods.nodes import Node
from gram_platform.store import LeaseHeld, Store
from gram_platform.train.loop import TrainingDiverged

Point = Mapping[str, float | int | str]

COMPLETE, DIVERGED, FAILED = "complete", "diverged", "failed"  # how a trial ends
GO, WAIT, STOP, CANCEL = "go", "wait", "stop", "cancel"  # what a driver decides before it starts the next


class Problem(Protocol):
    """What a search asks. It travels to the workers, so it holds plain values alone."""

    def nodes(self, point: Point) -> list[Node]:
        """The trial's nodes, each after those that it needs; what the whole search needs is done already."""

    def score(self, point: Point, results: Mapping[str, Mapping]) -> dict[str, float]:
        """Finite metrics from the nodes' results by id. ValueError where they cannot be had."""


@dataclass(frozen=True)
class Outcome:
    """How a trial ended."""

    name: str
    point: Point
    state: str  # complete, diverged or failed
    started: float  # Unix time
    elapsed_s: float
    trained_s: float = 0.0  # of it in nodes that were executed now
    rank_s: float = 0.0  # the same, of all their ranks together
    metrics: Mapping[str, float] = field(default_factory=dict)  # of a complete one
    nodes: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    message: str = ""  # why it is not complete
    num_executed: int = 0
    num_reused: int = 0
    process: str = ""  # host:pid that it ran in


def execute_trial(
    name: str,
    point: Point,
    problem: Problem,
    execution: Execution,
    resources: Resources,
    retry_diverged: bool = False,
) -> Outcome:
    """Executes what is missing of a trial and scores it; every error becomes the outcome's message."""
    started, clock = time.time(), time.monotonic()
    work = _Work(execution, resources, retry_diverged)
    metrics, state, message, nodes = {}, COMPLETE, "", []
    try:
        work.store.open_for_writing()
        nodes = problem.nodes(point)
        metrics = problem.score(point, {node.id: work.result(node) for node in nodes})
    except TrainingDiverged as error:
        state, message = DIVERGED, str(error)
    except Exception as error:  # one trial must not end a search; the run directory has it too
        state, message = FAILED, str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return Outcome(
        name=name,
        point=dict(point),
        state=state,
        metrics=metrics,
        nodes=tuple(node.id for node in nodes),
        runs=tuple(node.id for node in nodes if node.kind == "run"),
        message=message,
        started=started,
        elapsed_s=time.monotonic() - clock,
        trained_s=work.seconds,
        rank_s=work.rank_seconds,
        num_executed=work.num_executed,
        num_reused=work.num_reused,
        process=owner(),
    )


def committed(problem: Problem, point: Point, store: Store) -> int:
    """Steps of a trial's runs that need not be trained again."""
    runs = [(node.config, store.run(node.id)) for node in problem.nodes(point) if node.kind == "run"]
    return sum(config.num_steps if run.result() else run.committed_step() for config, run in runs)


class _Work:
    """Executes nodes one after another and counts."""

    def __init__(self, execution: Execution, resources: Resources, retry_diverged: bool):
        self.execution, self.resources = execution, resources
        self.store = Store(execution.storage)
        self.lives = Lives(self.store, retry_diverged)
        self.num_executed = self.num_reused = 0
        self.seconds = self.rank_seconds = 0.0

    def result(self, node: Node) -> dict:
        if (result := self.lives.result(node)) is not None:
            self.num_reused += 1
            return result
        self.lives.require_not_diverged(node)
        started = time.monotonic()
        result = self._when_free(node)
        elapsed_s = time.monotonic() - started
        self.seconds += elapsed_s
        self.rank_seconds += elapsed_s * self.execution.of_node(node.config, node.names).num_ranks
        self.num_executed += 1
        return result

    def _when_free(self, node: Node) -> dict:
        """The node's result; while another process works on it, wait."""
        while True:
            try:
                return execute_node(node.config, node.names, self.execution, self.resources)
            except LeaseHeld:
                time.sleep(HELD_RETRY_S)
                self.lives.require_not_diverged(node)  # it may have diverged there
