"""Builds the site of a storage, once or repeatedly: an index of all studies and searches, and a page of all claims.

The site leads to the reports that studies and searches have written, and renders none again. Only the files that have
changed are written. `facts.py` reads the storage, `index.py` and `claims.py` turn facts into pages. Runs are in MLflow.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gram_platform.config.identity import invalid
from gram_platform.config.provenance import submissions_text
from gram_platform.pages.link_page import LINK_PAGE, link_page
from gram_platform.pages.report.page import closing_sections
from gram_platform.pages.results.record import run_links, sizes_text
from gram_platform.pages.site.claims import claims_page
from gram_platform.pages.site.facts import Facts, read_facts
from gram_platform.pages.site.folder import remove_former, write_changed, writing
from gram_platform.pages.site.index import LINKED, REPORT_FILE, Addresses, index_page
from gram_platform.store import Folder, Store
from gram_platform.store.folders import open_folder
from gram_platform.store.root import HISTORY
from gram_platform.tracking import Tracker, TrackingUnavailable, default_tracking_uri
from gram_platform.tracking.connection import opened_by

SITE, STUDIES = "site", "studies"  # the folder in the storage; that of studies, in the storage and in other sites
NAVIGATION = (("Overview", "index.html"), ("Claims", "claims.html"))


@dataclass(frozen=True)
class Built:
    """The result of building the site."""

    index: str  # the path or URL of the page to open
    num_runs: int
    num_written: int  # files
    problems: tuple[str, ...]  # studies whose claims could not be read


def build_site(store: Store, tracking_uri: str | None, out: str = "", facts: Facts | None = None) -> Built:
    """Writes the index, which says when it was built, and what else has changed into `out` (default: `site` there).

    They lead to the reports in the storage, or in another `out` to copies of these, and to MLflow at `tracking_uri`.
    ValueError if `out` cannot be written.
    """
    folder, num_written = _site_folder(store, out), 0
    with writing(folder):
        remove_former(folder)
        facts = facts or read_facts(store, folder)
        addresses, note = _addresses(facts, tracking_uri, "" if out else "../")
        titles = {study.name: (study.title, addresses.file(study, REPORT_FILE)) for study in facts.studies}
        claims = claims_page({study.name: study.claims for study in facts.studies}, titles)
        pages = {"index.html": index_page(facts, store.root, note, addresses, time.time()), "claims.html": claims}
        sizes = sizes_text(*(study.record.parameters for study in facts.studies if study.record))
        last = closing_sections(sizes, [(study.title, submissions_text(study.submissions)) for study in facts.studies])
        pages = {name: replace(page, sections=[*page.sections, *last]) for name, page in pages.items()}
        num_written += write_changed(folder, {name: page.html(NAVIGATION).encode() for name, page in pages.items()})
        for study in facts.studies if out else ():
            source, target = store.study_dir(study.name), folder.child(STUDIES, study.name)
            num_written += write_changed(target, {name: source.read(name) for name in LINKED if name in study.files})
            for date in study.history:
                page = {REPORT_FILE: source.child(HISTORY, date).read(REPORT_FILE)}
                num_written += write_changed(target.child(HISTORY, date), page)
        num_written += _write_link_page(store, tracking_uri, out)
    problems = tuple(study.problem for study in facts.studies if study.problem)
    return Built(folder.address("index.html"), len(facts.runs), num_written, problems)


def _addresses(facts: Facts, tracking_uri: str | None, root: str) -> tuple[Addresses, str]:
    """Returns where links lead, and a sentence on what those into MLflow need, or why there are none.

    `root`: from the index to the folder of studies and of the page that leads to MLflow.
    """
    tracker = Tracker(tracking_uri) if tracking_uri else None
    links, note = run_links(tracker, root + LINK_PAGE)
    views = {}
    with suppress(TrackingUnavailable):
        if tracker and links:
            views = {study.name: tracker.view_urls(study.name, root + LINK_PAGE) for study in facts.studies}
    return Addresses(f"{root}{STUDIES}/", links, views), note


def _write_link_page(store: Store, tracking_uri: str | None, out: str) -> int:
    """Makes the page that leads to a database's pages, unless there is one, which may know where MLflow is open now.

    Returns the number of files written into `out`, which gets a copy.
    """
    if tracking_uri is None or tracking_uri.startswith("http"):
        return 0
    root = open_folder(store.root, writable=True)
    if not root.exists(LINK_PAGE):
        root.write(LINK_PAGE, link_page("", opened_by(tracking_uri)), durable=False)
    return write_changed(open_folder(out, writable=True), {LINK_PAGE: root.read(LINK_PAGE)}) if out else 0


def watch_site(
    store: Store, tracking_uri: str | None, every_s: float, say: Callable[[str], None], out: str = ""
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
            built = build_site(store, tracking_uri, out, facts)
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
