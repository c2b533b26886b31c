"""The grid of learning rates and batches that the ladder's laws come from: baselines of every size on every cell.

The paper's appendix "Learning Rate and Batch Size Scaling": cells in powers of two, three seeds, the mean of core and
auxiliary validation losses. Ours: a grid may grow towards a minimum at its border, see `analysis.lr_extension`. The
cell of a size's own rate and batch, where a grid has it, is the baseline of the studies, and shared with them.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import pandas as pd

from gram_platform.analysis.lr_extension import Cell, Grid, extension
from gram_platform.analysis.lr_grid import STATES
from gram_platform.analysis.ratios import BASELINE
from gram_platform.analysis.trials import COMPLETE
from gram_platform.config import CORE
from gram_platform.config.flops import total_parameters
from gram_platform.config.identity import invalid, require_int, require_real
from gram_platform.config.ladder import Size
from gram_platform.engine.trials import Point
from gram_platform.methods import Setting
from gram_platform.methods.nodes import Node, method_nodes
from gram_platform.planner import AUTO
from gram_platform.store import Store
from gram_platform.studies import Preset
from gram_platform.studies.flags import ranks_of
from gram_platform.studies.searches.definition import GridSearch, Scene, Written
from gram_platform.studies.searches.flags import GridFlags
from gram_platform.studies.searches.frames import frames, result_frame, trial_state
from gram_platform.studies.searches.lr_batch_report import written
from gram_platform.tracking import Tracker

CORE_WEIGHT = 0.5  # of the objective; the other half is the mean over auxiliary domains
MACHINE_RANKS = 8
END_LOSS = "validation/loss/"  # + domain, in the `final` of a run's result: all modules on, at the run's end
NO_RUNS = pd.DataFrame({"id": [], "status": []})
TRIAL_COLUMNS = ["size", "parameters", "seed", "lr", "batch", "loss", "state", "run_id", "message"]


@dataclass(frozen=True)
class GridShape:
    """A preset's grid: factors of every size's own peak rate and batch, rising."""

    lr_factors: tuple[float, ...]
    batch_factors: tuple[float, ...]
    max_extensions: int  # rows or columns that each side may grow by

    def __post_init__(self) -> None:
        for factor in (*self.lr_factors, *self.batch_factors):
            require_real("grid.factors", factor, 0.0, open_low=True)
        require_int("grid.max_extensions", self.max_extensions, 0)

    def of(self, size: Size) -> Grid:
        batches = [size.batch_size * factor for factor in self.batch_factors]
        return Grid(tuple(size.peak_lr * factor for factor in self.lr_factors), _whole(batches))


@dataclass(frozen=True)
class LiteralGrids:
    """A preset's grids as they stand, one for each size by its name: they assume nothing of the law to be found."""

    of_size: Mapping[str, Grid]
    max_extensions: int  # as in `GridShape`

    def __post_init__(self) -> None:
        require_int("grid.max_extensions", self.max_extensions, 0)

    def of(self, size: Size) -> Grid:
        return self.of_size[size.name]


@dataclass(frozen=True)
class LrBatchProblem:
    """A trial is the baseline of one size and seed at one cell."""

    settings: tuple[Setting, ...]

    def nodes(self, point: Point) -> list[Node]:
        (setting,) = (s for s in self.settings if (s.size.name, s.seed) == (point["size"], point["seed"]))
        at_cell = replace(setting, size=at(setting.size, (point["lr"], point["batch"])))
        cell = {"lr": f"{point['lr']:.6g}", "batch": str(point["batch"])}
        runs = [node for node in method_nodes(BASELINE, at_cell) if node.is_run]
        return [node.tagged(**cell) for node in runs]

    def score(self, point: Point, results: Mapping[str, Mapping]) -> dict[str, float]:
        """The objective `loss` and its halves, in nats a token."""
        (result,) = results.values()
        return objective({name: value for name, value in result["final"].items() if name.startswith(END_LOSS)})


