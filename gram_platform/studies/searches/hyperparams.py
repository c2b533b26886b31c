"""Sweeps one hyperparameter (a knob) at a time, while the others keep the preset's values.

A trial trains, evaluates and attacks a method with one value of one knob, at one size and seed.
Sweeps and studies share the runs at the preset's values.

Source: the paper's "Hyperparameter Appendix" (`app:hyperparams`).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pandas as pd

from gram_platform.analysis.sweeps import SWEEP_CLASSES, SweepAnalysis, analyse_sweeps
from gram_platform.analysis.tables import (
    CLASSES,
    StudyLosses,
    frame_text,
    interval_text,
    label_methods,
    short_text,
    table_csv,
)
from gram_platform.config import State
from gram_platform.config.identity import invalid, short_hash
from gram_platform.config.space import TrialColumns
from gram_platform.engine.trials import Point, Problem
from gram_platform.methods import Setting
from gram_platform.methods.nodes import BASELINE, Node, method_nodes, unique
from gram_platform.pages.figures.study import learning_curve_figure
from gram_platform.pages.figures.sweeps import sweep_figures
from gram_platform.pages.report.claims import readable_claims, verdict_sections
from gram_platform.pages.report.page import Section, terms_section
from gram_platform.pages.report.sections import missing_sections
from gram_platform.pages.results.record import run_links
from gram_platform.pages.results.results import Brief, count_verdicts, with_values
from gram_platform.paper.sweeps import PAPER_SWEEPS, beside_paper_sweeps, sweep_claims
from gram_platform.paper.verdicts import conclude
from gram_platform.store import Store
from gram_platform.studies.searches.flags import KNOB, Values
from gram_platform.studies.searches.search_plan import (
    Round,
    SearchPlan,
    Written,
    attack_frame,
    baseline_frames,
    counts_text,
    curve_frame,
    list_rounds,
    name_views,
    result_frame,
    setting_at,
    trial_state,
    view_frame,
)
from gram_platform.tracking import Tracker
from gram_platform.tracking.frame import final_frames

SWEEP_RULE = """Verdicts leave out the unit's error. "Paper" is the difference in the paper's
figure, at its scale."""


def seed_metrics(sweep: SweepAnalysis, point: Point) -> dict[str, float]:
    """Maps classes to a trial's compute ratios. Omits NaN values."""
    rows = sweep.per_seed
    for name in ("knob", "value", "size", "seed"):
        rows = rows[rows[name] == (str(point[name]) if name == "seed" else point[name])]
    (values, *_) = [*rows[list(SWEEP_CLASSES)].to_dict("records"), {}]
    return {name: float(value) for name, value in values.items() if pd.notna(value)}


