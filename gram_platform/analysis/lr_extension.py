"""Extends a grid of learning rates and batches towards a minimum at its border [ours].

The paper's grids are fixed. A minimum at or beyond a side of the grid is unreliable, so we add a
value beyond this side.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import TYPE_CHECKING

from gram_platform.config.identity import invalid

if TYPE_CHECKING:
    import pandas as pd

SIDES = ("lr low", "lr high", "batch low", "batch high")
EDGE_WORDS = {"low": "lower", "high": "upper"}
# The fewest values of each axis that determine a quadratic.
MIN_VALUES = 3

# The peak LR, and the batch in sequences.
Cell = tuple[float, int]


@dataclass(frozen=True)
class Grid:
    """One size's learning rates and batch sizes, both in rising order."""

    lrs: tuple[float, ...]
    batches: tuple[int, ...]
    # Cells that are not tried, because they lie beyond unusable cells.
    left_out: frozenset[Cell] = frozenset()
    # By SIDES.
    num_added: tuple[int, int, int, int] = (0, 0, 0, 0)

    def __post_init__(self) -> None:
        for field, values in (("lrs", self.lrs), ("batches", self.batches)):
            is_rising = all(0.0 < a < b < math.inf for a, b in pairwise(values))
            if len(values) < MIN_VALUES or not is_rising:
                allowed = f"at least {MIN_VALUES} positive numbers, rising"
                raise invalid(field, list(values), allowed)
        if any(batch != int(batch) for batch in self.batches):
            raise invalid("batches", list(self.batches), "whole sequences")

    @property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(cell for cell in product(self.lrs, self.batches) if cell not in self.left_out)


@dataclass(frozen=True)
class Extension:
    """The extended grid, the new cells, and messages for the user."""

    grid: Grid
    new_cells: tuple[Cell, ...]
    messages: tuple[str, ...]


def extension(
    trials: "pd.DataFrame",
    grid: Grid,
    limit: int,
    window: float | None = None,
    why_not: Callable[[int], str] = lambda batch: "",
) -> Extension:
    """Extends the grid of one size by at most one value at each side.

    `trials` has the columns of `lr_grid`. A side is extended if the minimum fitted to all seeds
    lies at or beyond the side. Without a minimum, a side is extended if the best cell lies on it. A
    new value continues the ratio of the two outermost values. At most `limit` values are added to a
    side, and none if all cells of the side diverged or failed. A batch is added only if it is a
    whole number and `why_not` returns "". A new cell is left out if its nearest cell in the grid
    diverged, failed or was left out.
    """
    from gram_platform.analysis.lr_grid import POOLED, cells, optima_table
    from gram_platform.analysis.surface import Fit

    table, optima = cells(trials), optima_table(trials, Fit(window))
    row = optima[optima["seed"] == POOLED].iloc[0]
    if math.isnan(row["best_loss"]):
        return Extension(grid, (), (f"{row['size']}: no cell is complete: not extended",))
    used = table.loc[table["used"], ["lr", "batch"]].to_numpy()
    usable = {(lr, int(batch)) for lr, batch in used}
    unusable = set(product(grid.lrs, grid.batches)) - usable
    problem = "the surface cannot be fitted" if row["reason"] else "the surface is not convex"
    reason = "the minimum lies" if row["convex"] else f"{problem}, and the best cell lies"
    wanted, messages = [], []
    for side in filter(None, row["edges"].split(", ")):
        axis, end = side.split()
        outer, value, refusal = _step(grid, side, limit, why_not)
        border = product([outer], grid.batches) if axis == "lr" else product(grid.lrs, [outer])
        if not refusal and unusable.issuperset(border):
            refusal = "the cells there diverged or failed"
        number = f"{value:g}" if axis == "lr" else f"{value:,}"
        step = f"not extended, {refusal}" if refusal else f"adding {axis} {number}"
        messages.append(f"{row['size']}: {reason} at the {EDGE_WORDS[end]} edge of {axis}: {step}")
        wanted += [] if refusal else [(side, value)]
    grown = _grow(grid, wanted, unusable)
    new = tuple(cell for cell in grown.cells if cell not in grid.cells)
    return Extension(grown, new, tuple(messages))


def _step(
    grid: Grid, side: str, limit: int, why_not: Callable[[int], str]
) -> tuple[float, float, str]:
    axis, end = side.split()
    values = grid.lrs if axis == "lr" else grid.batches
    outer, inner = values[:2] if end == "low" else values[:-3:-1]
    # This is exact for powers of two.
    value = outer * (outer / inner)
    if grid.num_added[SIDES.index(side)] >= limit:
        most = f"{limit} added there is the most that is allowed"
        return outer, value, most if limit else "extensions are off"
    if axis == "lr":
        return outer, value, ""
    if value != int(value):
        return outer, value, f"the next batch would be {value:g}, which is not whole"
    return outer, int(value), why_not(int(value))


def _grow(grid: Grid, wanted: Sequence[tuple[str, float]], unusable: set[Cell]) -> Grid:
    lrs, batches = (
        tuple(sorted([*values, *(value for side, value in wanted if side.startswith(axis))]))
        for axis, values in (("lr", grid.lrs), ("batch", grid.batches))
    )
    new = set(product(lrs, batches)) - set(product(grid.lrs, grid.batches))
    beyond = {cell for cell in new if _nearest(grid, cell) in unusable}
    grew = [side for side, _ in wanted]
    added = tuple(count + (side in grew) for side, count in zip(SIDES, grid.num_added, strict=True))
    left_out = grid.left_out | beyond
    return replace(grid, lrs=lrs, batches=batches, left_out=left_out, num_added=added)


def _nearest(grid: Grid, cell: Cell) -> Cell:
    lr, batch = cell
    nearest = min(max(batch, grid.batches[0]), grid.batches[-1])
    return min(max(lr, grid.lrs[0]), grid.lrs[-1]), nearest
