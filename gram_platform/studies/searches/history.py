"""What Optuna remembers of a search, as a trials frame, and how much each parameter matters."""

import math
import warnings
from collections.abc import Sequence

import optuna
import pandas as pd
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState

from gram_platform.analysis.trials import (
    COMPLETE,
    ELAPSED,
    FAILED,
    RUNNING,
    RUNS,
    SEARCH,
    STARTED,
    STATE,
    TRIAL,
    WAITING,
)
from gram_platform.config.identity import invalid

OPTUNA_STATES = {
    TrialState.COMPLETE: COMPLETE,
    TrialState.FAIL: FAILED,
    TrialState.RUNNING: RUNNING,
    TrialState.WAITING: WAITING,
    TrialState.PRUNED: "stopped",
}
MIN_TRIALS = 10  # complete ones, below which importances would be read out of noise [ours]


def trials_frame(study: optuna.Study, objectives: Sequence[str]) -> pd.DataFrame:
    """One row a trial of the study, in their order; see `analysis.trials` for the columns.

    `objectives` names the study's values in their order; further metrics are those of the trials' user attributes.
    A metric that does not exist is NaN, also where the searcher was told a penalty. ValueError when `objectives` does
    not fit the study, or a name is both a parameter's and a metric's.
    """
    if len(objectives) != len(study.directions):
        raise invalid("objectives", tuple(objectives), f"{len(study.directions)} names, as the study has values")
    trials = study.get_trials(deepcopy=False)
    metrics_of = {trial.number: _metrics(trial, objectives) for trial in trials}
    parameters = list(dict.fromkeys(name for trial in trials for name in trial.params))
    metrics = list(dict.fromkeys([*objectives, *(name for own in metrics_of.values() for name in own)]))
    columns = [SEARCH, TRIAL, STATE, *parameters, *metrics, RUNS, ELAPSED, STARTED]
    doubled = sorted({name for name in columns if columns.count(name) > 1})
    if doubled:
        raise invalid("columns", ", ".join(doubled), "names that only one parameter, metric or other column has")
    rows = [
        {
            SEARCH: study.study_name,
            TRIAL: trial.number,
            STATE: _state(trial),
            **trial.params,
            **metrics_of[trial.number],
            RUNS: " ".join(trial.user_attrs.get("runs", ())),
            ELAPSED: trial.user_attrs.get("elapsed_s", math.nan),
            STARTED: trial.datetime_start,
        }
        for trial in trials
    ]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.astype({**dict.fromkeys([*metrics, ELAPSED], float), STARTED: "datetime64[ns]"})


def importances(study: optuna.Study, target: str) -> dict[str, float]:
    """Share of the variance of the metric `target` that each parameter alone explains, the largest first.

    fANOVA (Hutter and others, 2014) on a forest with a fixed seed, over the searched ranges, logarithmic ones on their
    logarithm; what is missing to 1 is interactions. Only complete trials count. {} where `why_no_importances` says
    why. Optuna's default, PED-ANOVA, is not taken: with tens of trials it looks at the best two or three of them.
    """
    if why_no_importances(study, target):
        return {}
    trials = _complete(study, target)
    space = _linear_space(trials)
    copy = _silent_study()
    copy.add_trials([_on_linear_scales(trial, space, value) for trial, value in trials])
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # of `normalize`
        found = optuna.importance.get_param_importances(copy, evaluator=evaluator, normalize=False)
    return {name: float(share) for name, share in found.items()}


def why_no_importances(study: optuna.Study, target: str) -> str:
    """Why `importances` has nothing to say; empty when it has."""
    trials = _complete(study, target)
    if len(trials) < MIN_TRIALS:
        return f"{len(trials)} complete trials; importances need {MIN_TRIALS}"
    if len({value for _, value in trials}) == 1:
        return f"{target} is the same in all {len(trials)} complete trials"
    if not _linear_space(trials):
        return "no parameter was varied in all complete trials"
    return ""


def _state(trial: FrozenTrial) -> str:
    """What the engine noted of a trial that ended, else Optuna's own word."""
    return trial.user_attrs.get("state", OPTUNA_STATES[trial.state])


def _metrics(trial: FrozenTrial, objectives: Sequence[str]) -> dict[str, float]:
    """The measured metrics of a complete trial; those that only Optuna holds by its values."""
    if _state(trial) != COMPLETE:
        return {}
    values = dict(zip(objectives, trial.values or (), strict=False))
    return {**values, **trial.user_attrs.get("metrics", {})}


def _complete(study: optuna.Study, target: str) -> list[tuple[FrozenTrial, float]]:
    """(trial, finite metric) of every complete trial that has it; the one value of a trial without metrics is it."""
    is_single = len(study.directions) == 1
    pairs = []
    for trial in study.get_trials(deepcopy=False):
        names = (target,) if is_single and "metrics" not in trial.user_attrs else ()
        pairs.append((trial, _metrics(trial, names).get(target, math.nan)))
    return [(trial, value) for trial, value in pairs if math.isfinite(value)]


def _linear_space(trials: Sequence[tuple[FrozenTrial, float]]) -> dict[str, BaseDistribution]:
    """The parameters that all trials have and that could vary, on scales that fANOVA may take as linear."""
    shared = set.intersection(*(set(trial.distributions) for trial, _ in trials)) if trials else set()
    found = {}
    for name in sorted(shared):
        own = [trial.distributions[name] for trial, _ in trials]
        if isinstance(own[0], CategoricalDistribution):
            found[name] = own[0]
        else:
            low, high = min(d.low for d in own), max(d.high for d in own)
            found[name] = FloatDistribution(_linear(own[0], low), _linear(own[0], high))
    return {name: distribution for name, distribution in found.items() if not distribution.single()}


def _linear(distribution: BaseDistribution, value: float) -> float:
    return math.log(value) if getattr(distribution, "log", False) else value


def _on_linear_scales(trial: FrozenTrial, space: dict[str, BaseDistribution], value: float) -> FrozenTrial:
    params = {name: _linear(trial.distributions[name], trial.params[name]) for name in space}
    return optuna.trial.create_trial(params=params, distributions=space, value=value)


def _silent_study() -> optuna.Study:
    """A study in memory, whose creation Optuna would announce on the terminal."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return optuna.create_study()
    finally:
        optuna.logging.set_verbosity(verbosity)