def objective(final: Mapping[str, float]) -> dict[str, float]:
    """`loss`, `core` and `auxiliary` from {validation/loss/<domain>: loss}; ValueError for losses that are not."""
    core = final[END_LOSS + CORE]
    others = [loss for name, loss in final.items() if name != END_LOSS + CORE]
    auxiliary = sum(others) / len(others)
    if not math.isfinite(core + auxiliary):
        raise invalid("loss", (core, auxiliary), "finite validation losses")
    return {"loss": CORE_WEIGHT * core + (1.0 - CORE_WEIGHT) * auxiliary, "core": core, "auxiliary": auxiliary}


def at(size: Size, cell: Cell) -> Size:
    """The size at a cell's rate and batch; the micro-batch is `micro_batch_at`."""
    lr, batch = cell
    return replace(size, peak_lr=lr, batch_size=batch, micro_batch=micro_batch_at(size, batch))


def micro_batch_at(size: Size, batch: int) -> int:
    """The size's own micro-batch where it divides the batch, else the largest smaller number that does.

    Multiples of 8, the GPUs of a machine, go first, so that 8 ranks can share it: 264 sequences at 200M (own
    micro-batch 72) are trained in parts of 24, not 66.
    """
    if batch % size.micro_batch == 0:
        return size.micro_batch
    divisors = [part for part in range(1, size.micro_batch) if batch % part == 0]
    return max(divisors, key=lambda part: (part % MACHINE_RANKS == 0, part))


@dataclass(frozen=True)
class LrBatchGrid(GridSearch):
    """Every size's grid at once; sizes grow apart."""

    grids: Mapping[str, GridShape | LiteralGrids] = field(default_factory=dict)  # of each preset

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
        """The grid that a size starts from."""
        own = self.grids[flags.preset].of(size)
        lrs = tuple(sorted(float(lr) for lr in flags.lrs)) or own.lrs
        return Grid(lrs, _whole(sorted(float(batch) for batch in flags.batches)) or own.batches)

    def problem(self, scene: Scene, store: Store | None = None) -> LrBatchProblem:
        return LrBatchProblem(scene.settings)

    def identity(self, scene: Scene) -> Mapping:
        """The runs of the grids that the search starts from stand for data, sizes, cells and seeds."""
        return {"runs": [node.id for node in self.example(scene)], "core_weight": CORE_WEIGHT}

    def example(self, scene: Scene) -> list[Node]:
        """The nodes of the grids that the search starts from: how they grow is not known yet."""
        points = [p for size in sizes_of(scene) for p in cell_points(scene, size, self.grid(scene.flags, size))]
        problem = self.problem(scene)
        return [node for _, point in points for node in problem.nodes(point)]

    def points(self, scene: Scene, store: Store) -> tuple[list[tuple[str, Point]], list[str]]:
        """The cells of every size's grid, grown as far as the results so far demand it."""
        points, messages = [], []
        for size in sizes_of(scene):
            grid, said = self.grown(scene, store, size)
            points += cell_points(scene, size, grid)
            messages += said
        return points, messages

    def grown(self, scene: Scene, store: Store, size: Size) -> tuple[Grid, list[str]]:
        """One size's grid as its results so far demand it; it grows only where all its trials have ended."""
        flags, messages = scene.flags, []
        grid = self.grid(flags, size)
        while True:
            nodes = self._nodes(scene, size, grid)
            done = {node.id: result for node in nodes.values() if (result := store.run(node.id).result()) is not None}
            frame = result_frame([node for node in nodes.values() if node.id in done], done) if done else NO_RUNS
            trials = trial_rows(size, nodes, frame, store)
            if not set(trials["state"]) <= set(STATES):
                return grid, messages
            allowed = lambda batch: why_not(flags, scene.preset, size, batch)  # noqa: E731
            step = extension(trials, grid, flags.max_extensions, flags.window or None, allowed)
            messages += step.messages
            if not step.new_cells:
                return step.grid, messages
            grid = step.grid

    def _nodes(self, scene: Scene, size: Size, grid: Grid) -> dict[tuple[Cell, int], Node]:
        problem, points = self.problem(scene), cell_points(scene, size, grid)
        return {((p["lr"], p["batch"]), p["seed"]): problem.nodes(p)[0] for _, p in points}

    def write(self, scene: Scene, store: Store, tracker: Tracker | None, search_id: str) -> Written | None:
        """Optima, laws, a law file and the report; None while no trial is complete."""
        nodes = {size: self._nodes(scene, size, self.grown(scene, store, size)[0]) for size in sizes_of(scene)}
        ids = {node.id for of_size in nodes.values() for node in of_size.values()}
        frame, _, source = frames(scene, store, ids, ())
        parts = [trial_rows(size, of_size, frame, store) for size, of_size in nodes.items()]
        timed = pd.concat(parts, ignore_index=True).merge(
            frame[["id", "elapsed_s"]], "left", left_on="run_id", right_on="id"
        )
        trials = timed.drop(columns="id")
        return written(self.title, self.question, self.name, scene, trials, source, tracker, search_id)


