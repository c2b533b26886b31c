"""Searches a grid of learning rates and batches at every size, from which the ladder's laws are fitted.

As in the paper's appendix "Learning Rate and Batch Size Scaling": cells in powers of two, three seeds, the mean of core
and auxiliary validation losses. Ours: a grid may grow towards a minimum at its border, see `analysis.lr_extension`. The
cell with a size's rate and batch is the baseline of the studies, and shared with them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gram_platform.analysis.lr_extension import Cell, Grid, extension
from gram_platform.config.identity import invalid, one_of, require_int, require_real
from gram_platform.config.ladder import Size
from gram_platform.config.space import SearchObjective
from gram_platform.methods.nodes import Node
from gram_platform.planner import AUTO
from gram_platform.store import Store
from gram_platform.studies import Preset
from gram_platform.studies.flag_groups import Amount, Number
from gram_platform.studies.flag_values import split_list
from gram_platform.studies.searches.definition import GridSearch, SearchFlags, TrialFlags

if TYPE_CHECKING:
    from gram_platform.engine.trials import Point
    from gram_platform.studies.build import Graph
    from gram_platform.studies.searches.lr_batch_trials import LrBatchProblem
    from gram_platform.studies.searches.report import SearchOutput
    from gram_platform.tracking import Tracker

AUTO_AXIS = "auto"
MEAN_LOSS = SearchObjective("loss", math.inf)


@dataclass(frozen=True)
class CellFlags(TrialFlags):
    """Of this search.

    Args:
        lrs: peak learning rates for every size; auto: the preset's, around each size's own
        batches: batches in sequences for every size; auto: the preset's, around each size's own
        window: the fit uses cells within this fraction of the lowest loss (0.05: 5%; default: all cells)
        max_extensions: rows or columns that each side of a grid may grow by while its minimum lies there (default: the
            preset's)
    """

    lrs: tuple[str, ...] = (AUTO_AXIS,)
    batches: tuple[str, ...] = (AUTO_AXIS,)
    window: Amount = 0.0
    max_extensions: Number = -1


@dataclass(frozen=True)
class GridFlags(CellFlags, SearchFlags):
    """The flags of the LR/batch grid."""

    def checked(self) -> GridFlags:
        require_real("window", self.window, 0.0)
        require_int("max_extensions", self.max_extensions, -1)
        return replace(super().checked(), lrs=_numbers("lrs", self.lrs), batches=_numbers("batches", self.batches))


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
class GridShape:
    """Defines a preset's grid by rising factors of every size's peak rate and batch."""

    lr_factors: tuple[float, ...]
    batch_factors: tuple[float, ...]
    # Rows or columns that each side may grow by.
    max_extensions: int

    def __post_init__(self) -> None:
        for factor in (*self.lr_factors, *self.batch_factors):
            require_real("grid.factors", factor, 0.0, open_low=True)
        require_int("grid.max_extensions", self.max_extensions, 0)

    def of(self, size: Size) -> Grid:
        batches = [size.batch_size * factor for factor in self.batch_factors]
        return Grid(tuple(size.peak_lr * factor for factor in self.lr_factors), _whole(batches))


@dataclass(frozen=True)
class LiteralGrids:
    """Defines a preset's grid for each size by name, without assuming anything of the law."""

    of_size: Mapping[str, Grid]
    # As in `GridShape`.
    max_extensions: int

    def __post_init__(self) -> None:
        require_int("grid.max_extensions", self.max_extensions, 0)

    def of(self, size: Size) -> Grid:
        if size.name not in self.of_size:
            raise invalid("sizes", size.name, one_of(size.name, self.of_size, "those with a grid in this preset: "))
        return self.of_size[size.name]


@dataclass(frozen=True)
class LrBatchGrid(GridSearch):
    """Runs the grids of all sizes at once; each grows by itself."""

    minimised: SearchObjective = MEAN_LOSS
    # The grids of each preset.
    grids: Mapping[str, GridShape | LiteralGrids] = field(default_factory=dict)

    flags_type = GridFlags

    def checked(self, flags: GridFlags) -> GridFlags:
        """ValueError for grids that determine no surface, and for batches that ranks or data cannot serve."""
        preset = self.presets[flags.preset]
        for name in flags.sizes:
            size = preset.sizes[name]
            for batch in self.grid(flags, size).batches:
                if reason := why_not(flags, preset, size, batch):
                    raise invalid("batches", batch, reason)
        given = flags.max_extensions >= 0
        return flags if given else replace(flags, max_extensions=self.grids[flags.preset].max_extensions)

    def grid(self, flags: GridFlags, size: Size) -> Grid:
        """Returns the grid from which a size starts."""
        grid = self.grids[flags.preset].of(size)
        lrs = tuple(sorted(float(lr) for lr in flags.lrs)) or grid.lrs
        return Grid(lrs, _whole(sorted(float(batch) for batch in flags.batches)) or grid.batches)

    def problem(self, graph: Graph, store: Store | None = None) -> LrBatchProblem:
        from gram_platform.studies.searches.lr_batch_trials import LrBatchProblem

        return LrBatchProblem(graph.settings)

    def identity(self, graph: Graph) -> Mapping:
        """Hashes the runs of the first grids, which depend on data, sizes, cells and seeds."""
        from gram_platform.studies.searches.lr_batch_trials import CORE_WEIGHT

        return {"runs": [node.id for node in self.example(graph)], "core_weight": CORE_WEIGHT}

    def example(self, graph: Graph) -> list[Node]:
        """Returns the nodes of the first grids; their growth is not known yet."""
        points = [p for size in sizes_of(graph) for p in cell_points(graph, size, self.grid(graph.flags, size))]
        problem = self.problem(graph)
        return [node for _, point in points for node in problem.nodes(point)]

    def points(self, graph: Graph, store: Store) -> tuple[list[tuple[str, Point]], list[str]]:
        """Returns the cells of every size's grid, grown as far as the results demand."""
        points, messages = [], []
        for size in sizes_of(graph):
            grid, said = self.grown(graph, store, size)
            points += cell_points(graph, size, grid)
            messages += said
        return points, messages

    def grown(self, graph: Graph, store: Store, size: Size) -> tuple[Grid, list[str]]:
        """Returns one size's grid as its results demand, and announcements; it grows once all its trials have ended."""
        from gram_platform.analysis.lr_grid import ENDED
        from gram_platform.studies.searches.lr_batch_trials import trial_rows
        from gram_platform.studies.searches.report import result_frame

        flags, messages = graph.flags, []
        grid = self.grid(flags, size)
        while True:
            nodes = self.cell_nodes(graph, size, grid)
            done = {node.id: result for node in nodes.values() if (result := store.run(node.id).result()) is not None}
            frame = result_frame([node for node in nodes.values() if node.id in done], done)
            trials = trial_rows(size, nodes, frame, store)
            if not set(trials["state"]) <= set(ENDED):
                return grid, messages
            allowed = lambda batch: why_not(flags, graph.preset, size, batch)  # noqa: E731
            step = extension(trials, grid, flags.max_extensions, flags.window or None, allowed)
            messages += step.messages
            if not step.new_cells:
                return step.grid, messages
            grid = step.grid

    def cell_nodes(self, graph: Graph, size: Size, grid: Grid) -> dict[tuple[Cell, int], Node]:
        """Returns the run of every cell and seed of one size's grid."""
        problem, points = self.problem(graph), cell_points(graph, size, grid)
        return {((p["lr"], p["batch"]), p["seed"]): problem.nodes(p)[0] for _, p in points}

    def write(self, graph: Graph, store: Store, tracker: Tracker | None, search_id: str) -> SearchOutput | None:
        import pandas as pd

        from gram_platform.studies.searches.lr_batch_trials import grid_report, trial_rows
        from gram_platform.tracking.frame import final_frames

        grids = {size: self.grown(graph, store, size)[0] for size in sizes_of(graph)}
        nodes = {size: self.cell_nodes(graph, size, grid) for size, grid in grids.items()}
        ids = {node.id for of_size in nodes.values() for node in of_size.values()}
        frame, _, source = final_frames(store, tracker, ids, ())
        rows = [trial_rows(size, of_size, frame, store) for size, of_size in nodes.items()]
        seconds = frame[["id", "elapsed_s"]].rename(columns={"id": "run_id"})
        trials = pd.concat(rows, ignore_index=True).merge(seconds, "left", on="run_id")
        return grid_report(graph, trials, source, tracker, search_id)


def sizes_of(graph: Graph) -> list[Size]:
    return [graph.preset.sizes[name] for name in graph.flags.sizes]


def cell_points(graph: Graph, size: Size, grid: Grid) -> list[tuple[str, Point]]:
    """Returns a named point for each seed of each cell, a cell's seeds together."""
    cells = [{"size": size.name, "lr": lr, "batch": batch} for lr, batch in grid.cells]
    seeds = [setting.seed for setting in graph.settings if setting.size.name == size.name]
    name = "{size} lr {lr:.6g} batch {batch} s{seed}"
    return [(name.format(**point), point) for cell in cells for seed in seeds for point in ({**cell, "seed": seed},)]


def why_not(flags: GridFlags, preset: Preset, size: Size, batch: int) -> str:
    """Returns the reason for which a size cannot train at this batch; "" if it can."""
    from gram_platform.studies.searches.lr_batch_trials import micro_batch_at

    micro_batch, wanted = micro_batch_at(size, batch), flags.ranks.wanted(size.name)
    if wanted != AUTO and micro_batch % wanted:
        return f"its micro-batch at {size.name} would be {micro_batch}, which {wanted} ranks cannot divide"
    available = round(size.core_tokens // size.seq_len * (1.0 + preset.aux_share))
    if batch > available:
        return f"{size.name} trains on {available} sequences in all"
    return ""


def _whole(batches: Iterable[float]) -> tuple[int, ...]:
    """Returns the batches as integers; ValueError for one that is not whole."""
    found = tuple(int(batch) if batch == int(batch) else batch for batch in batches)
    for batch in found:
        require_int("batches", batch, 1)
    return found
