"""Makes what `gram report` and `gram replicate` print and write. Its imports take seconds: MLflow, pandas, plotly."""

import io
import json
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd
from rich.console import Console

from gram_platform.analysis.lr_grid import ENDED
from gram_platform.analysis.lr_laws import analyse_grid
from gram_platform.analysis.tables import frame_text, table_csv
from gram_platform.analysis.trials import STATE
from gram_platform.config import LOSSES
from gram_platform.config.identity import invalid, local_path, parse_json, require_choice
from gram_platform.config.terminal import masked, say
from gram_platform.pages.report.build import study_page
from gram_platform.pages.report.measurements import MEASUREMENTS
from gram_platform.pages.report.sections import renamed
from gram_platform.pages.results.external import read_external
from gram_platform.pages.results.record import (
    Results,
    StudyRecord,
    load_record,
    mlflow_links,
    record_from_plain,
    with_links,
    write_or_log,
)
from gram_platform.pages.results.replication import prepare, published_studies, replicate
from gram_platform.pages.results.results import read_results, summary_text
from gram_platform.pages.site.build import tracking_of
from gram_platform.pages.site.folder import make_folder
from gram_platform.pages.site.replication import write_replication
from gram_platform.paper import paper
from gram_platform.store import Store
from gram_platform.store.folders import open_folder
from gram_platform.studies.panel import show_results
from gram_platform.tracking import Tracker
from gram_platform.tracking.frame import mlflow_frames
from gram_platform.tracking.tracker import LOCAL_UI


def rebuild_report(store: Store, study: str, tracking_uri: str) -> None:
    """Writes a study's table and report again, and prints them; reads MLflow if a `tracking_uri` is given.

    ValueError for an unknown study, and for one without a complete baseline.
    """
    record = load_record(store, study)
    uri = tracking_of(store, tracking_uri)
    tracker = Tracker(uri) if uri else None
    require_choice("measurement", record.measurement, MEASUREMENTS)
    measurement = MEASUREMENTS[record.measurement]
    frames = mlflow_frames(tracker, record.ids, record.baseline_runs) if tracker and tracking_uri else None
    results = measurement.read(record, store, frames)
    if results is None:
        raise invalid("study", study, "a study with a complete baseline and its evaluation")
    failures = {i: failure["message"] for i in record.ids if (failure := store.run(i).failure())}
    paths = write_or_log(partial(measurement.write, record, store, results, failures), tracker, say)
    show_results(Console(), measurement.text(record, results), measurement.brief_of(record, results))
    say("\n".join(f"{name:12} {path}" for name, path in paths.items()))
    say(f"read from {results.source}")


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
        files, text = _mlflow_study(record_from_plain(parse_json(plain, dict)), tracker)
    elif (table := tracker.study_file(study, "table.csv")) is not None:
        files, text = _mlflow_search(study, table, tracker)
    else:
        raise invalid("study", study, f"a study in MLflow at {masked(tracking_uri)}, or one in the storage")
    if not out:
        return text
    for name, content in files.items():
        open_folder(str(folder), writable=True).write(name, content.encode())
    return "\n".join([text, "", *(f"{name:12} {Path(folder, name)}" for name in files)])


def _mlflow_study(record: StudyRecord, tracker: Tracker) -> tuple[dict[str, str], str]:
    if record.measurement != LOSSES:
        raise invalid("study", record.name, f"a study of losses; one of {record.measurement} needs its storage")
    results = read_results(record, None, mlflow_frames(tracker, record.ids, record.baseline_runs))
    if results is None:
        raise invalid("study", record.name, "a study with a complete baseline and its evaluation")
    linked = replace(results, runs=with_links(results.runs, {}, mlflow_links(tracker, LOCAL_UI)))
    files = {
        "table.csv": table_csv(renamed(results.analysis.table, record.varies)),
        "report.html": study_page(record, linked, tracker).html(),
    }
    parts = [summary_text(record, results), "fits of the baseline's curves", frame_text(results.analysis.fits)]
    if "the paper's claims" not in parts[0] and len(results.claims):
        parts += ["claims", frame_text(results.claims)]
    return files, "\n\n".join(parts)


def _mlflow_search(study: str, table: str, tracker: Tracker) -> tuple[dict[str, str], str]:
    report = tracker.study_file(study, "report.html") or ""
    about = json.loads(tracker.study_file(study, "search.json") or "{}")
    trials = tracker.study_file(study, "trials.csv")
    if trials is None or "seq_len" not in about:
        return {"table.csv": table, "report.html": report}, frame_text(pd.read_csv(io.StringIO(table)))
    frame = pd.read_csv(io.StringIO(trials))
    grid = analyse_grid(frame[frame[STATE].isin(ENDED)], about["seq_len"], about["window"])
    files = {"table.csv": table_csv(grid.optima, None), "report.html": report}
    return files, "\n\n".join(["optima", frame_text(grid.optima), "laws", frame_text(grid.laws)])


def write_replicated(folder: str, out: str, is_beside: bool) -> None:
    """Prints tables of losses measured elsewhere (the published ones without a `folder`), and writes them into `out`.

    ValueError for losses that cannot be read, and for an `out` that is no folder.
    """
    started = time.monotonic()
    place = local_path("out", out)
    if place.exists() and not place.is_dir():
        raise invalid("out", str(place), "a folder, or a new name")
    studies = list(_studies(folder, is_beside, str(place)))
    facts = f"From {local_path('folder', folder).resolve()}." if folder else f"{paper.SOURCE}."
    paths = write_replication(studies, str(place), facts)
    for study in studies:
        say(f"\n{study.record.title}\n{' '.join(study.record.facts)}\n\n{_text(study)}")
    say("\n" + "\n".join(f"{name:16} {path}" for name, path in paths.items()))
    say(f"studies: {len(studies)}, in {time.monotonic() - started:.1f} s")


def _studies(folder: str, is_beside: bool, out: str):
    """Yields the studies; reads and checks everything, and makes the folder `out`, before the first fit."""
    if not folder:
        make_folder(out)
        yield from published_studies()
        return
    external = read_external(Path(folder))
    say(f"{external.folder}: {len(external.losses):,} losses, {external.curves['row'].nunique():,} curves")
    studies = prepare(external)
    make_folder(out)
    for prepared in studies:
        study = replicate(prepared, is_beside)
        say(f"{study.record.name}: {len(study.analysis.table)} rows")
        yield study


def _text(study: Results) -> str:
    """Formats the table with the published rows, the claims, and missing values."""
    parts = [summary_text(study.record, study)]
    if study.published is not None:
        rows = paper.beside_published(study.analysis.table, study.published, study.shown_profile)
        parts.append(f"beside the published\n\n{frame_text(rows)}")
    missing = study.analysis.missing
    return "\n\n".join([*parts, *([f"missing\n\n{frame_text(missing)}"] if len(missing) else [])])
