"""Makes what `gram report` and `gram replicate` print and write. Its imports take seconds: MLflow, pandas, plotly."""

import time
from functools import partial

from rich.console import Console

from gram_platform.config import LOSSES
from gram_platform.config.identity import invalid, local_path, require_choice
from gram_platform.config.terminal import masked, say
from gram_platform.pages.report.measurements import MEASUREMENTS
from gram_platform.pages.report.mirrored import mirrored
from gram_platform.pages.results.record import load_record, write_or_log
from gram_platform.pages.site.build import tracking_of
from gram_platform.pages.site.folder import make_folder
from gram_platform.pages.site.replication import replicated_studies, replication_text, write_replication
from gram_platform.store import Store
from gram_platform.store.folders import open_folder
from gram_platform.studies.panel import show_results
from gram_platform.tracking import Tracker
from gram_platform.tracking.frame import mlflow_frames


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


def report_from_mlflow(study: str, tracking_uri: str, out: str) -> None:
    """Prints a study's tables, fits and claims, and writes table.csv and report.html into the folder `out`, if given.

    ValueError for a study that MLflow does not have, and for an `out` that cannot be written. TrackingUnavailable.
    """
    folder = local_path("out", out)
    if out:
        make_folder(str(folder))
    found = mirrored(study, Tracker(tracking_uri))
    if found is None:
        raise invalid("study", study, f"a study in MLflow at {masked(tracking_uri)}, or one in the storage")
    show_results(Console(), found.text, found.brief)
    for name, content in found.files.items() if out else ():
        say(f"{name:12} {folder / name}")
        open_folder(str(folder), writable=True).write(name, content.encode())


def write_replicated(folder: str, out: str, is_beside: bool) -> None:
    """Prints tables of losses measured elsewhere (the published ones without a `folder`), and writes them into `out`.

    ValueError for losses that cannot be read, and for an `out` that is no folder.
    """
    started = time.monotonic()
    place = local_path("out", out)
    if place.exists() and not place.is_dir():
        raise invalid("out", str(place), "a folder, or a new name")
    studies = list(replicated_studies(folder, is_beside, str(place)))
    paths = write_replication(studies, str(place), folder)
    for study in studies:
        say(f"\n{study.record.title}\n{' '.join(study.record.facts)}\n")
        shown = MEASUREMENTS[LOSSES].brief_of(study.record, study)
        show_results(Console(), replication_text(study), shown)
    say("\n" + "\n".join(f"{name:16} {path}" for name, path in paths.items()))
    say(f"studies: {len(studies)}, in {time.monotonic() - started:.1f} s")
