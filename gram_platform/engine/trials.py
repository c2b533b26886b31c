"""Proposes a search's trials, executes one and scores its results; says what Ray reserves for it.

A source proposes trials from a list of points or from Optuna studies. A trial's nodes are nodes as
studies have them: finished nodes of any study or search are reused, interrupted ones continue.
"""

import contextlib
import math
import time
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import TrialState

from gram_platform.config import State
from gram_platform.config.flops import GIB
from gram_platform.config.identity import short_hash
from gram_platform.config.space import SearchObjective, Space
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

# Random trials of a study before its sampler looks at results, Optuna's default.
NUM_RANDOM_TRIALS = 10
# Facts of an outcome that Optuna's database keeps.
TOLD = ("state", "message", "elapsed_s", "trained_s", "rank_s")
# A worker's memory without a model: Python, torch, Ray, the page cache's mapping.
PROCESS_BYTES = GIB
# Requests are rounded up to this, so that trials of similar sizes reuse processes.
MEMORY_STEP = GIB // 4


class Problem(Protocol):
    """A search's problem: points to nodes, results to scores.

    It is pickled to workers, so it has plain values only.
    """

    def nodes(self, point: Point) -> list[Node]:
        """Lists the trial's nodes, each after the nodes that it needs.

        Nodes that all trials share are done already.
        """

    def score(self, point: Point, results: Mapping[str, Mapping]) -> dict[str, float]:
        """Computes finite metrics from the nodes' results by id; ValueError if it cannot."""


@dataclass(frozen=True)
class Outcome:
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
    metrics: Mapping[str, float] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    # Why the trial is not complete.
    message: str = ""
    num_executed: int = 0
    num_reused: int = 0
    # host:pid of the trial's process.
    process: str = ""


# -------------------------------------------------------------------------------------- sources


@dataclass(frozen=True)
class Proposal:
    """A trial to run; only its source interprets `key`."""

    name: str
    point: Point
    key: object = None


class PointList:
    """Proposes every point once."""

    # Its next proposal ignores the results of running trials.
    is_independent = True

    def __init__(self, points: Iterable[tuple[str, Point]]):
        self._left = list(points)

    @property
    def num_left(self) -> int:
        return len(self._left)

    def next(self) -> Proposal | None:
        if not self._left:
            return None
        name, point = self._left.pop(0)
        return Proposal(name, point)

    def tell(self, proposal: Proposal, outcome: Outcome) -> None:
        """Does nothing."""


@dataclass
class Group:
    """One Optuna study of a search, in which the `fixed` parameters do not vary."""

    name: str
    fixed: Point
    study: optuna.Study
    # Trials that shall be complete at the end.
    num_trials: int
    # The study's database, which resuming a trial needs.
    storage: optuna.storages.BaseStorage | None = None
    num_started: int = 0
    # Numbers of the trials that a dead driver left running.
    resumable: list[int] = field(default_factory=list)

    @property
    def num_complete(self) -> int:
        return len(self._of(TrialState.COMPLETE))

    def _of(self, *states: TrialState) -> list[optuna.trial.FrozenTrial]:
        return self.study.get_trials(deepcopy=False, states=states)

    def begin(self) -> int:
        """Finds trials that a dead driver left running; returns how many are left to propose."""
        self.resumable = [trial.number for trial in self._of(TrialState.RUNNING)]
        return max(0, self.num_trials - self.num_complete)

    def resume_trial(self) -> optuna.Trial:
        assert self.storage is not None, "only a database outlives a driver"
        study_id = self.storage.get_study_id_from_name(self.study.study_name)
        number = self.resumable.pop(0)
        return optuna.Trial(
            self.study, self.storage.get_trial_id_from_study_id_trial_number(study_id, number)
        )


