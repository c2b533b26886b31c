"""Searches a grid of learning rates and batches at each size, and fits scaling laws.

As in the paper's appendix "Learning Rate and Batch Size Scaling", cells are powers of two apart,
and the loss is the mean of core's loss and the auxiliary domains' mean loss. Our grids may
also grow towards a minimum at their border (`analysis.lr_extension`).
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import pandas as pd

from gram_platform.analysis.lr_extension import Cell, Grid, extension
from gram_platform.analysis.lr_grid import ENDED, POOLED
from gram_platform.analysis.lr_laws import (
    GridAnalysis,
    analyse_grid,
    law_json,
    make_law,
    predictions,
)
from gram_platform.analysis.tables import frame_text, table_csv, text_frame
from gram_platform.analysis.trials import RUNS, STATE, link_trials
from gram_platform.config import CORE, State
from gram_platform.config.flops import total_parameters
from gram_platform.config.identity import invalid, sum_in_order
from gram_platform.config.ladder import PAPER_SIZES, REACH, Size
from gram_platform.config.space import SearchObjective, TrialColumns
from gram_platform.engine.trials import Point, Problem
from gram_platform.methods import Setting
from gram_platform.methods.nodes import BASELINE, Node, method_nodes
from gram_platform.pages.figures.lr_batch import law_figure, surface_figure
from gram_platform.pages.report.page import Section
from gram_platform.pages.results.record import run_links
from gram_platform.pages.results.results import Brief
from gram_platform.store import Store
from gram_platform.studies.definition import mask_place
from gram_platform.studies.searches.flags import micro_batch_at, why_not
from gram_platform.studies.searches.search_plan import (
    Round,
    SearchPlan,
    Written,
    counts_text,
    json_file,
    list_rounds,
    result_frame,
    setting_at,
    trial_state,
    with_run_links,
)
from gram_platform.tracking import Tracker
from gram_platform.tracking.entry import LOSS
from gram_platform.tracking.frame import final_frames

# Core's weight in the objective; the other half is the mean over auxiliary domains.
CORE_WEIGHT = 0.5
# The prefix of a domain's loss in the `final` of a run's result, with all modules on.
END_LOSS = "validation/loss/"
TRIAL_COLUMNS = ["size", "parameters", "seed", "lr", "batch", "loss", "state", "run_id", "message"]
OPTIMA_SHOWN = "size lr lr_low lr_high batch batch_low batch_high loss num_cells num_diverged notes"
LAWS_SHOWN = "quantity coefficient exponent t_low t_high bootstrap_low bootstrap_high r2 sizes"
LAWS_SHOWN += " left_out no_law"
WINDOWS_SHOWN = "window lr_exponent batch_exponent sizes no_law"
OBJECTIVE = (
    "0.5 x core + 0.5 x the mean of the auxiliary domains, validation cross entropy at the end of"
    " the run"
)
ABOUT_TABLES = {
    "optima": (
        "The minimum of each size's fitted surface, for all seeds pooled (each seed has its own"
        " level; the predicted loss is at their mean) and for each seed. Between low and high the"
        " predicted loss is within 0.1% of it. best_ is the best cell. A curvature_t below 2 may be"
        " noise."
    ),
    "laws": (
        "value = coefficient x parameters ^ exponent, batches in sequences. t: 90% t-interval of"
        " the exponent over sizes. bootstrap: 90% interval over seeds redrawn within each size,"
        " widened for few seeds (it held the planted exponent in 89 to 95% of simulated grids of 2"
        " to 5 seeds); empty for one seed. Optima at the edge of their grid, or of a surface whose"
        " curvature may be noise, are left out if three others remain. With fewer than three the"
        " fit is no law and predicts nothing."
    ),
    "windows": (
        "The same laws from the cells within a fraction of each size's lowest loss (first row: all"
        " cells). The more an exponent varies here, the less it can be trusted."
    ),
    "predictions": (
        "Peak learning rate and batch, in sequences of each size's length, by our law, by the"
        " paper's law (converted by tokens) and in the ladder. A law predicts nothing more than"
        f" {REACH:g} times beyond the fitted sizes."
    ),
    "cells": "Means over seeds. A cell with a diverged seed is left out of every fit.",
}


def at(size: Size, cell: Cell) -> Size:
    """Returns the size with a cell's rate and batch, and a micro-batch that divides the batch."""
    lr, batch = cell
    return replace(size, peak_lr=lr, batch_size=batch, micro_batch=micro_batch_at(size, batch))


