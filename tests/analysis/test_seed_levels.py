"""Checks levels of seeds: whole grids keep their optimum, a cell without one seed does not bend the
surface."""

import math

import numpy as np
import pandas as pd
import pytest

from gram_platform.analysis.lr_grid import POOLED, cells, optima_table, surface_table
from gram_platform.analysis.lr_laws import laws_table
from gram_platform.analysis.surface import (
    Fit,
    fit_quadratic,
    fit_surface,
    level_columns,
    subtract_levels,
)
from tests.refused import refused

SIZES = (1e8, 4e8)
BEST = {n: (0.311 * n**-0.308, 4.93e-5 * n**0.799) for n in SIZES}


def trials(num_seeds=2, level=0.02, noise=0.0, num_failed=0, sizes=SIZES) -> pd.DataFrame:
    """Twelve cells a size around its optimum; seed k lies k x `level` higher, and seed 0 lacks its
    first cells."""
    rng, rows = np.random.default_rng(0), []
    for n in sizes:
        for seed in range(num_seeds):
            for cell in range(12):
                x, y = (cell // 3 - 1.3) * math.log(2.0), (cell % 3 - 0.8) * math.log(2.0)
                loss = (
                    3.0 + 0.05 * x * x + 0.03 * y * y + 0.01 * x * y + noise * rng.standard_normal()
                )
                state = "failed" if seed == 0 and cell < num_failed else "complete"
                place = {"lr": BEST[n][0] * math.exp(x), "batch": BEST[n][1] * math.exp(y)}
                run = {
                    "size": f"{n / 1e6:.0f}M",
                    "parameters": n,
                    "seed": seed,
                    **place,
                    "state": state,
                }
                rows.append(
                    {**run, "loss": loss + level * seed if state == "complete" else math.nan}
                )
    return pd.DataFrame(rows)


def pooled(frame: pd.DataFrame, **options) -> pd.DataFrame:
    optima = optima_table(frame, Fit(**options))
    return optima[optima["seed"] == POOLED]


@pytest.mark.parametrize("num_failed", [0, 1, 7])
def test_a_missing_seed_bends_no_law(num_failed):
    frame = trials(num_failed=num_failed)
    laws = laws_table(frame, num_resamples=10)
    assert laws["exponent"].tolist() == pytest.approx([-0.308, 0.799], abs=1e-9)
    optima = pooled(frame)
    for n, (_, row) in zip(SIZES, optima.iterrows(), strict=True):
        assert (row["lr"], row["batch"]) == pytest.approx(BEST[n], rel=1e-9)
        assert row["loss"] == pytest.approx(3.01)  # at the mean of both levels
        assert row["rms"] < 1e-12
    note = f"{num_failed} of 12 cells lack a seed" if num_failed else ""
    assert optima["notes"].tolist() == [note] * 2
    surfaces = surface_table(frame)
    assert surfaces["loss"].min() == pytest.approx(3.01, abs=1e-3)


def test_whole_grids_keep_the_optimum_of_the_plain_pool():
    frame = trials(3, level=0.05, noise=0.002, sizes=SIZES[:1])
    columns = [frame[name].to_numpy() for name in ("lr", "batch", "loss")]
    plain, own = fit_quadratic(*columns), fit_surface(*columns, seeds=frame["seed"]).optimum()
    assert (own.lr, own.batch, own.loss) == pytest.approx(
        (plain.lr, plain.batch, plain.loss), rel=1e-12
    )
    assert (own.lr_low, own.lr_high) == pytest.approx((plain.lr_low, plain.lr_high))
    assert plain.rms > 10 * own.rms
    assert fit_surface(*columns, frame["seed"], Fit(0.02)).optimum().lr == pytest.approx(
        fit_quadratic(*columns, 0.02).lr
    )


def test_the_level_of_a_seed_is_not_noise():
    found = [pooled(trials(3, level, 0.001, sizes=SIZES[:1])).iloc[0] for level in (0.0, 0.02, 0.2)]
    assert all(row["notes"] == "" for row in found)
    assert [row["curvature_t"] for row in found] == pytest.approx([found[0]["curvature_t"]] * 3)
    assert [row["rms"] for row in found] == pytest.approx([0.001] * 3, rel=0.35)


def test_levels_cost_degrees_of_freedom():
    rng, ratios = np.random.default_rng(0), []
    one = trials(3, 0.0, sizes=SIZES[:1])
    for _ in range(300):  # losses of twelve cells and three seeds: 36 - 6 - 2 degrees of freedom
        surface = fit_surface(
            one["lr"], one["batch"], one["loss"] + 0.01 * rng.standard_normal(36), one["seed"]
        )
        ratios.append(surface.rms**2 * 36 / 0.01**2)
    assert np.mean(ratios) == pytest.approx(28.0, rel=0.03)
    flat = one.assign(loss=3.0)
    ts = []
    # A saddle has no curvature along one axis: the smallest curvature's t is about a t.
    for _ in range(400):
        noisy = (
            flat["loss"]
            + 0.05 * np.log(flat["lr"] / BEST[1e8][0]) ** 2
            + 0.001 * rng.standard_normal(36)
        )
        ts.append(fit_surface(flat["lr"], flat["batch"], noisy, flat["seed"]).curvature_t)
    assert np.std(ts) == pytest.approx(math.sqrt(28 / 26), rel=0.15)


def test_windows_and_best_cells_compare_seeds_at_one_level():
    frame = trials(2, level=0.5, sizes=SIZES[:1])
    best = frame["loss"].idxmin()  # of seed 0
    lacking = frame.drop(index=best)
    row = pooled(lacking).iloc[0]
    assert (row["best_lr"], row["best_batch"]) == (frame.loc[best, "lr"], frame.loc[best, "batch"])
    assert row["best_loss"] == pytest.approx(frame.loc[best, "loss"] + 0.25)
    whole, windowed = pooled(frame, window=0.02).iloc[0], pooled(lacking, window=0.02).iloc[0]
    assert (windowed["num_cells"], windowed["lr"]) == (
        whole["num_cells"],
        pytest.approx(whole["lr"]),
    )
    plain = cells(lacking)
    assert (
        plain["loss"].idxmin()
        != plain.index[(plain["lr"] == row["best_lr"]) & (plain["batch"] == row["best_batch"])]
    )


def test_too_few_losses_for_the_levels_are_refused_and_say_so():
    frame = trials(2, sizes=SIZES[:1])
    half = frame[(frame["seed"] == 0) == (frame.index % 12 < 6)].iloc[[0, 1, 2, 3, 7, 11]]
    assert len(half) == 6
    with refused("lr, batch"):
        fit_surface(half["lr"], half["batch"], half["loss"], half["seed"])
    row = pooled(half).iloc[0]
    assert "levels of 2 seeds" in row["reason"]
    assert row["notes"].startswith("no fit")
    with refused("seeds", "3 seeds"):
        fit_surface(half["lr"], half["batch"], half["loss"], [0, 1, 2])


def test_levels_by_hand():
    assert level_columns(["b", "a", "c"], 3).tolist() == [[0, 1], [1, 0], [-1, -1]]
    assert level_columns(None, 4).shape == level_columns(["x"] * 4, 4).shape == (4, 0)
    cell, loss = np.array([0, 0, 1, 2]), np.array([1.0, 1.4, 2.0, 3.4])
    assert subtract_levels(cell, loss, [0, 1, 0, 1]) == pytest.approx([1.2, 1.2, 2.2, 3.2])
    apart = np.array([0, 0, 1, 1])
    # No cell has both seeds: levels are unknown.
    assert subtract_levels(apart, loss, [0, 0, 1, 1]).tolist() == loss.tolist()


@pytest.mark.parametrize("alone", ["a", "m", "z"])
def test_a_seed_that_shares_no_cell_has_no_level(alone):
    cell, loss = np.array([0, 0, 1, 1, 2]), np.array([1.0, 1.4, 2.0, 2.4, 3.0])
    levels = loss - subtract_levels(cell, loss, ["c", "n", "c", "n", alone])
    assert levels == pytest.approx([-0.2, 0.2, -0.2, 0.2, 0.0])
