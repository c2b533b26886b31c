"""Implements `gram sync`, `report`, `search` and `replicate`."""

from gram_platform.cli.flags import (
    AsJson,
    Positional,
    Storage,
    TrackingUri,
    open_existing,
)
from gram_platform.cli.tables import say_json
from gram_platform.config.identity import invalid, local_path
from gram_platform.config.terminal import say
from gram_platform.store import Store
from gram_platform.store.root import storage_place
from gram_platform.studies.flags import Place, Switch, Text


def sync_command(
    storage: Storage = "", tracking_uri: TrackingUri = "", to: str = "mlflow", folder: Place = ""
) -> None:
    """Send runs, evaluations and trials to MLflow, or write runs for another tracker.

    It is safe to run the command again.

    Args:
        to: mlflow, tensorboard, wandb or the tracker of an installed package; trackers other than
            mlflow get curves and results as files in --folder (for wandb, upload with `wandb sync`)
        folder: folder for the files of a tracker other than MLflow
    """
    store = open_existing(storage)
    if to != "mlflow":
        if tracking_uri:
            raise invalid("tracking_uri", tracking_uri, f"no value with --to {to}")
        if not folder:
            raise invalid("folder", folder, f"a folder that {to} may write into")
        from gram_platform.tracking.others import write_nodes

        counts = write_nodes(store, to, local_path("folder", folder))
        what = "curves and results: ratios, tables and reports are in the storage and in MLflow"
        say(f"{folder}: {counts['written']} written, {counts['unchanged']} unchanged ({what})")
        return
    if folder:
        raise invalid("folder", folder, "no value without --to and another tracker than MLflow")
    from gram_platform.pages.results.trials import sync_trials
    from gram_platform.tracking import Tracker, default_tracking_uri

    tracker = Tracker(tracking_uri or default_tracking_uri(store.root))
    tracker.prepare_database()
    counts, num_trials = tracker.sync(store), sync_trials(store, tracker)
    text = f"{counts['sent']} sent, {counts['unchanged']} unchanged, {num_trials} trials"
    say(f"{tracker.tracking_uri}: {text}")


def report_command(
    study: Positional[Text] = "",
    storage: Storage = "",
    tracking_uri: TrackingUri = "",
    out: Place = "",
    as_json: AsJson = False,
) -> None:
    """Rebuild a study's table and report, or the index of all reports if no study is named.

    With --tracking-uri, the results are read from MLflow, even if the study is not in the storage.
    The files of such a study are written to --out, if given.

    Args:
        study: name of a submitted study, such as scaling (default: the index of all reports)
        out: folder for the files of a study that is not in the storage
    """
    if not study:
        for flag, value in (("out", out), ("tracking_uri", tracking_uri)):
            if value:
                raise invalid(
                    flag, value, "no value, or the name of a study too: the index is in the storage"
                )
        store = open_existing(storage)
        if not (studies := store.list_studies()):
            raise invalid("storage", store.root, "a storage with a study, which `gram run` submits")
        from gram_platform.pages.index import write_index

        index = write_index(store.open_for_writing())
        if as_json:
            say_json({"index": index, "studies": studies})
        else:
            say(index)
        return
    from gram_platform.cli.reports import rebuild_report, report_from_mlflow

    if tracking_uri and study not in Store(storage_place(storage)).list_studies():
        report_from_mlflow(study, tracking_uri, out, as_json)
        return
    if out:
        raise invalid(
            "out", out, f"no value: the storage has the study {study}, and its files stay there"
        )
    rebuild_report(open_existing(storage), study, tracking_uri, as_json)


def search_command(storage: Storage = "") -> None:
    """List the searches of a storage, and the process that drives each of them."""
    from gram_platform.studies.searches.driver_lease import search_lines

    store = open_existing(storage)
    say("\n".join(search_lines(store)) or f"{store.root}: no searches")


def replicate_command(
    folder: Positional[Place] = "", out: str = "replication", beside_published: Switch = True
) -> None:
    """Make tables, claims and reports from losses measured elsewhere, without training.

    Args:
        folder: folder with losses.csv and curves.jsonl; see the page "Numbers that were
            measured elsewhere"; default: the compute ratios per seed from the paper's authors
        out: folder for the reports and tables, which becomes a storage
        beside_published: show the study's published results too; --no-beside-published omits them
    """
    from gram_platform.cli.reports import write_replicated

    write_replicated(folder, out, beside_published)
