"""Learning-rate and batch laws: the minimum of a quadratic surface at each size, and a power law through the minima.

Source: the paper's appendix "Learning Rate and Batch Size Scaling". Loss is fitted by a full quadratic in
(log LR, log batch), all seeds pooled, and its minimum taken; log-log least squares of the minima on the parameter count
give the laws. Ours: a surface that is not convex has no minimum, a minimum at or beyond the edge of the grid is
flagged, and the fit can be restricted to cells near the best. On real grids the exponents move by a factor of two with
that window, so no law should be read without these.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy import stats

from gram_platform.analysis.intervals import CONFIDENCE, Interval, bootstrap, percentile_interval
from gram_platform.analysis.surface import Optimum, fit_quadratic, positive
from gram_platform.identity import invalid

__all__ = ["LawBootstrap", "Optimum", "PowerLaw", "bootstrap_laws", "fit_power_law", "fit_quadratic", "optima_frame"]


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
    num_resamples: int  # 0 when a size has one seed alone: nothing is known of the spread, the intervals are NaN
    num_failed: int  # resamples without a convex surface at every size: not in the intervals
    # [num_resamples, 4]: coefficient and exponent of the LR law, then of the batch law; NaN where it failed
    samples: np.ndarray = field(repr=False, compare=False)


def fit_power_law(sizes: Sequence[float], values: Sequence[float], confidence: float = CONFIDENCE) -> PowerLaw:
    """Least squares of log value on log size; ValueError unless all are finite and positive, with two sizes or more.

    The minimum of a surface that is not convex is NaN: leave such a size out, and say so, before asking for a law.
    """
    n, v = positive("sizes", sizes), positive("values", values)
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
    sizes, groups = [], []
    for parameters, of_size in trials.groupby("parameters", sort=True):
        sizes.append(float(parameters))
        groups.append([of_seed[["lr", "batch", "loss"]].to_numpy(float) for _, of_seed in of_size.groupby("seed")])
    lr, batch = _laws(sizes, groups, window)
    if min(len(seeds) for seeds in groups) < 2:
        unknown = [Interval(law.exponent, math.nan, math.nan) for law in (lr, batch)]
        return LawBootstrap(lr, batch, *unknown, 0, 0, np.empty((0, 4)))
    samples = bootstrap(groups, lambda g: _flat(_laws(sizes, g, window)), num_resamples, rng_seed)
    if samples.shape[1] != 4:  # every resample failed
        samples = np.full((num_resamples, 4), np.nan)
    intervals = [percentile_interval(samples[:, i], law.exponent) for i, law in ((1, lr), (3, batch))]
    return LawBootstrap(lr, batch, *intervals, num_resamples, int(np.isnan(samples[:, 0]).sum()), samples)


def _laws(sizes: list[float], groups: list[list[np.ndarray]], window: float | None) -> tuple[PowerLaw, PowerLaw]:
    """Both laws from each size's seeds, arrays [n, 3] of lr, batch and loss."""
    optima = [fit_quadratic(*np.concatenate(seeds).T, window) for seeds in groups]
    flat = [size for size, optimum in zip(sizes, optima, strict=True) if not optimum.convex]
    if flat:
        raise invalid("trials", flat, "a convex surface at every size: widen the grid or the window")
    return tuple(fit_power_law(sizes, [getattr(optimum, name) for optimum in optima]) for name in ("lr", "batch"))


def _flat(laws: tuple[PowerLaw, PowerLaw]) -> list[float]:
    return [number for law in laws for number in (law.coefficient, law.exponent)]
