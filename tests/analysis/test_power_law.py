"""Checks surface and law fits on planted ones: noise, rotation, minima off the grid, saddles,
degenerate grids."""

import math

import numpy as np
import pandas as pd
import pytest

from gram_platform.analysis.lr_laws import bootstrap_laws
from gram_platform.analysis.surface import fit_quadratic
from gram_platform.analysis.trends import fit_power_law
from tests.refused import refused

RATES = 1e-3 * 2.0 ** np.arange(-2, 2)
BATCHES = 64.0 * 2.0 ** np.arange(-1, 2)
LR, BATCH = (grid.ravel() for grid in np.meshgrid(RATES, BATCHES))  # 12 cells


def surface(lr, batch, best_lr, best_batch, hessian=((0.2, 0.0), (0.0, 0.1)), floor=3.0):
    place = np.stack([np.log(lr / best_lr), np.log(batch / best_batch)])
    return floor + 0.5 * np.einsum("in,ij,jn->n", place, np.array(hessian), place)


@pytest.mark.parametrize(
    "hessian", [((0.2, 0.0), (0.0, 0.1)), ((0.2, -0.13), (-0.13, 0.1)), ((0.02, 0.03), (0.03, 0.2))]
)
def test_planted_minima_of_upright_and_rotated_surfaces(hessian):
    optimum = fit_quadratic(LR, BATCH, surface(LR, BATCH, 0.8e-3, 70.0, hessian))
    assert optimum.convex
    assert not optimum.on_edge
    assert (optimum.lr, optimum.batch, optimum.loss) == pytest.approx((0.8e-3, 70.0, 3.0), rel=1e-8)
    assert optimum.rms < 1e-12
    assert optimum.num_cells == optimum.num_points == 12


def test_the_spans_hold_a_loss_a_thousandth_above_the_minimum():
    optimum = fit_quadratic(LR, BATCH, surface(LR, BATCH, 0.8e-3, 70.0))
    for field, best, curvature in (("lr", 0.8e-3, 0.2), ("batch", 70.0, 0.1)):
        low, high = (getattr(optimum, f"{field}_{end}") for end in ("low", "high"))
        half = math.sqrt(2 * 0.001 * 3.0 / curvature)
        assert (low, high) == pytest.approx((best * math.exp(-half), best * math.exp(half)))


@pytest.mark.parametrize(
    ("lr", "batch"), [(5e-3, 64.0), (1e-5, 64.0), (0.8e-3, 1e4), (2e-3, 70.0), (0.8e-3, 32.0)]
)
def test_minima_off_and_on_the_border_of_the_grid_are_flagged(lr, batch):
    optimum = fit_quadratic(LR, BATCH, surface(LR, BATCH, lr, batch))
    assert optimum.on_edge
    assert (optimum.lr, optimum.batch) == pytest.approx((lr, batch), rel=1e-6)


@pytest.mark.parametrize(
    "hessian",
    [
        ((0.2, 0.0), (0.0, -0.1)),
        ((-0.2, 0.0), (0.0, -0.1)),
        ((0.2, 0.0), (0.0, 0.0)),
        ((0.1, 0.2), (0.2, 0.1)),
    ],
)
def test_surfaces_without_a_minimum(hessian):
    optimum = fit_quadratic(LR, BATCH, surface(LR, BATCH, 0.8e-3, 70.0, hessian))
    assert not optimum.convex
    assert all(
        math.isnan(getattr(optimum, name))
        for name in ("lr", "batch", "loss", "lr_low", "lr_high", "batch_low", "batch_high")
    )


def test_the_window_keeps_cells_near_the_best_and_changes_what_is_fitted():
    lr, batch = (
        grid.ravel()
        for grid in np.meshgrid(1e-3 * 2.0 ** np.arange(-4, 5), 64 * 2.0 ** np.arange(-4, 5))
    )
    quartic = surface(lr, batch, 1.1e-3, 70.0) + 0.05 * np.maximum(np.log(lr / 1.1e-3), 0) ** 4
    near = fit_quadratic(lr, batch, quartic, window=0.05)
    assert near.num_points == int((quartic <= 1.05 * quartic.min()).sum()) < len(lr)
    everything = fit_quadratic(lr, batch, quartic)
    assert abs(math.log(near.lr / 1.1e-3)) < abs(math.log(everything.lr / 1.1e-3))
    assert fit_quadratic(lr, batch, quartic, window=1e9) == everything


