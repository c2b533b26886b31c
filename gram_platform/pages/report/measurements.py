"""Defines how the results of each measurement are read and shown, in the table `MEASUREMENTS`.

The results of loss studies and of searches can also be read from MLflow, without the storage.
"""

import io
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import pandas as pd

from gram_platform.analysis.lr_grid import ENDED
from gram_platform.analysis.lr_laws import analyse_grid
from gram_platform.analysis.tables import frame_text, table_csv, text_frame
from gram_platform.analysis.trials import STATE
from gram_platform.config import LOSSES, State
from gram_platform.config.identity import invalid
from gram_platform.config.plain import parse_json
from gram_platform.config.plugins import Table
from gram_platform.methods.measurements import Calibration, Losses, Samples, TokenIncreases
from gram_platform.pages.index import PICTURE_FILE, describe_ratios
from gram_platform.pages.report.page import REPORT_FILE, Page
from gram_platform.pages.report.sections import rename_variant, study_page
from gram_platform.pages.results.record import (
    SEARCH_FILE,
    STUDY_FILE,
    Card,
    StudyRecord,
    mlflow_links,
    publish_files,
    record_from_plain,
    study_log,
    with_links,
)
from gram_platform.pages.results.results import (
    Brief,
    brief_results,
    count_verdicts,
    lost_rows,
    ratio_lines,
    read_results,
    seed_ratios,
    summary_text,
)
from gram_platform.store import Store
from gram_platform.store.root import describe_cordoned
from gram_platform.tracking import Tracker
from gram_platform.tracking.frame import Frames, final_frames, mlflow_frames
from gram_platform.tracking.tracker import LOCAL_UI
from gram_platform.tracking.views import Line


@dataclass(frozen=True)
class Presentation:
    """Functions that read and show the results of a measurement.

    Results are a dataclass with at least a string `source` and a frame `runs`, made by
    `nodes_frame`.
    """

    # Reads the frames, or without frames the storage. Returns None if there is nothing to show.
    read: Callable[[StudyRecord, Store, Frames | None], Any]
    # For a log, and for `gram report`.
    text: Callable[[StudyRecord, Any], str]
    table: Callable[[StudyRecord, Any], pd.DataFrame]
    page: Callable[[StudyRecord, Any, Tracker | None], Page]
    # For a wide or a narrow terminal. By default a terminal gets the text.
    brief: Callable[[StudyRecord, Any, bool], Brief] | None = None
    # Returns the main result in a sentence and a small SVG picture. Both can be "".
    describe: Callable[[Any], tuple[str, str]] = lambda results: ("", "")
    lines: Callable[[Any], Sequence[Line]] = lambda results: ()
    # Metrics of evaluations in MLflow, by id.
    ratios: Callable[[Any], Mapping[str, Mapping[str, float]]] = lambda results: {}
    # A line for each node that is done but cannot be read.
    lost: Callable[[StudyRecord, Store, Any, Collection[str]], Sequence[str]] = lambda *_: ()

    def brief_of(self, record: StudyRecord, results: Any) -> Callable[[bool], Brief] | None:
        return partial(self.brief, record, results) if self.brief else None

    def write(
        self,
        record: StudyRecord,
        store: Store,
        results: Any,
        failures: Mapping[str, str],
        tracker: Tracker | None,
    ) -> dict[str, str]:
        """Writes table.csv, study.json and the page's files, and logs them if there is a tracker.

        `failures` is {node id: message}. Returns {file name: path}.
        """
        linked = replace(results, runs=with_links(results.runs, failures, mlflow_links(tracker)))
        facts = (*record.facts, *describe_cordoned(store, record.name))
        page = self.page(replace(record, facts=facts), linked, tracker)
        headline, picture = self.describe(results)
        card = Card(headline, _state(record, results.runs), count_verdicts(page.claims))
        files = {"table.csv": table_csv(self.table(record, results)).encode(), **page.files}
        if picture:
            files[PICTURE_FILE] = picture.encode()
        lines, ratios = self.lines(results), self.ratios(results)
        log = study_log(replace(record, card=card), files, page.figures, lines, ratios)
        return publish_files(log, store, tracker)


def _state(record: StudyRecord, runs: pd.DataFrame) -> str:
    if not record.entries:
        return ""
    num_done = (runs["status"] == State.COMPLETE).sum()
    return f"{num_done} of {len(record.ids)} nodes done."


