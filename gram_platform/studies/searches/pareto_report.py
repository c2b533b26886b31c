"""What the search for GRAM's trade-off leaves: the front, all trials, how the search went, and what it depends on."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import optuna
import pandas as pd
import plotly.graph_objects as go

from gram_platform.analysis.intervals import t_interval
from gram_platform.analysis.maxent_objective import HIGHEST_RATIO
from gram_platform.analysis.tables import aligned, interval_text
from gram_platform.analysis.trials import (
    COMPLETE,
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
from gram_platform.config.identity import to_plain
from gram_platform.config.space import Parameter
from gram_platform.engine.trials import Point
from gram_platform.methods.nodes import Node
from gram_platform.pages.figures.pareto import LABEL, front_figures, hypervolume_figure
from gram_platform.pages.figures.searches import history_figure, importance_figure, slice_figure
from gram_platform.pages.report.page import Section, page_html
from gram_platform.store import Store
from gram_platform.studies.searches.databases import open_storage
from gram_platform.studies.searches.definition import OptunaSearch, Scene, Written
from gram_platform.studies.searches.history import importances, trials_frame, why_no_importances
from gram_platform.studies.searches.links import run_links
from gram_platform.studies.searches.pareto_problem import COMPUTE, OBJECTIVES, ParetoProblem, default_point
from gram_platform.studies.searches.run import open_groups
from gram_platform.tracking import Tracker

REFERENCE = {"core": 0.0, "retain": 0.0, "elicited": 1.0}  # of the hypervolume: an attack gets back the baseline's all
METRICS = (*OBJECTIVES, "forget", COMPUTE)
PRESET = "the preset's own"  # what the point without a search is called

ReadResult = Callable[[Node], Mapping | None]  # a node's stored result, None while there is none


@dataclass(frozen=True)
class Front:
    """What there is to show."""

    trials: pd.DataFrame  # every trial, with `url`
    table: pd.DataFrame  # table.csv
    references: pd.DataFrame  # the preset's own point, as figures take it
    history: pd.DataFrame  # of the hypervolume
    parameters: tuple[Parameter, ...]  # those that vary
    study: optuna.Study


def written(
    search: OptunaSearch, scene: Scene, store: Store, tracker: Tracker | None, search_id: str
) -> Written | None:
    """Files, figures and text from Optuna's database and the run directories; None while no trial is complete."""
    (group,) = open_groups(search, scene, open_storage(scene.flags.optuna_uri), search_id)
    trials = trials_frame(group.study, tuple(OBJECTIVES))
    if finished(trials, tuple(OBJECTIVES)).empty:
        return None
    links, about_links = run_links(tracker)
    space = search.space(scene)
    directory = {"run": store.run, "evaluation": store.evaluation}
    problem, read = search.problem(scene, store), lambda node: directory[node.kind](node.id).result()
    table = front_table(trials, space.names, problem, read)
    front = Front(
        trials=linked(trials, links),
        table=table,
        references=linked(table[table[LABEL] == PRESET], links),
        history=hypervolume_history(trials, OBJECTIVES, REFERENCE),
        parameters=tuple(p for p in space.parameters if p.high > p.low),
        study=group.study,
    )
    figures = all_figures(front)
    intro = _intro(search.question, scene, search_id, about_links)
    record = {
        "name": search.name,
        "search_id": search_id,
        "preset": scene.flags.preset,
        "study": group.study.study_name,
    }
    record |= {"data_id": scene.data_id, "size": scene.settings[0].size.name, "seeds": len(scene.settings)}
    record |= {"space": to_plain(space.parameters), "objectives": OBJECTIVES, "hypervolume_reference": REFERENCE}
    files = {
        "table.csv": table.to_csv(index=False, float_format="%.6g").encode(),
        "trials.csv": trials_table(trials, space.names).to_csv(index=False, float_format="%.6g").encode(),
        "report.html": page_html(search.title, intro, sections(front, figures, links)).encode(),
        "search.json": (json.dumps(record, indent=1, sort_keys=True) + "\n").encode(),
    }
    return Written(files, figures, _text(front))


