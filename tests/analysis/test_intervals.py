"""Checks intervals against hand-computed values, scipy and simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from gram_platform.analysis.intervals import (
    Interval,
    smallest_detectable,
    subtract_pairs,
    t_interval,
    widen,
)


def test_t_interval_of_three_seeds():
    mean, low, high = t_interval([1.0, 2.0, 3.0])
    half = 2.919985580 / math.sqrt(3)  # t(0.95, 2 degrees of freedom), from a printed table
    assert (mean, low, high) == pytest.approx((2.0, 2.0 - half, 2.0 + half))
    reference = stats.t.interval(
        0.90, 4, loc=np.mean([1, 4, 2, 8, 5]), scale=stats.sem([1, 4, 2, 8, 5])
    )
    assert t_interval([1, 4, 2, 8, 5])[1:] == pytest.approx(reference)


@pytest.mark.parametrize("values", [[0.7], [0.5, 0.9]])
def test_fewer_than_three_values_have_no_interval(values):
    interval = t_interval(values)
    assert interval.mean == pytest.approx(0.7)
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)


def test_pairs_are_by_seed():
    differences = subtract_pairs({"0": 1.0, "1": 2.0, "7": 9.0}, {"1": 1.5, "0": 0.75})
    assert list(differences.items()) == [("0", 0.25), ("1", 0.5)]
    assert t_interval(list(differences.values())).mean == 0.375


@pytest.mark.parametrize("margin", [math.nan, 0.5, 3.0])
# Both have the standard deviation 1.
@pytest.mark.parametrize("spread", [(-math.sqrt(0.5), math.sqrt(0.5)), (-1.0, 0.0, 1.0)])
def test_smallest_detectable_difference_has_the_stated_power(spread, margin):
    num, rng = len(spread), np.random.default_rng(0)
    delta = smallest_detectable(spread, margin)
    samples = rng.standard_normal((20000, num)) + delta
    half = stats.t.ppf(0.95, num - 1) * samples.std(axis=1, ddof=1) / math.sqrt(num)
    half = np.hypot(half, 0.0 if math.isnan(margin) else margin)
    assert np.mean(samples.mean(axis=1) - half > 0) == pytest.approx(0.8, abs=0.01)
    assert smallest_detectable([2 * value for value in spread], 2 * margin) == pytest.approx(
        2 * delta
    )


def test_a_detectable_difference_grows_from_that_of_the_seeds_alone_to_the_margin():
    spread = (0.01, 0.03, 0.04)
    assert smallest_detectable(spread, 1e-6) == pytest.approx(smallest_detectable(spread), rel=1e-2)
    assert smallest_detectable((0.1, 0.1, 0.1), 0.07) == pytest.approx(0.07)
    # Far above a flat baseline's losses.
    assert smallest_detectable((1e-38, 3e-38), 0.07) == pytest.approx(0.07)
    assert widen(Interval(0.5, 0.2, 0.8), 0.4) == pytest.approx((0.5, 0.0, 1.0))
    assert widen(Interval(0.5, math.nan, math.nan), 0.4) == pytest.approx((0.5, 0.1, 0.9))
    assert widen(Interval(0.5, 0.2, 0.8), math.nan) == Interval(0.5, 0.2, 0.8)


def test_coverage_of_the_interval():
    rng = np.random.default_rng(1)
    hits = [
        low < 0.0 < high
        for _, low, high in (t_interval(rng.standard_normal(3)) for _ in range(3000))
    ]
    assert np.mean(hits) == pytest.approx(0.9, abs=0.02)
