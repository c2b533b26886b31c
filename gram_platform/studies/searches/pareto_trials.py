"""Runs, scores and reports the trials of the search for GRAM's trade-off: GRAM at a point, with attacks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import optuna
import pandas as pd
import plotly.graph_objects as go

from gram_platform.analysis.intervals import CURVE_FIXED, t_interval
from gram_platform.analysis.maxent_objective import HIGHEST_RATIO
from gram_platform.analysis.ratios import (
    BASELINE,
    MEAN,
    Reference,
    checked_attacks,
    checked_evaluations,
    compute_ratio_frame,
    elicited_ratios,
)
from gram_platform.analysis.tables import (
    CLASSES,
    frame_text,
    interval_text,
    per_seed_frame,
    short_text,
    table_csv,
    text_frame,
)
from gram_platform.analysis.trials import (
    ELAPSED,
    RUNS,
    SEARCH,
    STARTED,
    STATE,
    TRIAL,
    URL,
    finished,
    hypervolume_history,
    linked,
    pareto_front,
)
from gram_platform.config import RoutingConfig
from gram_platform.config.identity import invalid, to_plain
from gram_platform.config.space import Parameter
from gram_platform.engine.trials import Point
from gram_platform.methods import Setting
from gram_platform.methods.budgets import plan_compute_units
from gram_platform.methods.nodes import Node, method_nodes
from gram_platform.pages.figures.searches import LABEL, front_figures, hypervolume_figure
from gram_platform.pages.report.page import Section
from gram_platform.pages.results.record import run_links
from gram_platform.pages.results.results import Brief, with_values
from gram_platform.store import Store
from gram_platform.studies.build import Graph
from gram_platform.studies.definition import shown_place
from gram_platform.studies.searches.optuna_studies import (
    search_figures,
    trials_frame,
    why_no_importances,
)
from gram_platform.studies.searches.report import (
    SearchOutput,
    attack_frame,
    counts_text,
    result_frame,
    search_output,
    view_frame,
    with_run_links,
)
from gram_platform.tracking import Tracker
from gram_platform.tracking.views import TrialColumns

METHOD = "gram"
P_AS, P_CR, D_AUX, PEAK_LR = "p_as", "p_cr", "d_aux", "peak_lr"
PARETO_LIMITS = (
    Parameter(P_AS, 0.0, 1.0),
    Parameter(P_CR, 0.0, 1.0),
    Parameter(D_AUX, 1, 1_000_000, is_integer=True),
    Parameter(PEAK_LR, 1e-8, 1.0),
)
PARETO_OBJECTIVES = {"core": "max", "retain": "max", "elicited": "min"}
# Compute of the plans of a trial's training, over the baselines'.
COMPUTE = "compute"
# The hypervolume's: an attack recovers the whole baseline.
REFERENCE_POINT = {
    "core": 0.0,
    "retain": 0.0,
    "elicited": 1.0,
}
PARETO_METRICS = (*PARETO_OBJECTIVES, "forget", COMPUTE)
# The label of the preset's parameters.
PRESET = "the preset's own"
# Returns a node's stored result, None while there is none.
ReadResult = Callable[[Node], Mapping | None]


@dataclass(frozen=True)
class ParetoProblem:
    """A point's GRAM run for each seed, its views and the attacks on them, and their score."""

    # One size, a setting for each seed.
    settings: tuple[Setting, ...]
    # References of every domain, from these seeds' baselines; `nodes` needs none.
    references: Mapping[str, Reference]

    def nodes(self, point: Point) -> list[Node]:
        return [node for setting in self.settings for node in point_nodes(setting, point)]

    def score(self, point: Point, results: Mapping[str, Mapping]) -> dict[str, float]:
        """Returns `core, retain, elicited, forget` of the table's mean row, domains clipped first, and `compute`.

        ValueError for a loss that is not finite.
        """
        means = self.per_seed(point, results)[list(CLASSES)].mean(skipna=False)
        unknown = sorted(means.index[means.isna()])
        if unknown:
            raise invalid("results", ", ".join(unknown), "finite losses of every view and attack")
        return {**{name: float(means[name]) for name in (*PARETO_OBJECTIVES, "forget")}, COMPUTE: self.compute(point)}

    def per_seed(self, point: Point, results: Mapping[str, Mapping]) -> pd.DataFrame:
        """Returns one row for each seed: the mean of each class over the paper's profiles, as `analysis.tables` has it.

        Clips ratios to [0, HIGHEST_RATIO] before averaging; `analysis.maxent_objective` says why.
        """
        nodes = self.nodes(point)
        frame = result_frame(nodes, results)
        views = checked_evaluations(view_frame(nodes, frame))
        references = {(self.settings[0].size.name, domain): r for domain, r in self.references.items()}
        ratios, _ = compute_ratio_frame(views, references)
        elicited, _ = elicited_ratios(checked_attacks(attack_frame(nodes, frame)), ratios, references)
        ratios = pd.concat([ratios, elicited])
        ratios["compute_ratio"] = ratios["compute_ratio"].clip(0.0, HIGHEST_RATIO)
        per_seed, _ = per_seed_frame(ratios, views)
        return per_seed[per_seed["profile"] == MEAN].reset_index(drop=True)

    def compute(self, point: Point) -> float:
        """Returns the training compute of the point's runs by their plans, over that of the baselines."""
        baselines = [node for setting in self.settings for node in method_nodes(BASELINE, setting)]
        return _training_compute(self.nodes(point)) / _training_compute(baselines)


