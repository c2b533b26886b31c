"""`gram sync`, `report` and `search`: MLflow, tables, and the drivers of searches."""

from gram_platform.cli.flags import Positional, Storage, TrackingUri, stored
from gram_platform.cli.site import site_command
from gram_platform.config.identity import invalid, require_choice
from gram_platform.pages.results.record import load_record
from gram_platform.studies.measurements import MEASUREMENTS
from gram_platform.studies.searches.control import ACTIONS, give_order, search_lines
from gram_platform.tracking import Tracker, default_tracking_uri


def sync_command(storage: Storage = "", tracking_uri: TrackingUri = "") -> None:
    """Bring MLflow up to the run directories; sending again changes nothing.

    Args:
        storage: folder or URL of the storage
        tracking_uri: MLflow server or database
    """
    store = stored(storage)
    tracker = Tracker(tracking_uri or default_tracking_uri(store.root))
    tracker.prepare_database()
    counts = tracker.sync(store)
    print(f"{tracker.tracking_uri}: {counts['sent']} sent, {counts['unchanged']} unchanged")


def report_command(
    study: Positional[str] = "",
    storage: Storage = "",
    tracking_uri: TrackingUri = "",
    out: str = "",
    watch: float = 0.0,
) -> None:
    """Without a study: build the site of the whole storage. With one: its table and report again, from what is stored.

    Args:
        study: name of a study that was submitted, such as scaling
        storage: folder or URL of the storage
        tracking_uri: MLflow server or database
        out: folder of the site; default: `site` in the storage
        watch: build the site again every so many seconds if something has changed, until interrupted
    """
    if not study:
        site_command(storage, tracking_uri, out, watch)
        return
    if out or watch:
        raise invalid("study", study, "no value with --out or --watch, which build the whole site")
    _report_study(study, storage, tracking_uri)


def _report_study(study: str, storage: str, tracking_uri: str) -> None:
    store = stored(storage).open_for_writing()
    record = load_record(store, study)
    uri = tracking_uri or default_tracking_uri(store.root)
    measurement = MEASUREMENTS[record.measurement]
    results = measurement.read(record, store, uri)
    if results is None:
        raise invalid("study", study, "a study with a complete baseline and its evaluation")
    failures = {i: failure["message"] for i in record.ids if (failure := store.run(i).failure())}
    paths = measurement.write(record, store, results, failures, Tracker(uri) if results.source == "MLflow" else None)
    print(measurement.text(record, results))
    print("\n".join(f"{name:12} {path}" for name, path in paths.items()))
    print(f"read from {results.source}")


def search_command(action: Positional[str] = "list", search: Positional[str] = "", storage: Storage = "") -> None:
    """The searches of a storage, or an order to the driver of one.

    Args:
        action: list; pause (start no more trials), resume, or cancel (end now; submitting again goes on)
        search: id or name of the search
        storage: folder or URL of the storage
    """
    require_choice("action", action, ACTIONS)
    store = stored(storage)
    if action == "list":
        print("\n".join(search_lines(store)) or f"{store.root}: no searches")
        return
    search_id = give_order(store.open_for_writing(), action, search)
    print(f"{action}: {search_id} is told")
