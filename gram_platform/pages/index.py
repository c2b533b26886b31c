"""Writes `site/index.html` of a storage, with a card for each study and search.

A card has links, a one-sentence result and a small picture. Its texts come from `study.json` or
`search.json`, which each submission writes with its report. The picture is embedded as an image,
so that markup in a study's folder cannot enter the page.
"""

import datetime
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import numpy as np
import pandas as pd

from gram_platform.analysis.intervals import ENDS
from gram_platform.analysis.tables import CLASSES
from gram_platform.config import State
from gram_platform.config.identity import InvalidField, mask_secrets
from gram_platform.config.plain import from_plain
from gram_platform.config.space import TrialColumns
from gram_platform.config.terminal import warn
from gram_platform.methods.nodes import VARIANT
from gram_platform.pages.figures.study import HIDDEN
from gram_platform.pages.figures.style import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    VERMILION,
    method_style,
    ratio_end,
)
from gram_platform.pages.report.answers import answer_study, headline_rows
from gram_platform.pages.report.page import (
    CLAIMS_FILE,
    REPORT_FILE,
    Page,
    Section,
    render,
    terms_section,
)
from gram_platform.pages.results.record import SEARCH_FILE, STUDY_FILE, Card, Results
from gram_platform.paper.verdicts import verdicts_text
from gram_platform.store import CorruptFile, Folder, Store
from gram_platform.store.folders import open_folder
from gram_platform.store.root import HISTORY

SITE, INDEX_FILE = "site", "index.html"
LINKED_FILES = {"report": REPORT_FILE, "table.csv": "table.csv", "claims.csv": CLAIMS_FILE}
PICTURE_FILE = "card.svg"
# A row for each figure of the paper, from `Study.paper` and dry runs.
PAPER_FILE = "paper_figures.json"
# In pixels. STEP is the vertical distance between marks.
LEFT, RIGHT, TOP, STEP = 116.0, 368.0, 8.0, 10.0
SEARCH_HEIGHT = 150.0
# SVG path around the mark's centre, and colour, of each class or group.
MARK_LOOKS = (
    ("M-4.5,0a4.5,4.5 0 1 0 9,0a4.5,4.5 0 1 0 -9,0z", BLUE),
    ("M-4,-4h8v8h-8z", GREEN),
    ("M0,-5.5L5.5,0L0,5.5L-5.5,0z", VERMILION),
    ("M0,-5.5L5,4H-5z", PURPLE),
    ("M-5,-1.5h3.5v-3.5h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5z", ORANGE),
)
LEFT_ARROW, RIGHT_ARROW = "M4,-4L-4,0L4,4z", "M-4,-4L4,0L-4,4z"
QUESTION = "Which capabilities of a language model can be switched off, and what does it cost?"


@dataclass(frozen=True)
class Shown:
    """The card of a study or search. URLs are relative to the index."""

    title: str
    question: str
    card: Card
    submissions: tuple[Mapping, ...]
    # "" before they are written.
    report: str
    picture: str
    links: tuple[tuple[str, str], ...]

    @property
    def submission_time(self) -> str:
        """The start (ISO 8601) of the last submission that executed nodes. "" if there is none."""
        return str(self.submissions[-1].get("started", "")) if self.submissions else ""

    @property
    def verdicts(self) -> str:
        return verdicts_text(self.card.verdicts) if self.card.verdicts else ""


def write_index(store: Store) -> str:
    """Writes the index of a storage. Returns its path or URL. Raises OSError if writing fails."""
    site = open_folder(store.root, writable=True).child(SITE)
    site.write(INDEX_FILE, index_page(store).html().encode(), durable=False)
    return site.address(INDEX_FILE)


def index_page(store: Store) -> Page:
    now = datetime.datetime.now(datetime.UTC)
    place = mask_secrets(store.root)
    intro = f"{QUESTION}\n\nStudies and searches of the storage {place}, {now:%Y-%m-%d %H:%M} UTC."
    studies, searches = read_shown(store)
    sections = [
        Section(title, markup=render("cards.html", cards=cards))
        for title, cards in (("Studies", studies), ("Searches", searches))
        if cards
    ] or [Section("Studies", "None has been submitted.")]
    terms = [terms_section(attacks=True)] if studies else []
    paper = figures_of_paper({card.report for card in studies + searches})
    return Page("Studies and searches", intro, [*sections, *terms, paper])


def figures_of_paper(reports: Collection[str]) -> Section:
    """Lists the paper's figures with their `gram` commands. Links to our pages in `reports`."""
    table = pd.read_json(Path(__file__).with_name(PAPER_FILE))
    links = "../studies/" + table["our page"] + f"/{REPORT_FILE}"
    table["our page_url"] = links.where(links.isin(reports))
    text = "The cost is a dry run's. A page of ours is a link where this storage has it."
    return Section("The paper, figure by figure", text, table=table, table_is_open=True)


def read_shown(store: Store) -> tuple[list[Shown], list[Shown]]:
    """Returns (cards of studies, cards of searches). Warns about unreadable records."""
    studies: list[Shown] = []
    searches: list[Shown] = []
    for name in store.list_studies():
        folder = store.study_dir(name)
        for found, file in ((studies, STUDY_FILE), (searches, SEARCH_FILE)):
            try:
                record = folder.read_json(file)
                if record is not None:
                    found.append(_read_card(store, name, folder, record))
            except (CorruptFile, InvalidField) as error:
                warn(f"{error}: the index leaves {name} out", stacklevel=2)
    return studies, searches


