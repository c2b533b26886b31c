"""Learning-rate and batch laws: the minimum of a quadratic surface at each size, and a power law through the minima.

Source: the paper's appendix "Learning Rate and Batch Size Scaling", as it reads; what the authors' fit does otherwise
is `as_published` (see `lr_laws.analyse_grid`). Loss is fitted by a full quadratic in
(log LR, log batch), all seeds pooled, and its minimum taken; log-log least squares of the minima on the parameter count
give the laws. Ours: a surface that is not convex has no minimum, a minimum at or beyond the edge of the grid is
flagged, the fit can be restricted to cells near the best, and pooled seeds have a level each. On real grids the
exponents move by a factor of two with that window, so no law should be read without these.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy import stats

from gram_platform.analysis.intervals import (
    CONFIDENCE,
    Interval,
    bootstrap,
    percentile_interval,
    positive,
    require_confidence,
)
from gram_platform.analysis.surface import Optimum, fit_quadratic
from gram_platform.config.identity import invalid

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
class SeedSpread:
    """How the log optima of J sizes move when their seeds are redrawn, corrected for few seeds.

    n redrawn seeds spread sqrt((n - 1) / n) times as far as n new ones would: deviations are widened by the inverse.
    That n seeds also know their spread badly is the t quantile's part: `interval` takes it over the normal one, with
    the degrees of freedom of Welch and Satterthwaite (n - 1 for each size, weighed by what it adds to the variance).
    """

    deviations: np.ndarray  # [R, J] from the pooled log optima, widened; NaN where a resample failed
    freedoms: np.ndarray  # [J] seeds - 1

    def interval(self, weights: np.ndarray, centre: float, confidence: float = CONFIDENCE) -> Interval:
        """(centre, low, high) of weights [J] @ log optima, whose pooled value is `centre`; NaN ends when too few."""
        known = self.deviations[np.isfinite(self.deviations).all(axis=1)]
        if len(known) < 2:
            return Interval(centre, math.nan, math.nan)
        parts = weights**2 * known.var(axis=0)
        shares = parts / parts.sum() if parts.sum() > 0.0 else np.full(len(parts), 1.0 / len(parts))
        freedom, tail = 1.0 / np.sum(shares**2 / self.freedoms), 0.5 + confidence / 2.0
        factor = stats.t.ppf(tail, freedom) / stats.norm.ppf(tail)
        return percentile_interval(centre + factor * (known @ weights), centre, confidence)


@dataclass(frozen=True)
class LawBootstrap:
    """Both laws and the 90% intervals of their exponents over resampled seeds.

    Measured coverage (250 simulated grids of four sizes and twelve cells, 100 resamples, so to 2 points): of the LR and
    batch exponents 95% and 94% with 2 seeds, 93% and 90% with 3, 89% and 89% with 5; of the LR law at a size 92 to 94%,
    90 to 93%, 88%. With 2 seeds it is thus too wide rather than too narrow. Where a single size has most of the noise
    it is less by 3 to 5 points. Laws of two sizes were not measured.
    """

    lr: PowerLaw
    batch: PowerLaw
    lr_exponent: Interval
    batch_exponent: Interval
    num_resamples: int  # 0 when a size has one seed alone: nothing is known of the spread, the intervals are NaN
    num_failed: int  # resamples without a convex surface at every size: not in the intervals
    sizes: tuple[float, ...] = field(repr=False)
    lr_spread: SeedSpread = field(repr=False, compare=False)
    batch_spread: SeedSpread = field(repr=False, compare=False)

    def predict(self, quantity: str, size: float) -> Interval:
        """The law of `quantity` (lr or batch) at `size`, with its 90% interval over seeds."""
        law, spread = getattr(self, quantity), getattr(self, f"{quantity}_spread")
        weights = 1.0 / len(self.sizes) + _from_mean(self.sizes, size) * _slope_weights(self.sizes)
        value = float(law.predict(size))
        with np.errstate(divide="ignore", over="ignore"):
            _, low, high = spread.interval(weights, float(np.log(value)))
            return Interval(value, float(np.exp(low)), float(np.exp(high)))


def fit_power_law(sizes: Sequence[float], values: Sequence[float], confidence: float = CONFIDENCE) -> PowerLaw:
    """Least squares of log value on log size; ValueError unless all are finite and positive, with two sizes or more.

    The minimum of a surface that is not convex is NaN: leave such a size out, and say so, before asking for a law.
    `confidence` is that of `exponent_interval`.
    """
    n, v = positive("sizes", sizes), positive("values", values)
    require_confidence(confidence)
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
        optimum = fit_quadratic(group["lr"], group["batch"], group["loss"], window, group["seed"])
        rows.append({**dict(zip(keys, key, strict=True)), **vars(optimum)})
    return pd.DataFrame(rows)


def bootstrap_laws(
    trials: pd.DataFrame,
    window: float | None = None,
    num_resamples: int = 200,
    rng_seed: int = 0,
    as_published: bool = False,
) -> LawBootstrap:
    """Both laws from all trials, and intervals of their exponents over seeds redrawn within each size.

    `as_published`: as in `lr_laws.analyse_grid`.
    ValueError when the pooled surface of a size is not convex, or as in `fit_quadratic`.
    """
    sizes, groups = [], []
    for parameters, of_size in trials.groupby("parameters", sort=True):
        sizes.append(float(parameters))
        groups.append([of_seed[["lr", "batch", "loss"]].to_numpy(float) for _, of_seed in of_size.groupby("seed")])
    pooled, num_seeds = _optima(sizes, groups, window, as_published), np.array([len(seeds) for seeds in groups])
    laws, width = [fit_power_law(sizes, values) for values in pooled], 2 * len(sizes)
    num_resamples = num_resamples if num_seeds.min() > 1 else 0
    samples = np.empty((0, width))
    if num_resamples:
        samples = bootstrap(groups, lambda g: _optima(sizes, g, window, as_published).ravel(), num_resamples, rng_seed)
    if samples.shape[1] != width:  # every resample failed
        samples = np.full((num_resamples, width), np.nan)
    moved = np.log(samples.reshape(-1, 2, len(sizes)) / pooled) * np.sqrt(num_seeds / np.maximum(num_seeds - 1, 1))
    spreads = [SeedSpread(moved[:, i], num_seeds - 1) for i in (0, 1)]
    ends = [spread.interval(_slope_weights(sizes), law.exponent) for spread, law in zip(spreads, laws, strict=True)]
    num_failed = int(np.isnan(samples[:, 0]).sum())
    return LawBootstrap(*laws, *ends, num_resamples, num_failed, tuple(sizes), *spreads)


def _optima(sizes: list[float], groups: list[list[np.ndarray]], window: float | None, as_published: bool) -> np.ndarray:
    """The rates and the batches [2, J] of the pooled minima; each size's seeds are arrays [n, 3] of lr, batch, loss.

    A seed that is drawn twice is two seeds of equal level.
    """
    optima = []
    for seeds in groups:
        names = np.repeat(np.arange(len(seeds)), [len(seed) for seed in seeds])
        fit = {"log_loss": True} if as_published else {"seeds": names}
        optima.append(fit_quadratic(*np.concatenate(seeds).T, window, **fit))
    flat = [size for size, optimum in zip(sizes, optima, strict=True) if not optimum.convex]
    if flat:
        raise invalid("trials", flat, "a convex surface at every size: widen the grid or the window")
    return np.stack([positive(name, [getattr(optimum, name) for optimum in optima]) for name in ("lr", "batch")])


def _from_mean(sizes: Sequence[float], size: float | Sequence[float]) -> np.ndarray:
    """The logarithm of `size` less the mean one of `sizes`."""
    return np.log(size) - np.log(sizes).mean()


def _slope_weights(sizes: Sequence[float]) -> np.ndarray:
    """[J] whose product with the log optima is the exponent of least squares."""
    centred = _from_mean(sizes, sizes)
    return centred / (centred @ centred)


TREND_CLASSES = ("core", "forget")
MIN_SIZES = 3
TREND_COLUMNS = ["method", "class", "size", "parameters", "num_fitted", "exponent", "measured", "predicted"]
TREND_COLUMNS += ["low", "high", "verdict"]
INSIDE, OUTSIDE, UNKNOWN = "inside", "outside", "no interval"


@dataclass(frozen=True)
class Trend:
    """A law, and its prediction at the size that was left out."""

    law: PowerLaw
    num_fitted: int  # sizes
    parameters: float  # of the size left out, as the four below
    measured: float
    predicted: float
    low: float  # of the prediction interval; NaN where two sizes are fitted, which leaves nothing to judge by
    high: float

    @property
    def verdict(self) -> str:
        """Whether the interval holds what was measured."""
        if math.isnan(self.low):
            return UNKNOWN
        return INSIDE if self.low <= self.measured <= self.high else OUTSIDE


def leave_largest_out(parameters: Sequence[float], values: Sequence[float], confidence: float = CONFIDENCE) -> Trend:
    """The law through `values` [n] of all `parameters` [n] but the largest, and its prediction there.

    The interval (t, n - 3 degrees of freedom) is for one more value with the noise that the fitted ones have around the
    law: where the largest size has fewer seeds than the others it is too narrow. ValueError for numbers that are not
    finite and positive, for equal counts, or fewer than three sizes.
    """
    n, y = positive("parameters", parameters), positive("values", values)
    require_confidence(confidence)
    if len(n) != len(y):
        raise invalid("values", len(y), f"one value for each of {len(n)} sizes")
    if len(n) < MIN_SIZES or len(np.unique(n)) < len(n):
        raise invalid("parameters", n.tolist(), f"{MIN_SIZES} or more sizes, no two alike")
    order = np.argsort(n)
    (*fitted, largest), (*known, measured) = n[order].tolist(), y[order].tolist()
    law, x, freedom = fit_power_law(fitted, known), np.log(fitted), len(fitted) - 2
    predicted, half = float(law.predict(largest)), math.nan
    if freedom > 0:
        residuals, centred = np.log(known) - np.log(law.predict(fitted)), x - x.mean()
        reach = 1.0 + 1.0 / len(x) + (math.log(largest) - x.mean()) ** 2 / (centred @ centred)
        variance = float(residuals @ residuals) / freedom * reach
        half = float(stats.t.ppf(0.5 + confidence / 2.0, freedom)) * math.sqrt(variance)
    ends = (predicted * math.exp(-half), predicted * math.exp(half))
    return Trend(law, len(fitted), largest, measured, predicted, *ends)


def trends(table: pd.DataFrame, parameters: Mapping[str, float], value: str) -> dict[str, Trend]:
    """The trend of one class for each method in rows of a table with one profile.

    Methods with fewer than three sizes have none, nor those with two sizes of one count or with a ratio at or below
    zero, which has no logarithm.
    """
    found, known = {}, table[table[value].notna()]
    for method, rows in known.groupby("method", sort=False):
        counts = rows["size"].map(parameters)
        if len(rows) >= MIN_SIZES and counts.is_unique and (rows[value] > 0.0).all():
            found[method] = leave_largest_out(counts, rows[value])
    return found


def trend_table(
    table: pd.DataFrame, parameters: Mapping[str, float], classes: Sequence[str] = TREND_CLASSES
) -> pd.DataFrame:
    """TREND_COLUMNS, a row for each trend, from rows of a table with one profile; `parameters` are the sizes' counts.

    `size` is the largest, which the law has not seen; `measured` and `predicted` are its compute ratio, `low` and
    `high` the 90% prediction interval, `verdict` whether it holds the measured one.
    """
    rows = []
    for name in classes:
        for method, t in trends(table, parameters, name).items():
            size = next(size for size in table["size"] if parameters[size] == t.parameters)
            left_out = (size, t.parameters, t.num_fitted, t.law.exponent)
            rows.append((method, name, *left_out, t.measured, t.predicted, t.low, t.high, t.verdict))
    return pd.DataFrame(rows, columns=TREND_COLUMNS)
