"""What a hyperparameter sweep leaves for people: tables, figures and the report, from what is stored."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from gram_platform.analysis.ratios import BASELINE
from gram_platform.analysis.sweeps import SWEEP_CLASSES, SweepAnalysis, analyse_sweeps
from gram_platform.analysis.tables import aligned, interval_text, table_csv
from gram_platform.analysis.trials import COMPLETE
from gram_platform.engine.trials import Point
from gram_platform.methods.nodes import Node
from gram_platform.pages.figures.curves import learning_curve_figure
from gram_platform.pages.figures.sweeps import sweep_figures
from gram_platform.pages.report import ATTACK, FOOTER
from gram_platform.pages.report.page import Section, page_html
from gram_platform.pages.report.sections import JUDGED, MARGINS_TEXT, judged_sections, missing_sections
from gram_platform.pages.report.study import with_verdicts
from gram_platform.pages.report.tables import readable_claims
from gram_platform.paper.sweeps import PAPER_SWEEPS, beside_paper_sweeps, sweep_claims
from gram_platform.paper.verdicts import explained
from gram_platform.store import Store
from gram_platform.studies.searches.definition import Scene, Written
from gram_platform.studies.searches.frames import (
    attack_frame,
    curve_frame,
    declared_frame,
    frames,
    trial_state,
    view_frame,
)
from gram_platform.studies.searches.hyperparams_problem import KNOBS, SweepProblem, seed_metrics, trial_name
from gram_platform.studies.searches.links import run_links
from gram_platform.tracking import Tracker

RULE = f"{JUDGED} {MARGINS_TEXT} Paper: the difference in its figure, at its scale."


@dataclass(frozen=True)
class About:
    """What is reported on."""

    name: str
    search_id: str
    title: str
    question: str
    values: Mapping[str, Sequence[float]]  # of each knob


@dataclass(frozen=True)
class Stored:
    """Every trial with its nodes, and what the storage or MLflow knows of them."""

    trials: tuple[tuple[Point, list[Node]], ...]
    baselines: tuple[Node, ...]
    frame: pd.DataFrame
    curves: pd.DataFrame
    source: str


def written(
    about: About,
    points: Sequence[Point],
    baselines: Sequence[Node],
    scene: Scene,
    store: Store,
    tracker: Tracker | None,
) -> Written | None:
    """`table.csv`, `trials.csv`, `claims.csv`, `report.html`, `search.json`; None while no trial has an evaluation."""
    stored = _read(points, baselines, scene, store)
    sweep = _analysed(stored, scene.flags.sizes)
    if sweep is None:
        return None
    claims = explained(sweep_claims(sweep.per_seed), about.name, scene.flags.preset)
    links = run_links(tracker)
    trials = _trials(stored, sweep, store, f"{about.name}-{about.search_id}")
    facts = {"name": about.name, "id": about.search_id, "preset": scene.flags.preset, "data_id": scene.data_id}
    facts |= {"knobs": about.values, "sizes": scene.flags.sizes, "seeds": scene.num_seeds}
    page = _page(about, scene, stored, sweep, claims, trials, links)
    files = {
        "table.csv": table_csv(sweep.profiles).encode(),
        "trials.csv": table_csv(trials).encode(),
        "claims.csv": table_csv(claims).encode(),
        "report.html": page.encode(),
        "search.json": (json.dumps(facts, indent=1, sort_keys=True) + "\n").encode(),
    }
    figures = {f"sweep-{name}": figure for name, figure in sweep_figures(sweep.table).items()}
    return Written(files, figures, _text(sweep, claims, stored.source))


# ------------------------------------------------------------------------------------------------------- stored


def _read(points: Sequence[Point], baselines: Sequence[Node], scene: Scene, store: Store) -> Stored:
    problem = SweepProblem(scene.settings)
    trials = tuple((point, problem.nodes(point)) for point in points)
    ids = {node.id for nodes in (baselines, *(nodes for _, nodes in trials)) for node in nodes}
    runs = [node.id for node in baselines if node.is_run]
    return Stored(trials, tuple(baselines), *frames(scene, store, ids, runs))


def _analysed(stored: Stored, sizes: Sequence[str]) -> SweepAnalysis | None:
    """None while no baseline has its curve and evaluation, or no trial an evaluation."""
    evaluations = _of_trials(stored, view_frame)
    baselines, curves = view_frame(stored.baselines, stored.frame), curve_frame(stored.baselines, stored.curves)
    if evaluations.empty or baselines.empty or curves.empty:
        return None
    declared = _of_trials(stored, lambda nodes, _: declared_frame(nodes))
    return analyse_sweeps(
        _with_baselines(evaluations, baselines),
        curves,
        sizes,
        _of_trials(stored, attack_frame),
        _with_baselines(declared, declared_frame(stored.baselines)),
    )


def _of_trials(stored: Stored, frame_of) -> pd.DataFrame:
    parts = [
        frame_of(nodes, stored.frame).assign(knob=point["knob"], value=point["value"]) for point, nodes in stored.trials
    ]
    return pd.concat(parts, ignore_index=True)


def _with_baselines(frame: pd.DataFrame, baselines: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([baselines.assign(knob="", value=math.nan), frame], ignore_index=True)


def _trials(stored: Stored, sweep: SweepAnalysis, store: Store, name: str) -> pd.DataFrame:
    """One row a trial, in their order: `search, trial, state, <point>, <metrics>, runs, elapsed_s, message`."""
    elapsed = stored.frame.set_index("id")["elapsed_s"].to_dict() if "elapsed_s" in stored.frame else {}
    rows = []
    for point, nodes in stored.trials:
        state, message = trial_state(nodes, stored.frame, store)
        metrics = seed_metrics(sweep, point) if state == COMPLETE else {}
        seconds = [elapsed[node.id] for node in nodes if elapsed.get(node.id, math.nan) == elapsed.get(node.id)]
        own = {"search": name, "trial": trial_name(point), "state": state, **point}
        own |= {metric: metrics.get(metric, math.nan) for metric in SWEEP_CLASSES}
        runs = " ".join(node.id for node in nodes if node.is_run)
        rows.append({**own, "runs": runs, "elapsed_s": sum(seconds) if seconds else math.nan, "message": message})
    return pd.DataFrame(rows)


# --------------------------------------------------------------------------------------------------------- page


def _page(
    about: About,
    scene: Scene,
    stored: Stored,
    sweep: SweepAnalysis,
    claims: pd.DataFrame,
    trials: pd.DataFrame,
    links: tuple[Mapping[str, str], str],
) -> str:
    setting = scene.settings[0]
    fixed = ", ".join(f"{name} {knob.read(setting):g}" for name, knob in KNOBS.items())
    counts = trials["state"].value_counts()
    facts = (
        f"Preset {scene.flags.preset}, corpus {scene.flags.corpus} (data {scene.data_id}), "
        f"{scene.num_seeds} seeds. While one knob moves the others stay at {fixed}.",
        f"{len(trials)} trials: " + ", ".join(f"{count} {state}" for state, count in counts.items()) + ".",
        f"Read from {stored.source}. {links[1]}",
    )
    sections = [
        *_knob_sections(sweep),
        *judged_sections(claims, RULE),
        *missing_sections(sweep.missing),
        _learning_curves(stored, sweep, scene.flags.sizes),
        Section("Trials", table=_readable_trials(trials, links[0])),
    ]
    intro = with_verdicts(f"{about.question}\n\n{' '.join(facts)}", claims)
    return page_html(about.title, intro, sections, f"{ATTACK}\n\n{FOOTER}")


def _knob_sections(sweep: SweepAnalysis) -> list[Section]:
    """A section for each knob and method: the panels, and the numbers beside the paper's."""
    text = "Compute ratios averaged over the profiles; bands are 90% intervals over seeds. Core-Full is the core "
    text += "without any module, Core-Partial the core with one. Dashed with hollow markers: the paper's curves, set "
    text += "beside ours for reading; they are compared only at the paper's scale."
    sections = []
    for (knob, method), rows in sweep.table.groupby(["knob", "method"], sort=False):
        title = PAPER_SWEEPS[knob].title if knob in PAPER_SWEEPS else f"{method}: {knob}"
        figures = list(sweep_figures(rows).values())
        sections.append(Section(title, text, figures, table=beside_paper_sweeps(rows), table_is_open=True))
    return sections