class OptunaSource:
    """Proposes trials of Optuna studies, first of the study with most trials left.

    There must be one driver at a time. A trial that a dead driver left running is proposed again
    with its parameters, and its finished nodes are reused. So no trial is double or runs for ever.
    A failed trial stays failed and is not counted.
    """

    def __init__(self, groups: Sequence[Group], space: Space, objective: SearchObjective):
        self.groups, self.space, self.objective = groups, space, objective
        self._left = {group.name: group.begin() for group in groups}

    @property
    def num_left(self) -> int:
        return sum(max(self._left[group.name], len(group.resumable)) for group in self.groups)

    @property
    def is_independent(self) -> bool:
        """Whether the next proposal ignores running trials: it is resumed or, at first, random."""
        group = self._next_group()
        if group is None or group.resumable:
            return True
        return len(group.study.get_trials(deepcopy=False)) < NUM_RANDOM_TRIALS

    def _next_group(self) -> Group | None:
        open_groups = [g for g in self.groups if g.resumable or self._left[g.name] > 0]
        return max(open_groups, key=lambda g: self._left[g.name] - g.num_started, default=None)

    def next(self) -> Proposal | None:
        """Proposes the next trial; None if there are no more."""
        group = self._next_group()
        if group is None:
            return None
        trial = group.resume_trial() if group.resumable else group.study.ask()
        self._left[group.name] -= 1
        group.num_started += 1
        point = {
            p.name: trial.suggest_float(p.name, p.low, p.high, log=p.log)
            for p in self.space.parameters
        }
        return Proposal(f"{group.name} {trial.number}", {**group.fixed, **point}, (group, trial))

    def tell(self, proposal: Proposal, outcome: Outcome) -> None:
        """Tells Optuna, unless the trial has ended because another driver resumed it."""
        group, trial = proposal.key
        facts = {name: getattr(outcome, name) for name in TOLD}
        facts |= {"metrics": dict(outcome.metrics)}
        facts |= {"nodes": list(outcome.nodes), "runs": list(outcome.runs)}
        state, value = None, None
        if outcome.state == State.FAILED:
            state = TrialState.FAIL
        elif outcome.state == State.COMPLETE:
            value = outcome.metrics[self.objective.metric]
        else:
            # Optuna learns from a diverged trial too.
            value = self.objective.worst
        with contextlib.suppress(UpdateFinishedTrialError):
            for name, fact in facts.items():
                trial.set_user_attr(name, fact)
            group.study.tell(trial, value, state, skip_if_finished=True)


Source = PointList | OptunaSource


def open_study(storage: optuna.storages.BaseStorage, name: str, metric: str) -> optuna.Study:
    """Opens or creates the study of this name, with a TPE sampler that minimises the metric.

    The seed follows from the name and the number of trials, so that a second driver does not draw
    the first one's random points again.
    """
    study = optuna.create_study(
        storage=storage, study_name=name, direction="minimize", load_if_exists=True
    )
    # Without a name Optuna's pages would say "Objective 0".
    if not study.metric_names:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.set_metric_names([metric])
    num_trials = len(study.get_trials(deepcopy=False))
    seed = int(short_hash({"study": name, "trials": num_trials}), 16) % 2**31
    # constant_liar: running trials count as poor ones, so that parallel trials do not cluster.
    study.sampler = optuna.samplers.TPESampler(
        n_startup_trials=NUM_RANDOM_TRIALS, seed=seed, multivariate=True, constant_liar=True
    )
    return study


# ------------------------------------------------------------------------------------ execution


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

    An error of the trial becomes the outcome's message. Raises errors that another process may not
    meet: of the device, for a lack of memory, and Unavailable. Raises SystemExit if this process
    gets SIGTERM or its machine is drained.
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


def count_committed_steps(problem: Problem, point: Point, store: Store) -> int:
    runs = [(node.config, store.run(node.id)) for node in problem.nodes(point) if node.is_run]
    return sum(
        config.num_steps if run.result() else run.read_committed_step() for config, run in runs
    )


class _NodeRunner:
    """Executes a trial's nodes one by one; counts nodes and seconds."""

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
        execution = self.execution.with_placement(placement)
        while True:
            try:
                return execute_node(node.config, node.names, execution, self.resources)
            except LeaseHeld:
                time.sleep(HELD_RETRY_S)
                # It may have diverged in the other process.
                self.lifecycle.require_not_diverged(node)


def reservation(placements: Collection[Placement], resources: Resources) -> dict[str, float]:
    """Returns what Ray reserves: what a run of one rank gets; without GPUs also the most memory.

    A trial of several ranks only waits for Ray Train's workers, which have reservations. It is on
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
    """Counts the ranks of a trial's widest node, because nodes run one after another."""
    return max((placement.fewest.num_ranks for placement in placements), default=1)
