"""Checks seed intervals of laws: coverage with few seeds, and laws beyond the range of floats."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest

from gram_platform.analysis.lr_laws import bootstrap_laws, spread_interval
from gram_platform.analysis.trends import fit_power_law
from gram_platform.config.ladder import GRID_DEMO_SIZES, PAPER_LAW, apply_law
from tests.analysis.test_seed_levels import trials
from tests.refused import refused

SIZES = np.array([5e7, 1e8, 2e8, 4e8])


def weights(at: float | None = None) -> np.ndarray:
    """Weights of the log optima in the exponent, or in the log of the law at a size, from
    `fit_power_law`."""
    laws = [fit_power_law(SIZES, np.exp(unit)) for unit in np.eye(len(SIZES))]
    return np.array([law.exponent if at is None else math.log(law.predict(at)) for law in laws])


def coverage(
    num_seeds: int, of: np.ndarray, spreads=(1.0, 1.0, 1.0, 1.0), num_studies=600
) -> float:
    """How often the interval holds the truth, 0, when each seed's log optimum is normal around
    it."""
    rng, hits = np.random.default_rng(num_seeds), []
    freedoms, scale = np.full(len(SIZES), num_seeds - 1), math.sqrt(num_seeds / (num_seeds - 1))
    for _ in range(num_studies):
        optima = rng.standard_normal((len(SIZES), num_seeds)) * np.array(spreads)[:, None]
        draws = rng.integers(0, num_seeds, (200, len(SIZES), num_seeds))
        resampled = np.take_along_axis(np.broadcast_to(optima, draws.shape), draws, axis=2).mean(
            axis=2
        )
        pooled = optima.mean(axis=1)
        moved = (resampled - pooled) * scale
        _, low, high = spread_interval(moved, freedoms, of, float(of @ pooled))
        hits.append(low < 0.0 < high)
    return float(np.mean(hits))


@pytest.mark.parametrize(
    "num_seeds", [2, *(pytest.param(number, marks=pytest.mark.slow) for number in (3, 5))]
)
def test_intervals_of_few_seeds_cover(num_seeds):
    for of in (weights(), weights(SIZES[0]), weights(2e8)):
        assert 0.86 < coverage(num_seeds, of) < 0.98
    assert 0.84 < coverage(num_seeds, weights(), (1.0, 1.0, 1.0, 3.0)) < 0.96


def test_the_band_agrees_with_the_exponent_and_the_law():
    frame = trials(3, level=0.05, noise=0.002)
    laws = bootstrap_laws(frame, num_resamples=50)
    for quantity in ("lr", "batch"):
        law = laws.laws[quantity]
        at = [laws.predict(quantity, n) for n in (1e8, 2e8, 4e8)]
        assert [value for value, _, _ in at] == pytest.approx(
            [law.predict(n) for n in (1e8, 2e8, 4e8)]
        )
        assert all(low < value < high for value, low, high in at)
        assert math.log(at[1].high / at[1].low) < max(
            math.log(end.high / end.low) for end in (at[0], at[2])
        )
    assert laws.exponents["lr"].low < laws.laws["lr"].exponent < laws.exponents["lr"].high


def test_the_level_of_seeds_does_not_widen_a_law():
    narrow, wide = (
        bootstrap_laws(trials(3, level, 0.002), num_resamples=20) for level in (0.0, 0.5)
    )
    assert tuple(wide.exponents["lr"]) == pytest.approx(tuple(narrow.exponents["lr"]), rel=1e-6)


def test_one_resample_or_one_seed_gives_no_interval():
    single = bootstrap_laws(trials(2, noise=0.001), num_resamples=1)
    assert math.isnan(single.exponents["lr"].low)
    frame = trials(2, noise=0.001)
    lone = bootstrap_laws(
        pd.concat([frame[frame["parameters"] == 1e8], frame[frame["seed"] == 0]]).drop_duplicates()
    )
    assert lone.num_resamples == 0
    assert math.isnan(lone.predict("batch", 1e8).high)
    exact = bootstrap_laws(trials(2), num_resamples=5)
    assert tuple(exact.exponents["lr"]) == pytest.approx((-0.308,) * 3)


def test_resamples_without_a_minimum_are_counted_and_left_out():
    """Of two seeds the second is flat at one size, so that a draw of it alone has no surface: a
    quarter of all."""
    frame = trials(2, noise=0.001)
    frame.loc[(frame["parameters"] == 1e8) & (frame["seed"] == 1), "loss"] = 3.0
    laws = bootstrap_laws(frame, num_resamples=50)
    assert 5 < laws.num_failed < 25
    assert laws.exponents["lr"].low < laws.laws["lr"].exponent < laws.exponents["lr"].high


@pytest.mark.parametrize(
    "change", [{"batch_exponent": -60.0}, {"lr_exponent": -1e9}, {"lr_exponent": 1e3}]
)
def test_a_law_beyond_the_range_of_floats_is_refused(change):
    law = dataclasses.replace(PAPER_LAW, name="steep", **change)
    with refused("law", "steep"):
        apply_law(GRID_DEMO_SIZES["0.2M"], law, 1_000_000)
