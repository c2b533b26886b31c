"""Converts a search's trials for MLflow, from the files that its submission wrote."""

import io
import math
from collections import Counter, defaultdict
from collections.abc import Mapping

import pandas as pd

from gram_platform.analysis.trials import (
    ELAPSED,
    RUNS,
    SEARCH,
    STATE,
    TRIAL,
    best_lines,
    rank_trials,
    values_text,
)
from gram_platform.config import State
from gram_platform.config.identity import metric_name, short_hash
from gram_platform.config.plain import from_plain
from gram_platform.config.space import RANK, TrialColumns
from gram_platform.config.terminal import warn
from gram_platform.pages.results.record import SEARCH_FILE
from gram_platform.store import Store
from gram_platform.tracking import Tracker
from gram_platform.tracking.entry import SEARCH as SEARCH_TAG
from gram_platform.tracking.values import is_short_name, text_for_people
from gram_platform.tracking.views import (
    StudyLog,
    TrialEntry,
    group_metric,
    search_view,
    study_id,
    study_views,
)

TRIALS_FILE = "trials.csv"
MLFLOW_PARAMS = ("search_id", "preset", "data_id")


def trials_log(
    name: str, params: Mapping[str, str], trials: bytes, columns: TrialColumns
) -> StudyLog:
    """Collects the parts of a `trials.csv` that MLflow shows: trials, saved views and run tags."""
    # Ids may look like numbers.
    texts = dict.fromkeys([SEARCH, TRIAL, RUNS, *columns.groups], "str")
    frame, identity = pd.read_csv(io.BytesIO(trials), dtype=texts), study_id(name, params)
    groups = [values_text(row, columns.groups) for row in frame.to_dict("records")]
    view = search_view(name, identity, columns, dict.fromkeys(groups))
    return StudyLog(
        name,
        {},
        {},
        params,
        node_tags=trial_tags(trials),
        views=view | study_views(name, identity, {}, ()),
        trials=trial_entries(frame, columns),
        answers=best_lines(frame, columns),
    )


def trial_entries(trials: pd.DataFrame, columns: TrialColumns) -> list[TrialEntry]:
    """Returns the trials that have begun. Their names list values that differ between trials."""
    varied = [*columns.groups, *columns.parameters, *({"seed"} & {*trials})]
    named, (first, *_) = [name for name in varied if trials[name].nunique() > 1], columns.objectives
    entries, seen = [], Counter[str]()
    for row in rank_trials(trials, columns).to_dict("records"):
        values = {name: row[name] for name in varied if pd.notna(row[name])}
        if row[STATE] == State.WAITING or len(values) < len(varied):
            continue
        params = {n: f"{v:.6g}" if isinstance(v, float) else str(v) for n, v in values.items()}
        point = short_hash({SEARCH: row[SEARCH], "params": params})
        seen[point] += 1
        numbers = {name: row[name] for name in (RANK, *columns.objectives)}
        if len(columns.parameters) > 1:
            numbers[group_metric(first, values_text(row, columns.groups))] = row[first]
        entry = TrialEntry(
            f"{point}-{seen[point]}",
            row[SEARCH],
            row[TRIAL],
            " ".join(_short(name, row[name]) for name in named) or f"trial {row[TRIAL]}",
            row[STATE],
            params,
            {name: v for name, v in numbers.items() if math.isfinite(v) and is_short_name(name)},
            tuple("" if pd.isna(row[RUNS]) else row[RUNS].split()),
            0.0 if pd.isna(row[ELAPSED]) else row[ELAPSED],
        )
        entries.append(entry)
    return entries


def _short(name: str, value: object) -> str:
    if name == "seed":
        return f"s{value}"
    return value if isinstance(value, str) else values_text({name: value}, [name])


def trial_tags(trials: bytes) -> dict[str, dict[str, str]]:
    """Returns {run id: {tag of a search: names of the trials that use the run}}."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    frame = pd.read_csv(io.BytesIO(trials), dtype="str", keep_default_na=False)
    for search, trial, runs in frame[[SEARCH, TRIAL, RUNS]].itertuples(index=False):
        for run_id in runs.split():
            found[run_id][metric_name(f"{SEARCH_TAG}.{search}")].append(trial)
    return {
        run_id: {tag: text_for_people(", ".join(names)) for tag, names in tags.items()}
        for run_id, tags in found.items()
    }


def sync_trials(store: Store, tracker: Tracker) -> int:
    """Logs the trials of all searches to MLflow. Returns their number.

    Warns about damaged files and skips them.
    """
    num_trials = 0
    for name in store.list_studies():
        folder = store.study_dir(name)
        try:
            record = folder.read_json(SEARCH_FILE) or {}
            # Earlier versions wrote none.
            if "columns" not in record:
                continue
            columns = from_plain(TrialColumns, record["columns"])
            params = {key: str(record[key]) for key in MLFLOW_PARAMS}
            log = trials_log(name, params, folder.read(TRIALS_FILE), columns)
        except (OSError, LookupError, TypeError, ValueError) as error:
            warn(f"{name}: {error}: its trials are left out", stacklevel=2)
            continue
        tracker.log_views(log)
        num_trials += len(log.trials)
    return num_trials
