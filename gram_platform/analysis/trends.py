"""Fits power laws in the parameter count, and tests them on the largest size [ours].

Source of the laws: the paper's appendix "Learning Rate and Batch Size Scaling".
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from gram_platform.analysis.intervals import TAIL, positive
from gram_platform.config.identity import invalid
from gram_platform.config.ladder import FEWEST_SIZES

TREND_CLASSES = ("core", "forget")
TREND_COLUMNS = ["method", "class", "size", "parameters", "num_fitted", "exponent"]
TREND_COLUMNS += ["measured", "predicted", "low", "high", "verdict"]
INSIDE, OUTSIDE = "inside", "outside"


@dataclass(frozen=True)
class PowerLaw:
    """The law value = coefficient * size ^ exponent."""

    coefficient: float
    exponent: float
    # In log units. NaN if all values are equal.
    r2: float
    # The t-interval, n - 2 degrees of freedom. NaN with two sizes.
    exponent_interval: tuple[float, float]

    def predict(self, size):
        return self.coefficient * np.asarray(size, float)[()] ** self.exponent


def fit_power_law(sizes: Sequence[float], values: Sequence[float]) -> PowerLaw:
    """Fits log value to log size by least squares.

    Raises ValueError unless all inputs are finite and positive and at least two sizes differ.
    """
    n, v = positive("sizes", sizes), positive("values", values)
    if len(n) != len(v):
        raise invalid("values", f"{len(v)} values", f"one for each of {len(n)} sizes")
    if len(np.unique(n)) < 2:
        raise invalid("sizes", n.tolist(), "at least two different sizes")
    x, y = np.log(n), np.log(v)
    centred, freedom = x - x.mean(), len(n) - 2
    exponent = float(centred @ (y - y.mean()) / (centred @ centred))
    residuals = y - y.mean() - exponent * centred
    total, left = float(np.sum((y - y.mean()) ** 2)), float(residuals @ residuals)
    half = math.nan
    if freedom:
        half = stats.t.ppf(TAIL, freedom) * math.sqrt(left / freedom / (centred @ centred))
    with np.errstate(over="ignore", under="ignore"):
        coefficient = float(np.exp(y.mean() - exponent * x.mean()))
    return PowerLaw(
        coefficient=coefficient,
        exponent=exponent,
        r2=1.0 - left / total if total > 1e-24 * len(n) else math.nan,
        exponent_interval=(float(exponent - half), float(exponent + half)),
    )


def fall_weights(places: Sequence[float]) -> np.ndarray:
    """Returns weights such that weights @ values is how far a least-squares line falls.

    The line is fitted to the values at `places` [n], n > 1, and falls from the first to the last.
    """
    x = np.asarray(places, float) - np.mean(places)
    return x * (x[0] - x[-1]) / (x @ x)


class Trend(NamedTuple):
    """The value at the largest size, and its prediction from a law fitted to the smaller sizes."""

    parameters: float
    num_fitted: int
    exponent: float
    measured: float
    predicted: float
    low: float
    high: float
    verdict: str


def leave_largest_out(parameters: Sequence[float], values: Sequence[float]) -> Trend:
    """Fits a power law to all sizes but the largest, and predicts the value of the largest.

    All `values` [n] are positive, and all `parameters` [n] distinct. The prediction's interval (t,
    n - 3 degrees of freedom) is too narrow if the largest size has fewer seeds than the others.
    """
    pairs = sorted(zip(parameters, values, strict=True))
    (*fitted, largest), (*known, measured) = zip(*pairs, strict=True)
    law, x, freedom = fit_power_law(fitted, known), np.log(fitted), len(fitted) - 2
    predicted = float(law.predict(largest))
    residuals, centred = np.log(known) - np.log(law.predict(fitted)), x - x.mean()
    reach = 1.0 + 1.0 / len(x) + (math.log(largest) - x.mean()) ** 2 / (centred @ centred)
    variance = float(residuals @ residuals) / freedom * reach
    half = float(stats.t.ppf(TAIL, freedom)) * math.sqrt(variance)
    low, high = predicted * math.exp(-half), predicted * math.exp(half)
    verdict = INSIDE if low <= measured <= high else OUTSIDE
    return Trend(largest, len(x), law.exponent, measured, predicted, low, high, verdict)


def trend_table(table: pd.DataFrame, parameters: Mapping[str, float]) -> pd.DataFrame:
    """Returns a table with TREND_COLUMNS: the results of `leave_largest_out` by class and method.

    `table` has the rows of one profile, and `parameters` maps sizes to parameter counts. `size` is
    the largest size. `verdict` shows whether the 90% prediction interval, `low` to `high`, contains
    the `measured` compute ratio. A method has no row for a class if it has fewer than
    FEWEST_SIZES smaller sizes, two sizes with the same count, or a ratio <= 0.
    """
    rows = []
    for name in TREND_CLASSES:
        for method, known in table[table[name].notna()].groupby("method", sort=False):
            counts = known["size"].map(parameters)
            if len(known) > FEWEST_SIZES and counts.is_unique and (known[name] > 0.0).all():
                size, trend = known["size"][counts.idxmax()], leave_largest_out(counts, known[name])
                rows.append((method, name, size, *trend))
    return pd.DataFrame(rows, columns=TREND_COLUMNS)