def _training_compute(nodes: Iterable[Node]) -> int:
    return sum(plan_compute_units(node.config) for node in nodes if node.is_run and not node.is_attack)


def point_nodes(setting: Setting, point: Point) -> list[Node]:
    """Returns the nodes of GRAM in the setting at a point; at `default_point` they are the setting's."""
    parameters = {name: f"{point[name]:g}" for name in (P_AS, P_CR, D_AUX, PEAK_LR)}
    return [node.tagged(**parameters) for node in method_nodes(METHOD, setting_with(setting, point))]


def setting_with(setting: Setting, point: Point) -> Setting:
    """Returns the setting at a point. The attack keeps its learning rate: a trial must not choose its attacker."""
    size = replace(setting.size, d_aux=int(point[D_AUX]), peak_lr=float(point[PEAK_LR]))
    routing = RoutingConfig(float(point[P_CR]), float(point[P_AS]), setting.routing.accumulation)
    attack = setting.options.elicitation
    attack = replace(attack, lr_factor=attack.lr_factor * (setting.size.peak_lr / size.peak_lr))
    return replace(setting, size=size, routing=routing, options=replace(setting.options, elicitation=attack))


def default_point(setting: Setting) -> dict[str, float]:
    """Returns the preset's parameters."""
    routing, size = setting.routing, setting.size
    return {P_AS: routing.p_aux_spread, P_CR: routing.p_core_robust, D_AUX: size.d_aux, PEAK_LR: size.peak_lr}


# -------------------------------------------------------------------------------------------------------------- report


@dataclass(frozen=True)
class FrontTables:
    """The tables and studies from which the report is made."""

    # Every trial, with `url`.
    trials: pd.DataFrame
    # The rows of table.csv.
    table: pd.DataFrame
    # The preset's point, as figures take it.
    references: pd.DataFrame
    # The history of the hypervolume.
    history: pd.DataFrame
    # The parameters that vary.
    parameters: tuple[Parameter, ...]
    study: optuna.Study


