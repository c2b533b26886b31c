"""Writes `site/index.html` of a storage: a card for each study and search, with its links.

A card is made from `study.json` or `search.json` alone, which a submission writes with its report.
The index shows the picture that lies there too as an image, so that nothing of a study's folder
becomes markup of the page.
"""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

from gram_platform.config.identity import InvalidField, masked
from gram_platform.config.plain import from_plain
from gram_platform.config.terminal import warn
from gram_platform.pages.report.card import PICTURE_FILE
from gram_platform.pages.report.page import CLAIMS_FILE, REPORT_FILE, Page, Section, render
from gram_platform.pages.results.record import SEARCH_FILE, STUDY_FILE, Card
from gram_platform.paper.verdicts import VERDICTS
from gram_platform.store import CorruptFile, Folder, Store
from gram_platform.store.folders import open_folder
from gram_platform.store.root import HISTORY

SITE, INDEX_FILE = "site", "index.html"
# The files to which a card leads, by the text of the link.
LINKED_FILES = {"report": REPORT_FILE, "table.csv": "table.csv", "claims.csv": CLAIMS_FILE}
QUESTION = "Which capabilities of a language model can be switched off, and what does it cost?"


@dataclass(frozen=True)
class Shown:
    """A study or a search as the index shows it; addresses are relative to the index."""

    # These four are fields of its record.
    title: str
    question: str
    card: Card
    # Those that executed nodes, the newest last.
    submissions: tuple[Mapping, ...]
    # "" before they are written.
    report: str
    picture: str
    # Pairs of a text and an address.
    links: tuple[tuple[str, str], ...]

    @property
    def submitted(self) -> str:
        """When it was submitted last, ISO 8601; "" if nothing was executed."""
        return str(self.submissions[-1].get("started", "")) if self.submissions else ""

    @property
    def verdicts(self) -> str:
        """The number of claims of each verdict; "" without claims."""
        counts = self.card.verdicts
        return ", ".join(f"{counts[name]} {name}" for name in VERDICTS if counts.get(name))


def write_index(store: Store) -> str:
    """Writes the index of a storage; returns its path or URL. OSError if it cannot be written."""
    site = open_folder(store.root, writable=True).child(SITE)
    site.write(INDEX_FILE, index_page(store).html().encode(), durable=False)
    return site.address(INDEX_FILE)


def index_page(store: Store) -> Page:
    """Makes the index of a storage."""
    now = datetime.datetime.now(datetime.UTC)
    place = masked(store.root)
    intro = f"{QUESTION}\n\nStudies and searches of the storage {place}, {now:%Y-%m-%d %H:%M} UTC."
    sections = [
        Section(title, markup=render("cards.html", cards=found))
        for title, found in zip(("Studies", "Searches"), read_shown(store), strict=True)
        if found
    ]
    nothing = Section("Studies", "None has been submitted.")
    return Page("Studies and searches", intro, sections or [nothing])


def read_shown(store: Store) -> tuple[list[Shown], list[Shown]]:
    """Reads the studies and searches of a storage, by name. Warns of an unreadable record."""
    studies: list[Shown] = []
    searches: list[Shown] = []
    for name in store.list_studies():
        folder = store.study_dir(name)
        for found, file in ((studies, STUDY_FILE), (searches, SEARCH_FILE)):
            try:
                record = folder.read_json(file)
                if record is not None:
                    found.append(_shown(store, name, folder, record))
            except (CorruptFile, InvalidField) as error:
                warn(f"{error}: the index leaves {name} out", stacklevel=2)
    return studies, searches


def _shown(store: Store, name: str, folder: Folder, record: Mapping) -> Shown:
    place, files = f"../studies/{quote(name, safe='')}", set(folder.list())
    links = [(text, f"{place}/{file}") for text, file in LINKED_FILES.items() if file in files]
    for date, earlier in reversed(store.history_dirs(name).items()):
        if earlier.exists(REPORT_FILE):
            text = f"until {date[:10]} {date[11:13]}:{date[13:15]}"
            links.append((text, f"{place}/{HISTORY}/{date}/{REPORT_FILE}"))
    names = ("title", "question", "card", "submissions")
    plain = {name: record[name] for name in names if name in record} | {"links": links}
    for name, file in (("report", REPORT_FILE), ("picture", PICTURE_FILE)):
        plain[name] = f"{place}/{file}" if file in files else ""
    return from_plain(Shown, plain)
