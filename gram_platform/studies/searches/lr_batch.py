"""Searches a grid of learning rates and batches at every size, for the ladder's laws.

As in the paper's appendix "Learning Rate and Batch Size Scaling": cells in powers of two, three
seeds, the mean of core and auxiliary validation losses. Ours: a grid may grow towards a minimum at
its border, see `analysis.lr_extension`. The cell with a size's rate and batch is the baseline of
the studies, and shared with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from gram_platform.analysis.lr_extension import Grid
from gram_platform.config.identity import invalid, require_int, require_real
from gram_platform.config.ladder import Size
from gram_platform.studies.flags import Amount, Number, split_list
from gram_platform.studies.plan import StudyPlan
from gram_platform.studies.searches.cells import GridShape, LiteralGrids, whole, why_not
from gram_platform.studies.searches.definition import Search
from gram_platform.studies.searches.trial_flags import TrialFlags

if TYPE_CHECKING:
    from gram_platform.studies.searches.lr_batch_trials import GridsWork

AUTO_AXIS = "auto"


@dataclass(frozen=True)
class GridFlags(TrialFlags):
    """Of this search.

    Args:
        lrs: peak learning rates for every size; auto: the preset's, around each size's own
        batches: batches in sequences for every size; auto: the preset's, around each size's own
        window: the fit uses cells within this fraction of the lowest loss (0.05: 5%; default: all
            cells)
        max_extensions: rows or columns that each side of a grid may grow by while its minimum lies
            there (default: the preset's)
    """

    lrs: tuple[str, ...] = (AUTO_AXIS,)
    batches: tuple[str, ...] = (AUTO_AXIS,)
    window: Amount = 0.0
    max_extensions: Number = -1

    def checked(self) -> Self:
        require_real("window", self.window, 0.0)
        require_int("max_extensions", self.max_extensions, -1)
        return replace(
            super().checked(),
            lrs=_numbers("lrs", self.lrs),
            batches=_numbers("batches", self.batches),
        )


def _numbers(field: str, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Splits a list of positive numbers; () for auto."""
    if texts == (AUTO_AXIS,):
        return ()
    items = split_list(texts)
    if not items:
        raise invalid(field, texts, f"positive numbers, at least one, or {AUTO_AXIS}")
    for item in items:
        try:
            require_real(field, float(item), 0.0, open_low=True)
        except ValueError as error:
            raise invalid(field, item, "positive numbers") from error
    if len({float(item) for item in items}) != len(items):
        raise invalid(field, items, "each value once")
    return items


@dataclass(frozen=True)
class LrBatchGrid(Search):
    """Runs the grids of all sizes at once; each grows by itself."""

    # The grids of each preset.
    grids: Mapping[str, GridShape | LiteralGrids] = field(default_factory=dict)

    flags_type = GridFlags

    def checked(self, flags: GridFlags, part: StudyPlan) -> GridFlags:
        """ValueError for grids that determine no surface, and for batches that ranks or data cannot
        serve."""
        grids = self.grids[part.preset_name]
        for name in part.choice.sizes:
            size = part.preset.sizes[name]
            for batch in self.grid(flags, part.preset_name, size).batches:
                if reason := why_not(part.ranks, part.preset, size, batch):
                    raise invalid("batches", batch, reason)
        if flags.max_extensions >= 0:
            return flags
        return replace(flags, max_extensions=grids.max_extensions)

    def grid(self, flags: GridFlags, preset: str, size: Size) -> Grid:
        """Returns the grid from which a size starts."""
        grid = self.grids[preset].of(size)
        lrs = tuple(sorted(float(lr) for lr in flags.lrs)) or grid.lrs
        return Grid(lrs, whole(sorted(float(batch) for batch in flags.batches)) or grid.batches)

    def work_type(self) -> type[GridsWork]:
        from gram_platform.studies.searches.lr_batch_trials import GridsWork

        return GridsWork