def _learning_curves(stored: Stored, sweep: SweepAnalysis, sizes: Sequence[str]) -> Section:
    curves = curve_frame(stored.baselines, stored.curves)
    curves = curves[curves["method"] == BASELINE]
    figures = [learning_curve_figure(curves, sweep.fits, size) for size in sizes if size in set(sweep.fits["size"])]
    text = "Validation losses of the baselines, all seeds, and the fitted curves that turn a loss into steps."
    return Section("Learning curves and their fits", text, figures, table=sweep.fits)


def _readable_trials(trials: pd.DataFrame, links: Mapping[str, str]) -> pd.DataFrame:
    """The trials with their first run, which opens in MLflow, in place of all."""
    first = trials["runs"].str.split(" ").str[0]
    readable = trials.drop(columns=["search", "runs", "elapsed_s"])
    for name in SWEEP_CLASSES:
        readable[name] = [interval_text(value, math.nan, math.nan) for value in readable[name]]
    return readable.assign(run_id=first, run_id_url=first.map(links), seconds=trials["elapsed_s"].round(1))


# --------------------------------------------------------------------------------------------------- terminal


def _text(sweep: SweepAnalysis, claims: pd.DataFrame, source: str) -> str:
    table = beside_paper_sweeps(sweep.table).drop(columns="run_ids", errors="ignore")
    parts = [
        _lines(table),
        "the paper's claims",
        _lines(readable_claims(claims)) if len(claims) else "none can be judged",
    ]
    return "\n\n".join([*parts, f"read from {source}"])


def _lines(frame: pd.DataFrame) -> str:
    rows = [[f"{v:g}" if isinstance(v, float) else str(v) or "-" for v in row] for row in frame.itertuples(index=False)]
    return aligned([list(frame.columns), *rows])
