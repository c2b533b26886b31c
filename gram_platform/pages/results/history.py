"""Keeps the pages of a study's earlier submissions of another choice of runs.

Chosen are methods, sizes, seeds, a preset and data. `studies/STUDY/` has the newest submission;
`studies/STUDY/history/DATE/` has what lay there until DATE, in UTC. A page is copied, report.html
last; then the new record is written; then the old files are removed, report.html last. So it is
whole in one place at any time. After a kill in between, the next submission finds the report that
lies in the folder among those that are kept, and finishes the move, or takes it back if it is of
the same choice.
"""

import time
from collections.abc import Mapping
from typing import TypedDict

from gram_platform.pages.report.page import REPORT_FILE
from gram_platform.pages.results.record import STUDY_FILE, Entry, StudyRecord
from gram_platform.store import Folder, Store
from gram_platform.store.files import HASHES
from gram_platform.store.root import HISTORY

MOST_KEPT = 10
DATE = "%Y-%m-%dT%H%M%S"
PAGE_FILES = (".html", ".csv", ".svg", HASHES)
CHOSEN_TAGS, CHOSEN_PARAMS = ("method", "size", "seed"), ("preset", "data_id")


class ChosenRuns(TypedDict):
    """The part of a study's record that says which runs were chosen."""

    params: dict[str, str]
    entries: list[Entry]


def begin_record(store: Store, record: StudyRecord) -> None:
    """Writes the record of a submission that begins; moves another choice's page to history."""
    folder, kept = store.study_dir(record.name), store.history_dirs(record.name)
    history = folder.child(HISTORY)
    # A copy without a report was interrupted; its files still lie in the study's folder.
    for date in [date for date, place in kept.items() if not place.exists(REPORT_FILE)]:
        history.remove(date)
        del kept[date]
    report = folder.read(REPORT_FILE) if folder.exists(REPORT_FILE) else None
    copied = next((date for date in reversed(kept) if kept[date].read(REPORT_FILE) == report), "")
    # The record in the folder may be the next one already, of a submission that was killed while it
    # moved the page.
    records = [
        place.read_spare(STUDY_FILE, ChosenRuns) for place in (folder, kept.get(copied, folder))
    ]
    moves = report is not None and any(
        one and _choice(one) != _choice(vars(record)) for one in records
    )
    if copied and not moves:
        history.remove(copied)
    elif moves and not copied:
        _copy(folder, history.child(_date(kept)), report)
    folder.remove(HASHES)
    folder.write(STUDY_FILE, record.to_json())
    for name in (*_tables(folder), REPORT_FILE) if moves else ():
        folder.remove(name)
    for date in list(store.history_dirs(record.name))[:-MOST_KEPT]:
        history.remove(date)


def _copy(folder: Folder, target: Folder, report: bytes) -> None:
    for name in (STUDY_FILE, *_tables(folder)):
        target.write(name, folder.read(name))
    target.write(REPORT_FILE, report)


def _tables(folder: Folder) -> list[str]:
    """Lists the files of a study's page without its report and its record."""
    return [name for name in folder.list() if name.endswith(PAGE_FILES) and name != REPORT_FILE]


def _date(taken: Mapping[str, Folder]) -> str:
    """Returns the time of now, or of the first second after it that is not taken."""
    now = time.time()
    while (date := time.strftime(DATE, time.gmtime(now))) in taken:
        now += 1
    return date


def _choice(plain: Mapping) -> Mapping[str, object]:
    """Returns what was chosen, of the fields of a record."""
    chosen = {
        name: {entry["tags"].get(name, "") for entry in plain["entries"]} for name in CHOSEN_TAGS
    }
    return chosen | {name: plain["params"].get(name, "") for name in CHOSEN_PARAMS}
