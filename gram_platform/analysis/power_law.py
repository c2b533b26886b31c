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
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from gram_platform.analysis.intervals import CONFIDENCE, positive, require_confidence
from gram_platform.analysis.surface import Optimum, fit_quadratic
from gram_platform.config.identity import invalid

__all__ = [
    "Optimum",
    "PowerLaw",
    "Trend",
    "fit_power_law",
    "fit_quadratic",
    "leave_largest_out",
    "trend_table",
    "trends",
]

TREND_CLASSES = ("core", "forget")
MIN_SIZES = 3
TREND_COLUMNS = ["method", "class", "size", "parameters", "num_fitted", "exponent", "measured", "predicted"]
TREND_COLUMNS += ["low", "high", "verdict"]
INSIDE, OUTSIDE, UNKNOWN = "inside", "outside", "no interval"


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
