"""Opens the database of a search, and reads its trials as a frame and the importance of each parameter."""

import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import optuna
import pandas as pd
import plotly.graph_objects as go
from optuna.distributions import FloatDistribution
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from gram_platform.analysis.trials import ELAPSED, RUNS, SEARCH, STARTED, STATE, TRIAL
from gram_platform.config import State
from gram_platform.config.crash_safe import create_database
from gram_platform.config.identity import has_shape, invalid
from gram_platform.config.space import Parameter, Space
from gram_platform.pages.figures.searches import history_figure, importance_figure, slice_figure
from gram_platform.store.folders import LocalFolder
from gram_platform.tracking.connection import first_line
from gram_platform.tracking.database import database_path, database_uri, require_regular


def open_storage(uri: str) -> optuna.storages.RDBStorage:
    """Opens or creates the database at `uri`; ValueError naming `optuna_uri` if it cannot be opened.

    It must not be MLflow's: both keep their schema's version in a table of the same name.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        if (path := database_path(uri)) is None:
            return optuna.storages.RDBStorage(uri)
        require_regular(path)
        with LocalFolder(str(path.parent), writable=True).lock("optuna"):
            if not path.exists():
                create_database(path, lambda new: optuna.storages.RDBStorage(database_uri(new)).engine.dispose())
        # a driver and readers share the file, and wait for each other's locks
        return optuna.storages.RDBStorage(uri, engine_kwargs={"connect_args": {"timeout": 60}})
    except (SQLAlchemyError, RuntimeError, OSError) as error:
        raise invalid("optuna_uri", uri, f"a database that Optuna can open ({first_line(error)})") from error


def num_complete(storage: optuna.storages.RDBStorage, name: str) -> int:
    """Counts the complete trials of an Optuna study; 0 if there is none of this name."""
    try:
        study = optuna.load_study(study_name=name, storage=storage)
    except KeyError:
        return 0
    return len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))


# -------------------------------------------------------------------------------------------------------------- trials


OPTUNA_STATES = {
    TrialState.COMPLETE: State.COMPLETE,
    TrialState.FAIL: State.FAILED,
    TrialState.RUNNING: State.RUNNING,
    TrialState.WAITING: State.WAITING,
    # Earlier versions could stop a trial early.
    TrialState.PRUNED: State.INTERRUPTED,
}
# The attributes of a trial that has ended; metrics may be NaN.
ATTRIBUTES = {
    "state": lambda value: value in (*OPTUNA_STATES.values(), State.DIVERGED),
    "metrics": lambda value: has_shape(value, {str: lambda one: isinstance(one, int | float)}),
    "runs": [str],
    "nodes": [str],
    **dict.fromkeys(("elapsed_s", "rank_s"), float),
}
# With fewer complete trials importances would be noise [ours].
MIN_TRIALS = 10


def attributes(trial: FrozenTrial) -> dict[str, Any]:
    """Returns the user attributes that the engine sets; one of another shape counts as absent."""
    stored = trial.user_attrs
    return {name: stored[name] for name, shape in ATTRIBUTES.items() if has_shape(stored, {name: shape})}


def trials_frame(study: optuna.Study, metric: str) -> pd.DataFrame:
    """Returns one row for each trial, in order, with the columns of `analysis.trials`.

    `metric` names the study's value; user attributes hold further metrics. A metric that does not exist is NaN, also
    where Optuna got a penalty. ValueError if a parameter and a metric share a name.
    """
    trials = study.get_trials(deepcopy=False)
    metrics_of = {trial.number: _metrics(trial, metric) for trial in trials}
    parameters = list(dict.fromkeys(name for trial in trials for name in trial.params))
    metrics = list(dict.fromkeys([metric, *(name for metrics in metrics_of.values() for name in metrics)]))
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
            RUNS: " ".join(attributes(trial).get("runs", ())),
            ELAPSED: attributes(trial).get("elapsed_s", math.nan),
            STARTED: trial.datetime_start,
        }
        for trial in trials
    ]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.astype({**dict.fromkeys([*metrics, ELAPSED], float), STARTED: "datetime64[ns]"})


def importances(study: optuna.Study, target: str) -> dict[str, float]:
    """Returns the share of the variance of the metric `target` that each parameter explains alone, largest first.

    fANOVA (Hutter and others, 2014) on a forest with a fixed seed, over the searched ranges, on the logarithm of
    logarithmic ones; interactions explain the rest. Counts complete trials only; {} if `why_no_importances` has a
    reason. Optuna's default, PED-ANOVA, would look at only the best two or three of tens of trials.
    """
    if why_no_importances(study, target):
        return {}
    trials = _complete(study, target)
    space = _linear_space(trials)
    copy = optuna.create_study()
    copy.add_trials([_on_linear_scales(trial, space, value) for trial, value in trials])
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # `normalize` warns.
        found = optuna.importance.get_param_importances(copy, evaluator=evaluator, normalize=False)
    return {name: float(share) for name, share in found.items()}


def why_no_importances(study: optuna.Study, target: str) -> str:
    """Returns the reason for which there are no importances; "" if there are."""
    trials = _complete(study, target)
    if len(trials) < MIN_TRIALS:
        return f"{len(trials)} complete trials; importances need {MIN_TRIALS}"
    if len({value for _, value in trials}) == 1:
        return f"{target} is the same in all {len(trials)} complete trials"
    if not _linear_space(trials):
        return "no parameter was varied in all complete trials"
    return ""


def search_figures(
    trials: pd.DataFrame, study: optuna.Study, metric: str, parameters: Sequence[Parameter]
) -> dict[str, go.Figure]:
    """Returns the history of a metric, a slice for each parameter, and the importances if there are any, by name."""
    figures = {f"history-{metric}": history_figure(trials, metric)}
    for parameter in parameters:
        figures[f"slice-{metric}-{parameter.name}"] = slice_figure(trials, parameter, metric)
    if shares := importances(study, metric):
        num_complete = int((trials[STATE] == State.COMPLETE).sum())
        figures[f"importances-{metric}"] = importance_figure(shares, metric, num_complete)
    return figures


def _state(trial: FrozenTrial) -> str:
    """Returns the state that the engine noted when the trial ended, else Optuna's."""
    return attributes(trial).get("state", OPTUNA_STATES[trial.state])


