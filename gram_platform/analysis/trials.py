"""Summarises the trials of one search: which are finished, and the best.

A lower metric is better. A trials frame has a row per trial: `search`, `trial` (a unique number),
`state`, a column per parameter and per metric, `runs` (run ids joined by blanks), `elapsed_s` and
`started`. Only complete trials with finite metrics count, since a diverged trial's penalty is no
measurement.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from gram_platform.config import State
from gram_platform.config.space import RANK, TrialColumns

SEARCH, TRIAL, STATE, RUNS = "search", "trial", "state", "runs"
ELAPSED, STARTED, URL = "elapsed_s", "started", "url"


def select_finished(trials: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Returns the complete trials with a finite metric, by number."""
    known = (trials[STATE] == State.COMPLETE) & np.isfinite(trials[metric].to_numpy(float))
    return trials[known].sort_values(TRIAL, kind="stable")


def best_trial(trials: pd.DataFrame, metric: str) -> pd.Series | None:
    """Returns the row of the lowest metric, the earliest of equals; None without any."""
    done = select_finished(trials, metric)
    return None if done.empty else done.loc[done[metric].idxmin()]


def rank_trials(trials: pd.DataFrame, columns: TrialColumns) -> pd.DataFrame:
    """Adds `mean`, the first objective at a trial's point over seeds, and `rank` in its group.

    The best has rank 1. Both are NaN unless all trials at the point are complete and finite.
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
    """Returns `best: size tiny: loss 1.47 at lr 0.008, batch 4` for each group with a best."""
    best = rank_trials(trials, columns).query(f"{RANK} == 1").drop_duplicates([*columns.groups])
    return [
        f"best: {values_text(row, columns.groups)}: {columns.objectives[0]} {row['mean']:.3g} at"
        f" {values_text(row, columns.parameters)}"
        for row in best.to_dict("records")
    ]


def values_text(row: Mapping, names: Iterable[str]) -> str:
    """Writes names and values as `lr 0.008, batch 4`, fractions with three digits."""
    values = {name: row[name] for name in names}
    return ", ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values.items()
    )


def link_trials(trials: pd.DataFrame, urls: Mapping[str, str]) -> pd.DataFrame:
    """Adds `url`: the page of a trial's first run that has one in `urls` {run id: page}, or ""."""
    pages = [
        next((urls[run] for run in str(runs).split() if urls.get(run)), "")
        for runs in trials[RUNS].fillna("")
    ]
    return trials.assign(**{URL: pages})
