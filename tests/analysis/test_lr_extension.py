"""Checks how a grid grows: towards a minimum at the edge, up to the limits, not towards diverged
cells."""

import re

import pandas as pd
import pytest

from gram_platform.analysis.lr_extension import Grid, extension
from tests.analysis.test_lr_grid import BATCHES, LRS, diverge, planted
from tests.refused import refused

GRID = Grid(LRS, BATCHES)


def test_a_grid_with_its_minimum_inside_does_not_grow():
    step = extension(planted("4M"), GRID, limit=2)
    assert (step.grid, step.new_cells, step.messages) == (GRID, (), ())


@pytest.mark.parametrize(
    ("lr", "batch", "new", "message"),
    [
        (0.9e-3, 200.0, [(lr, 128) for lr in LRS], r"4M: .* upper .*\bbatch: .*128$"),
        (0.9e-3, 2.0, [(lr, 8) for lr in LRS], r"4M: .* lower .*\bbatch: .*\b8$"),
        (9e-3, 30.0, [(4e-3, b) for b in BATCHES], r"4M: .* upper .*\blr: .*0\.004$"),
    ],
)
def test_growth_is_one_step_towards_the_minimum(lr, batch, new, message):
    step = extension(planted("4M", lr, batch), GRID, limit=2)
    assert list(step.new_cells) == new
    (said,) = step.messages
    assert re.match(message, said)
    assert step == extension(
        planted("4M", lr, batch).sample(frac=1.0, random_state=0), GRID, limit=2
    )


def test_growth_at_a_corner_and_until_the_limit():
    grid, counts = GRID, []
    for _ in range(4):
        step = extension(planted("4M", 1.0, 1e4, lrs=grid.lrs, batches=grid.batches), grid, limit=2)
        grid = step.grid
        counts.append(len(step.new_cells))
    assert counts == [5 * 4 - 12, 6 * 5 - 5 * 4, 0, 0]
    assert grid.num_added == (0, 2, 0, 2)
    assert (grid.lrs[-1], grid.batches[-1]) == (8e-3, 256)
    assert re.search("not extended, 2 ", step.messages[0])
    assert extension(planted("4M", 1.0), GRID, limit=0).new_cells == ()


def test_growth_ends_once_the_minimum_is_inside():
    grid = extension(planted("4M", batch=100.0), GRID, limit=3).grid
    assert (
        extension(planted("4M", batch=100.0, batches=grid.batches), grid, limit=3).new_cells == ()
    )


def test_without_a_minimum_the_grid_grows_towards_the_best_cell():
    step = extension(planted("4M", bend=-0.1, batch=20.0), GRID, limit=1)
    assert step.new_cells == tuple((lr, 128) for lr in LRS)
    assert "not convex" in step.messages[0]
    few = planted("4M", lrs=LRS[:3], lr=1e-2)
    few = diverge(few, few["batch"] == 16)
    step = extension(few, Grid(LRS[:3], BATCHES), limit=1)
    assert re.match("4M: .* fitted.* upper ", step.messages[0])


def test_no_growth_towards_cells_that_diverged():
    trials = planted("4M", lr=9e-3)
    top = trials["lr"] == LRS[-1]
    step = extension(diverge(trials, top), GRID, limit=2)
    assert step.new_cells == ()
    assert re.search("lr: not extended.*diverged", step.messages[0])
    partly = extension(diverge(trials, top & (trials["batch"] < 64)), GRID, limit=2)
    assert partly.new_cells == ((4e-3, 64),)
    assert partly.grid.left_out == {(4e-3, 16), (4e-3, 32)}
    again = extension(
        diverge(trials, top & (trials["batch"] < 64)).pipe(
            lambda t: pd.concat([t, planted("4M", 9e-3, lrs=(4e-3,), batches=(64,))])
        ),
        partly.grid,
        limit=2,
    )
    assert again.new_cells == ((8e-3, 64),)


def test_batches_stay_whole_and_allowed():
    small = Grid(LRS, (1, 2, 4))
    trials = planted("4M", batch=0.1, batches=small.batches)
    assert " 0.5" in extension(trials, small, limit=2).messages[0]
    refused = extension(
        planted("4M", batch=2.0), GRID, limit=2, why_not=lambda batch: f"{batch} is too few"
    )
    assert refused.messages[0].endswith("8 is too few")
    assert refused.new_cells == ()


def test_a_size_without_losses_does_not_grow():
    trials = planted("4M")
    step = extension(diverge(trials, trials["lr"] > 0), GRID, limit=2)
    assert (step.grid, step.new_cells) == (GRID, ())


@pytest.mark.parametrize(
    ("lrs", "batches", "field"),
    [(LRS[:2], BATCHES, "lrs"), (LRS, (16, 16, 32), "batches"), (LRS, (1.5, 2, 3), "batches")],
)
def test_grids_that_cannot_be_fitted_are_refused(lrs, batches, field):
    with refused(field):
        Grid(lrs, batches)
