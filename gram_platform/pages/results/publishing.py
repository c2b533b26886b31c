"""What every study leaves for people: its files in the storage and in MLflow, and links from one to the other."""

from collections.abc import Mapping

import pandas as pd

from gram_platform.pages.results.record import StudyRecord
from gram_platform.store import Store
from gram_platform.tracking import Tracker

LOCAL_UI = "http://127.0.0.1:5000"  # where `mlflow ui` listens unless told otherwise


def publish(
    record: StudyRecord,
    store: Store,
    table: str,
    report: str,
    figures: Mapping[str, object],
    tracker: Tracker | None,
) -> dict[str, str]:
    """Writes table.csv, report.html and study.json and logs them to MLflow if there is one; the paths by name."""
    folder = store.study_dir(record.name)
    files = {"table.csv": table.encode(), "report.html": report.encode(), "study.json": record.to_json()}
    for name, data in files.items():
        folder.write(name, data)
    if tracker is not None:
        with folder.local_copy("table.csv") as table_path, folder.local_copy("report.html") as report_path:
            tracker.log_study(record.name, table_path, report_path, figures, record.params)
    return {name: folder.file(name) for name in files}


def with_links(runs: pd.DataFrame, failures: Mapping[str, str], tracker: Tracker | None) -> pd.DataFrame:
    """`run_id_url`: the page of each node in MLflow, at the server or where `mlflow ui` would serve the database; and
    `error`: what is in `failures` under its id.
    """
    links: dict[str, str | None] = {}
    if tracker is not None:
        ui_url = None if tracker.tracking_uri.startswith("http") else LOCAL_UI
        links = {node_id: tracker.run_url(run.info.run_id, ui_url) for (_, node_id), run in tracker.runs().items()}
    errors = [failures.get(node_id, "") for node_id in runs["id"]]
    return runs.assign(run_id_url=runs["id"].map(links), run_id=runs["id"], error=errors)


def intro_text(record: StudyRecord, source: str, tracker: Tracker | None) -> str:
    """The question, how the study was run, where its numbers were read from, and what links need."""
    facts = [*record.facts, f"Read from {source}."]
    if tracker is not None and not tracker.tracking_uri.startswith("http"):
        facts.append(f"Links to MLflow open while `mlflow ui --backend-store-uri {tracker.tracking_uri}` runs.")
    return record.question + "\n\n" + " ".join(facts)