@pytest.mark.parametrize(
    ("lr", "batch"),
    [
        (np.tile(LR[:5], 3), np.tile(BATCH[:5], 3)),
        (2.0 ** np.arange(12), 2.0 ** np.arange(12)),  # all on one line
        (LR, np.where(BATCH > 64, 128.0, 64.0)),  # two batch sizes
        (np.full(12, 1e-3), 2.0 ** np.arange(12)),
    ],
)
def test_grids_that_cannot_determine_a_quadratic(lr, batch):
    with refused("lr, batch"):
        fit_quadratic(lr, batch, np.linspace(3.0, 4.0, len(lr)))


def test_power_laws():
    sizes = np.array([48e6, 103e6, 200e6, 402e6])
    law = fit_power_law(sizes, 0.311 * sizes**-0.308)
    assert (law.coefficient, law.exponent, law.r2) == pytest.approx((0.311, -0.308, 1.0))
    assert law.exponent_interval == pytest.approx((-0.308, -0.308))
    # method.md's number at 800M.
    assert law.predict(806_441_600) == pytest.approx(5.62e-4, rel=2e-3)
    assert law.predict(sizes) == pytest.approx(0.311 * sizes**-0.308)


def test_the_interval_of_the_exponent_covers():
    rng = np.random.default_rng(0)
    sizes, hits = np.array([1.0, 2.0, 4.0, 8.0]), []
    for _ in range(1000):
        low, high = fit_power_law(
            sizes, sizes**0.8 * np.exp(0.1 * rng.standard_normal(4))
        ).exponent_interval
        hits.append(low < 0.8 < high)
    assert np.mean(hits) == pytest.approx(0.9, abs=0.03)


def test_laws_at_their_limits():
    law = fit_power_law([1.0, 10.0], [2.0, 20.0])
    assert law.exponent == pytest.approx(1.0)
    assert math.isnan(law.exponent_interval[0])
    assert math.isnan(fit_power_law([1.0, 2.0, 3.0], [0.7, 0.7, 0.7]).r2)
    for sizes, values, field in (
        ([1.0], [1.0], "sizes"),
        ([1.0, 2.0], [1.0, math.nan], "values"),
        ([1, 2], [1], "values"),
    ):
        with refused(field):
            fit_power_law(sizes, values)


def trials(noise: float) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    frames = []
    for parameters in (5e7, 1e8, 2e8, 4e8):
        best = 0.9e-3 * (parameters / 1e8) ** -0.3, 60.0 * (parameters / 1e8) ** 0.2
        for seed in "012":
            loss = surface(LR, BATCH, *best) + noise * rng.standard_normal(12)
            columns = {
                "parameters": parameters,
                "seed": seed,
                "lr": LR,
                "batch": BATCH,
                "loss": loss,
            }
            frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True)


def test_laws_from_trials_and_their_bootstrap():
    exact = bootstrap_laws(trials(0.0), num_resamples=5)
    assert (exact.laws["lr"].exponent, exact.laws["batch"].exponent) == pytest.approx((-0.3, 0.2))
    noisy = bootstrap_laws(trials(0.003), num_resamples=30)
    assert noisy == bootstrap_laws(trials(0.003), num_resamples=30)
    assert noisy.exponents["lr"].low < noisy.laws["lr"].exponent < noisy.exponents["lr"].high
    assert noisy.exponents["lr"].low == pytest.approx(-0.3, abs=0.1)
    assert noisy.num_failed == 0


def test_a_law_needs_a_minimum_at_every_size():
    flat = trials(0.0)
    flat.loc[flat["parameters"] == 1e8, "loss"] = 3.0
    with refused("trials"):
        bootstrap_laws(flat)
