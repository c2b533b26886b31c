"""Builds the site of a storage, once or repeatedly, and writes only the pages whose facts have changed."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gram_platform.config.identity import invalid
from gram_platform.pages.results.record import run_links
from gram_platform.pages.site.facts import Facts, read_facts
from gram_platform.pages.site.folder import SiteFolder, writing
from gram_platform.pages.site.pages import Snapshot, write_overview, write_studies
from gram_platform.store import Folder, Store
from gram_platform.store.folders import open_folder
from gram_platform.tracking import Tracker, default_tracking_uri

SITE = "site"  # the folder in the storage


@dataclass(frozen=True)
class Built:
    """The result of building the site."""

    index: str  # the path or URL of the page to open
    num_runs: int
    num_written: int  # files
    problems: tuple[str, ...]  # studies whose results could not be read


def build_site(
    store: Store,
    tracking_uri: str | None,
    out: str = "",
    facts: Facts | None = None,
    *,
    measurements: Mapping[str, Any],
) -> Built:
    """Writes every page whose facts have changed into `out` (default: `site` in the storage).

    Links lead to MLflow at `tracking_uri`. ValueError if `out` cannot be written.
    """
    folder = _site_folder(store, out)
    with writing(folder):
        site = SiteFolder(folder)
        facts = facts or read_facts(store, folder)
        tracker = Tracker(tracking_uri) if tracking_uri else None
        snapshot = Snapshot(store, facts, tracker, *run_links(tracker), not out, measurements)
        summaries = write_studies(site, snapshot)
        write_overview(site, snapshot, summaries)
        site.finish()
    problems = tuple(summary["problem"] for summary in summaries.values() if summary["problem"])
    return Built(folder.address("index.html"), len(snapshot.facts.runs), site.num_written, problems)


def watch_site(
    store: Store,
    tracking_uri: str | None,
    every_s: float,
    say: Callable[[str], None],
    out: str = "",
    *,
    measurements: Mapping[str, Any],
) -> None:
    """Builds the site, and rebuilds it every `every_s` seconds if the storage has changed; never returns."""
    if not every_s > 0:
        raise invalid("watch", every_s, "a positive number of seconds")
    key = ""
    while True:
        started = time.monotonic()
        folder = _site_folder(store, out)
        with writing(folder):
            facts = read_facts(store, folder)
        if facts.key != key:
            key = facts.key
            built = build_site(store, tracking_uri, out, facts, measurements=measurements)
            say(f"{time.strftime('%H:%M:%S')} {built.num_written} files written: {built.index}")
        time.sleep(max(0.0, every_s - (time.monotonic() - started)))


def _site_folder(store: Store, out: str) -> Folder:
    return open_folder(out, writable=True) if out else open_folder(store.root, writable=True).child(SITE)


def tracking_of(store: Store, tracking_uri: str) -> str | None:
    """Returns MLflow's address: by default the storage's database, once it exists; None where there is none."""
    if tracking_uri:
        return tracking_uri
    has_database = store.is_local and (Path(store.root) / "mlflow.db").exists()
    return default_tracking_uri(store.root) if has_database else None