def _read_card(store: Store, name: str, folder: Folder, record: Mapping) -> Shown:
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


class Mark(NamedTuple):
    x: float
    y: float
    look: tuple[str, str]
    ends: tuple[float, float] | None = None


class Label(NamedTuple):
    """A text in a card's picture. `anchor` is SVG's `text-anchor`."""

    x: float
    y: float
    anchor: str
    text: str


def describe_ratios(study: Results) -> tuple[str, str]:
    """Returns (the report's answers, SVG picture of all methods' compute ratios).

    Both are about the size, variant and profile of `headline_rows`. If there are no ratios, both
    are "".
    """
    main = headline_rows(study)
    if main.empty:
        return "", ""
    first = main.iloc[0]
    rows = study.table[~study.table["method"].isin(HIDDEN)]
    for name in ("size", "profile", *([VARIANT] if study.record.varies else [])):
        rows = rows[rows[name] == first[name]]
    return "\n\n".join(answer_study(study)), draw_ratios(rows)


def draw_ratios(rows: pd.DataFrame) -> str:
    names = [name for name in CLASSES if rows[name].notna().any()]
    end = ratio_end(rows[names].to_numpy(float).ravel())
    height = STEP * (len(names) + 1)

    def across(value: float) -> float:
        return float(np.interp(value, (0.0, end), (LEFT, RIGHT)))

    marks, labels = [], []
    for number, row in enumerate(rows.to_dict("records")):
        top, label = TOP + height * number, method_style(row["method"]).label
        labels.append(Label(LEFT - 8, top + height / 2 + 4, "end", label))
        for line, name in enumerate(names):
            value, low, high = (row[name + end] for end in ENDS)
            look, y = MARK_LOOKS[line], top + STEP * (line + 1)
            ends = (across(low), across(high)) if math.isfinite(high - low) else None
            if math.isfinite(value):
                marks.append(Mark(across(value), y, look, ends))
            arrows = ((LEFT, LEFT_ARROW) * (low < 0.0), (RIGHT, RIGHT_ARROW) * (high > end))
            marks += [Mark(x, y, (arrow, look[1])) for x, arrow in filter(None, arrows)]
    bottom = TOP + height * len(rows)
    labels += [Label(across(x), bottom + 16, "middle", f"{x:.2g}") for x in (0.0, 1.0, end)]
    return _draw("Compute ratios; dotted: the baseline", bottom, marks, labels, names, across(1.0))


def draw_trials(trials: pd.DataFrame, columns: TrialColumns) -> str:
    """Draws the complete trials of a `trials.csv` as an SVG picture.

    Shapes and colours show the values of the last column in `columns.groups`. The axes are the
    first two objectives. If there is only one objective, the first parameter is the horizontal
    axis. If an axis has no numbers, or no trial is complete, returns "".
    """
    varied, objectives = columns.parameters, columns.objectives
    names = objectives[:2] if len(objectives) > 1 else (*varied[:1], *objectives)
    numbers = [name for name in names if pd.api.types.is_numeric_dtype(trials[name])]
    trials = trials[trials["state"] == State.COMPLETE].dropna(subset=numbers)
    if len(numbers) < 2 or trials.empty:
        return ""
    x_name, y_name = numbers
    xs, ys = trials[x_name], trials[y_name]
    is_log = xs.min() > 0 and xs.max() / xs.min() >= 10
    bottom = TOP + SEARCH_HEIGHT
    right = _place(np.log(xs) if is_log else xs, LEFT + 10, RIGHT - 10)
    up = _place(ys, bottom - 10, TOP + 10)
    of_trials = trials[columns.groups[-1]].astype(str)
    groups = list(dict.fromkeys(of_trials))
    looks = {group: MARK_LOOKS[number % len(MARK_LOOKS)] for number, group in enumerate(groups)}
    marks = [Mark(x, y, looks[group]) for x, y, group in zip(right, up, of_trials, strict=True)]
    labels = [
        Label(LEFT - 8, TOP + 14, "end", f"{ys.max():.3g}"),
        Label(LEFT - 8, bottom - 6, "end", f"{ys.min():.3g}"),
        Label(LEFT + 10, bottom + 16, "start", f"{xs.min():.3g}"),
        Label(RIGHT, bottom + 16, "end", f"{xs.max():.3g}"),
    ]
    x_text, y_text = (name.replace("_", " ") for name in (x_name, y_name))
    title = f"Up: {y_text}; across: {x_text}{' (log)' if is_log else ''}"
    return _draw(title, bottom, marks, labels, groups, None)


def _draw(
    title: str,
    bottom: float,
    marks: Sequence[Mark],
    labels: Sequence[Label],
    series: Sequence[str],
    guide: float | None,
) -> str:
    legend = [(MARK_LOOKS[number % len(MARK_LOOKS)], name) for number, name in enumerate(series)]
    frame = {"left": LEFT, "right": RIGHT, "top": TOP, "bottom": bottom, "guide": guide}
    return str(render("card.svg", title=title, marks=marks, labels=labels, legend=legend, **frame))


def _place(values: pd.Series, first: float, last: float) -> list[float]:
    share = (values - values.min()) / (values.max() - values.min())
    return (first + (last - first) * share.fillna(0.5)).tolist()
