"""Learning-rate and batch laws: the minimum of a quadratic surface at each size, and a power law through the minima.

Source: the paper's appendix "Learning Rate and Batch Size Scaling". Loss is fitted by a full quadratic in
(log LR, log batch), all seeds pooled, and its minimum taken; log-log least squares of the minima on the parameter count
give the laws. Ours: a surface that is not convex has no minimum, a minimum at or beyond the edge of the grid is
flagged, and the fit can be restricted to cells near the best. On real grids the exponents move by a factor of two with
that window, so no law should be read without these.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from gram_platform.analysis.intervals import CONFIDENCE, Interval, bootstrap, percentile_interval
from gram_platform.identity import invalid

NUM_COEFFICIENTS = 6  # 1, x, y, x^2, x y, y^2
EDGE_FRACTION = 0.01  # of the grid's span in log units: closer to its border than this is at the edge
SPAN_RISE = 0.001  # the spans hold all points whose predicted loss is within 0.1% of the minimum


@dataclass(frozen=True)
class Optimum:
    """The minimum of a fitted surface; lr, batch and loss are NaN when the surface is not convex."""

    lr: float
    batch: float
    loss: float  # predicted at the minimum
    convex: bool
    on_edge: bool  # at or beyond the border of the grid, or beyond the cells used: an extrapolation
    num_cells: int  # distinct (lr, batch) used
    num_points: int  # losses used
    rms: float  # of the residuals, in the unit of the loss
    lr_span: tuple[float, float]  # where the predicted loss is within 0.1% of the minimum
    batch_span: tuple[float, float]


@dataclass(frozen=True)
class PowerLaw:
    """value = coefficient * size ^ exponent."""

    coefficient: float
    exponent: float
    r2: float  # in log units; NaN for values that are all equal
    exponent_interval: tuple[float, float]  # t-interval, n - 2 degrees of freedom; NaN with two sizes

    def predict(self, size):
        """The law's value at `size`, a number or an array."""
        return self.coefficient * np.asarray(size, float)[()] ** self.exponent


@dataclass(frozen=True)
class LawBootstrap:
    """Both laws and the intervals of their exponents over resampled seeds."""

    lr: PowerLaw
    batch: PowerLaw
    lr_exponent: Interval
    batch_exponent: Interval
    num_resamples: int
    num_failed: int  # resamples without a convex surface at every size: not in the intervals


def fit_quadratic(
    lr: Sequence[float], batch: Sequence[float], loss: Sequence[float], window: float | None = None
) -> Optimum:
    """Fit loss [n] by a quadratic in (log lr, log batch) and find its minimum; seeds are pooled by repeating cells.

    `window` 0.05 keeps only the cells whose loss (the mean over its seeds) is within 5% of the lowest. A surface that
    is not convex comes back with `convex=False` and NaN for the minimum. ValueError when values are not finite and
    positive, or the cells kept are fewer than six or cannot determine a quadratic (two rates, or all on a line).
    """
    x, y, z = (_positive(name, values) for name, values in (("lr", lr), ("batch", batch), ("loss", loss)))
    if not len(x) == len(y) == len(z):
        raise invalid("loss", len(z), f"one loss for each cell: {len(x)} of lr, {len(y)} of batch")
    points = np.log(np.stack([x, y], axis=1))
    kept = _within(points, z, window)
    used, centre = points[kept], points[kept].mean(axis=0)
    scale = np.maximum(np.ptp(used, axis=0) / 2.0, 1e-300)
    coefficients, rms = _least_squares((used - centre) / scale, z[kept], window)
    base, slope, hessian = _parts(coefficients)
    eigenvalues = np.linalg.eigvalsh(hessian)
    num_cells, num_points = len(np.unique(used, axis=0)), int(kept.sum())
    if not eigenvalues[0] > 1e-9 * abs(eigenvalues[1]):
        nan = math.nan
        return Optimum(nan, nan, nan, False, False, num_cells, num_points, rms, (nan, nan), (nan, nan))
    place = -np.linalg.solve(hessian, slope)
    lowest = float(base + slope @ place / 2.0)
    half = np.sqrt(2.0 * SPAN_RISE * max(lowest, 0.0) * np.diag(np.linalg.inv(hessian))) * scale
    minimum = centre + place * scale
    with np.errstate(over="ignore"):
        values, spans = np.exp(minimum), np.exp([minimum - half, minimum + half]).T
    return Optimum(
        lr=float(values[0]),
        batch=float(values[1]),
        loss=lowest,
        convex=True,
        on_edge=_at_edge(minimum, points) or _beyond(minimum, used),
        num_cells=num_cells,
        num_points=num_points,
        rms=rms,
        lr_span=(float(spans[0, 0]), float(spans[0, 1])),
        batch_span=(float(spans[1, 0]), float(spans[1, 1])),
    )


def fit_power_law(sizes: Sequence[float], values: Sequence[float], confidence: float = CONFIDENCE) -> PowerLaw:
    """Least squares of log value on log size; ValueError unless all are finite and positive, with two sizes or more.

    The minimum of a surface that is not convex is NaN: leave such a size out, and say so, before asking for a law.
    """
    n, v = _positive("sizes", sizes), _positive("values", values)
    if len(n) != len(v):
        raise invalid("values", len(v), f"one value for each of {len(n)} sizes")
    if len(np.unique(n)) < 2:
        raise invalid("sizes", n.tolist(), "at least two different sizes")
    x, y = np.log(n), np.log(v)
    centred = x - x.mean()
    exponent = float(centred @ (y - y.mean()) / (centred @ centred))
    residuals = y - y.mean() - exponent * centred
    total, left = float(np.sum((y - y.mean()) ** 2)), float(residuals @ residuals)
    half = math.nan
    if len(n) > 2:
        half = stats.t.ppf(0.5 + confidence / 2.0, len(n) - 2) * math.sqrt(left / (len(n) - 2) / (centred @ centred))
    return PowerLaw(
        coefficient=float(np.exp(y.mean() - exponent * x.mean())),
        exponent=exponent,
        r2=1.0 - left / total if total > 1e-24 * len(n) else math.nan,
        exponent_interval=(float(exponent - half), float(exponent + half)),
    )


