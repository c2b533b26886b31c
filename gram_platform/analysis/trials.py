"""Summarises the trials of one search: which are finished, and which is the best.

A frame of trials has one row per trial. Its columns are `search`, `trial` (a unique number),
`state`, each parameter and metric, `runs` (run ids separated by spaces), `elapsed_s` and `started`.
Only complete trials with finite metrics are used. A diverged trial has no measured metric.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from gram_platform.config import State
from gram_platform.config.space import RANK, TrialColumns

SEARCH, TRIAL, STATE, RUNS = "search", "trial", "state", "runs"
ELAPSED, STARTED, URL = "elapsed_s", "started", "url"


def select_finished(trials: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Returns the complete trials with a finite metric, sorted by trial number."""
    known = (trials[STATE] == State.COMPLETE) & np.isfinite(trials[metric].to_numpy(float))
    return trials[known].sort_values(TRIAL, kind="stable")


def best_trial(trials: pd.DataFrame, metric: str) -> pd.Series | None:
    """Returns the first trial with the lowest metric, or None if none is finished."""
    done = select_finished(trials, metric)
    return None if done.empty else done.loc[done[metric].idxmin()]


def rank_trials(trials: pd.DataFrame, columns: TrialColumns) -> pd.DataFrame:
    """Adds the columns `mean` and `rank`.

    The trials of one point have the same group and parameters, and differ in the seed. `mean` is
    the mean of the first objective over these trials. `rank` orders the points of a group, from 1
    for the best. Both are NaN unless all trials of the point are complete and finite.
    """
    name, at = columns.objectives[0], [*columns.groups, *columns.parameters]
    values = trials[name].astype(float)
    known = values.where((trials[STATE] == State.COMPLETE) & np.isfinite(values))
    groups = [trials[group] for group in columns.groups]
    points = known.groupby([trials[column] for column in at])
    mean = points.transform(lambda seeds: seeds.mean(skipna=False))
    rank = mean.groupby(groups).rank("dense", ascending=columns.is_lowest_best)
    return trials.assign(mean=mean, **{RANK: rank})


def best_lines(trials: pd.DataFrame, columns: TrialColumns) -> list[str]:
    """Writes `best: size tiny: loss 1.47 at lr 0.008, batch 4` for each group with a best point."""
    best = rank_trials(trials, columns).query(f"{RANK} == 1").drop_duplicates([*columns.groups])
    return [
        f"best: {values_text(row, columns.groups)}: {columns.objectives[0]} {row['mean']:.3g} at"
        f" {values_text(row, columns.parameters)}"
        for row in best.to_dict("records")
    ]


def values_text(row: Mapping, names: Iterable[str]) -> str:
    """Formats names and values as `lr 0.008, batch 4`. Floats have three significant digits."""
    values = {name: row[name] for name in names}
    return ", ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values.items()
    )


def link_trials(trials: pd.DataFrame, urls: Mapping[str, str]) -> pd.DataFrame:
    """Adds a column `url` with the first page in `urls` of a run of the trial, or ""."""
    pages = [
        next((urls[run] for run in str(runs).split() if urls.get(run)), "")
        for runs in trials[RUNS].fillna("")
    ]
    return trials.assign(**{URL: pages})
