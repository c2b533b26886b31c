"""Uncertainty over training seeds: t-intervals, seed-paired contrasts, equivalence, what can be detected, bootstrap."""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import optimize, stats

from gram_platform.config import invalid

CONFIDENCE = 0.90  # of every interval in the paper


class Interval(NamedTuple):
    """A mean and the ends of its interval; the ends are NaN where one value alone tells nothing about the spread."""

    mean: float
    low: float
    high: float


class Contrast(NamedTuple):
    """Seed-paired differences left - right, the seeds they are of, and the t-interval of their mean."""

    seeds: tuple[Hashable, ...]
    differences: tuple[float, ...]
    interval: Interval


def t_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """(mean, low, high): mean -+ t(n-1) sd / sqrt(n) over `values` [n], one for each seed; NaN ends when n is 1.

    ValueError when there is no value or one is not finite: leave out what does not exist before asking.
    """
    array = _finite("values", values)
    _require_confidence(confidence)
    mean, num = float(array.mean()), len(array)
    if num < 2:
        return Interval(mean, math.nan, math.nan)
    half = float(stats.t.ppf(0.5 + confidence / 2.0, num - 1) * array.std(ddof=1) / math.sqrt(num))
    return Interval(mean, mean - half, mean + half)


def paired_contrast(
    left: Mapping[Hashable, float], right: Mapping[Hashable, float], confidence: float = CONFIDENCE
) -> Contrast:
    """The t-interval of left - right over the seeds that both have (`{seed: value}`); ValueError if there are none."""
    seeds = tuple(sorted(set(left) & set(right), key=str))
    if not seeds:
        raise invalid("seeds", (sorted(left, key=str), sorted(right, key=str)), "at least one seed on both sides")
    differences = tuple(float(left[s]) - float(right[s]) for s in seeds)
    return Contrast(seeds, differences, t_interval(differences, confidence))


def is_equivalent(interval: Interval, margin: float) -> bool:
    """Whether the interval lies wholly inside (-margin, margin): two one-sided tests; False for NaN ends."""
    if not margin > 0.0:
        raise invalid("margin", margin, "a positive margin")
    return -margin < interval.low and interval.high < margin


def smallest_detectable(differences: Sequence[float], confidence: float = CONFIDENCE, power: float = 0.8) -> float:
    """The true difference that this many seeds with this spread would show as lying on one side, with that power.

    Exact under normal noise: the noncentral t; with power 0.5 it is about the half-width of the t-interval. NaN for
    one difference.
    """
    array = _finite("differences", differences)
    _require_confidence(confidence)
    if not 0.0 < power < 1.0:
        raise invalid("power", power, "a probability strictly between 0 and 1")
    num = len(array)
    if num < 2:
        return math.nan
    critical = stats.t.ppf(0.5 + confidence / 2.0, num - 1)
    if stats.nct.sf(critical, num - 1, 0.0) >= power:
        return 0.0
    shift = optimize.brentq(lambda d: stats.nct.sf(critical, num - 1, d) - power, 0.0, 10.0 * critical + 10.0)
    return float(shift * array.std(ddof=1) / math.sqrt(num))


def bootstrap(
    units: Sequence, statistic: Callable[[list], Sequence[float]], num_resamples: int = 1000, rng_seed: int = 0
) -> np.ndarray:
    """`statistic` of resamples of the units (seeds, usually) with replacement, shape [num_resamples, K].

    A resample for which the statistic raises ValueError (a fit that does not exist) gives a row of NaN, to be counted
    by the caller, and never dropped silently. ValueError when there are no units.
    """
    if len(units) == 0 or num_resamples < 1:
        raise invalid("units", len(units), "at least one unit and one resample")
    rng = np.random.default_rng(rng_seed)
    draws = rng.integers(0, len(units), size=(num_resamples, len(units)))
    rows = [_attempt(statistic, [units[i] for i in draw]) for draw in draws]
    width = max((len(row) for row in rows if row is not None), default=1)
    return np.array([np.full(width, np.nan) if row is None else row for row in rows], float)


def percentile_interval(samples: Sequence[float], centre: float, confidence: float = CONFIDENCE) -> Interval:
    """(centre, low, high): the middle `confidence` of the finite samples [R]; NaN ends with fewer than two of them."""
    _require_confidence(confidence)
    array = np.asarray(samples, float)
    array = array[np.isfinite(array)]
    if len(array) < 2:
        return Interval(float(centre), math.nan, math.nan)
    tail = 50.0 * (1.0 - confidence)
    low, high = np.percentile(array, [tail, 100.0 - tail])
    return Interval(float(centre), float(low), float(high))


def _attempt(statistic: Callable[[list], Sequence[float]], sample: list) -> np.ndarray | None:
    try:
        return np.atleast_1d(np.asarray(statistic(sample), float))
    except ValueError:
        return None


def _finite(field: str, values: Sequence[float]) -> np.ndarray:
    array = np.asarray(list(values), float)
    if array.ndim != 1 or len(array) == 0 or not np.isfinite(array).all():
        raise invalid(field, array.tolist(), "one or more finite numbers")
    return array


def _require_confidence(confidence: float) -> None:
    if not 0.0 < confidence < 1.0:
        raise invalid("confidence", confidence, "a probability strictly between 0 and 1")
