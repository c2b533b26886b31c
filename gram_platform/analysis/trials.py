"""Summarises the trials of a search: the best so far, the Pareto front, the hypervolume that it dominates.

A trials frame has a row per trial: `search`, `trial` (a number), `state`, a column per parameter and per metric, `runs`
(run ids joined by blanks), `elapsed_s` and `started`. Functions take the trials of one search, so numbers and index are
unique. Only complete trials with finite metrics count: a diverged trial's penalty is no measurement, and its metrics
are NaN here.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from gram_platform.analysis.intervals import require_columns
from gram_platform.config import State
from gram_platform.config.identity import invalid, require_choice

SEARCH, TRIAL, STATE, RUNS, ELAPSED, STARTED, URL = "search", "trial", "state", "runs", "elapsed_s", "started", "url"
DIRECTIONS = ("max", "min")

Objectives = Mapping[str, str]  # {metric: "max" or "min"}


def finished(trials: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    """Returns the complete trials with finite values of all metrics, by number; ValueError for an unknown metric."""
    require_columns("trials", trials, [TRIAL, STATE, *metrics])
    values = trials[list(metrics)].to_numpy(float)
    known = (trials[STATE] == State.COMPLETE) & np.isfinite(values).all(axis=1)
    return trials[known].sort_values(TRIAL, kind="stable")


def best_trial(trials: pd.DataFrame, metric: str, direction: str) -> pd.Series | None:
    """Returns the row of the lowest ("min") or highest ("max") metric, the earliest of equals; None without any."""
    require_choice("direction", direction, DIRECTIONS)
    done = finished(trials, (metric,))
    if done.empty:
        return None
    return done.loc[done[metric].idxmin() if direction == "min" else done[metric].idxmax()]


def running_best(trials: pd.DataFrame, metric: str, direction: str) -> pd.Series:
    """Returns the best value after each trial, by trial number; NaN before the first finished one."""
    require_choice("direction", direction, DIRECTIONS)
    values = finished(trials, (metric,)).set_index(TRIAL)[metric].astype(float)
    best = values.cummin() if direction == "min" else values.cummax()
    return best.reindex(sorted(trials[TRIAL])).ffill()


def pareto_front(trials: pd.DataFrame, objectives: Objectives) -> pd.Series:
    """Tells which trials no other dominates (as good in every objective and better in one); equal trials all stay."""
    done = finished(trials, tuple(objectives))
    points = _losses(done, objectives)
    is_front = [not _dominated(point, points) for point in points]
    return pd.Series(trials.index.isin(done.index[is_front]), index=trials.index)


def hypervolume(points: Sequence[Sequence[float]], reference: Sequence[float]) -> float:
    """Computes the exact volume that `points` [N, K] dominate up to `reference` [K]; all objectives are minimised.

    A point that is not better than the reference in every objective adds nothing. Slices along one objective after the
    other (While and others, 2006, "HSO"): O(N^(K-1) log N), so for fronts of up to some hundred points.
    """
    reference = np.asarray(reference, float)
    points = np.asarray(points, float).reshape(-1, len(reference))
    if not np.isfinite(reference).all():
        raise invalid("reference", reference.tolist(), "finite numbers")
    boxes = reference - points
    return _volume_of_union(boxes[(boxes > 0.0).all(axis=1)])


def hypervolume_history(trials: pd.DataFrame, objectives: Objectives, reference: Mapping[str, float]) -> pd.DataFrame:
    """Returns `trial, hypervolume, front_size` after each finished trial; `reference` {metric: value}, not negated.

    Only volumes with the same reference can be compared. ValueError if the reference has other metrics.
    """
    if set(reference) != set(objectives):
        raise invalid("reference", dict(reference), "a number for each of " + ", ".join(objectives))
    done = finished(trials, tuple(objectives))
    bound = _signs(objectives) * np.array([reference[name] for name in objectives])
    front, volume, rows = np.empty((0, len(objectives))), 0.0, []
    for number, point in zip(done[TRIAL], _losses(done, objectives), strict=True):
        if not _dominated(point, front):
            front = np.vstack([front[[not _dominated(other, point[None]) for other in front]], point])
            volume = hypervolume(front, bound)
        rows.append((number, volume, len(front)))
    return pd.DataFrame(rows, columns=[TRIAL, "hypervolume", "front_size"])


def linked(trials: pd.DataFrame, urls: Mapping[str, str]) -> pd.DataFrame:
    """Adds `url`: the page of a trial's first run that has one in `urls` {run id: address}, else empty."""
    pages = [next((urls[run] for run in str(runs).split() if urls.get(run)), "") for runs in trials[RUNS].fillna("")]
    return trials.assign(**{URL: pages})


def _signs(objectives: Objectives) -> np.ndarray:
    for name, direction in objectives.items():
        require_choice(f"objectives[{name}]", direction, DIRECTIONS)
    return np.array([-1.0 if direction == "max" else 1.0 for direction in objectives.values()])


def _losses(done: pd.DataFrame, objectives: Objectives) -> np.ndarray:
    """Returns the objectives [N, K], negated where more is better."""
    return _signs(objectives) * done[list(objectives)].to_numpy(float)


def _dominated(point: np.ndarray, others: np.ndarray) -> bool:
    """Tells whether one of `others` [N, K] is no worse than `point` [K] in every objective and better in one."""
    return bool(((others <= point).all(axis=1) & (others < point).any(axis=1)).any())


def _volume_of_union(boxes: np.ndarray) -> float:
    """Computes the volume of a union of boxes [N, K] with corner 0, by slabs between their ends on the last axis."""
    if len(boxes) == 0:
        return 0.0
    if boxes.shape[1] == 1:
        return float(boxes.max())
    deepest_first = boxes[np.argsort(-boxes[:, -1])]
    thicknesses = deepest_first[:, -1] - np.append(deepest_first[1:, -1], 0.0)
    slabs = enumerate(thicknesses)
    return sum(t * _volume_of_union(deepest_first[: i + 1, :-1]) for i, t in slabs if t > 0.0)