# ------------------------------------------------------------------------------------------------------ tables


def front_table(
    trials: pd.DataFrame, parameters: Sequence[str], problem: ParetoProblem, read: ReadResult
) -> pd.DataFrame:
    """The preset's own point where it is done, then the trials on the front, the highest core first.

    `label, trial, <parameters>`, core, retain, elicited and forget each with `_low, _high` (90% t-interval over seeds,
    from the run directories), `compute, num_seeds, runs`.
    """
    own = default_point(problem.settings[0])
    rows = [_row(PRESET, own, problem, read)]
    front = trials[pareto_front(trials, OBJECTIVES)].sort_values("core", ascending=False)
    for trial in front.to_dict("records"):
        point = {name: trial[name] for name in parameters}
        rows.append({TRIAL: trial[TRIAL], **_row(f"trial {trial[TRIAL]}", point, problem, read)})
    classes = [name for name in METRICS if name != COMPUTE]
    ends = [name + end for name in classes for end in ("", "_low", "_high")]
    columns = [LABEL, TRIAL, *parameters, *ends, COMPUTE, "num_seeds", RUNS]
    rows = [row for row in rows if "num_seeds" in row]
    return pd.DataFrame(rows, columns=columns).astype({TRIAL: "Int64"})


def _row(label: str, point: Point, problem: ParetoProblem, read: ReadResult) -> dict:
    """A point's means over seeds with their intervals; without them where some of its nodes have no result."""
    nodes = problem.nodes(point)
    results = {node.id: read(node) for node in nodes}
    row = {LABEL: label, **point, RUNS: " ".join(node.id for node in nodes if node.is_run)}
    if any(result is None for result in results.values()):
        return row
    seeds = problem.per_seed(point, results)
    for name in (n for n in METRICS if n != COMPUTE and seeds[n].notna().all()):
        interval = t_interval(seeds[name])
        row |= dict(zip((name, f"{name}_low", f"{name}_high"), interval, strict=True))
    return {**row, COMPUTE: problem.compute(point), "num_seeds": len(seeds)}


def trials_table(trials: pd.DataFrame, parameters: Sequence[str]) -> pd.DataFrame:
    """trials.csv: every trial with its state, also those without a value."""
    on_front = pareto_front(trials, OBJECTIVES)
    columns = [SEARCH, TRIAL, STATE, *parameters, *METRICS, "on_front", RUNS, ELAPSED]
    return trials.assign(on_front=on_front).reindex(columns=columns)


# ------------------------------------------------------------------------------------------------------ report


def all_figures(front: Front) -> dict[str, go.Figure]:
    """Every figure by a name fit for a file."""
    names = [f"front-{name}" for name in (*("-".join(pair) for pair in combinations(OBJECTIVES, 2)), "space")]
    figures = dict(zip(names, front_figures(front.trials, OBJECTIVES, front.references), strict=True))
    figures["hypervolume"] = hypervolume_figure(front.history, REFERENCE)
    num_complete = int((front.trials[STATE] == COMPLETE).sum())
    for name, direction in OBJECTIVES.items():
        figures[f"history-{name}"] = history_figure(front.trials, name, direction)
        for parameter in front.parameters:
            figures[f"slice-{name}-{parameter.name}"] = slice_figure(front.trials, parameter, name, direction)
        if shares := importances(front.study, name):
            figures[f"importances-{name}"] = importance_figure(shares, name, num_complete)
    return figures


