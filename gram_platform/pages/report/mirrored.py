"""Makes tables and pages of studies and searches from MLflow alone, without their storage."""

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import pandas as pd

from gram_platform.analysis.lr_grid import ENDED
from gram_platform.analysis.lr_laws import analyse_grid
from gram_platform.analysis.tables import frame_text, table_csv, text_frame
from gram_platform.analysis.trials import STATE
from gram_platform.config import LOSSES
from gram_platform.config.identity import invalid
from gram_platform.config.plain import parse_json
from gram_platform.pages.report.build import study_page
from gram_platform.pages.report.sections import rename_variant
from gram_platform.pages.results.record import (
    StudyRecord,
    mlflow_links,
    record_from_plain,
    with_links,
)
from gram_platform.pages.results.results import Brief, brief_results, read_results, summary_text
from gram_platform.tracking import Tracker
from gram_platform.tracking.frame import mlflow_frames
from gram_platform.tracking.tracker import LOCAL_UI


class Mirrored(NamedTuple):
    """What MLflow knows of a study or a search: files by name, and the text for a log."""

    files: Mapping[str, str]
    text: str
    brief: Callable[[bool], Brief]


def read_mirrored(study: str, tracker: Tracker) -> Mirrored | None:
    """Reads a study or a search; None if MLflow has neither. May raise TrackingUnavailable.

    Optima and laws of learning rates and batches are fitted again to the trials. Other searches
    have the table that was logged.
    """
    if (plain := tracker.study_file(study, "study.json")) is not None:
        return _study(record_from_plain(parse_json(plain, dict)), tracker)
    table = tracker.study_file(study, "table.csv")
    return None if table is None else _search(study, table, tracker)


def _study(record: StudyRecord, tracker: Tracker) -> Mirrored:
    if record.measurement != LOSSES:
        raise invalid(
            "study",
            record.name,
            f"a study of losses; one of {record.measurement} needs its storage",
        )
    results = read_results(record, None, mlflow_frames(tracker, record.ids, record.curve_runs))
    if results is None:
        raise invalid("study", record.name, "a study with a complete baseline and its evaluation")
    linked = replace(results, runs=with_links(results.runs, {}, mlflow_links(tracker, LOCAL_UI)))
    files = {
        "table.csv": table_csv(rename_variant(results.analysis.table, record.varies)),
        "report.html": study_page(record, linked, tracker).html(),
    }
    parts = [
        summary_text(record, results),
        "fits of the baseline's curves",
        frame_text(results.analysis.fits),
    ]
    if "the paper's claims" not in parts[0] and results.claims["verdict"].any():
        parts += ["claims", frame_text(results.claims)]
    return Mirrored(files, "\n\n".join(parts), partial(brief_results, record, results))


def _search(study: str, table: str, tracker: Tracker) -> Mirrored:
    report = tracker.study_file(study, "report.html") or ""
    about = json.loads(tracker.study_file(study, "search.json") or "{}")
    trials = tracker.study_file(study, "trials.csv")
    tables = {"table": pd.read_csv(io.StringIO(table))}
    if trials is not None and "seq_len" in about:
        frame = pd.read_csv(io.StringIO(trials))
        grid = analyse_grid(frame[frame[STATE].isin(ENDED)], about["seq_len"], about["window"])
        tables, table = {"optima": grid.optima, "laws": grid.laws}, table_csv(grid.optima, None)
    text = "\n\n".join(
        part for title, frame in tables.items() for part in (title, frame_text(frame))
    )
    brief = Brief({title: text_frame(frame) for title, frame in tables.items()})
    return Mirrored({"table.csv": table, "report.html": report}, text, lambda is_wide: brief)