# -------------------------------------------------------------------------------------------------------- pieces


def sizes_of(scene: Scene) -> list[Size]:
    return [scene.preset.sizes[name] for name in scene.flags.sizes]


def cell_points(scene: Scene, size: Size, grid: Grid) -> list[tuple[str, Point]]:
    """A named point for each seed of each cell, a cell's seeds together."""
    cells = [{"size": size.name, "lr": lr, "batch": batch} for lr, batch in grid.cells]
    seeds = [setting.seed for setting in scene.settings_of(size.name)]
    name = "{size} lr {lr:.6g} batch {batch} s{seed}"
    return [(name.format(**point), point) for cell in cells for seed in seeds for point in ({**cell, "seed": seed},)]


def why_not(flags: GridFlags, preset: Preset, size: Size, batch: int) -> str:
    """Why a size cannot train at this batch; "" when it can."""
    micro_batch, wanted = micro_batch_at(size, batch), ranks_of(flags).wanted(size.name)
    if wanted != AUTO and micro_batch % wanted:
        return f"its micro-batch at {size.name} would be {micro_batch}, which {wanted} ranks cannot divide"
    available = round(size.core_tokens // size.seq_len * (1.0 + preset.aux_share))
    if batch > available:
        return f"{size.name} trains on {available} sequences in all"
    return ""


def trial_rows(size: Size, nodes: Mapping[tuple[Cell, int], Node], frame: pd.DataFrame, store: Store) -> pd.DataFrame:
    """TRIAL_COLUMNS of one size's trials from a frame of stored runs, as `analysis.lr_grid` takes them.

    `state` may also be running or waiting; the loss is NaN unless complete.
    """
    stored, parameters = frame.set_index("id"), total_parameters(size.dense())
    ends = {name: name.removeprefix("final/") for name in frame.columns if name.startswith(f"final/{END_LOSS}")}
    rows = []
    for ((lr, batch), seed), node in nodes.items():
        state, message = trial_state([node], frame, store)
        loss = math.nan
        if state == COMPLETE:
            final = stored.loc[node.id, list(ends)].rename(ends).dropna()
            loss = objective(final.astype(float).to_dict())["loss"]
        rows.append((size.name, parameters, str(seed), lr, batch, loss, state, node.id, message))
    return pd.DataFrame(rows, columns=TRIAL_COLUMNS)


def _whole(batches: Iterable[float]) -> tuple[int, ...]:
    """The batches as integers; ValueError for one that is not whole."""
    found = tuple(int(batch) if batch == int(batch) else batch for batch in batches)
    for batch in found:
        require_int("batches", batch, 1)
    return found
