"""Summarises the trials of one search: which are finished, and the best.

A lower metric is better. A trials frame has a row per trial: `search`, `trial` (a unique number),
`state`, a column per parameter and per metric, `runs` (run ids joined by blanks), `elapsed_s` and
`started`. Only complete trials with finite metrics count, since a diverged trial's penalty is no
measurement.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from gram_platform.config import State

SEARCH, TRIAL, STATE, RUNS = "search", "trial", "state", "runs"
ELAPSED, STARTED, URL = "elapsed_s", "started", "url"


def finished(trials: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Returns the complete trials with a finite metric, by number."""
    known = (trials[STATE] == State.COMPLETE) & np.isfinite(trials[metric].to_numpy(float))
    return trials[known].sort_values(TRIAL, kind="stable")


def best_trial(trials: pd.DataFrame, metric: str) -> pd.Series | None:
    """Returns the row of the lowest metric, the earliest of equals; None without any."""
    done = finished(trials, metric)
    return None if done.empty else done.loc[done[metric].idxmin()]


def linked(trials: pd.DataFrame, urls: Mapping[str, str]) -> pd.DataFrame:
    """Adds `url`: the page of a trial's first run that has one in `urls` {run id: page}, or ""."""
    pages = [
        next((urls[run] for run in str(runs).split() if urls.get(run)), "")
        for runs in trials[RUNS].fillna("")
    ]
    return trials.assign(**{URL: pages})