def objective(final: Mapping[str, float]) -> dict[str, float]:
    """Returns a run's `loss`, `core` and `auxiliary`, in nats per token.

    `final` maps `validation/loss/DOMAIN` to losses. Raises ValueError unless all are finite.
    """
    core = final[END_LOSS + CORE]
    others = [loss for name, loss in final.items() if name != END_LOSS + CORE]
    auxiliary = sum_in_order(others) / len(others)
    if not math.isfinite(core + auxiliary):
        raise invalid("loss", (core, auxiliary), "finite validation losses")
    loss = CORE_WEIGHT * core + (1.0 - CORE_WEIGHT) * auxiliary
    return {"loss": loss, "core": core, "auxiliary": auxiliary}


def trial_rows(
    size: Size, nodes: Mapping[tuple[Cell, int], Node], frame: pd.DataFrame, store: Store
) -> pd.DataFrame:
    """Returns a size's trials with TRIAL_COLUMNS. The loss of an incomplete trial is NaN.

    `frame` has the stored runs.
    """
    stored, parameters = frame.set_index("id"), total_parameters(size.dense())
    ends = {
        name: END_LOSS + name.removeprefix(LOSS) for name in frame.columns if name.startswith(LOSS)
    }
    rows = []
    for ((lr, batch), seed), node in nodes.items():
        state, message = trial_state([node], frame, store)
        loss = math.nan
        if state == State.COMPLETE:
            final = stored.loc[node.id, list(ends)].rename(ends).dropna()
            loss = objective(final.astype(float).to_dict())["loss"]
        rows.append((size.name, parameters, str(seed), lr, batch, loss, state, node.id, message))
    return pd.DataFrame(rows, columns=TRIAL_COLUMNS)