def pareto_report(graph: Graph, store: Store, tracker: Tracker | None, search_id: str) -> SearchOutput | None:
    """Returns files, figures and text from Optuna's database and the storage; None without a complete trial."""
    search = graph.study
    (group,) = search.open(graph, search_id)
    trials = trials_frame(group.study, tuple(PARETO_OBJECTIVES))
    if finished(trials, tuple(PARETO_OBJECTIVES)).empty:
        return None
    links, about_links = run_links(tracker)
    space = search.space(graph)
    problem, read = search.problem(graph, store), lambda node: store.node(node.kind, node.id).result()
    table = front_table(trials, space.names, problem, read)
    front = FrontTables(
        trials=linked(trials, links),
        table=table,
        references=linked(table[table[LABEL] == PRESET], links),
        history=hypervolume_history(trials, PARETO_OBJECTIVES, REFERENCE_POINT),
        parameters=tuple(p for p in space.parameters if p.high > p.low),
        study=group.study,
    )
    figures = all_figures(front)
    record = {"study": group.study.study_name, "size": graph.settings[0].size.name, "seeds": len(graph.settings)}
    record |= {
        "space": to_plain(space.parameters),
        "objectives": PARETO_OBJECTIVES,
        "hypervolume_reference": REFERENCE_POINT,
    }
    files = {
        "table.csv": table_csv(table, "%.6g").encode(),
        "trials.csv": table_csv(trials_table(trials, space.names), "%.6g").encode(),
    }
    facts, drawn = _facts_text(graph, search_id, about_links), sections(front, figures, links)
    columns = TrialColumns(tuple(p.name for p in front.parameters), tuple(PARETO_OBJECTIVES))
    return search_output(
        graph, search_id, facts, drawn, files, record, figures, _text(front), front_brief(front), columns
    )


def front_table(
    trials: pd.DataFrame, parameters: Sequence[str], problem: ParetoProblem, read: ReadResult
) -> pd.DataFrame:
    """Returns the preset's point if it is done, then the trials on the front, the highest core first.

    `label, trial, <parameters>`, core, retain, elicited and forget each with `_low, _high` (90%, CURVE_FIXED, from
    the storage), `compute, num_seeds, runs`.
    """
    rows = [_row(PRESET, default_point(problem.settings[0]), problem, read)]
    front = trials[pareto_front(trials, PARETO_OBJECTIVES)].sort_values("core", ascending=False)
    for trial in front.to_dict("records"):
        point = {name: trial[name] for name in parameters}
        rows.append({TRIAL: trial[TRIAL], **_row(f"trial {trial[TRIAL]}", point, problem, read)})
    classes = [name for name in PARETO_METRICS if name != COMPUTE]
    ends = [name + end for name in classes for end in ("", "_low", "_high")]
    columns = [LABEL, TRIAL, *parameters, *ends, COMPUTE, "num_seeds", RUNS]
    rows = [row for row in rows if "num_seeds" in row]
    return pd.DataFrame(rows, columns=columns).astype({TRIAL: "Int64"})


def _row(label: str, point: Point, problem: ParetoProblem, read: ReadResult) -> dict:
    """Returns a point's means over seeds with their intervals; no means while a node has no result."""
    nodes = problem.nodes(point)
    results = {node.id: read(node) for node in nodes}
    row = {LABEL: label, **point, RUNS: " ".join(node.id for node in nodes if node.is_run)}
    if any(result is None for result in results.values()):
        return row
    seeds = problem.per_seed(point, results)
    for name in (n for n in PARETO_METRICS if n != COMPUTE and seeds[n].notna().all()):
        interval = t_interval(seeds[name])
        row |= dict(zip((name, f"{name}_low", f"{name}_high"), interval, strict=True))
    return {**row, COMPUTE: problem.compute(point), "num_seeds": len(seeds)}


def trials_table(trials: pd.DataFrame, parameters: Sequence[str]) -> pd.DataFrame:
    """Returns every trial with its state, also those without a value."""
    on_front = pareto_front(trials, PARETO_OBJECTIVES)
    columns = [SEARCH, TRIAL, STATE, *parameters, *PARETO_METRICS, "on_front", RUNS, ELAPSED]
    return trials.assign(on_front=on_front).reindex(columns=columns)


def all_figures(front: FrontTables) -> dict[str, go.Figure]:
    """Returns every figure by a name fit for a file."""
    names = [f"front-{name}" for name in (*("-".join(pair) for pair in combinations(PARETO_OBJECTIVES, 2)), "space")]
    figures = dict(zip(names, front_figures(front.trials, PARETO_OBJECTIVES, front.references), strict=True))
    figures["hypervolume"] = hypervolume_figure(front.history, REFERENCE_POINT)
    for name, direction in PARETO_OBJECTIVES.items():
        figures |= search_figures(front.trials, front.study, name, direction, front.parameters)
    return figures


