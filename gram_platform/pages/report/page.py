"""Renders a page as one HTML file that loads no other files.

The templates in `pages/templates` escape every text that is not `Markup`. A page with figures
includes plotly.js. Figures are stored as JSON, and `page.js` draws each one when it scrolls into
view.
"""

import hashlib
import numbers
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from itertools import count, repeat

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from gram_platform.analysis.ratios import ELICITED
from gram_platform.analysis.tables import label_methods, table_csv
from gram_platform.paper.verdicts import UNWRITTEN, verdicts_text

# Longer cells may wrap. An interval has 23 letters.
LONG_TEXT = 26
PLOTLY = "plotly.min.js"
FEW_SECTIONS = 3
HOW_TO_READ = "How to read"
SOURCE_ID = "source"
REPORT_FILE, CLAIMS_FILE = "report.html", "claims.csv"
# A tag in JSON that our figures do not use, such as <a>, which plotly would link. Its < may be
# escaped.
_OTHER_TAG = re.compile(
    r"(?<!\\)((?:\\\\)*)(?:<|\\u003c)(?!(?:/|\\u002f)?(?:b|i|br|sub|sup|extra)(?:>|\\u003e))"
)
_ADDRESS = re.compile(r"https?://\S+|(\.\./)*\w[\w+.=@/-]*\.(html|csv)(#[\w/?=&.%-]+)?", re.ASCII)


@dataclass(frozen=True)
class Section:
    """A section of a page: a heading, text, figures, markup and a table.

    If the table has columns `<name>` and `<name>_url`, the address in `<name>_url` turns the cell
    of `<name>` into a link. Only web addresses and relative .html or .csv paths are accepted.
    """

    title: str
    text: str = ""
    figures: Mapping[str, go.Figure] = field(default_factory=dict)
    more_figures: Mapping[str, go.Figure] = field(default_factory=dict)
    more_label: str = "More"
    table: pd.DataFrame | None = None
    table_is_open: bool = False
    is_warning: bool = False
    # From `render`. Other text is escaped.
    markup: str = ""


@dataclass(frozen=True)
class Page:
    """The page of a study or search, or the index. Blank lines in texts separate paragraphs.

    `claims` is the content of `claims.csv`, or None. `source` lists the command, code and machine
    that produced the numbers. `facts` describes the settings. `answers` and `lead` come before all
    other sections.
    """

    title: str
    intro: str
    sections: Sequence[Section]
    claims: pd.DataFrame | None = None
    source: str = ""
    facts: str = ""
    answers: Sequence[str] = ()
    lead: Sequence[Section] = ()

    @property
    def all_sections(self) -> Sequence[Section]:
        if not (self.facts or self.source):
            return (*self.lead, *self.sections)
        about = render("setup.html", facts=self.facts, source=self.source, id=SOURCE_ID)
        return (*self.lead, Section("Set-up", markup=about), *self.sections)

    @property
    def figures(self) -> dict[str, go.Figure]:
        figures: dict[str, go.Figure] = {}
        for section in self.all_sections:
            figures |= {**section.figures, **section.more_figures}
        return figures

    @property
    def files(self) -> dict[str, bytes]:
        page = {REPORT_FILE: self.html().encode()}
        if self.claims is not None:
            written = self.claims.drop(columns=UNWRITTEN, errors="ignore")
            page[CLAIMS_FILE] = table_csv(written).encode()
        return page

    def html(self) -> str:
        """Renders the page. Browsers run only scripts that carry its nonce.

        The nonce is a hash of the page's texts, so that no text can contain it.
        """
        has_claims = self.claims is not None and self.claims["verdict"].any()
        counted = [verdicts_text(Counter(self.claims["verdict"]))] if has_claims else []
        sections = self.all_sections
        parts = {
            "intro": _paragraphs(self.intro),
            "answer": _paragraphs("\n\n".join([*self.answers, *counted])),
            "main": sections_html(sections, f"#{SOURCE_ID}" if self.source else ""),
            "title": self.title,
            "contents": _contents(sections),
        }
        nonce = hashlib.sha256("\0".join(parts.values()).encode()).hexdigest()[:32]
        scripts = (PLOTLY, "page.js") if self.figures else ("page.js",)
        return str(render("page.html", **parts, scripts=scripts, nonce=nonce))


def section_by_size(
    title: str,
    text: str,
    figures: Mapping[str, Mapping[str, go.Figure]],
    table: pd.DataFrame,
    table_is_open: bool = False,
) -> Section:
    """Makes a section that shows the figures of the last size and collapses all others.

    `figures` is {size: {name: figure}}.
    """
    *others, last = figures
    folded = {name: figure for size in others for name, figure in figures[size].items()}
    return Section(title, text, figures[last], folded, "The other sizes", table, table_is_open)


def sections_html(sections: Sequence[Section], source: str = "") -> Markup:
    """Renders sections. If `source` is not "", figures and tables link to this address."""
    anchors = _anchors(section.title for section in sections)
    parts = zip(sections, anchors, strict=True)
    return render("sections.html", sections=parts, number=count().__next__, source=source)