@dataclass(frozen=True)
class LrBatchGrid:
    """Searches the grids of all sizes. A trial trains the baseline of one cell, size and seed."""

    settings: tuple[Setting, ...]
    # The first grid of each size.
    grids: Mapping[str, Grid]
    # The fit uses cells within this fraction of the lowest loss; None: all cells.
    window: float | None
    max_extensions: int

    best_by = SearchObjective("loss", math.inf)

    def nodes(self, point: Point) -> list[Node]:
        setting = setting_at(self.settings, point)
        lr, batch = point["lr"], point["batch"]
        at_cell = replace(setting, size=at(setting.size, (lr, batch)))
        runs = [node for node in method_nodes(BASELINE, at_cell) if node.is_run]
        return [node.with_tags(lr=f"{lr:.6g}", batch=str(batch)) for node in runs]

    def score(self, point: Point, results: Mapping[str, Mapping]) -> dict[str, float]:
        (result,) = results.values()
        final = result["final"]
        return objective({name: final[name] for name in final if name.startswith(END_LOSS)})

    def problem(self, search: SearchPlan, store: Store) -> Problem:
        return self

    def prerequisites(self, search: SearchPlan) -> list[Node]:
        return []

    def identity(self, search: SearchPlan) -> dict:
        return {"runs": [node.id for node in self.example(search)], "core_weight": CORE_WEIGHT}

    def example(self, search: SearchPlan) -> list[Node]:
        return [
            node
            for size, grid in self.grids.items()
            for node in self.cell_nodes(size, grid).values()
        ]

    def rounds(self, search: SearchPlan, store: Store, problem: Problem) -> Iterator[Round]:
        return list_rounds(search, store, problem, lambda: self.points(search, store))

    def points(self, search: SearchPlan, store: Store) -> tuple[list[tuple[str, Point]], list[str]]:
        points, messages = [], []
        for size in self.grids:
            grid, new = self.grow(search, store, size)
            points += self.cell_points(size, grid)
            messages += new
        return points, messages

    def cell_points(self, size: str, grid: Grid) -> list[tuple[str, Point]]:
        seeds = [setting.seed for setting in self.settings if setting.size.name == size]
        points = []
        for (lr, batch), seed in product(grid.cells, seeds):
            point = {"size": size, "lr": lr, "batch": batch, "seed": seed}
            points.append((f"{size} lr {lr:.6g} batch {batch} s{seed}", point))
        return points

    def cell_nodes(self, size: str, grid: Grid) -> dict[tuple[Cell, int], Node]:
        return {
            ((point["lr"], point["batch"]), point["seed"]): self.nodes(point)[0]
            for _, point in self.cell_points(size, grid)
        }

    def grow(self, search: SearchPlan, store: Store, name: str) -> tuple[Grid, list[str]]:
        """Extends a size's grid once its trials have ended. Returns (grid, messages)."""
        size, grid, messages = search.preset.sizes[name], self.grids[name], []
        while True:
            nodes = self.cell_nodes(name, grid)
            results = {node.id: store.run(node.id).result() for node in nodes.values()}
            done = [node for node in nodes.values() if results[node.id] is not None]
            trials = trial_rows(size, nodes, result_frame(done, results), store)
            if not set(trials["state"]) <= set(ENDED):
                return grid, messages
            allowed = partial(why_not, search.ranks, search.preset, size)
            step = extension(trials, grid, self.max_extensions, self.window, allowed)
            messages += step.messages
            if not step.new_cells:
                return step.grid, messages
            grid = step.grid

    def write(self, search: SearchPlan, store: Store, tracker: Tracker | None) -> Written | None:
        nodes = {
            name: self.cell_nodes(name, self.grow(search, store, name)[0]) for name in self.grids
        }
        ids = {node.id for of_size in nodes.values() for node in of_size.values()}
        frame, _, source = final_frames(store, tracker, ids, ())
        rows = [
            trial_rows(search.preset.sizes[name], of_size, frame, store)
            for name, of_size in nodes.items()
        ]
        seconds = frame[["id", "elapsed_s"]].rename(columns={"id": "run_id"})
        trials = pd.concat(rows, ignore_index=True).merge(seconds, "left", on="run_id")
        is_done = (trials[STATE] == State.COMPLETE).any()
        return _report(search, trials, source, tracker) if is_done else None


def _report(
    search: SearchPlan, trials: pd.DataFrame, source: str, tracker: Tracker | None
) -> Written:
    seq_len, window = search.preset.seq_len, search.kind.window
    sizes = {name: search.preset.sizes[name] for name in search.kind.grids} | PAPER_SIZES
    analysis = analyse_grid(trials[trials[STATE].isin(ENDED)], seq_len, window)
    measured = (
        f"{search.name}, preset {search.preset_name} on {mask_place(search.choice.corpus)},"
        f" search {search.search_id}"
    )
    law = make_law(analysis.laws, f"{search.preset_name}-{search.search_id}", seq_len, measured)
    predicted = predictions(law, list(sizes.values()))
    links, about_links = run_links(tracker)
    figures = grid_figures(analysis, links)
    facts = (
        f"Search {search.search_id}: preset {search.preset_name}, {search.data_text},"
        f" {search.num_seeds} seeds. Loss: {OBJECTIVE}. {counts_text(trials)} Read from {source}."
        f" {about_links}"
    )
    # With trials.csv, `seq_len` is all that a fit needs.
    record = {"objective": OBJECTIVE, "window": window, "seq_len": seq_len}
    record["trials"] = trials["run_id"].tolist()
    tables = {
        "table.csv": analysis.optima,
        "trials.csv": trials_table(trials, search.full_name),
        "laws.csv": analysis.laws,
        "windows.csv": analysis.windows,
        "predictions.csv": predicted,
        "cells.csv": analysis.cells,
    }
    files = {name: table_csv(table, None).encode() for name, table in tables.items()}
    files["law.json"] = json_file(law_json(law, analysis.laws))
    columns = TrialColumns(("lr", "batch"), ("loss",), ("size",))
    sections = _sections(trials, analysis, predicted, figures, links)
    log = search.log(facts, sections, files, record, columns, figures)
    return log, _text(trials, analysis, predicted), _brief(trials, analysis)


