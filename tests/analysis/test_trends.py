"""Checks the prediction of the largest size: planted laws come back, and intervals have their
coverage."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from gram_platform.analysis.trends import (
    INSIDE,
    OUTSIDE,
    TREND_COLUMNS,
    leave_largest_out,
    trend_table,
)

SIZES = np.array([5e7, 1e8, 2e8, 4e8, 8e8])


def law(sizes, coefficient=6.0, exponent=-0.12):
    return coefficient * np.asarray(sizes) ** exponent


def test_a_planted_law_is_predicted_whatever_the_order():
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1]):
        trend = leave_largest_out(SIZES[order], law(SIZES)[order])
        assert trend.exponent == pytest.approx(-0.12, rel=1e-9)
        assert (trend.parameters, trend.num_fitted) == (8e8, 4)
        assert trend.predicted == pytest.approx(law(8e8), rel=1e-12)
        assert trend.measured == law(SIZES)[4]
        assert (trend.low, trend.high) == pytest.approx((trend.predicted,) * 2, rel=1e-9)


def test_the_largest_size_does_not_change_the_law():
    values = law(SIZES) * np.exp([0.02, -0.03, 0.01, 0.01, 0.0])
    plain, moved = leave_largest_out(SIZES, values), leave_largest_out(SIZES, [*values[:4], 0.9])
    assert moved.measured == 0.9
    assert (plain.exponent, plain.low, plain.predicted, plain.high) == (
        moved.exponent,
        moved.low,
        moved.predicted,
        moved.high,
    )
    assert (plain.verdict, moved.verdict) == (INSIDE, OUTSIDE)


def test_the_interval_is_the_textbooks():
    """Three points at x = 0, 1, 2 with y = 0, 0.3, 0: the line is 0.1, residuals -0.1, 0.2, -0.1,
    s^2 = 0.06."""
    trend = leave_largest_out(np.exp([0.0, 1.0, 2.0, 4.0]), np.exp([0.0, 0.3, 0.0, 0.5]))
    half = stats.t.ppf(0.95, 1) * math.sqrt(0.06 * (1 + 1 / 3 + 3.0**2 / 2))
    assert math.log(trend.predicted) == pytest.approx(0.1)
    assert (math.log(trend.low), math.log(trend.high)) == pytest.approx((0.1 - half, 0.1 + half))


@pytest.mark.parametrize("num_sizes", [4, 5, 7])
def test_the_interval_holds_the_left_out_size_nine_times_in_ten(num_sizes):
    rng, num = np.random.default_rng(num_sizes), 2000
    sizes = 5e7 * 2.0 ** np.arange(num_sizes)
    inside = [
        leave_largest_out(sizes, law(sizes) * np.exp(0.03 * rng.standard_normal(num_sizes))).verdict
        == INSIDE
        for _ in range(num)
    ]
    assert np.mean(inside) == pytest.approx(0.9, abs=4 * math.sqrt(0.09 / num))


def test_the_table_has_a_row_for_every_method_that_has_a_trend():
    """In the order of the rows, which need not be that of the names."""
    parameters = {"a": 1e6, "b": 1e7, "c": 1e8, "d": 1e9}
    gram = pd.DataFrame(
        {"method": "gram", "size": list("abcd"), "core": 0.95, "forget": [0.8, 0.7, 0.6, 0.5]}
    )
    few = pd.DataFrame(
        {"method": "filtering", "size": list("abc"), "core": 0.95, "forget": [0.8, 0.7, 0.6]}
    )
    below = pd.DataFrame(
        {"method": "demix", "size": list("abcd"), "core": 0.9, "forget": [0.1, 0.0, -0.1, -0.1]}
    )
    table = pd.concat([gram, few, below])
    found = trend_table(table, parameters)
    assert list(found.columns) == TREND_COLUMNS
    assert found[["method", "class"]].to_numpy().tolist() == [
        ["gram", "core"],
        ["demix", "core"],
        ["gram", "forget"],
    ]
    assert found["size"].tolist() == ["d", "d", "d"]
    assert found["num_fitted"].tolist() == [3, 3, 3]
    last, trend = found.iloc[-1], leave_largest_out([1e6, 1e7, 1e8, 1e9], gram["forget"])
    assert (last["predicted"], last["low"], last["high"]) == (
        trend.predicted,
        trend.low,
        trend.high,
    )
    assert trend_table(table, {**parameters, "b": 1e6}).empty  # two sizes of one count
    assert trend_table(few, parameters).empty
