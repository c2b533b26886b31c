"""Writes runs and evaluations as TensorBoard's event files, with the names and values that MLflow gets."""

import shutil
from pathlib import Path

from tensorboardX import SummaryWriter

from gram_platform.config.identity import short_hash
from gram_platform.store import Store
from gram_platform.tracking import entry as content
from gram_platform.tracking.entry import Entry

WRITTEN = "written"  # file beside a node's events once they are whole: the hash of what they show


def write_events(store: Store, folder: Path) -> dict[str, int]:
    """Writes a folder for each run and evaluation that is new or has changed; counts {"written", "unchanged"}."""
    counts = {"written": 0, "unchanged": 0}
    runs = ((content.run_entry(run), run.records()) for run in map(store.run, store.list_runs()))
    evaluations = ((content.evaluation_entry(store.evaluation(one)), []) for one in store.list_evaluations())
    for entry, records in (*runs, *evaluations):
        if entry is None:
            continue
        place = folder / f"{entry.name} {entry.node_id}"
        shown = short_hash({"tags": dict(entry.tags), "last_step": entry.last_step})
        is_written = (place / WRITTEN).exists() and (place / WRITTEN).read_text() == shown
        counts["unchanged" if is_written else "written"] += 1
        if not is_written:
            for earlier in folder.glob(f"* {entry.node_id}"):  # whose name its tags may have changed
                shutil.rmtree(earlier)
            _write(place, entry, records)
            (place / WRITTEN).write_text(shown)
    return counts


def _write(place: Path, entry: Entry, records: list[dict]) -> None:
    with SummaryWriter(str(place)) as writer:
        for metric in content.curve_metrics(records, entry, -1) + content.result_metrics(entry, records):
            writer.add_scalar(content.unescape(metric.key), metric.value, metric.step, metric.timestamp / 1000)
        writer.add_text("description", entry.tags[content.NOTE])