def sections(front: Front, figures: Mapping[str, go.Figure], links: Mapping[str, str]) -> list[Section]:
    def named(prefix: str) -> list[go.Figure]:
        return [figure for name, figure in figures.items() if name.startswith(prefix)]

    counts = front.trials[STATE].value_counts()
    progress = f"{len(front.trials)} trials: " + ", ".join(f"{count} {state}" for state, count in counts.items()) + ". "
    chosen = "On the front are trials that no other one equals in all three objectives and beats in one. They were "
    chosen += (
        "chosen by the very seeds and validation sequences that they are shown on, so the front's ends look better "
    )
    chosen += f"than they are. The star is {PRESET} point at the same compute. A click opens a trial's run."
    grown = "The volume between the front and the reference: it grows only when a trial adds something to the front."
    reasons = dict.fromkeys(why for name in OBJECTIVES if (why := why_no_importances(front.study, name)))
    alone = "Share of the variance among the trials that each parameter explains alone (fANOVA); the rest is that of "
    alone += "combinations, and noise. "
    histories = [*named("hypervolume"), *named("history-")]
    best = _shown(_readable(front.table), links)
    return [
        Section("Pareto front", progress + chosen, named("front-"), table=best, table_is_open=True),
        Section("How the search went", grown, histories, table=front.history),
        Section("What it depends on", alone + "; ".join(reasons), named("importances-"), named("slice-"), "Slices"),
        Section("Trials", table=_shown(front.trials.drop(columns=[SEARCH, STARTED, URL]), links)),
    ]


def _readable(table: pd.DataFrame) -> pd.DataFrame:
    """The front with every class as one text, `mean [low, high]`."""
    readable = table.drop(columns=[TRIAL])
    for name in (n for n in METRICS if n != COMPUTE):
        ends = zip(table[name], table[f"{name}_low"], table[f"{name}_high"], strict=True)
        readable[name] = [interval_text(*triple) for triple in ends]
        readable = readable.drop(columns=[f"{name}_low", f"{name}_high"])
    return readable


def _shown(frame: pd.DataFrame, links: Mapping[str, str]) -> pd.DataFrame:
    """The frame with the first run of each row linked, and the others counted."""
    first = [str(runs).split()[:1] for runs in frame[RUNS].fillna("")]
    more = [max(len(str(runs).split()) - 1, 0) for runs in frame[RUNS].fillna("")]
    text = [" ".join(ids) + (f" and {count} more" if count else "") for ids, count in zip(first, more, strict=True)]
    return frame.assign(**{RUNS: text, f"{RUNS}_url": [links.get(ids[0], "") if ids else "" for ids in first]})


def _intro(question: str, scene: Scene, search_id: str, about_links: str) -> str:
    setting = scene.settings[0]
    compute = "matched to the baseline's by lambda" if setting.equal_compute else "not matched"
    facts = (
        f"Search {search_id}: preset {scene.flags.preset}, size {setting.size.name}, corpus {scene.flags.corpus} (data "
        f"{scene.data_id}), {len(scene.settings)} seeds, training compute {compute}. Core, retain, forget and "
        "elicited are compute ratios, averaged over the profiles of core with at most one domain and over seeds, each "
        f"clipped to 0 to {HIGHEST_RATIO:g}; elicited after the attack, the same for all trials. Compute is that of "
        "training by its plan, companions of core batches included, over the baseline's. Trials are read from Optuna's "
        "database, the front's intervals (90% over seeds) from the run directories.",
        about_links,
    )
    return f"{question}\n\n{' '.join(facts)}"


def _text(front: Front) -> str:
    """The front for a terminal, and the hypervolume."""
    hidden = [c for c in front.table if c.endswith(("_low", "_high"))] + [RUNS, TRIAL]
    shown = front.table.drop(columns=hidden)
    rows = [[_cell(value) for value in row] for row in shown.itertuples(index=False)]
    bound = ", ".join(f"{name} {value:g}" for name, value in REFERENCE.items())
    volume = f"hypervolume {front.history['hypervolume'].iloc[-1]:.4f} against {bound}"
    return f"{aligned([list(shown.columns), *rows])}\n\n{volume}"


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
