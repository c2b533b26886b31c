"""The cells of a grid of learning rates and batches, and what a size trains at one."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gram_platform.analysis.lr_extension import Cell, Grid
from gram_platform.config.identity import invalid, one_of, require_int
from gram_platform.config.ladder import Size
from gram_platform.config.layout import MACHINE_RANKS
from gram_platform.planner import AUTO, Ranks
from gram_platform.studies.definition import Preset


@dataclass(frozen=True)
class GridShape:
    """Defines a preset's grid by rising factors of every size's peak rate and batch."""

    lr_factors: tuple[float, ...]
    batch_factors: tuple[float, ...]
    # Rows or columns that each side may grow by.
    max_extensions: int

    def of(self, size: Size) -> Grid:
        batches = [size.batch_size * factor for factor in self.batch_factors]
        return Grid(tuple(size.peak_lr * factor for factor in self.lr_factors), whole(batches))


@dataclass(frozen=True)
class LiteralGrids:
    """Defines a preset's grid for each size by name, without assuming anything of the law."""

    of_size: Mapping[str, Grid]
    # As in `GridShape`.
    max_extensions: int

    def of(self, size: Size) -> Grid:
        if size.name not in self.of_size:
            raise invalid(
                "sizes",
                size.name,
                one_of(size.name, self.of_size, "those with a grid in this preset: "),
            )
        return self.of_size[size.name]


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
