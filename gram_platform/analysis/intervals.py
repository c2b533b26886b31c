"""Computes t-intervals over seeds, differences of paired seeds, and detectable differences."""

import math
from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import optimize, stats

from gram_platform.config.identity import invalid

CONFIDENCE = 0.90
TAIL = 0.5 + CONFIDENCE / 2.0
# The probability that the smallest detectable difference is detected.
POWER = 0.8
# The suffixes of the three columns of a mean and its interval.
ENDS = ("", "_low", "_high")
# Fewer values have no interval, since the t factor of two values is 6.3.
FEWEST = 3
JACKKNIFE, CURVE_FIXED = "leave-one-seed-out jackknife", "t over seeds with the curve fixed"
# The suffix of columns of pseudo-values, which a fixed curve does not have.
PSEUDO_SUFFIX = "_pseudo"


def floats(field: str, values: object) -> np.ndarray:
    """Converts a number or an array of any shape to floats. Raises ValueError for other values."""
    try:
        return np.asarray(values, float)
    except (TypeError, ValueError) as error:
        raise invalid(field, f"values of {type(values).__name__}", f"numbers ({error})") from error


def positive(field: str, values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Returns values [n] as floats. Raises ValueError unless all are finite and positive."""
    array = floats(field, values)
    if array.ndim != 1:
        allowed = "one dimension: one value for each run or size"
        raise invalid(field, f"values of shape {array.shape}", allowed)
    bad = np.flatnonzero(~(np.isfinite(array) & (array > 0.0)))
    if len(bad):
        more = f", and {len(bad) - 1} more" * (len(bad) > 1)
        entry = f"entry {bad[0]} of {len(array)}{more}"
        raise invalid(field, float(array[bad[0]]), f"finite positive numbers; this is {entry}")
    return array


class Interval(NamedTuple):
    """A mean or another estimate, and the ends of its interval. Unknown ends are NaN."""

    mean: float
    low: float
    high: float


def t_interval(values: Sequence[float], pseudo_values: Sequence[float] | None = None) -> Interval:
    """Returns the mean of `values` (one per seed) and the interval mean -+ t(n-1) sd / sqrt(n).

    n is the number of values that are not NaN, and sd is their standard deviation. If the
    jackknife's `pseudo_values` are given, one per seed, sd is the standard deviation of these. The
    ends are NaN if n < FEWEST or a pseudo-value is NaN.
    """
    array = np.asarray(values, float)
    spread = array if pseudo_values is None else np.asarray(pseudo_values, float)
    is_known = ~np.isnan(array)
    array, spread, num = array[is_known], spread[is_known], int(is_known.sum())
    mean = float(array.mean()) if num else math.nan
    if num < FEWEST:
        return Interval(mean, math.nan, math.nan)
    half = float(stats.t.ppf(TAIL, num - 1) * spread.std(ddof=1) / math.sqrt(num))
    return Interval(mean, mean - half, mean + half)


def interval_columns(
    name: str, values: Sequence[float], pseudo_values: Sequence[float] | None = None
) -> dict[str, float]:
    """Returns the `t_interval` as a dict with the keys `<name>`, `<name>_low` and `<name>_high`."""
    ends = (name + end for end in ENDS)
    return dict(zip(ends, t_interval(values, pseudo_values), strict=True))


def with_pseudo_values(
    values: pd.DataFrame, pseudo: pd.DataFrame, names: Sequence[str]
) -> pd.DataFrame:
    """Adds the columns `names` of the frame `pseudo` to `values`, as `<name>` + PSEUDO_SUFFIX."""
    return values.assign(**{name + PSEUDO_SUFFIX: pseudo[name] for name in names})


def pseudo_frame(values: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Returns `values` with each column in `names` replaced by its pseudo-values, if it has any."""
    pseudo = {n: values[n + PSEUDO_SUFFIX] for n in names if n + PSEUDO_SUFFIX in values}
    return values.assign(**pseudo)


def subtract_pairs(
    left: Mapping[Hashable, float], right: Mapping[Hashable, float]
) -> dict[Hashable, float]:
    """Returns {seed: left - right} for the seeds that both mappings contain."""
    seeds = sorted(set(left) & set(right), key=str)
    return {seed: float(left[seed]) - float(right[seed]) for seed in seeds}


def widen(interval: Interval, margin: float) -> Interval:
    """Widens an interval to the half-width sqrt(half-width^2 + margin^2).

    A NaN margin changes nothing. The half-width of an interval without ends counts as 0.
    """
    mean, low, high = interval
    if math.isnan(margin):
        return interval
    half = math.hypot(0.0 if math.isnan(low) else (high - low) / 2.0, margin)
    return Interval(mean, mean - half, mean + half)


def level_factors(number: int, freedom: float | np.ndarray) -> np.ndarray:
    """Returns the relative widths of t-intervals corrected for 1, 2, ..., `number` comparisons.

    The width for one comparison is 1. For j comparisons, the quantile is 1 - (1 - TAIL) / j
    (Bonferroni). The result is [number], or [n, number] for degrees of `freedom` [n, 1].
    """
    quantiles = 1.0 - (1.0 - TAIL) / np.arange(1, number + 1)
    return stats.t.ppf(quantiles, freedom) / stats.t.ppf(TAIL, freedom)


def smallest_detectable(differences: Sequence[float], margin: float = math.nan) -> float:
    """Returns the smallest true mean difference that n new seeds detect with probability POWER.

    The seeds detect the difference if their t-interval, widened by `margin`, excludes 0. Their
    standard deviation is that of `differences` [n], n > 1. The result is exact for normal noise.
    """
    num = len(differences)
    critical, error = stats.t.ppf(TAIL, num - 1), np.std(differences, ddof=1) / math.sqrt(num)
    if math.isnan(margin) or margin == 0.0:
        return float(_detectable_shift(num) * error)
    # Quantiles of the measured variance over the true one.
    variances = stats.chi2.ppf((np.arange(1000) + 0.5) / 1000.0, num - 1) / (num - 1)
    halves = np.hypot(critical * error * np.sqrt(variances), margin)
    # With an error this small, the search below would have no range.
    if error <= 1e-12 * margin:
        return margin
    most = margin + (10.0 * critical + 10.0) * error
    return float(
        optimize.brentq(lambda d: stats.norm.sf((halves - d) / error).mean() - POWER, 0.0, most)
    )


@cache
def _detectable_shift(num: int) -> float:
    critical = float(stats.t.ppf(TAIL, num - 1))
    return optimize.brentq(
        lambda d: stats.nct.sf(critical, num - 1, d) - POWER, 0.0, 10.0 * critical + 10.0
    )
