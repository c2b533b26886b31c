"""Prints and writes the results of `gram report` and `gram replicate`.

Importing this module takes seconds, because it imports MLflow, pandas and plotly.
"""

import io
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd
from rich.console import Console

from gram_platform.analysis.tables import table_csv
from gram_platform.cli.flags import make_folder
from gram_platform.cli.tables import say_json
from gram_platform.config.identity import invalid, local_path, require_choice
from gram_platform.config.provenance import provenance
from gram_platform.config.terminal import say
from gram_platform.pages.index import write_index
from gram_platform.pages.report.measurements import LOSSES_PRESENTATION, MEASUREMENTS, read_mirrored
from gram_platform.pages.report.sections import rename_variant
from gram_platform.pages.results.external import read_external
from gram_platform.pages.results.record import load_record, write_or_log
from gram_platform.pages.results.replication import (
    load_published_studies,
    prepare,
    replicate,
    replication_text,
)
from gram_platform.store import Store
from gram_platform.store.folders import open_folder
from gram_platform.studies.live import show_results
from gram_platform.studies.record import begin_record
from gram_platform.studies.workplace import machine_text
from gram_platform.tracking import Tracker, default_tracking_uri
from gram_platform.tracking.frame import mlflow_frames


def rebuild_report(store: Store, study: str, tracking_uri: str, as_json: bool) -> None:
    """Rewrites a study's report and tables, and prints a summary.

    Reads MLflow if `tracking_uri` is set, otherwise the storage. Raises ValueError if the study is
    unknown, or has no complete baseline with an evaluation.
    """
    record = load_record(store, study)
    store.open_for_writing()
    # Without an address, MLflow is the storage's database, if there is one.
    has_database = store.is_local and (Path(store.root) / "mlflow.db").exists()
    uri = tracking_uri or (default_tracking_uri(store.root) if has_database else "")
    tracker, frames = Tracker(uri) if uri else None, None
    require_choice("measurement", record.measurement, MEASUREMENTS)
    measurement = MEASUREMENTS[record.measurement]
    if tracking_uri:
        frames = mlflow_frames(tracker, record.ids, record.curve_runs)
    results = measurement.read(record, store, frames)
    if results is None:
        raise invalid("study", study, "a study with a complete baseline and its evaluation")
    failures = {i: failure["message"] for i in record.ids if (failure := store.run(i).failure())}
    write = partial(measurement.write, record, store, results, failures)
    paths = write_or_log(write, tracker, partial(say, file=sys.stderr))
    if as_json:
        _say_tables(study, results.source, paths, paths, store.study_dir(study).read)
        return
    text, brief = measurement.text(record, results), measurement.brief_of(record, results)
    show_results(Console(), text, brief)
    say_files(paths)
    say(f"read from {results.source}")


def _say_tables(
    study: str,
    source: str,
    paths: Mapping[str, str],
    names: Iterable[str],
    read: Callable[[str], bytes],
) -> None:
    tables = {
        name.removesuffix(".csv"): pd.read_csv(io.BytesIO(read(name)))
        .filter(regex="^(?!Unnamed)")
        .to_dict("records")
        for name in names
        if name.endswith(".csv")
    }
    say_json({"study": study, "source": source, "files": paths, "tables": tables})


def say_files(paths: Mapping[str, str]) -> None:
    for name, path in paths.items():
        say(f"{name:12} {path}")


def report_from_mlflow(study: str, tracking_uri: str, out: str, as_json: bool = False) -> None:
    """Prints a study's tables, fits and claims, and writes its files to `out`.

    If `out` is "", writes no files. Raises ValueError if MLflow lacks the study or `out` is not
    writable, and TrackingUnavailable if MLflow is unreachable.
    """
    folder = local_path("out", out)
    if out:
        make_folder(str(folder))
    report = read_mirrored(study, Tracker(tracking_uri))
    if report is None:
        raise invalid("study", study, f"a study in MLflow at {tracking_uri}, or one in the storage")
    files = {name: text.encode() for name, text in report.files.items()}
    paths = {name: str(folder / name) for name in files} if out else {}
    for name in paths:
        open_folder(str(folder), writable=True).write(name, files[name])
    if as_json:
        _say_tables(study, "MLflow", paths, files, files.__getitem__)
        return
    show_results(Console(), report.text, report.brief)
    say_files(paths)


def write_replicated(folder: str, out: str, is_beside: bool) -> None:
    """Writes tables and reports of the studies in `folder`.

    If `folder` is "", uses the published studies. `out` becomes a storage without runs. Raises
    ValueError before the first computation if the losses are invalid or `out` is not writable.
    """
    started, place, prepared = time.monotonic(), str(local_path("out", out)), []
    if folder:
        external = read_external(folder)
        num_losses, num_curves = len(external.losses), external.curves["row"].nunique()
        say(f"{external.folder}: {num_losses:,} losses, {num_curves:,} curves")
        prepared = prepare(external)
    make_folder(place)
    store = Store(place).open_for_writing()
    submitted = provenance(machine_text(uses_ray=False)).after(())
    studies = (
        (replicate(inputs, is_beside) for inputs in prepared)
        if folder
        else load_published_studies()
    )
    names = []
    for study in studies:
        record = replace(study.record, submissions=submitted)
        begin_record(store, record)
        paths = LOSSES_PRESENTATION.write(record, store, study, {}, None)
        per_seed = rename_variant(study.analysis.per_seed, record.varies)
        store.study_dir(record.name).write("per_seed.csv", table_csv(per_seed).encode())
        say(f"\n{record.title}\n{' '.join(record.facts)}\n")
        brief = LOSSES_PRESENTATION.brief_of(record, study)
        show_results(Console(), replication_text(study), brief)
        say_files(paths)
        names.append(record.name)
    say(f"\n{'site':12} {write_index(store)}")
    say(f"studies: {len(names)}, in {time.monotonic() - started:.1f} s")
