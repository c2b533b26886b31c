"""Says how the results of each measurement are read and shown: the table `MEASUREMENTS`."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pandas as pd

from gram_platform.analysis.tables import table_csv
from gram_platform.config import State
from gram_platform.config.plugins import Table
from gram_platform.methods.measurements import Calibration, Losses, Samples, TokenIncreases
from gram_platform.pages.index import PICTURE_FILE, describe_ratios
from gram_platform.pages.report.build import study_page
from gram_platform.pages.report.page import Page
from gram_platform.pages.report.sections import rename_variant
from gram_platform.pages.results.record import (
    Card,
    StudyRecord,
    mlflow_links,
    publish_files,
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
from gram_platform.tracking.frame import Frames, final_frames
from gram_platform.tracking.views import Line


@dataclass(frozen=True)
class Presentation:
    """How the results of a measurement are read and shown.

    Results are a dataclass with a text `source` and a frame `runs` made by `nodes_frame`.
    """

    # Reads the frames or, without them, the storage; None while there is nothing to show.
    read: Callable[[StudyRecord, Store, Frames | None], Any]
    # For a log, and for `gram report`.
    text: Callable[[StudyRecord, Any], str]
    # The content of table.csv.
    table: Callable[[StudyRecord, Any], pd.DataFrame]
    page: Callable[[StudyRecord, Any, Tracker | None], Page]
    # For a terminal, wide or not; without it the text.
    brief: Callable[[StudyRecord, Any, bool], Brief] | None = None
    # The main result in a sentence, and a small picture as SVG; each may be "".
    describe: Callable[[Any], tuple[str, str]] = lambda results: ("", "")
    # The lines that MLflow draws.
    lines: Callable[[Any], Sequence[Line]] = lambda results: ()
    # Metrics of evaluations in MLflow, by id.
    ratios: Callable[[Any], Mapping[str, Mapping[str, float]]] = lambda results: {}
    # A line for each node that is done but missing from the tables.
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
        """Writes table.csv, study.json and the page's files, and logs them to a tracker.

        `failures` are {node id: message}. Returns {name: path}.
        """
        linked = replace(results, runs=with_links(results.runs, failures, mlflow_links(tracker)))
        with_machines = replace(
            record, facts=(*record.facts, *describe_cordoned(store, record.name))
        )
        page = self.page(with_machines, linked, tracker)
        headline, picture = self.describe(results)
        card = Card(headline, _state(record, results.runs), count_verdicts(page.claims))
        files = {"table.csv": table_csv(self.table(record, results)).encode(), **page.files}
        if picture:
            files[PICTURE_FILE] = picture.encode()
        record, drawn = replace(record, card=card), (self.lines(results), self.ratios(results))
        return publish_files(study_log(record, files, page.figures, *drawn), store, tracker)


def _state(record: StudyRecord, runs: pd.DataFrame) -> str:
    """Says how many nodes are done; "" for numbers that were measured elsewhere."""
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
# The others are in the modules of their pages.
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
    """Returns a study's results or None, and a line about each part that the storage has lost.

    `done`: the ids of the nodes that are done.
    """
    measurement = MEASUREMENTS[record.measurement]
    try:
        frames = final_frames(store, tracker, record.ids, record.curve_runs)
        results = measurement.read(record, store, frames)
    except ValueError as error:
        return None, [f"{record.name}: {error}"]
    return results, measurement.lost(record, store, results, done)
