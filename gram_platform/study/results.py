"""From losses to the study's table and report: reads MLflow, or the run directories when it has to."""

import json
from dataclasses import dataclass

import pandas as pd

from gram_platform.analysis.claims import claims_frame, separation_claims
from gram_platform.analysis.frame import load_curves, load_runs, load_store, load_store_curves
from gram_platform.analysis.tables import Analysis, analyse, table_csv
from gram_platform.engine.graph import Progress
from gram_platform.flops import total_parameters
from gram_platform.report import build_report, study_figures
from gram_platform.store import Store
from gram_platform.study.build import Graph
from gram_platform.tracking import Tracker, TrackingUnavailable

LOCAL_UI = "http://127.0.0.1:5000"  # where `mlflow ui` listens unless told otherwise


@dataclass(frozen=True)
class Results:
    """What a study has so far."""

    analysis: Analysis
    curves: pd.DataFrame
    runs: pd.DataFrame
    source: str  # "MLflow" or why not

    @property
    def table(self) -> pd.DataFrame:
        return self.analysis.table


def read_results(graph: Graph, store: Store, is_mirrored: bool) -> Results | None:
    """The analysis of every node that is done; None while no evaluation is."""
    ids = {node.id for node in graph.nodes}
    baselines = [n.id for n in graph.nodes if n.kind == "run" and dict(n.tags)["method"] == "baseline"]
    frame, curves, source = _frames(graph.flags.tracking_uri, store, ids, baselines, is_mirrored)
    complete = frame[frame["status"] == "complete"]
    evaluations = _with_tags(graph, complete, "evaluation")
    if evaluations.empty or curves.empty:
        return None
    tags = _with_tags(graph, complete, "run")[["run_id", "method", "size", "seed"]]
    curves = curves.merge(tags[tags["method"] == "baseline"], on="run_id")
    analysis = analyse(evaluations, curves, graph.flags.sizes)
    return Results(analysis, curves, frame, source)


def _frames(uri: str, store: Store, ids: set[str], baselines: list[str], is_mirrored: bool):
    """(frame of the nodes, baselines' curves, where they come from)."""
    reason = "MLflow is away"
    if is_mirrored:
        try:
            frame = load_runs(uri)
            frame = frame[frame["id"].isin(ids)]
            local = load_store(store.root)
            if len(frame) == local["id"].isin(ids).sum():
                return frame, load_curves(uri, baselines), "MLflow"
            reason = "MLflow lacks some of the study's nodes"
        except TrackingUnavailable as error:
            reason = f"MLflow is away ({error})"
    frame = load_store(store.root)
    return frame[frame["id"].isin(ids)], load_store_curves(store.root, baselines), f"the run directories: {reason}"


def _with_tags(graph: Graph, frame: pd.DataFrame, kind: str) -> pd.DataFrame:
    """The frame's rows once for every entry of the study, with this study's tags in place of the stored ones."""
    tags = pd.DataFrame([{"id": n.id, **dict(n.tags)} for n in graph.entries if n.kind == kind])
    tags = tags.drop_duplicates().drop(columns="kind")
    values = frame[frame["kind"] == kind]
    own = values.drop(columns=[c for c in tags.columns if c != "id" and c in values.columns])
    return tags.merge(own, on="id")


def write_results(graph: Graph, store: Store, results: Results, progress: Progress, tracker: Tracker | None) -> dict:
    """Writes table.csv, report.html and study.json, logs them to MLflow; returns the paths by name."""
    folder = store.study_dir(graph.study.name)
    claims = claims_frame(separation_claims(results.analysis.per_seed))
    parameters = {s.size.name: total_parameters(s.size.dense()) for s in graph.settings}
    runs = _runs_with_links(results.runs, tracker).assign(error=results.runs["id"].map(progress.failed).fillna(""))
    profile = "+".join(("core", *graph.settings[0].profiles[0]))
    report = build_report(
        graph.study.title,
        _intro(graph, results),
        results.analysis,
        results.curves,
        runs,
        parameters,
        profile if (results.table["profile"] == profile).any() else None,
        claims,
    )
    folder.write("table.csv", table_csv(results.table).encode())
    folder.write("report.html", report.encode())
    folder.write("study.json", study_json(graph))
    if tracker is not None:
        figures = study_figures(results.analysis, results.curves, parameters)
        params = {"preset": graph.flags.preset, "data_id": graph.recipe.data_id, "seeds": graph.flags.seeds}
        params |= {"sizes": ",".join(graph.flags.sizes), "methods": ",".join(graph.flags.methods)}
        with folder.local_copy("table.csv") as table_path, folder.local_copy("report.html") as report_path:
            tracker.log_study(graph.study.name, table_path, report_path, figures, params)
    return {name: folder.file(name) for name in ("table.csv", "report.html", "study.json")}


def study_json(graph: Graph) -> bytes:
    """The study's nodes and how it was asked for; the same bytes for the same study."""
    fields = {
        "study": graph.study.name,
        "preset": graph.flags.preset,
        "corpus": graph.flags.corpus,
        "data_id": graph.recipe.data_id,
        "domains": list(graph.recipe.domains),
        "nodes": [{"id": node.id, "kind": node.kind, "tags": dict(node.tags)} for node in graph.entries],
    }
    return (json.dumps(fields, indent=1, sort_keys=True) + "\n").encode()


def _runs_with_links(runs: pd.DataFrame, tracker: Tracker | None) -> pd.DataFrame:
    """`run_id_url`: the page of each node in MLflow, at the server or where `mlflow ui` would serve the database."""
    links: dict[str, str] = {}
    if tracker is not None:
        try:
            ui_url = None if tracker.tracking_uri.startswith("http") else LOCAL_UI
            links = {node_id: tracker.run_url(run.info.run_id, ui_url) for (_, node_id), run in tracker.runs().items()}
        except TrackingUnavailable:
            links = {}
    return runs.assign(run_id_url=runs["id"].map(links), run_id=runs["id"])


def _intro(graph: Graph, results: Results) -> str:
    flags, setting = graph.flags, graph.settings[0]
    routing = setting.routing
    facts = [
        f"Preset {flags.preset}, corpus {flags.corpus} (data {graph.recipe.data_id}), {flags.seeds} seeds.",
        f"Routing: p_as {routing.p_aux_spread}, p_cr {routing.p_core_robust}, p_af {setting.aux_factor:.3g}, "
        f"{routing.accumulation} accumulation; compute {'' if setting.equal_compute else 'not '}matched by lambda.",
        f"Read from {results.source}.",
    ]
    if flags.tracking_uri.startswith("sqlite"):
        facts.append(f"Links to MLflow open while `mlflow ui --backend-store-uri {flags.tracking_uri}` runs.")
    return graph.study.question + "\n\n" + " ".join(facts)
