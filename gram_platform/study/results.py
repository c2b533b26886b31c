"""From losses to the study's table and report: reads MLflow, or the run directories when it has to."""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from gram_platform.analysis.claims import claims_frame, separation_claims
from gram_platform.analysis.frame import load_curves, load_runs, load_store, load_store_curves
from gram_platform.analysis.tables import Analysis, analyse, table_csv
from gram_platform.report import build_report, study_figures
from gram_platform.store import Store
from gram_platform.study.record import StudyRecord
from gram_platform.tracking import Tracker, TrackingUnavailable

LOCAL_UI = "http://127.0.0.1:5000"  # where `mlflow ui` listens unless told otherwise


@dataclass(frozen=True)
class Results:
    """What a study has so far."""

    analysis: Analysis
    curves: pd.DataFrame
    runs: pd.DataFrame
    source: str  # "MLflow", or the run directories and why


def read_results(record: StudyRecord, store: Store, tracking_uri: str | None, why_not: str = "") -> Results | None:
    """The analysis of every node that is done, None while there is no evaluation or no baseline's curve.

    Reads MLflow at `tracking_uri`; without one, or where it is away or lacks nodes, the run directories.
    """
    frame, curves, source = _frames(record, store, tracking_uri, why_not)
    complete = frame[frame["status"] == "complete"]
    evaluations = _named(record, complete, "evaluation")
    if evaluations.empty or curves.empty:
        return None
    runs = _named(record, complete, "run")[["run_id", "method", "size", "seed"]]
    curves = curves.merge(runs[runs["method"] == "baseline"], on="run_id")
    return Results(analyse(evaluations, curves, record.sizes), curves, frame, source)


def _frames(record: StudyRecord, store: Store, uri: str | None, why_not: str):
    """(frame of the nodes, baselines' curves, where they come from)."""
    local = load_store(store.root)
    local = local[local["id"].isin(record.ids)]
    if uri is not None:
        try:
            frame = load_runs(uri)
            frame = frame[frame["id"].isin(record.ids)]
            if set(frame["id"]) == set(local["id"]) and (frame["status"] == "complete").all():
                return frame, load_curves(uri, record.baseline_runs), "MLflow"
            why_not = "MLflow lacks some of the study's nodes"
        except TrackingUnavailable as error:
            why_not = f"MLflow is away ({error})"
    return local, load_store_curves(store.root, record.baseline_runs), f"the run directories: {why_not}"


def _named(record: StudyRecord, frame: pd.DataFrame, kind: str) -> pd.DataFrame:
    """The frame's rows once for every entry of the study, with this study's names in place of the stored ones."""
    tags = pd.DataFrame([{"id": e["id"], **e["tags"]} for e in record.entries if e["kind"] == kind])
    tags = tags.drop(columns="kind").drop_duplicates()
    values = frame[frame["kind"] == kind]
    own = values.drop(columns=[c for c in tags.columns if c != "id" and c in values.columns])
    return tags.merge(own, on="id")


def write_results(
    record: StudyRecord, store: Store, results: Results, failures: Mapping[str, str], tracker: Tracker | None
) -> dict[str, str]:
    """Writes table.csv, report.html and study.json and logs them to MLflow if there is one; the paths by name."""
    folder = store.study_dir(record.name)
    analysis = results.analysis
    runs = _with_links(results.runs, tracker).assign(error=results.runs["id"].map(dict(failures)).fillna(""))
    has_profile = (analysis.table["profile"] == record.profile).any()
    report = build_report(
        record.title,
        _intro(record, results, tracker),
        analysis,
        results.curves,
        runs,
        record.parameters,
        record.profile if has_profile else None,
        claims_frame(separation_claims(analysis.per_seed)),
    )
    files = {"table.csv": table_csv(analysis.table).encode(), "report.html": report.encode()}
    files["study.json"] = record.to_json()
    for name, data in files.items():
        folder.write(name, data)
    if tracker is not None:
        figures = study_figures(analysis, results.curves, record.parameters)
        with folder.local_copy("table.csv") as table_path, folder.local_copy("report.html") as report_path:
            tracker.log_study(record.name, table_path, report_path, figures, record.params)
    return {name: folder.file(name) for name in files}


def _with_links(runs: pd.DataFrame, tracker: Tracker | None) -> pd.DataFrame:
    """`run_id_url`: the page of each node in MLflow, at the server or where `mlflow ui` would serve the database."""
    links: dict[str, str | None] = {}
    if tracker is not None:
        ui_url = None if tracker.tracking_uri.startswith("http") else LOCAL_UI
        links = {node_id: tracker.run_url(run.info.run_id, ui_url) for (_, node_id), run in tracker.runs().items()}
    return runs.assign(run_id_url=runs["id"].map(links), run_id=runs["id"])


def _intro(record: StudyRecord, results: Results, tracker: Tracker | None) -> str:
    facts = [*record.facts, f"Read from {results.source}."]
    if tracker is not None and not tracker.tracking_uri.startswith("http"):
        facts.append(f"Links to MLflow open while `mlflow ui --backend-store-uri {tracker.tracking_uri}` runs.")
    return record.question + "\n\n" + " ".join(facts)
