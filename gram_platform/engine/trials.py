"""Proposes, executes and scores the trials of a search, and computes their Ray resources.

Trials are proposed from a list of points or from Optuna studies. Finished nodes of any study or
search are reused, and interrupted nodes continue.
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

# Random trials before Optuna's sampler uses results. This is Optuna's default.
NUM_RANDOM_TRIALS = 10
TOLD = ("state", "message", "elapsed_s", "trained_s", "rank_s")
# A worker's memory without a model, for Python, torch, Ray and mapped files.
PROCESS_BYTES = GIB
# Requests are rounded up to a multiple, so that trials of similar sizes reuse processes.
MEMORY_STEP = GIB // 4


class Problem(Protocol):
    """Maps points of a search to nodes, and the nodes' results to metrics.

    A problem is pickled and sent to workers, so it contains only plain values.
    """

    def nodes(self, point: Point) -> list[Node]:
        """Returns the nodes of a trial, each after the nodes that it needs.

        Nodes that all trials share are executed before the first trial.
        """

    def score(self, point: Point, results: Mapping[str, Mapping]) -> dict[str, float]:
        """Computes a trial's metrics. `results` are keyed by node id.

        Raises ValueError if a metric is not finite.
        """


@dataclass(frozen=True)
class Outcome:
    name: str
    point: Point
    # A value of `State`: complete, diverged or failed.
    state: str
    # Unix time.
    started: float
    elapsed_s: float
    # Seconds in nodes that this trial executed itself.
    trained_s: float = 0.0
    # `trained_s`, summed over ranks.
    rank_s: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    # Ids of the trial's nodes, and of the runs among them.
    nodes: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    message: str = ""
    num_executed: int = 0
    num_reused: int = 0
    # The trial's process, `host:pid`.
    process: str = ""


@dataclass(frozen=True)
class Proposal:
    """A trial to run. Only the source that proposed it uses `key`."""

    name: str
    point: Point
    key: object = None


class PointList:
    """Proposes every point once."""

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
        """Does nothing, because proposals do not depend on outcomes."""


@dataclass
class Group:
    """One Optuna study of a search, with constant values for the `fixed` parameters."""

    name: str
    fixed: Point
    study: optuna.Study
    # The number of complete trials at which the group is finished.
    num_trials: int
    storage: optuna.storages.BaseStorage | None = None
    num_started: int = 0
    resumable: list[int] = field(default_factory=list)

    @property
    def num_complete(self) -> int:
        return len(self._of(TrialState.COMPLETE))

    def _of(self, *states: TrialState) -> list[optuna.trial.FrozenTrial]:
        return self.study.get_trials(deepcopy=False, states=states)

    def begin(self) -> int:
        """Finds trials that a dead driver left running; returns how many trials remain to run."""
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
    """Proposes trials from the Optuna studies of a search.

    The next trial is from the study that still has the most trials to start.

    A search must have only one driver at a time. Trials that a dead driver left running are
    proposed again with the same parameters. A new driver replaces failed trials with new ones.
    """

    def __init__(self, groups: Sequence[Group], space: Space, objective: SearchObjective):
        self.groups, self.space, self.objective = groups, space, objective
        self._left = {group.name: group.begin() for group in groups}

    @property
    def num_left(self) -> int:
        return sum(max(self._left[group.name], len(group.resumable)) for group in self.groups)

    @property
    def is_independent(self) -> bool:
        """Returns True if the next proposal does not depend on the results of running trials.

        This is true of resumed trials and of the first trials, which are random.
        """
        group = self._next_group()
        if group is None or group.resumable:
            return True
        return len(group.study.get_trials(deepcopy=False)) < NUM_RANDOM_TRIALS

    def _next_group(self) -> Group | None:
        open_groups = [g for g in self.groups if g.resumable or self._left[g.name] > 0]
        return max(open_groups, key=lambda g: self._left[g.name] - g.num_started, default=None)

    def next(self) -> Proposal | None:
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
        """Stores an outcome in Optuna's database, unless another driver has ended the trial."""
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
            # Optuna learns from a diverged trial that its point is bad.
            value = self.objective.worst
        with contextlib.suppress(UpdateFinishedTrialError):
            for name, fact in facts.items():
                trial.set_user_attr(name, fact)
            group.study.tell(trial, value, state, skip_if_finished=True)


Source = PointList | OptunaSource


