"""Reports a study from an MLflow server alone, as `gram report STUDY --tracking-uri URI` does without its storage."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pandas as pd

from gram_platform.analysis.lr_grid import STATES
from gram_platform.analysis.lr_laws import analyse_grid
from gram_platform.analysis.tables import frame_text, table_csv
from gram_platform.analysis.trials import STATE
from gram_platform.config import LOSSES
from gram_platform.config.identity import invalid, local_path, parse_json
from gram_platform.pages.report.build import build_report
from gram_platform.pages.report.sections import renamed
from gram_platform.pages.results.record import (
    StudyRecord,
    intro_text,
    mlflow_links,
    record_from_plain,
    with_links,
)
from gram_platform.pages.results.results import read_results, summary_text
from gram_platform.pages.site.folder import make_folder
from gram_platform.tracking import Tracker
from gram_platform.tracking.connection import masked


def report_from_mlflow(study: str, tracking_uri: str, out: str) -> str:
    """Returns a study's tables, fits and claims as text, and writes table.csv and report.html into the folder `out`.

    A search of learning rates and batches gives optima and laws, fitted again to its trials; another search its table.
    Nothing is written without `out`. ValueError for a study that MLflow does not have, and for an `out` that cannot be
    written. TrackingUnavailable.
    """
    tracker, folder = Tracker(tracking_uri), local_path("out", out)
    if out:
        make_folder(str(folder))
    if (plain := tracker.study_file(study, "study.json")) is not None:
        files, text = _study(record_from_plain(parse_json(plain, dict)), tracker)
    elif (table := tracker.study_file(study, "table.csv")) is not None:
        files, text = _search(study, table, tracker)
    else:
        raise invalid("study", study, f"a study in MLflow at {masked(tracking_uri)}, or one in the storage")
    if not out:
        return text
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    return "\n".join([text, "", *(f"{name:12} {Path(folder, name)}" for name in files)])


def _study(record: StudyRecord, tracker: Tracker) -> tuple[dict[str, str], str]:
    if record.measurement != LOSSES:
        raise invalid("study", record.name, f"a study of losses; one of {record.measurement} needs its storage")
    results = read_results(record, None, tracker.tracking_uri)
    if results is None:
        raise invalid("study", record.name, "a study with a complete baseline and its evaluation")
    page = replace(results, runs=with_links(results.runs, {}, mlflow_links(tracker)))
    files = {
        "table.csv": table_csv(renamed(results.analysis.table, record.varies)),
        "report.html": build_report(intro_text(record, results.source, tracker), page),
    }
    parts = [summary_text(record, results), "fits of the baseline's curves", frame_text(results.analysis.fits)]
    if "the paper's claims" not in parts[0] and len(results.claims):
        parts += ["claims", frame_text(results.claims)]
    return files, "\n\n".join(parts)


def _search(study: str, table: str, tracker: Tracker) -> tuple[dict[str, str], str]:
    report = tracker.study_file(study, "report.html") or ""
    about = json.loads(tracker.study_file(study, "search.json") or "{}")
    trials = tracker.study_file(study, "trials.csv")
    if trials is None or "seq_len" not in about:
        return {"table.csv": table, "report.html": report}, frame_text(pd.read_csv(io.StringIO(table)))
    frame = pd.read_csv(io.StringIO(trials))
    grid = analyse_grid(frame[frame[STATE].isin(STATES)], about["seq_len"], about["window"])
    files = {"table.csv": grid.optima.to_csv(index=False), "report.html": report}
    return files, "\n\n".join(["optima", frame_text(grid.optima), "laws", frame_text(grid.laws)])
