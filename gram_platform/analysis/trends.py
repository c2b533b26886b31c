"""Compute ratio against model size: a power law through all sizes but the largest, and what it says of that one.

Ours; the paper shows its points alone. ratio = A N^b by least squares of the logarithms of the means over seeds, each
size weighing the same. A line in log N would do for core, which hardly moves; on the published forget ratios its
prediction is the farther one at 800M and at 5B for every method, and further out it falls below zero. Neither bends:
forget ratios that level off come out above both.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from gram_platform.analysis.checks import positive, require_confidence
from gram_platform.analysis.intervals import CONFIDENCE
from gram_platform.analysis.power_law import PowerLaw, fit_power_law
from gram_platform.config.identity import invalid

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