def _at(point: Point, frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(knob=point["knob"], value=point["value"])


def trial_name(point: Point) -> str:
    return f"{point['knob']} {point['value']:g} {point['size']} s{point['seed']}"


Trial = tuple[Point, list[Node]]


@dataclass(frozen=True)
class HyperparameterSweep:
    """Tries every value of every knob, at every size and seed."""

    settings: tuple[Setting, ...]
    values: Values
    # All baselines, for the scores of trials.
    evaluations: pd.DataFrame = field(default_factory=pd.DataFrame)
    curves: pd.DataFrame = field(default_factory=pd.DataFrame)

    best_by = None

    def nodes(self, point: Point) -> list[Node]:
        knob = KNOB[point["knob"]]
        setting = knob.turned(setting_at(self.settings, point), float(point["value"]))
        values = {
            name: f"{k.read(setting):g}" for name, k in KNOB.items() if k.method == knob.method
        }
        return [node.with_tags(**values) for node in method_nodes(knob.method, setting)]

    def score(self, point: Point, results: Mapping[str, Mapping]) -> dict[str, float]:
        nodes = self.nodes(point)
        frame = result_frame(nodes, results)
        evaluations = pd.concat([self.evaluations, _at(point, view_frame(nodes, frame))])
        attacks = _at(point, attack_frame(nodes, frame))
        sweep = analyse_sweeps(StudyLosses(evaluations, self.curves, attacks))
        metrics = seed_metrics(sweep, point)
        if "core" not in metrics:
            why = "; ".join(": ".join(pair) for pair in sweep.missing[["what", "why"]].to_numpy())
            raise invalid("core", None, f"a compute ratio, but there is none ({why})")
        return metrics

    def prerequisites(self, search: SearchPlan) -> list[Node]:
        return search.baselines

    def identity(self, search: SearchPlan) -> dict:
        ids = [node.id for node in (*search.baselines, *self.example(search))]
        values = {knob: list(values) for knob, values in self.values.items()}
        return {"data_id": search.data_id, "knobs": values, "nodes": short_hash(ids)}

    def trials(self) -> list[Trial]:
        points = [
            {"knob": knob, "value": value, "size": setting.size.name, "seed": setting.seed}
            for knob, values in self.values.items()
            for value in values
            for setting in self.settings
        ]
        return [(point, self.nodes(point)) for point in points]

    def points(self) -> tuple[list[tuple[str, Point]], list[str]]:
        """Returns (points with their names, an empty list of messages).

        Points that use the same run as an earlier point come last.
        """
        seen, points, later = set(), [], []
        for point, (run, *_) in self.trials():
            (later if run.id in seen else points).append((trial_name(point), point))
            seen.add(run.id)
        return points + later, []

    def rounds(self, search: SearchPlan, store: Store, problem: Problem) -> Iterator[Round]:
        return list_rounds(search, store, problem, self.points)

    def problem(self, search: SearchPlan, store: Store) -> Problem:
        evaluations, curves = baseline_frames(store, search.baselines)
        evaluations = evaluations.assign(knob=None, value=math.nan)
        return replace(self, evaluations=evaluations, curves=curves)

    def example(self, search: SearchPlan) -> list[Node]:
        return unique(node for _, nodes in self.trials() for node in nodes)

    def write(self, search: SearchPlan, store: Store, tracker: Tracker | None) -> Written | None:
        sizes, baselines, trials = search.choice.sizes, search.baselines, self.trials()
        ids = {node.id for nodes in (baselines, *(nodes for _, nodes in trials)) for node in nodes}
        baseline_runs = [node.id for node in baselines if node.is_run]
        frame, curves, source = final_frames(store, tracker, ids, baseline_runs)
        curves = curve_frame(baselines, curves)
        sweep = _analyse(trials, baselines, frame, curves, sizes)
        if sweep is None:
            return None
        claims = conclude(sweep_claims(sweep.per_seed), search.preset_name)
        rows = _trial_rows(trials, frame, sweep, store, search.full_name)
        links, about_links = run_links(tracker)
        record = {"knobs": self.values, "sizes": sizes, "seeds": search.num_seeds}
        tables = {"table.csv": sweep.profiles, "trials.csv": rows}
        files = {name: table_csv(table).encode() for name, table in tables.items()}
        fixed = ", ".join(f"{name} {knob.read(self.settings[0]):g}" for name, knob in KNOB.items())
        facts = (
            f"Preset {search.preset_name}, {search.data_text}, {search.num_seeds} seeds. While one"
            f" knob moves the others stay at {fixed}. {counts_text(rows)} Read from {source}."
            f" {about_links}"
        )
        sections = [
            terms_section(attacks=True),
            *_knob_sections(sweep),
            *verdict_sections(claims, SWEEP_RULE, search.preset_name),
            *missing_sections(sweep.missing),
            _learning_curves(curves, sweep, sizes),
            Section("Trials", table=_readable_trials(rows, links)),
        ]
        figures = {f"sweep-{name}": figure for name, figure in sweep_figures(sweep.table).items()}
        columns = TrialColumns(("value",), CLASSES, ("knob", "size"), is_lowest_best=False)
        log = search.log(facts, sections, files, record, columns, figures, claims)
        return log, _text(sweep, claims, source), _brief(sweep, claims)


def _analyse(
    trials: Sequence[Trial],
    baselines: list[Node],
    frame: pd.DataFrame,
    curves: pd.DataFrame,
    sizes: Sequence[str],
) -> SweepAnalysis | None:
    """Analyses the trials.

    Returns None if there are no curves, or no evaluations of a baseline or of a trial.
    """

    def gather(
        trials: Sequence[Trial], frame_of: Callable[[list[Node]], pd.DataFrame]
    ) -> pd.DataFrame:
        frames = [_at(point, frame_of(nodes)) for point, nodes in trials]
        return pd.concat(frames, ignore_index=True)

    everything = [({"knob": "", "value": math.nan}, baselines), *trials]
    views = gather(everything, lambda nodes: view_frame(nodes, frame))
    if curves.empty or (views["knob"] == "").nunique() < 2:
        return None
    attacks = gather(trials, lambda nodes: attack_frame(nodes, frame))
    declared = gather(everything, name_views)
    return analyse_sweeps(StudyLosses(views, curves, attacks, declared), sizes)


def _trial_rows(
    trials: Sequence[Trial], frame: pd.DataFrame, sweep: SweepAnalysis, store: Store, name: str
) -> pd.DataFrame:
    elapsed = frame.set_index("id").reindex(columns=["elapsed_s"])["elapsed_s"]
    rows = []
    for point, nodes in trials:
        state, message = trial_state(nodes, frame, store)
        metrics = seed_metrics(sweep, point) if state == State.COMPLETE else {}
        row = {"search": name, "trial": trial_name(point), "state": state, **point}
        row |= {metric: metrics.get(metric, math.nan) for metric in SWEEP_CLASSES}
        row["runs"] = " ".join(node.id for node in nodes if node.is_run)
        row["elapsed_s"] = elapsed.reindex([node.id for node in nodes]).sum(min_count=1)
        rows.append({**row, "message": message})
    return pd.DataFrame(rows)


def _knob_sections(sweep: SweepAnalysis) -> list[Section]:
    text = (
        "Compute ratios averaged over the profiles, with 90% intervals over seeds. Core-Full is the"
        " core without any module, Core-Partial the core with one. Dashed with hollow markers: the"
        " paper's curves, which are compared with ours only at the paper's scale."
    )
    sections = []
    for knob, rows in sweep.table.groupby("knob", sort=False):
        title, table = PAPER_SWEEPS[knob].title, beside_paper_sweeps(rows)
        sections.append(Section(title, text, sweep_figures(rows), table=table, table_is_open=True))
    return sections


def _learning_curves(curves: pd.DataFrame, sweep: SweepAnalysis, sizes: Sequence[str]) -> Section:
    curves = curves[curves["method"] == BASELINE]
    fitted = [size for size in sizes if size in set(sweep.fits["size"])]
    figures = {f"curves-{size}": learning_curve_figure(curves, sweep.fits, size) for size in fitted}
    text = (
        "Validation losses of the baselines at all seeds, and the curves that turn them into steps."
    )
    return Section("Learning curves and their fits", text, figures, table=sweep.fits)


def _readable_trials(trials: pd.DataFrame, links: Mapping[str, str]) -> pd.DataFrame:
    first = trials["runs"].str.split(" ").str[0]
    readable = trials.drop(columns=["search", "runs", "elapsed_s"])
    for name in SWEEP_CLASSES:
        readable[name] = [interval_text(value, math.nan, math.nan) for value in readable[name]]
    return readable.assign(
        run_id=first, run_id_url=first.map(links), seconds=trials["elapsed_s"].round(1)
    )


def _text(sweep: SweepAnalysis, claims: pd.DataFrame, source: str) -> str:
    table = beside_paper_sweeps(sweep.table).drop(columns="run_ids", errors="ignore")
    verdicts = "none is judged"
    if claims["verdict"].any():
        verdicts = frame_text(readable_claims(claims), "g", "nan")
    parts = [frame_text(table, "g", "nan"), "the paper's claims", verdicts, f"read from {source}"]
    return "\n\n".join(parts)


def _brief(sweep: SweepAnalysis, claims: pd.DataFrame) -> Brief:
    table = sweep.table
    names = ["knob", "value", *(name for name in ("method", "size") if table[name].nunique() > 1)]
    cells = with_values(table, dict.fromkeys((*CLASSES, *SWEEP_CLASSES)), short_text)
    rows = label_methods(table[names]).assign(value=table["value"].map("{:g}".format), **cells)
    return Brief({"means over profiles": rows}, count_verdicts(claims))
