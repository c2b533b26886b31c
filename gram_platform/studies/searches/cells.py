"""The cells of a grid of learning rates and batches, and what a size trains at one."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gram_platform.analysis.lr_extension import Cell, Grid
from gram_platform.config.identity import invalid, one_of, require_int, require_real
from gram_platform.config.ladder import Size
from gram_platform.config.layout import MACHINE_RANKS
from gram_platform.planner import AUTO, Ranks
from gram_platform.studies.definition import Preset
from gram_platform.studies.flags import split_list
from gram_platform.studies.plan import StudyPlan
from gram_platform.studies.searches.definition import Search
from gram_platform.studies.searches.flags import AUTO_AXIS, GridFlags


@dataclass(frozen=True)
class Grids:
    """The grids of a preset: each size's own, or rising factors of its peak rate and batch."""

    # Rows or columns that each side may grow by.
    max_extensions: int
    lr_factors: tuple[float, ...] = ()
    batch_factors: tuple[float, ...] = ()
    # Of each size by name, without assuming anything of the law.
    of_size: Mapping[str, Grid] | None = None

    def of(self, size: Size) -> Grid:
        """Returns a size's grid; ValueError for a size that has none."""
        if self.of_size is None:
            batches = [size.batch_size * factor for factor in self.batch_factors]
            return Grid(tuple(size.peak_lr * factor for factor in self.lr_factors), whole(batches))
        if size.name not in self.of_size:
            expected = one_of(size.name, self.of_size, "those with a grid in this preset: ")
            raise invalid("sizes", size.name, expected)
        return self.of_size[size.name]


def read_grids(search: Search, flags: GridFlags, part: StudyPlan) -> dict[str, Any]:
    """Reads the fields of `LrBatchGrid`.

    ValueError for grids that determine no surface, and for batches that ranks or data cannot serve.
    """
    require_real("window", flags.window, 0.0)
    require_int("max_extensions", flags.max_extensions, -1)
    lrs, batches = _numbers("lrs", flags.lrs), whole(_numbers("batches", flags.batches))
    of_preset, grids = search.points[part.preset_name], {}
    for name in part.sizes:
        size = part.preset.sizes[name]
        grid = of_preset.of(size)
        grids[name] = Grid(lrs or grid.lrs, batches or grid.batches)
        for batch in grids[name].batches:
            if reason := why_not(part.ranks, part.preset, size, batch):
                raise invalid("batches", batch, reason)
    most = of_preset.max_extensions if flags.max_extensions < 0 else flags.max_extensions
    return {"grids": grids, "window": flags.window or None, "max_extensions": most}


def _numbers(field: str, texts: tuple[str, ...]) -> tuple[float, ...]:
    """Reads a list of positive numbers, ascending; () for auto."""
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
    return tuple(sorted(float(item) for item in items))


def at(size: Size, cell: Cell) -> Size:
    """Returns the size at a cell's rate and batch; the micro-batch is `micro_batch_at`."""
    lr, batch = cell
    return replace(size, peak_lr=lr, batch_size=batch, micro_batch=micro_batch_at(size, batch))


def why_not(ranks: Ranks, preset: Preset, size: Size, batch: int) -> str:
    """Returns the reason for which a size cannot train at this batch; "" if it can."""
    micro_batch, wanted = micro_batch_at(size, batch), ranks.wanted(size.name)
    if wanted != AUTO and micro_batch % wanted:
        return (
            f"its micro-batch at {size.name} would be {micro_batch}, which {wanted} ranks cannot"
            " divide"
        )
    available = round(size.core_tokens // size.seq_len * (1.0 + preset.aux_share))
    if batch > available:
        return f"{size.name} trains on {available} sequences in all"
    return ""


def micro_batch_at(size: Size, batch: int) -> int:
    """Returns the size's micro-batch if it divides the batch, else the largest smaller number that
    does.

    Prefers multiples of 8, the GPUs of a machine, so that 8 ranks can share it: 264 sequences at
    200M (micro-batch 72) are trained in parts of 24, not 66.
    """
    if batch % size.micro_batch == 0:
        return size.micro_batch
    divisors = [part for part in range(1, size.micro_batch) if batch % part == 0]
    return max(divisors, key=lambda part: (part % MACHINE_RANKS == 0, part))


def whole(batches: Iterable[float]) -> tuple[int, ...]:
    """Returns the batches as integers; ValueError for one that is not whole."""
    found = tuple(int(batch) if batch == int(batch) else batch for batch in batches)
    for batch in found:
        require_int("batches", batch, 1)
    return found