def sections(front: FrontTables, figures: Mapping[str, go.Figure], links: Mapping[str, str]) -> list[Section]:
    def named(prefix: str) -> dict[str, go.Figure]:
        return {name: figure for name, figure in figures.items() if name.startswith(prefix)}

    chosen = "On the front are trials that no other one equals in all three objectives and beats in one. They were "
    chosen += (
        "chosen by the very seeds and validation sequences that they are shown on, so the front's ends look better "
    )
    chosen += f"than they are. The star is {PRESET} point at the same compute. A click opens a trial's run."
    grown = "The volume between the front and the reference: it grows only when a trial adds something to the front."
    reasons = dict.fromkeys(why for name in PARETO_OBJECTIVES if (why := why_no_importances(front.study, name)))
    alone = "Share of the variance among the trials that each parameter explains alone (fANOVA); the rest is that of "
    alone += "combinations, and noise. "
    histories = named("hypervolume") | named("history-")
    best, about = _shown(_readable(front.table), links), f"{counts_text(front.trials)} {chosen}"
    return [
        Section("Pareto front", about, named("front-"), table=best, table_is_open=True),
        Section("How the search went", grown, histories, table=front.history),
        Section("What it depends on", alone + "; ".join(reasons), named("importances-"), named("slice-"), "Slices"),
        Section("Trials", table=_shown(front.trials.drop(columns=[SEARCH, STARTED, URL]), links)),
    ]


def _readable(table: pd.DataFrame) -> pd.DataFrame:
    """Returns the front with every class as one text, `mean [low, high]`."""
    readable = table.drop(columns=[TRIAL])
    for name in (n for n in PARETO_METRICS if n != COMPUTE):
        ends = zip(table[name], table[f"{name}_low"], table[f"{name}_high"], strict=True)
        readable[name] = [interval_text(*triple) for triple in ends]
        readable = readable.drop(columns=[f"{name}_low", f"{name}_high"])
    return readable


def _shown(frame: pd.DataFrame, links: Mapping[str, str]) -> pd.DataFrame:
    """Returns the frame with the first run of each row linked, and the others counted."""
    ids = [str(runs).split() for runs in frame[RUNS].fillna("")]
    text = [" ".join(runs[:1]) + (f" and {len(runs) - 1} more" if len(runs) > 1 else "") for runs in ids]
    return with_run_links(frame, links).assign(**{RUNS: text})


def _facts_text(graph: Graph, search_id: str, about_links: str) -> str:
    setting = graph.settings[0]
    compute = "matched to the baseline's by lambda" if setting.equal_compute else "not matched"
    facts = (
        f"Search {search_id}: preset {graph.flags.preset}, size {setting.size.name}, corpus "
        f"{shown_place(graph.flags.corpus)} (data {graph.data_id}), "
        f"{len(graph.settings)} seeds, training compute {compute}. Core, retain, forget and "
        "elicited are compute ratios, averaged over the profiles of core with at most one domain and over seeds, each "
        f"clipped to 0 to {HIGHEST_RATIO:g}; elicited after the attack, the same for all trials. Compute is that of "
        "training by its plan, companions of core batches included, over the baseline's. Trials are read from Optuna's "
        f"database, the front's intervals (90%, {CURVE_FIXED}) from the storage.",
        about_links,
    )
    return " ".join(facts)


def _text(front: FrontTables) -> str:
    """Returns the front and the hypervolume for a log."""
    hidden = [c for c in front.table if c.endswith(("_low", "_high"))] + [RUNS, TRIAL]
    return f"{frame_text(front.table.drop(columns=hidden), '.3g', 'nan')}\n\n{_volume(front)}"


def front_brief(front: FrontTables) -> Brief:
    """Returns the front, its objectives first, and the hypervolume."""
    table, names = front.table, [p.name for p in front.parameters]
    objectives = with_values(table, PARETO_OBJECTIVES, short_text)
    shown = table[[LABEL]].assign(**objectives, **table[[*names, COMPUTE]])
    return Brief({"Pareto front": text_frame(shown, ".3g", "nan")}, text=_volume(front))


def _volume(front: FrontTables) -> str:
    bound = ", ".join(f"{name} {value:g}" for name, value in REFERENCE_POINT.items())
    return f"hypervolume {front.history['hypervolume'].iloc[-1]:.4f} against {bound}"
