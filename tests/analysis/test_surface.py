"""Checks the surface fit on grids like the published ones: steps of sqrt 2, tokens, noise, narrow
valleys."""

import math
from unittest.mock import ANY

import numpy as np
import pandas as pd
import pytest

from gram_platform.analysis.surface import fit_quadratic, fit_surface
from tests.refused import refused

BEST = 2.0**-8.3, 2.0**18.2  # off the grid
LR, BATCH = (
    g.ravel()
    for g in np.meshgrid(2.0 ** np.arange(-11, -6.4, 0.5), 2.0 ** np.arange(15, 22.1, 0.5))
)
UPRIGHT = np.diag([0.08, 0.04])


def rotated(angle: float, first: float, second: float) -> np.ndarray:
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    return turn @ np.diag([first, second]) @ turn.T


def losses(hessian=UPRIGHT, lr=LR, batch=BATCH, floor=2.5):
    place = np.log(np.stack([lr / BEST[0], batch / BEST[1]]))
    return floor + 0.5 * np.einsum("in,ij,jn->n", place, hessian, place)


@pytest.mark.parametrize("condition", [1.0, 1e3, 1e5])
@pytest.mark.parametrize("angle", [0.0, 0.3, math.pi / 4, 1.2])
def test_narrow_rotated_valleys_keep_their_minimum(condition, angle):
    optimum = fit_quadratic(LR, BATCH, losses(rotated(angle, 0.2, 0.2 / condition)))
    assert optimum.convex
    assert (optimum.lr, optimum.batch) == pytest.approx(BEST, rel=1e-6)


def test_cells_in_a_narrow_band_along_the_valley():
    steps = np.arange(60)
    lr = 2.0 ** (-11 + 0.1 * steps)
    batch = 2.0 ** (15 + 0.1 * steps) * np.array([1.0, 1.05, 0.95])[steps % 3]
    optimum = fit_quadratic(lr, batch, losses(rotated(math.pi / 4, 0.2, 0.002), lr, batch))
    assert (optimum.lr, optimum.batch) == pytest.approx(BEST, rel=1e-6)
    rounded = np.round(2.0 ** (15 + 0.1 * steps))  # the same line as lr, but for whole tokens
    with refused("lr, batch"):
        fit_quadratic(lr, rounded, losses(lr=lr, batch=rounded))


@pytest.mark.parametrize(
    "kind", [list, np.array, lambda v: pd.Series(v, index=np.arange(len(v))[::-1])]
)
def test_the_order_and_the_kind_of_the_cells_do_not_matter(kind):
    order = np.random.default_rng(0).permutation(len(LR))
    plain, shuffled = (
        fit_quadratic(kind(LR[i]), kind(BATCH[i]), kind(losses()[i]), 0.05)
        for i in (slice(None), order)
    )
    assert (plain.lr, plain.batch) == pytest.approx(BEST, rel=1e-9)
    assert (shuffled.lr, shuffled.batch, shuffled.num_cells) == pytest.approx(
        (plain.lr, plain.batch, plain.num_cells)
    )


def test_units_of_the_batch_only_move_the_optimum():
    z = losses() + 0.002 * np.random.default_rng(0).standard_normal(len(LR))
    in_tokens, in_sequences = fit_quadratic(LR, BATCH, z), fit_quadratic(LR, BATCH / 2048, z)
    assert in_tokens.batch == pytest.approx(2048 * in_sequences.batch)
    assert (in_tokens.lr, in_tokens.rms) == pytest.approx((in_sequences.lr, in_sequences.rms))