def trials_table(trials: pd.DataFrame, search: str = "") -> pd.DataFrame:
    """Adds the columns `search` and `trial` (the row's number), and renames `run_id` to `runs`."""
    renamed = trials.rename(columns={"run_id": RUNS})
    columns = ["size", "parameters", "seed", "lr", "batch", "loss", RUNS, "elapsed_s", "message"]
    numbered = renamed.assign(search=search, trial=range(len(trials)))
    return numbered[["search", "trial", STATE, *columns]]


def grid_figures(analysis: GridAnalysis, links: Mapping[str, str]) -> dict:
    cells = link_trials(analysis.cells, links)
    figures = {
        f"surface-{size}": surface_figure(cells, analysis.optima, analysis.surfaces, size)
        for size in dict.fromkeys(analysis.cells["size"])
    }
    return figures | {
        f"law-{q}": law_figure(analysis.lines, analysis.optima, analysis.laws, q)
        for q in ("lr", "batch")
    }


def _sections(
    trials: pd.DataFrame,
    analysis: GridAnalysis,
    predicted: pd.DataFrame,
    figures: Mapping,
    links: Mapping[str, str],
) -> list[Section]:
    laws, optima = analysis.laws, analysis.optima
    about = f"{_verdict(laws)}\n\n{ABOUT_TABLES['laws']}"
    drawn = {
        kind: {name: figure for name, figure in figures.items() if name.startswith(kind)}
        for kind in ("surface-", "law-")
    }

    def open_section(title: str, name: str, table: pd.DataFrame, kind: str = "") -> Section:
        return Section(
            title, ABOUT_TABLES[name], drawn.get(kind, {}), table=table, table_is_open=True
        )

    no_law = laws["no_law"].iloc[0] != ""
    sections = [
        open_section("Surfaces", "optima", optima[optima["seed"] == POOLED], "surface-"),
        Section("Laws", about, drawn["law-"], table=laws, table_is_open=True, is_warning=no_law),
        open_section("How the laws move with the window", "windows", analysis.windows),
        open_section("What the laws say", "predictions", predicted),
        Section("Optima of single seeds", table=optima),
        Section("Cells", ABOUT_TABLES["cells"], table=analysis.cells.drop(columns="runs")),
        Section("Trials", table=with_run_links(trials_table(trials).drop(columns="search"), links)),
    ]
    left = trials[trials[STATE] != State.COMPLETE]
    if len(left):
        missing = left[["size", "seed", "lr", "batch", STATE, "message"]]
        text = "Fits leave out diverged cells. The other trials are missing below."
        section = Section("Not complete", text, table=missing, table_is_open=True, is_warning=True)
        sections.insert(0, section)
    return sections


def _verdict(laws: pd.DataFrame) -> str:
    if no_law := laws["no_law"].iloc[0]:
        return f"No law: {no_law}."
    return f"law.json is a law for sizes within {REACH:g} times of the fitted ones."


def _select_pooled(analysis: GridAnalysis) -> pd.DataFrame:
    pooled = analysis.optima[analysis.optima["seed"] == POOLED]
    return pooled.assign(notes=pooled["notes"] + pooled["reason"])


def _text(trials: pd.DataFrame, analysis: GridAnalysis, predicted: pd.DataFrame) -> str:
    optima = _select_pooled(analysis)[OPTIMA_SHOWN.split()]
    laws = analysis.laws[LAWS_SHOWN.split()]
    windows = analysis.windows[WINDOWS_SHOWN.split()]
    tables = [frame_text(frame, ".3g") for frame in (optima, laws, windows, predicted)]
    verdict = _verdict(analysis.laws)
    return "\n\n".join([counts_text(trials), *tables[:2], "by window", *tables[2:], verdict])


def _brief(trials: pd.DataFrame, analysis: GridAnalysis) -> Brief:
    optima = _select_pooled(analysis)[["size", "lr", "batch", "loss", "notes"]]
    laws = analysis.laws[["quantity", "exponent", "t_low", "t_high", "coefficient", "r2", "sizes"]]
    tables = {"optima": text_frame(optima, ".3g"), "laws": text_frame(laws, ".3g")}
    return Brief(tables, text=f"{counts_text(trials)}\n{_verdict(analysis.laws)}")