def optima_frame(trials: pd.DataFrame, window: float | None = None, by_seed: bool = False) -> pd.DataFrame:
    """One row a size, all seeds pooled, or a size and seed, with the fields of `Optimum`.

    `trials` has one row a run: `parameters, seed, lr, batch, loss`. ValueError as in `fit_quadratic`.
    """
    keys = ["parameters", "seed"] if by_seed else ["parameters"]
    rows = []
    for key, group in trials.groupby(keys, sort=True):
        optimum = fit_quadratic(group["lr"], group["batch"], group["loss"], window)
        rows.append({**dict(zip(keys, key, strict=True)), **vars(optimum)})
    return pd.DataFrame(rows)


def bootstrap_laws(
    trials: pd.DataFrame, window: float | None = None, num_resamples: int = 200, rng_seed: int = 0
) -> LawBootstrap:
    """Both laws from all trials, and percentile intervals of their exponents over seeds redrawn within each size.

    ValueError when the pooled surface of a size is not convex, or as in `fit_quadratic`.
    """
    groups = [
        [seed_trials for _, seed_trials in size_trials.groupby("seed")]
        for _, size_trials in trials.groupby("parameters", sort=True)
    ]
    lr, batch = _laws(groups, window)
    samples = bootstrap(groups, lambda g: [law.exponent for law in _laws(g, window)], num_resamples, rng_seed)
    failed = int(np.isnan(samples[:, 0]).sum())
    columns = samples.T if samples.shape[1] == 2 else np.full((2, num_resamples), np.nan)
    intervals = [percentile_interval(c, law.exponent) for c, law in zip(columns, (lr, batch), strict=True)]
    return LawBootstrap(lr, batch, *intervals, num_resamples, failed)


def _laws(groups: list[list[pd.DataFrame]], window: float | None) -> tuple[PowerLaw, PowerLaw]:
    optima = optima_frame(pd.concat([trials for group in groups for trials in group]), window)
    flat = optima.loc[~optima["convex"], "parameters"].tolist()
    if flat:
        raise invalid("trials", flat, "a convex surface at every size: widen the grid or the window")
    return tuple(fit_power_law(optima["parameters"], optima[name]) for name in ("lr", "batch"))


# -------------------------------------------------------------------------------------------------- the surface


def _within(points: np.ndarray, loss: np.ndarray, window: float | None) -> np.ndarray:
    """Which points [n] belong to cells whose mean loss is within `window` of the lowest cell's."""
    if window is None:
        return np.ones(len(loss), bool)
    if not (math.isfinite(window) and window > 0.0):
        raise invalid("window", window, "a positive fraction, or None for all cells")
    _, cell = np.unique(points, axis=0, return_inverse=True)
    means = np.bincount(cell.ravel(), loss) / np.bincount(cell.ravel())
    return (means <= (1.0 + window) * means.min() * (1.0 + 1e-12))[cell.ravel()]


def _least_squares(u: np.ndarray, loss: np.ndarray, window: float | None) -> tuple[np.ndarray, float]:
    """The six coefficients on scaled coordinates [n, 2] and the rms of the residuals."""
    field, kept = ("window", window) if window is not None else ("lr, batch", f"{len(loss)} losses")
    num_cells = len(np.unique(u, axis=0))
    if num_cells < NUM_COEFFICIENTS:
        raise invalid(field, kept, f"at least {NUM_COEFFICIENTS} distinct cells; there are {num_cells}")
    x, y = u.T
    design = np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], axis=1)
    coefficients, _, rank, _ = np.linalg.lstsq(design, loss, rcond=1e-8)
    if rank < NUM_COEFFICIENTS:
        raise invalid(field, kept, "cells that determine a quadratic: three values of each, not all on one line")
    return coefficients, float(np.sqrt(np.mean((loss - design @ coefficients) ** 2)))


def _parts(c: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Constant, gradient at zero and Hessian of the quadratic."""
    return float(c[0]), c[1:3], np.array([[2.0 * c[3], c[4]], [c[4], 2.0 * c[5]]])


def _at_edge(minimum: np.ndarray, points: np.ndarray) -> bool:
    margin = EDGE_FRACTION * np.ptp(points, axis=0)
    return bool(np.any(minimum <= points.min(axis=0) + margin) or np.any(minimum >= points.max(axis=0) - margin))


def _beyond(minimum: np.ndarray, used: np.ndarray) -> bool:
    slack = 1e-9 * np.ptp(used, axis=0)
    return bool(np.any(minimum < used.min(axis=0) - slack) or np.any(minimum > used.max(axis=0) + slack))


def _positive(field: str, values: Sequence[float]) -> np.ndarray:
    array = np.asarray(values, float)
    if array.ndim != 1 or not np.all(np.isfinite(array) & (array > 0.0)):
        raise invalid(field, array.tolist(), "finite positive numbers in one dimension")
    return array