def test_a_small_t_statistic_flags_curvature_by_noise():
    rng = np.random.default_rng(0)
    noise = 0.002 * rng.standard_normal(len(LR))
    assert fit_quadratic(LR, BATCH, losses() + noise).curvature_t > 10
    assert abs(fit_quadratic(LR, BATCH, losses(rotated(0.3, 0.2, 2e-6)) + noise).curvature_t) < 3
    flat = [
        fit_quadratic(LR, BATCH, 2.5 + 0.01 * rng.standard_normal(len(LR))).curvature_t
        for _ in range(200)
    ]
    assert np.mean(np.array(flat) > 2) < 0.05
    assert math.isnan(
        fit_quadratic(
            LR[[0, 1, 12, 33, 57, 149]], BATCH[[0, 1, 12, 33, 57, 149]], losses()[:6]
        ).curvature_t
    )


def test_a_constant_loss_is_not_convex_by_rounding():
    for constant in (0.1, 2.5, 3.0, 1e6):
        assert not fit_quadratic(LR, BATCH, np.full(len(LR), constant)).convex


def test_cells_that_differ_in_the_last_bits_are_one():
    lr = np.concatenate([LR, LR * (1 + 1e-15)])
    z = np.concatenate([losses(), losses() + 0.5])
    assert fit_quadratic(lr, np.tile(BATCH, 2), z).num_cells == len(LR)
    z[0], z[len(LR)] = 2.6, 4.0  # a lucky seed of a bad cell, whose mean is far from the lowest
    kept = fit_quadratic(lr, np.tile(BATCH, 2), z, 0.05)
    assert kept.num_points == 2 * kept.num_cells


def test_the_surface_predicts_what_was_planted():
    surface = fit_surface(LR, BATCH, losses(rotated(0.3, 0.2, 0.05)))
    assert surface.loss(LR, BATCH) == pytest.approx(losses(rotated(0.3, 0.2, 0.05)))
    optimum = surface.optimum()
    assert float(surface.loss([optimum.lr], [optimum.batch])[0]) == pytest.approx(optimum.loss)


def test_a_minimum_in_a_corner_without_cells_is_at_the_edge():
    planted = 2.0**-7.2, 2.0**15.8  # high rate, small batch
    place = np.log(np.stack([LR / planted[0], BATCH / planted[1]]))
    loss = 2.5 + 0.5 * np.einsum("in,ij,jn->n", place, UPRIGHT, place)
    assert not fit_quadratic(LR, BATCH, loss).on_edge
    # The rates at which a small batch trains.
    kept = np.log2(LR) + 11.0 < 1.5 + np.log2(BATCH) - 15.0
    optimum = fit_quadratic(LR[kept], BATCH[kept], loss[kept])
    assert optimum.on_edge
    assert (optimum.lr, optimum.batch) == pytest.approx(planted)


def test_a_minimum_below_zero_has_no_span():
    # Steep far out: the fitted quadratic dips below the losses.
    bent = losses() + 0.3 * np.log(LR / BEST[0]) ** 4
    optimum = fit_quadratic(LR, BATCH, bent - bent.min() + 1e-3)
    assert optimum.convex
    assert optimum.loss < 0.0
    assert all(
        math.isnan(end)
        for end in (optimum.lr_low, optimum.lr_high, optimum.batch_low, optimum.batch_high)
    )


@pytest.mark.parametrize(
    ("lr", "batch", "loss", "window", "field", "value"),
    [
        (LR, BATCH, np.where(LR[7] == LR, np.nan, losses()), None, "loss", ANY),
        (LR.reshape(15, 10), BATCH, losses(), None, "lr", "values of shape (15, 10)"),
        (LR, BATCH, ["diverged"] * 150, None, "loss", ANY),
        (-LR, BATCH, losses(), None, "lr", -LR[0]),
        (LR, BATCH, losses()[:-1], None, "loss", ANY),
        (LR, BATCH, losses(), "5%", "window", "5%"),
        (LR, BATCH, losses(), 1e-6, "window", 1e-6),
        ([], [], [], 0.05, "window", 0.05),
    ],
)
def test_errors_name_the_field_and_the_first_bad_entry(lr, batch, loss, window, field, value):
    with refused(field, value):
        fit_quadratic(lr, batch, loss, window)