def open_study(storage: optuna.storages.BaseStorage, name: str, metric: str) -> optuna.Study:
    """Opens or creates an Optuna study, with a TPE sampler that minimises the metric.

    The sampler's seed depends on the name and the number of trials, so that a resumed search does
    not draw the same random points again.
    """
    study = optuna.create_study(
        storage=storage, study_name=name, direction="minimize", load_if_exists=True
    )
    # Otherwise Optuna's pages would call the metric "Objective 0".
    if not study.metric_names:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.set_metric_names([metric])
    num_trials = len(study.get_trials(deepcopy=False))
    seed = int(short_hash({"study": name, "trials": num_trials}), 16) % 2**31
    # With `constant_liar` running trials count as poor, so that parallel trials do not cluster.
    study.sampler = optuna.samplers.TPESampler(
        n_startup_trials=NUM_RANDOM_TRIALS, seed=seed, multivariate=True, constant_liar=True
    )
    return study


def execute_trial(
    name: str,
    point: Point,
    problem: Problem,
    execution: Execution,
    resources: Resources,
    retry_diverged: bool = False,
    placements: Mapping[str, Placement] = ALL_ON_ONE_RANK,
) -> Outcome:
    """Executes the missing nodes of a trial; returns the trial's outcome with its metrics.

    Raises device errors, out-of-memory errors and Unavailable, because the trial may succeed in
    another process. Any other exception becomes the outcome's message. Raises SystemExit on SIGTERM
    or if Ray drains this machine.
    """
    started, clock = time.time(), time.monotonic()
    store = Store(execution.storage)
    runner = _NodeRunner(execution, resources, placements, NodeLifecycle(store, retry_diverged))
    metrics, state, message, nodes = {}, State.COMPLETE, "", []
    try:
        store.open_for_writing()
        nodes = problem.nodes(point)
        metrics = problem.score(point, {node.id: runner.result(node) for node in nodes})
    except TrainingDiverged as error:
        state, message = State.DIVERGED, str(error)
    except Exception as error:
        # Other errors must not end the search. The run's directory stores them too.
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
        trained_s=runner.seconds,
        rank_s=runner.rank_seconds,
        num_executed=runner.num_executed,
        num_reused=runner.num_reused,
        process=owner(),
    )


def count_committed_steps(problem: Problem, point: Point, store: Store) -> int:
    runs = [(node.config, store.run(node.id)) for node in problem.nodes(point) if node.is_run]
    return sum(
        config.num_steps if run.result() else run.read_committed_step() for config, run in runs
    )


@dataclass
class _NodeRunner:
    execution: Execution
    resources: Resources
    placements: Mapping[str, Placement]
    lifecycle: NodeLifecycle
    num_executed: int = 0
    num_reused: int = 0
    seconds: float = 0.0
    rank_seconds: float = 0.0

    def result(self, node: Node) -> dict:
        result = self.lifecycle.result(node)
        if result is not None:
            self.num_reused += 1
            return result
        self.lifecycle.require_not_diverged(node)
        started, placement = time.monotonic(), self.placements.get(node.id, ON_ONE_RANK)
        execution = self.execution.with_placement(placement)
        while result is None:
            try:
                result = execute_node(node.config, node.names, execution, self.resources)
            except LeaseHeld:
                time.sleep(HELD_RETRY_S)
                # The run may have diverged in the other process.
                self.lifecycle.require_not_diverged(node)
        elapsed_s = time.monotonic() - started
        self.seconds += elapsed_s
        self.rank_seconds += elapsed_s * placement.fewest.num_ranks
        self.num_executed += 1
        return result


def reservation(placements: Collection[Placement], resources: Resources) -> dict[str, float]:
    """Returns the resources that Ray reserves for a trial whose nodes have these placements.

    A single-rank trial reserves the CPUs and GPUs of a run. In a search on CPUs, it also reserves
    the memory of its largest node. A multi-rank trial reserves only memory for a process that waits
    for Ray Train's workers. The workers have their own reservations. `most_gangs` limits the number
    of multi-rank trials.
    """
    if trial_ranks(placements) > 1:
        return {"memory": MEMORY_STEP}
    if resources.gpus_per_run:
        return {"CPU": resources.cpus_per_rank, "GPU": resources.gpus_per_run}
    largest = max((placement.fewest.memory_bytes for placement in placements), default=0)
    memory = math.ceil((largest + PROCESS_BYTES) / MEMORY_STEP) * MEMORY_STEP
    return {"CPU": resources.cpus_per_rank, "memory": memory}


def trial_ranks(placements: Iterable[Placement]) -> int:
    """Returns the most ranks that one node of a trial needs. The nodes run one after another."""
    return max((placement.fewest.num_ranks for placement in placements), default=1)
