"""Executes one trial of a search and scores its results; says what Ray reserves for it.

A trial's nodes are those of studies: finished nodes of any study or search are reused, interrupted
ones continue.
"""

import math
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gram_platform.config import State
from gram_platform.config.flops import GIB
from gram_platform.engine.execution import (
    ALL_ON_ONE_RANK,
    ON_ONE_RANK,
    Execution,
    Placement,
    Resources,
    owner,
)
from gram_platform.engine.executor import execute_node
from gram_platform.engine.life import (
    CRASHED,
    HELD_RETRY_S,
    LACKS_MEMORY,
    NodeLifecycle,
    failure_message,
    kind_of,
)
from gram_platform.methods.nodes import Node
from gram_platform.store import LeaseHeld, Store
from gram_platform.train.loop import TrainingDiverged

Point = Mapping[str, float | int | str]

# Memory of a worker before it holds a model: Python, torch, Ray, the page cache's mapping.
PROCESS_BYTES = GIB
# Requests are rounded up to it, so that trials of similar sizes reuse processes.
MEMORY_STEP = GIB // 4


class Problem(Protocol):
    """A search's problem: points to nodes, results to scores.

    It is pickled to workers: plain values only.
    """

    def nodes(self, point: Point) -> list[Node]:
        """Lists the trial's nodes, each after those that it needs.

        Nodes that all trials share are done already.
        """

    def score(self, point: Point, results: Mapping[str, Mapping]) -> dict[str, float]:
        """Computes finite metrics from the nodes' results by id.

        ValueError where that is impossible.
        """


@dataclass(frozen=True)
class Outcome:
    """How a trial ended."""

    name: str
    point: Point
    # A value of `State`: complete, diverged or failed.
    state: str
    # Unix time.
    started: float
    elapsed_s: float
    # Seconds in nodes that were executed now.
    trained_s: float = 0.0
    # The same, summed over ranks.
    rank_s: float = 0.0
    # A complete trial's metrics.
    metrics: Mapping[str, float] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    # Why the trial is not complete.
    message: str = ""
    num_executed: int = 0
    num_reused: int = 0
    # host:pid of the trial's process.
    process: str = ""


def execute_trial(
    name: str,
    point: Point,
    problem: Problem,
    execution: Execution,
    resources: Resources,
    retry_diverged: bool = False,
    placements: Mapping[str, Placement] = ALL_ON_ONE_RANK,
) -> Outcome:
    """Executes a trial's missing nodes and scores it.

    An error of the trial becomes the outcome's message. `placements`: of its nodes, by id.

    Raises errors of the device, what says that memory is lacking, and Unavailable: another process
    may not meet them. Raises SystemExit when this process gets SIGTERM or its machine is drained.
    """
    started, clock = time.time(), time.monotonic()
    work = _NodeRunner(execution, resources, retry_diverged, placements)
    metrics, state, message, nodes = {}, State.COMPLETE, "", []
    try:
        work.store.open_for_writing()
        nodes = problem.nodes(point)
        metrics = problem.score(point, {node.id: work.result(node) for node in nodes})
    except TrainingDiverged as error:
        state, message = State.DIVERGED, str(error)
    except Exception as error:
        # One trial must not end a search; the run's directory has the error too.
        if kind_of(error) in (CRASHED, LACKS_MEMORY):
            raise
        state, message = State.FAILED, failure_message(error)
    return Outcome(
        name=name,
        point=dict(point),
        state=state,
        metrics=metrics,
        nodes=tuple(node.id for node in nodes),
        runs=tuple(node.id for node in nodes if node.is_run),
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
    """Counts the steps of a trial's runs that are saved."""
    runs = [(node.config, store.run(node.id)) for node in problem.nodes(point) if node.is_run]
    return sum(config.num_steps if run.result() else run.committed_step() for config, run in runs)


class _NodeRunner:
    """Executes a trial's nodes one after another; counts nodes and seconds."""

    def __init__(
        self,
        execution: Execution,
        resources: Resources,
        retry_diverged: bool,
        placements: Mapping[str, Placement],
    ):
        self.execution, self.resources, self.placements = execution, resources, placements
        self.store = Store(execution.storage)
        self.lifecycle = NodeLifecycle(self.store, retry_diverged)
        self.num_executed = self.num_reused = 0
        self.seconds = self.rank_seconds = 0.0

    def result(self, node: Node) -> dict:
        result = self.lifecycle.result(node)
        if result is not None:
            self.num_reused += 1
            return result
        self.lifecycle.require_not_diverged(node)
        started, placement = time.monotonic(), self.placements.get(node.id, ON_ONE_RANK)
        result = self._when_free(node, placement)
        elapsed_s = time.monotonic() - started
        self.seconds += elapsed_s
        self.rank_seconds += elapsed_s * placement.fewest.num_ranks
        self.num_executed += 1
        return result

    def _when_free(self, node: Node, placement: Placement) -> dict:
        """Executes the node; waits while another process works on it."""
        execution = self.execution.placed(placement)
        while True:
            try:
                return execute_node(node.config, node.names, execution, self.resources)
            except LeaseHeld:
                time.sleep(HELD_RETRY_S)
                # It may have diverged in the other process.
                self.lifecycle.require_not_diverged(node)


def reservation(placements: Collection[Placement], resources: Resources) -> dict[str, float]:
    """Reserves what a run of one rank gets; without GPUs also the largest run's memory.

    A sharded trial only waits for Ray Train's workers, which have separate reservations: it is on
    the driver's machine, which is not preempted and whose memory decides how many there are
    (`most_gangs`).
    """
    if trial_ranks(placements) > 1:
        return {"memory": MEMORY_STEP}
    if resources.gpus_per_run:
        return {"CPU": resources.cpus_per_rank, "GPU": resources.gpus_per_run}
    largest = max((placement.fewest.memory_bytes for placement in placements), default=0)
    memory = math.ceil((largest + PROCESS_BYTES) / MEMORY_STEP) * MEMORY_STEP
    return {"CPU": resources.cpus_per_rank, "memory": memory}


def trial_ranks(placements: Iterable[Placement]) -> int:
    """Counts the ranks of a trial's widest node; the nodes run one after another."""
    return max((placement.fewest.num_ranks for placement in placements), default=1)
