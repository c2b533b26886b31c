"""Proposes a search's trials, from a list of points or from Optuna studies."""

import contextlib
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import TrialState

from gram_platform.config import State
from gram_platform.config.identity import short_hash
from gram_platform.config.space import SearchObjective, Space
from gram_platform.engine.trials import Outcome, Point

# Random trials of a study before its sampler looks at results: Optuna's default.
NUM_RANDOM_TRIALS = 10
# Facts of an outcome that Optuna's database keeps.
TOLD = ("state", "message", "elapsed_s", "trained_s", "rank_s")


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
        """Counts the points that are left to propose."""
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
    """One Optuna study of a search, in which the parameters `fixed` do not vary."""

    name: str
    fixed: Point
    study: optuna.Study
    # Trials that shall be complete at the end.
    num_trials: int
    # The study's database, which resuming a trial needs.
    storage: optuna.storages.BaseStorage | None = None
    # Trials that this driver started.
    num_started: int = 0
    # Numbers of the trials that a dead driver left running.
    resumable: list[int] = field(default_factory=list)

    @property
    def num_complete(self) -> int:
        return len(self._of(TrialState.COMPLETE))

    def _of(self, *states: TrialState) -> list[optuna.trial.FrozenTrial]:
        return self.study.get_trials(deepcopy=False, states=states)

    def begin(self) -> int:
        """Looks for trials that a dead driver left running.

        Returns how many are left to propose.
        """
        self.resumable = [trial.number for trial in self._of(TrialState.RUNNING)]
        return max(0, self.num_trials - self.num_complete)

    def resumed(self) -> optuna.Trial:
        """Returns the next trial that a dead driver left running."""
        assert self.storage is not None, "only a database outlives a driver"
        study_id = self.storage.get_study_id_from_name(self.study.study_name)
        number = self.resumable.pop(0)
        return optuna.Trial(
            self.study, self.storage.get_trial_id_from_study_id_trial_number(study_id, number)
        )


class OptunaSource:
    """Proposes trials of one or more Optuna studies, first of the study with most trials left.

    Trials that a dead driver left running are resumed: each is proposed again with its parameters,
    and its finished nodes are reused. So the history has no duplicates and no trials that run for
    ever. There must be one driver at a time. A failed trial stays failed and is not counted.
    """

    def __init__(self, groups: Sequence[Group], space: Space, objective: SearchObjective):
        self.groups, self.space, self.objective = groups, space, objective
        self._left = {group.name: group.begin() for group in groups}

    @property
    def num_left(self) -> int:
        """Counts the trials that are left to propose."""
        return sum(max(self._left[group.name], len(group.resumable)) for group in self.groups)

    @property
    def is_independent(self) -> bool:
        """Whether the next proposal ignores the results of running trials.

        It does if it is a resumed trial, or one of the sampler's first, which are random.
        """
        group = self._next_group()
        if group is None or group.resumable:
            return True
        return len(group.study.get_trials(deepcopy=False)) < NUM_RANDOM_TRIALS

    def _next_group(self) -> Group | None:
        open_groups = [g for g in self.groups if g.resumable or self._left[g.name] > 0]
        return max(open_groups, key=lambda g: self._left[g.name] - g.num_started, default=None)

    def next(self) -> Proposal | None:
        """Proposes the next trial; None when there are no more."""
        group = self._next_group()
        if group is None:
            return None
        trial = group.resumed() if group.resumable else group.study.ask()
        self._left[group.name] -= 1
        group.num_started += 1
        point = {
            p.name: trial.suggest_float(p.name, p.low, p.high, log=p.log)
            for p in self.space.parameters
        }
        return Proposal(f"{group.name} {trial.number}", {**group.fixed, **point}, (group, trial))

    def tell(self, proposal: Proposal, outcome: Outcome) -> None:
        """Tells Optuna.

        No-op if the trial has ended: another driver resumed it and reported the same outcome.
        """
        group, trial = proposal.key
        facts = {name: getattr(outcome, name) for name in TOLD}
        facts |= {"metrics": dict(outcome.metrics)}
        facts |= {"nodes": list(outcome.nodes), "runs": list(outcome.runs)}
        # Optuna learns from a diverged trial too.
        state, value = TrialState.COMPLETE, self.objective.worst
        if outcome.state == State.FAILED:
            state, value = TrialState.FAIL, None
        elif outcome.state == State.COMPLETE:
            value = outcome.metrics[self.objective.metric]
        with contextlib.suppress(UpdateFinishedTrialError):
            for key, value in facts.items():
                trial.set_user_attr(key, value)
            group.study.tell(trial, value, state, skip_if_finished=True)


# What proposes trials, and receives their outcomes.
Source = PointList | OptunaSource


def open_study(storage: optuna.storages.BaseStorage, name: str, metric: str) -> optuna.Study:
    """Opens or creates the study of this name, with a TPE sampler that minimises the metric.

    The sampler's seed follows from the name and the number of trials: a second driver must not draw
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
