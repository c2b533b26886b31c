"""Opens Optuna's database, and reads a search's trials into a frame."""

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import optuna
import pandas as pd
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from gram_platform.analysis.trials import ELAPSED, RUNS, SEARCH, STARTED, STATE, TRIAL
from gram_platform.config import State
from gram_platform.config.crash_safe import create_database
from gram_platform.config.identity import InvalidField, invalid
from gram_platform.config.plain import from_plain
from gram_platform.store.folders import LocalFolder
from gram_platform.tracking.connection import first_line
from gram_platform.tracking.database import database_path, database_uri, require_regular


def open_storage(uri: str) -> optuna.storages.RDBStorage:
    """Opens or creates the database at `uri`. Raises ValueError if Optuna cannot open it.

    MLflow's database cannot be used, because it has a table named like one of Optuna's.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        if (path := database_path(uri)) is None:
            return optuna.storages.RDBStorage(uri)
        require_regular(path)
        with LocalFolder(str(path.parent), writable=True).lock("optuna"):
            if not path.exists():
                create_database(
                    path, lambda new: optuna.storages.RDBStorage(database_uri(new)).engine.dispose()
                )
        # The driver and readers wait for each other's file locks.
        return optuna.storages.RDBStorage(uri, engine_kwargs={"connect_args": {"timeout": 60}})
    except (SQLAlchemyError, RuntimeError, OSError) as error:
        expected = f"a database that Optuna can open ({first_line(error)})"
        raise invalid("optuna_uri", uri, expected) from error


def num_complete(storage: optuna.storages.RDBStorage, name: str) -> int:
    try:
        study = optuna.load_study(study_name=name, storage=storage)
    except KeyError:
        return 0
    return len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))


def optuna_share_left(uri: str, is_dry: bool, names: Sequence[str], target: int) -> float:
    """Returns the share of trials that Optuna has not completed.

    If the database file is missing, returns 1 without creating it. If `is_dry`, returns 1 for a
    database server without contacting it. `target` is the number of trials per study.
    """
    path = database_path(uri)
    if not (path.exists() if path else not is_dry):
        return 1.0
    storage = open_storage(uri)
    left = sum(max(0, target - num_complete(storage, name)) for name in names)
    return left / (target * len(names))


OPTUNA_STATES = {
    TrialState.COMPLETE: State.COMPLETE,
    TrialState.FAIL: State.FAILED,
    TrialState.RUNNING: State.RUNNING,
    TrialState.WAITING: State.WAITING,
}
# The attributes of a trial that has ended; metrics may be NaN.
ATTRIBUTES: dict[str, Any] = {
    "state": str,
    "metrics": dict[str, float | int],
    "runs": list[str],
    "nodes": list[str],
    "elapsed_s": float,
    "rank_s": float,
}


def attributes(trial: FrozenTrial) -> dict[str, Any]:
    """Returns a trial's attributes that are listed in ATTRIBUTES and have the right type."""
    values = {}
    for name in ATTRIBUTES.keys() & trial.user_attrs.keys():
        with suppress(InvalidField):
            values[name] = from_plain(ATTRIBUTES[name], trial.user_attrs[name])
    return values


def trials_frame(study: optuna.Study, metric: str) -> pd.DataFrame:
    """Returns one row for each trial, in order, with the columns of `analysis.trials`.

    `metric` names the value that Optuna optimises. Unmeasured metrics are NaN, even if Optuna
    received a penalty instead. Raises ValueError if two columns have the same name.
    """
    trials = study.get_trials(deepcopy=False)
    metrics_of = {trial.number: _metrics(trial, metric) for trial in trials}
    parameters = dict.fromkeys(name for trial in trials for name in trial.params)
    metrics = dict.fromkeys([metric, *(name for values in metrics_of.values() for name in values)])
    columns = [SEARCH, TRIAL, STATE, *parameters, *metrics, RUNS, ELAPSED, STARTED]
    if doubled := sorted({name for name in columns if columns.count(name) > 1}):
        expected = "names that only one parameter, metric or other column has"
        raise invalid("columns", ", ".join(doubled), expected)
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


def _state(trial: FrozenTrial) -> str:
    state = attributes(trial).get("state")
    is_valid = state in (*OPTUNA_STATES.values(), State.DIVERGED)
    return state if is_valid else OPTUNA_STATES[trial.state]


def _metrics(trial: FrozenTrial, metric: str) -> dict[str, float]:
    if _state(trial) != State.COMPLETE:
        return {}
    value = {} if trial.value is None else {metric: trial.value}
    return attributes(trial).get("metrics", value)