def terms_section(attacks: bool, intervals: str = "") -> Section:
    """Explains the terms of a page, including those of attacks if `attacks` is true.

    `intervals` is "jackknife", "fixed" (curves), or "" to omit intervals.
    """
    markup = render("terms.html", attacks=attacks, intervals=intervals)
    return Section(HOW_TO_READ, markup=markup)


def render(template: str, **values: object) -> Markup:
    return Markup(_templates().get_template(template).render(values))


def asset(name: str) -> str:
    """Returns the source of `page.css`, `page.js` or plotly.js."""
    if name == PLOTLY:
        return get_plotlyjs()
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=PackageLoader("gram_platform.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = {"cells": _cells, "paragraphs": _paragraphs, "figure_json": _figure_json}
    templates.filters |= {**filters, "anchor": anchor_of}
    templates.globals["asset"] = lambda name: Markup(asset(name))
    return templates


def _paragraphs(text: str) -> Markup:
    parts = (part.strip() for part in text.split("\n\n"))
    return Markup().join(Markup("<p>{}</p>").format(part) for part in parts if part)


def _contents(sections: Sequence[Section]) -> Markup:
    titles = [section.title for section in sections]
    if len(titles) <= FEW_SECTIONS:
        return ""
    return render("contents.html", sections=zip(titles, _anchors(titles), strict=True))


def _anchors(titles: Iterable[str]) -> list[str]:
    anchors, counts = [], Counter()
    for anchor in map(anchor_of, titles):
        counts[anchor] += 1
        anchors.append(anchor if counts[anchor] == 1 else f"{anchor}--{counts[anchor]}")
    return anchors


def anchor_of(title: str) -> str:
    """Returns the HTML id of the first section titled `title`, such as `how-to-read`."""
    return "-".join(re.findall(r"\w+", title.lower())) or "section"


def _figure_json(figure: go.Figure) -> Markup:
    """Returns a figure's JSON, escaped so that it cannot close its script element.

    Tags other than <b>, <i>, <br>, <sub>, <sup> and <extra> are shown as text.
    """
    text = _OTHER_TAG.sub(r"\1&lt;", str(figure.to_json()))
    return Markup(text.replace("<", "\\u003c"))


def _cells(table: pd.DataFrame) -> tuple[list[tuple[str, str]], list[tuple]]:
    table = label_methods(table)
    heads, cells = [], []
    for name in table.columns:
        if name.endswith("_url") and name.removesuffix("_url") in table:
            continue
        texts = list(map(_text, table[name].tolist()))
        is_long = max(map(len, texts), default=0) > LONG_TEXT
        is_number = pd.api.types.is_numeric_dtype(table[name])
        kind = "number" if is_number else "long" if is_long else ""
        heads.append((kind, name.replace("_", " ")))
        addresses = map(_address, table[f"{name}_url"]) if f"{name}_url" in table else repeat("")
        cells.append(list(zip(repeat(kind), texts, addresses, strict=False)))
    return heads, list(zip(*cells, strict=True))


def _address(url: object) -> str:
    return url if isinstance(url, str) and _ADDRESS.fullmatch(url) else ""


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.4g}" if value == value else ""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, numbers.Integral):
        return f"{value:,}"
    return "" if value is None else str(value)


SHOWN_OF_RUNS = ["run_id", "run_id_url", "kind", "method", "size", "seed", "profile", "status"]
SHOWN_OF_RUNS += ["steps", "num_tokens", "elapsed", "tokens_per_second", "error"]
SHOWN_OF_ATTACKS = ["run_id", "run_id_url", "method", "size", "seed", "profile"]
SHOWN_OF_ATTACKS += ["attacked_for", "best_loss", "status", "elapsed", "error"]


def is_attack(runs: pd.DataFrame) -> pd.Series:
    return runs.get(ELICITED, pd.Series("", runs.index)).fillna("") != ""


def readable_runs(runs: pd.DataFrame) -> pd.DataFrame:
    runs = _with_clock(runs)
    for name in ("num_tokens", "tokens_per_second"):
        if name in runs:
            runs = runs.assign(**{name: ["" if n != n else f"{round(n):,}" for n in runs[name]]})
    runs = runs[~is_attack(runs)]
    if "kind" in runs:
        runs = runs.sort_values("kind", key=lambda kinds: kinds != "run", kind="stable")
    return runs.filter(SHOWN_OF_RUNS)


def readable_attacks(runs: pd.DataFrame) -> pd.DataFrame:
    attacks = _with_clock(runs)[is_attack(runs)].rename(columns={ELICITED: "attacked_for"})
    return attacks.filter(SHOWN_OF_ATTACKS)


def _with_clock(runs: pd.DataFrame) -> pd.DataFrame:
    return runs.assign(elapsed=runs["elapsed_s"].map(_clock)) if "elapsed_s" in runs else runs


def _clock(seconds: float) -> str:
    if seconds != seconds:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
