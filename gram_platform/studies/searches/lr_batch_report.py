"""What the LR/batch grid leaves: the optimum of every size, both laws, a law file, and how far to trust them."""

import json
from collections.abc import Mapping

import pandas as pd

from gram_platform.analysis.lr_grid import POOLED, STATES
from gram_platform.analysis.lr_laws import GridAnalysis, analyse_grid, fitted_law, law_json, predictions
from gram_platform.analysis.tables import aligned
from gram_platform.analysis.trials import COMPLETE, RUNS, STATE, linked
from gram_platform.config.ladder import PAPER_SIZES
from gram_platform.pages.figures.lr_batch import law_figure, surface_figure
from gram_platform.pages.report.page import Section, page_html
from gram_platform.studies.searches.definition import Scene, Written
from gram_platform.studies.searches.links import run_links
from gram_platform.tracking import Tracker

OBJECTIVE = "0.5 x core + 0.5 x the mean of the auxiliary domains, validation cross entropy at the end of the run"
TABLES = {
    "optima": "The minimum of each size's fitted surface, all seeds pooled (each with a level of its own, the "
    "predicted loss at their mean) and for each seed; low and high hold a predicted loss within 0.1% of it. best_ is "
    "the best cell. A curvature_t below 2 can be noise alone.",
    "laws": "value = coefficient x parameters ^ exponent, batches in sequences. t: 90% t-interval of the exponent over "
    "sizes; bootstrap: 90% interval over seeds redrawn within each size, widened by what few seeds hide (it held the "
    "planted exponent in 89 to 95% of simulated grids of 2 to 5 seeds); one seed has none. Optima at the edge of their "
    "grid are left out while two others remain.",
    "windows": "The same laws from the cells within a fraction of each size's lowest loss (first row: all cells). As "
    "far as the exponents move down this table, so little are they to be trusted.",
    "predictions": "Peak learning rate and batch, in sequences of each size's own length, by our law, by the paper's "
    "(converted by tokens) and as the ladder has them. Beyond the sizes that it rests on, a law is an extrapolation.",
    "cells": "Means over seeds. A cell of which any seed diverged is left out of every fit.",
}


def written(
    title: str,
    question: str,
    name: str,
    scene: Scene,
    trials: pd.DataFrame,
    source: str,
    tracker: Tracker | None,
    search_id: str,
) -> Written | None:
    """Files, figures and text from every trial (`lr_batch.TRIAL_COLUMNS`, `elapsed_s`); None without a complete one."""
    if not (trials[STATE] == COMPLETE).any():
        return None
    flags = scene.flags
    analysis = analyse_grid(trials[trials[STATE].isin(STATES)], scene.preset.seq_len, flags.window or None)
    measured = f"{name}, preset {flags.preset} on {flags.corpus}, search {search_id}"
    law = fitted_law(analysis.laws, f"{flags.preset}-{search_id}", scene.preset.seq_len, measured)
    sizes = {size: scene.preset.sizes[size] for size in flags.sizes} | PAPER_SIZES
    tables = {
        "optima": analysis.optima,
        "laws": analysis.laws,
        "windows": analysis.windows,
        "predictions": predictions(law, list(sizes.values())),
        "cells": analysis.cells,
    }
    links, about_links = run_links(tracker)
    figures = grid_figures(analysis, links)
    facts = f"Search {search_id}: preset {flags.preset}, corpus {flags.corpus} (data {scene.data_id}), "
    facts += f"{scene.num_seeds} seeds. Loss: {OBJECTIVE}. {_counts(trials)} Read from {source}. {about_links}"
    page = page_html(title, f"{question}\n\n{facts}", _sections(trials, tables, figures, links))
    content = {"name": name, "search_id": search_id, "preset": flags.preset, "data_id": scene.data_id}
    content |= {"objective": OBJECTIVE, "window": flags.window or None, "trials": trials["run_id"].tolist()}
    files = {"table.csv": analysis.optima, "trials.csv": trials_table(trials, f"{name}-{search_id}")}
    files |= {f"{kind}.csv": frame for kind, frame in tables.items() if kind != "optima"}
    data = {file: frame.to_csv(index=False).encode() for file, frame in files.items()}
    data |= {"report.html": page.encode(), "search.json": _json(content)}
    data["law.json"] = _json(law_json(law, analysis.laws))
    return Written(data, figures, _text(trials, analysis, tables["predictions"], law is not None))