LOSSES_PRESENTATION = Presentation(
    read=read_results,
    text=summary_text,
    brief=brief_results,
    table=lambda record, results: rename_variant(results.analysis.table, record.varies),
    page=study_page,
    describe=describe_ratios,
    lines=ratio_lines,
    ratios=seed_ratios,
    lost=lost_rows,
)
PAGES = "gram_platform.pages.report"
MEASUREMENTS = Table(
    "gram.measurements",
    {
        Losses.name: LOSSES_PRESENTATION,
        Calibration.name: f"{PAGES}.calibration:CALIBRATION_PRESENTATION",
        TokenIncreases.name: f"{PAGES}.localization:TOKENS_PRESENTATION",
        Samples.name: f"{PAGES}.samples:SAMPLES_PRESENTATION",
    },
    is_usable=lambda shown: isinstance(shown, Presentation),
)


def read_or_lost(
    record: StudyRecord, store: Store, tracker: Tracker, done: Collection[str]
) -> tuple[Any, Sequence[str]]:
    """Returns (results or None, a line for each part of the results that is lost or damaged).

    `done` contains the ids of complete nodes.
    """
    measurement = MEASUREMENTS[record.measurement]
    try:
        frames = final_frames(store, tracker, record.ids, record.curve_runs)
        results = measurement.read(record, store, frames)
    except ValueError as error:
        return None, [f"{record.name}: {error}"]
    return results, measurement.lost(record, store, results, done)


class Mirrored(NamedTuple):
    """The results of a study or search, read from MLflow."""

    files: Mapping[str, str]
    text: str
    brief: Callable[[bool], Brief]


def read_mirrored(study: str, tracker: Tracker) -> Mirrored | None:
    """Reads a study or search from MLflow. Returns None if it is not in MLflow.

    For a grid of learning rates and batch sizes, refits optima and laws to the logged trials. For
    other searches, returns the logged table. Raises ValueError for studies that do not measure
    losses, and for studies without a complete baseline or evaluation.
    """
    if (plain := tracker.study_file(study, STUDY_FILE)) is not None:
        return _mirror_study(record_from_plain(parse_json(plain, dict)), tracker)
    table = tracker.study_file(study, "table.csv")
    return None if table is None else _mirror_search(study, table, tracker)


def _mirror_study(record: StudyRecord, tracker: Tracker) -> Mirrored:
    if record.measurement != LOSSES:
        allowed = f"a study of losses; one of {record.measurement} needs its storage"
        raise invalid("study", record.name, allowed)
    results = read_results(record, None, mlflow_frames(tracker, record.ids, record.curve_runs))
    if results is None:
        raise invalid("study", record.name, "a study with a complete baseline and its evaluation")
    linked = replace(results, runs=with_links(results.runs, {}, mlflow_links(tracker, LOCAL_UI)))
    files = {
        "table.csv": table_csv(rename_variant(results.analysis.table, record.varies)),
        REPORT_FILE: study_page(record, linked, tracker).html(),
    }
    fits = frame_text(results.analysis.fits)
    parts = [summary_text(record, results), "fits of the baseline's curves", fits]
    if "published claims" not in parts[0] and results.claims["verdict"].any():
        parts += ["claims", frame_text(results.claims)]
    return Mirrored(files, "\n\n".join(parts), partial(brief_results, record, results))


def _mirror_search(study: str, table: str, tracker: Tracker) -> Mirrored:
    report = tracker.study_file(study, REPORT_FILE) or ""
    about = json.loads(tracker.study_file(study, SEARCH_FILE) or "{}")
    trials = tracker.study_file(study, "trials.csv")
    tables = {"table": pd.read_csv(io.StringIO(table))}
    if trials is not None and "seq_len" in about:
        frame = pd.read_csv(io.StringIO(trials))
        grid = analyse_grid(frame[frame[STATE].isin(ENDED)], about["seq_len"], about["window"])
        tables, table = {"optima": grid.optima, "laws": grid.laws}, table_csv(grid.optima, None)
    text = "\n\n".join(f"{title}\n\n{frame_text(frame)}" for title, frame in tables.items())
    brief = Brief({title: text_frame(frame) for title, frame in tables.items()})
    return Mirrored({"table.csv": table, REPORT_FILE: report}, text, lambda is_wide: brief)
