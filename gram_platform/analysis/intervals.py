"""Computes intervals over training seeds: t-interval, paired differences, detectable difference."""

import math
from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import optimize, stats

from gram_platform.config.identity import invalid

# The confidence of every interval, in the paper and here.
CONFIDENCE = 0.90
# The quantile of an interval's upper end.
TAIL = 0.5 + CONFIDENCE / 2.0
# The probability with which a difference of the smallest detectable size is shown.
POWER = 0.8
# The suffixes of the three columns of a mean and its interval.
ENDS = ("", "_low", "_high")
# Fewer values have no interval: the t factor of two is 6.3.
FEWEST = 3
# The kinds of intervals.
JACKKNIFE, CURVE_FIXED = "leave-one-seed-out jackknife", "t over seeds with the curve fixed"
# The suffix of columns of pseudo-values, beside those of values; where the curve is fixed there are
# none.
PSEUDO_SUFFIX = "_pseudo"


def floats(field: str, values: object) -> np.ndarray:
    """Converts a number or an array of any shape to floats.

    ValueError for text and other values without a number.
    """
    try:
        return np.asarray(values, float)
    except (TypeError, ValueError) as error:
        raise invalid(field, f"values of {type(values).__name__}", f"numbers ({error})") from error


def positive(field: str, values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Returns values [n] as floats.

    ValueError naming the field and the first entry that is not finite and positive.
    """
    array = floats(field, values)
    if array.ndim != 1:
        raise invalid(
            field, f"values of shape {array.shape}", "one dimension: one value for each run or size"
        )
    bad = np.flatnonzero(~(np.isfinite(array) & (array > 0.0)))
    if len(bad):
        place = f"entry {bad[0]} of {len(array)}" + (
            f", and {len(bad) - 1} more" if len(bad) > 1 else ""
        )
        raise invalid(field, float(array[bad[0]]), f"finite positive numbers; this is {place}")
    return array


class Interval(NamedTuple):
    """A mean and the ends of its interval; NaN ends if fewer than three values leave it unknown."""

    mean: float
    low: float
    high: float


def t_interval(values: Sequence[float], pseudo_values: Sequence[float] | None = None) -> Interval:
    """Returns (mean, low, high): mean -+ t(n-1) sd / sqrt(n) over `values` [n], one per seed.

    The values are finite, one at least. NaN ends if n is below FEWEST. `pseudo_values` [n]: the
    jackknife's, of the same seeds, whose standard deviation replaces that of the values
    (`ratios.pseudo_values`). The values' mean stays the centre. The ends are NaN if a pseudo-value
    is.
    """
    array = np.asarray(values, float)
    spread = array if pseudo_values is None else np.asarray(pseudo_values, float)
    mean, num = float(array.mean()), len(array)
    if num < FEWEST:
        return Interval(mean, math.nan, math.nan)
    half = float(stats.t.ppf(TAIL, num - 1) * spread.std(ddof=1) / math.sqrt(num))
    return Interval(mean, mean - half, mean + half)


def interval_columns(
    name: str, values: Sequence[float], pseudo_values: Sequence[float] | None = None
) -> dict[str, float]:
    """Returns {name, name_low, name_high}: mean and t-interval of the values [n] that are not NaN.

    NaN without any.
    """
    array = np.asarray(values, float)
    spread = array if pseudo_values is None else np.asarray(pseudo_values, float)
    is_known = ~np.isnan(array)
    interval = t_interval(array[is_known], spread[is_known]) if is_known.any() else (math.nan,) * 3
    return {name + end: number for end, number in zip(ENDS, interval, strict=True)}


def with_pseudo_values(
    values: pd.DataFrame, pseudo: pd.DataFrame, names: Sequence[str]
) -> pd.DataFrame:
    """Adds the columns `names` of `pseudo`, which has the same rows, with PSEUDO_SUFFIX."""
    return values.assign(**{name + PSEUDO_SUFFIX: pseudo[name] for name in names})


def pseudo_frame(values: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Returns the frame with its pseudo-values in the columns `names`.

    The frame itself if the curve is fixed.
    """
    found = {name: values[name + PSEUDO_SUFFIX] for name in names if name + PSEUDO_SUFFIX in values}
    return values.assign(**found)


def paired_differences(
    left: Mapping[Hashable, float], right: Mapping[Hashable, float]
) -> dict[Hashable, float]:
    """Returns left - right, all `{seed: value}`, on the seeds of both."""
    seeds = sorted(set(left) & set(right), key=str)
    return {seed: float(left[seed]) - float(right[seed]) for seed in seeds}


def widened(interval: Interval, margin: float) -> Interval:
    """Adds a margin in quadrature to the interval's half-width, of 0 if the interval has no ends.

    NaN adds nothing.
    """
    mean, low, high = interval
    if math.isnan(margin):
        return interval
    half = math.hypot(0.0 if math.isnan(low) else (high - low) / 2.0, margin)
    return Interval(mean, mean - half, mean + half)


def level_factors(number: int, freedom: float | np.ndarray) -> np.ndarray:
    """Returns how many times wider an interval is at the levels 1 to `number` [number].

    The quantile of level j is 1 - (1 - TAIL) / j. `freedom` [n, 1] gives factors [n, number].
    """
    quantiles = 1.0 - (1.0 - TAIL) / np.arange(1, number + 1)
    return stats.t.ppf(quantiles, freedom) / stats.t.ppf(TAIL, freedom)


def smallest_detectable(differences: Sequence[float], margin: float = math.nan) -> float:
    """Returns the true difference whose interval excludes 0 with probability POWER.

    It is that of as many seeds with the spread of these `differences` [n], n > 1. The interval is
    the t-interval, `widened` by the margin. Exact under normal noise: the noncentral t without a
    margin, else its integral over the spread's distribution.
    """
    num = len(differences)
    critical, error = stats.t.ppf(TAIL, num - 1), np.std(differences, ddof=1) / math.sqrt(num)
    if math.isnan(margin) or margin == 0.0:
        return float(_detectable_shift(num) * error)
    # Quantiles of the measured variance over the true one.
    variances = stats.chi2.ppf((np.arange(1000) + 0.5) / 1000.0, num - 1) / (num - 1)
    halves = np.hypot(critical * error * np.sqrt(variances), margin)
    # The error is nothing beside the margin, and the search below would have no room above it.
    if error <= 1e-12 * margin:
        return margin
    most = margin + (10.0 * critical + 10.0) * error
    return float(
        optimize.brentq(lambda d: stats.norm.sf((halves - d) / error).mean() - POWER, 0.0, most)
    )


@cache
def _detectable_shift(num: int) -> float:
    """Returns the smallest detectable difference of `num` seeds in standard errors."""
    critical = float(stats.t.ppf(TAIL, num - 1))
    return optimize.brentq(
        lambda d: stats.nct.sf(critical, num - 1, d) - POWER, 0.0, 10.0 * critical + 10.0
    )