def trials_table(trials: pd.DataFrame, search: str) -> pd.DataFrame:
    """Every trial: search, trial, state, size, parameters, seed, lr, batch, loss, runs, elapsed_s, message."""
    numbered = trials.assign(search=search, trial=range(len(trials))).rename(columns={"run_id": RUNS})
    columns = ["size", "parameters", "seed", "lr", "batch", "loss", RUNS, "elapsed_s", "message"]
    return numbered[["search", "trial", STATE, *columns]]


def grid_figures(analysis: GridAnalysis, links: Mapping[str, str]) -> dict:
    """`surface-<size>` of every size, `law-lr` and `law-batch`."""
    cells = linked(analysis.cells, links)
    figures = {
        f"surface-{size}": surface_figure(cells, analysis.optima, analysis.surfaces, size)
        for size in dict.fromkeys(analysis.cells["size"])
    }
    return figures | {
        f"law-{q}": law_figure(analysis.lines, analysis.optima, analysis.laws, q) for q in ("lr", "batch")
    }


def _sections(
    trials: pd.DataFrame, tables: Mapping[str, pd.DataFrame], figures: Mapping, links: Mapping[str, str]
) -> list[Section]:
    surfaces = [figure for name, figure in figures.items() if name.startswith("surface-")]
    laws = [figure for name, figure in figures.items() if name.startswith("law-")]
    pooled = tables["optima"][tables["optima"]["seed"] == POOLED]
    left = trials[trials[STATE] != COMPLETE]
    shown = trials_table(linked(trials.rename(columns={"run_id": RUNS}), links).rename(columns={RUNS: "run_id"}), "")
    shown = shown.drop(columns="search").assign(runs_url=[links.get(run, "") for run in shown[RUNS]])
    sections = [
        Section("Surfaces", TABLES["optima"], surfaces, table=pooled, table_is_open=True),
        Section("Laws", TABLES["laws"], laws, table=tables["laws"], table_is_open=True),
        Section("How the laws move with the window", TABLES["windows"], table=tables["windows"], table_is_open=True),
        Section("What the laws say", TABLES["predictions"], table=tables["predictions"], table_is_open=True),
        Section("Optima of single seeds", table=tables["optima"]),
        Section("Cells", TABLES["cells"], table=tables["cells"].drop(columns="runs")),
        Section("Trials", table=shown),
    ]
    if left.empty:
        return sections
    missing = left[["size", "seed", "lr", "batch", STATE, "message"]]
    text = "Diverged cells are left out of every fit and counted; the others are not in the figures and tables below."
    return [Section("Not complete", text, table=missing, table_is_open=True, is_warning=True), *sections]


def _counts(trials: pd.DataFrame) -> str:
    counts = trials[STATE].value_counts()
    return f"{len(trials)} trials: " + ", ".join(f"{count} {state}" for state, count in counts.items()) + "."


def _text(trials: pd.DataFrame, analysis: GridAnalysis, predicted: pd.DataFrame, has_law: bool) -> str:
    """The pooled optima, the laws, what moves them, and the predictions, for a terminal."""
    pooled = analysis.optima[analysis.optima["seed"] == POOLED]
    optima = pooled[["size", "lr", "lr_low", "lr_high", "batch", "batch_low", "batch_high", "loss", "num_cells"]]
    optima = optima.assign(num_diverged=pooled["num_diverged"], notes=pooled["notes"] + pooled["reason"])
    laws = analysis.laws[["quantity", "coefficient", "exponent", "t_low", "t_high", "bootstrap_low", "bootstrap_high"]]
    laws = laws.assign(**{name: analysis.laws[name] for name in ("r2", "sizes", "left_out", "rests_on_edges")})
    windows = analysis.windows[["window", "lr_exponent", "batch_exponent", "sizes", "reason"]]
    parts = [_counts(trials), _aligned(optima), _aligned(laws), "by window", _aligned(windows), _aligned(predicted)]
    parts.append("law.json is a law for other sizes" if has_law else analysis.laws["reason"].iloc[0])
    return "\n\n".join(parts)


def _aligned(frame: pd.DataFrame) -> str:
    rows = [[_cell(value) for value in row] for row in frame.itertuples(index=False)]
    return aligned([list(frame.columns), *rows])


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return "-" if pd.isna(value) else f"{value:.3g}"
    return str(value) or "-"


def _json(content: Mapping) -> bytes:
    return (json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()