def _metrics(trial: FrozenTrial, metric: str) -> dict[str, float]:
    """Returns the measured metrics of a complete trial; of a trial without user attributes, its value."""
    if _state(trial) != State.COMPLETE:
        return {}
    value = {} if trial.value is None else {metric: trial.value}
    return attributes(trial).get("metrics", value)


def _complete(study: optuna.Study, target: str) -> list[tuple[FrozenTrial, float]]:
    """Returns (trial, finite metric) of complete trials."""
    pairs = [(trial, _metrics(trial, target).get(target, math.nan)) for trial in study.get_trials(deepcopy=False)]
    return [(trial, value) for trial, value in pairs if math.isfinite(value)]


def _linear_space(trials: Sequence[tuple[FrozenTrial, float]]) -> dict[str, FloatDistribution]:
    """Returns the ranges of the parameters that vary in all trials, on scales that fANOVA may take as linear."""
    shared = set.intersection(*(set(trial.distributions) for trial, _ in trials)) if trials else set()
    found = {}
    for name in sorted(shared):
        ranges = [trial.distributions[name] for trial, _ in trials]
        low, high = min(d.low for d in ranges), max(d.high for d in ranges)
        found[name] = FloatDistribution(_linear(ranges[0], low), _linear(ranges[0], high))
    return {name: distribution for name, distribution in found.items() if not distribution.single()}


def _linear(distribution: FloatDistribution, value: float) -> float:
    return math.log(value) if distribution.log else value


def _on_linear_scales(trial: FrozenTrial, space: dict[str, FloatDistribution], value: float) -> FrozenTrial:
    params = {name: _linear(trial.distributions[name], trial.params[name]) for name in space}
    return optuna.trial.create_trial(params=params, distributions=space, value=value)


def spread_points(space: Space, shares: Iterable[float]) -> list[dict[str, float]]:
    """Returns a point at each share of all ranges, from 0 (low ends) to 1; logarithmic ranges by their logarithm."""
    return [{parameter.name: _at(parameter, share) for parameter in space.parameters} for share in shares]


def _at(parameter: Parameter, share: float) -> float:
    if parameter.log:
        return parameter.low * (parameter.high / parameter.low) ** share
    return parameter.low + share * (parameter.high - parameter.low)
