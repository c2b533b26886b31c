"""Renders sections as one HTML document, either self-contained or as a page of a site.

The templates of `pages/templates` escape every text that is not `Markup`. Figures are JSON that `page.js` draws when
they come into view; plotly.js stands in a self-contained page once, or beside the pages of a site.
"""

import json
import numbers
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import count, repeat

import pandas as pd
import plotly.graph_objects as go
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

LONG = 26  # letters of a cell that may be broken: an interval has 23
PLOTLY = "plotly.min.js"
ASSETS = ("page.css", "page.js", PLOTLY)  # shared by the pages of a site
_ADDRESS = re.compile(r"https?://\S+|(\.\./)*\w[\w+.=@/-]*\.(html|csv)(#[\w-]+)?", re.ASCII)

# plain data beside the libraries' objects, which take too long to make for thousands of pages
Figure = go.Figure | Mapping  # plotly's JSON form {"data": [...], "layout": {...}}
Table = pd.DataFrame | Mapping[str, Sequence]  # {column: values}, all of one length


@dataclass(frozen=True)
class Section:
    """A heading with its text, figures side by side, markup, and the table behind them.

    A column `<name>_url` of the table makes links of column `<name>` where it holds an http(s) address or that of a
    page nearby.
    """

    title: str
    text: str = ""
    figures: Sequence[Figure] = ()
    more_figures: Sequence[Figure] = ()  # folded away, under `more_label`
    more_label: str = "More"
    table: Table | None = None
    table_is_open: bool = False  # shown in full; otherwise folded under the figures
    is_warning: bool = False
    markup: str = ""  # `Markup` of `render`; other text is escaped


@dataclass(frozen=True)
class Shell:
    """A site around a page: its folder, which holds `ASSETS`, and its navigation."""

    root: str = ""  # the way from the page to the folder: "" or "../"
    links: Sequence[tuple[str, str]] = ()  # (label, address in the folder) of the navigation
    current: str = ""  # the label that the page belongs to


def page_html(title: str, intro: str, sections: Sequence[Section], footer: str = "", shell: Shell | None = None) -> str:
    """Renders the whole document. `intro` and `footer` are plain text; blank lines in them separate paragraphs.

    Without a `shell` it is self-contained; with one, `ASSETS` lie in the shell's folder.
    """
    has_figures = any(section.figures or section.more_figures for section in sections)
    return document(title, _paragraphs(intro), sections_html(sections), _paragraphs(footer), shell, has_figures)


def document(
    title: str, intro: Markup, main: Markup, footer: Markup, shell: Shell | None, has_figures: bool = True
) -> str:
    """Renders a document from its rendered parts."""
    scripts = ("page.js",) if shell and not has_figures else (PLOTLY, "page.js")
    return str(render("page.html", title=title, intro=intro, main=main, footer=footer, shell=shell, scripts=scripts))


def sections_html(sections: Sequence[Section]) -> Markup:
    """Renders sections one after the other; the address of each is its title in small letters."""
    anchors = _anchors(section.title for section in sections)
    return render("sections.html", sections=zip(sections, anchors, strict=True), number=count().__next__)


def table_html(table: Table, caption: str) -> Markup:
    """Renders one table, with links as in a `Section`."""
    return _templates().get_template("table.html").module.table_of(table, caption, is_folded=False)


def render(template: str, **values: object) -> Markup:
    """Fills a template of `pages/templates`, escaping every text in `values` that is not `Markup`."""
    return Markup(_templates().get_template(template).render(values))


def asset(name: str) -> str:
    """Reads one of `ASSETS`."""
    if name == PLOTLY:
        return get_plotlyjs()
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def figure_title(figure: Figure) -> str:
    title = figure.layout.title.text if isinstance(figure, go.Figure) else figure["layout"]["title"]["text"]
    return str(title or "")


@cache
def _templates() -> Environment:
    blocks = {"trim_blocks": True, "lstrip_blocks": True}
    loader = PackageLoader("gram_platform.pages")
    found = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, **blocks)
    found.filters |= {"cells": _cells, "paragraphs": _paragraphs}
    found.filters |= {"figure_title": figure_title, "figure_json": _figure_json}
    found.globals["asset"] = lambda name: Markup(asset(name))
    return found


def _paragraphs(text: str) -> Markup:
    parts = (part.strip() for part in text.split("\n\n"))
    return Markup().join(Markup("<p>{}</p>").format(part) for part in parts if part)


def _anchors(titles: Iterable[str]) -> list[str]:
    """Makes an id for each title, no two alike: its words in small letters, numbered from the second time on."""
    anchors, seen = [], Counter()
    for title in titles:
        anchor = "-".join(re.findall(r"\w+", title.lower())) or "section"
        seen[anchor] += 1
        anchors.append(anchor if seen[anchor] == 1 else f"{anchor}--{seen[anchor]}")
    return anchors


def _figure_json(figure: Figure) -> Markup:
    text = figure.to_json() if isinstance(figure, go.Figure) else json.dumps(figure, separators=(",", ":"))
    return Markup(str(text).replace("<", "\\u003c"))  # no text in it can end the script element


# --------------------------------------------------------------------------------------------------------------- tables


def _cells(table: Table) -> tuple[list[tuple[str, str]], list[tuple]]:
    """Returns (heads as (CSS class, name), rows of cells as (CSS class, text, address or "")).

    Class `number` aligns to the right; class `long` breaks sentences into lines.
    """
    columns, heads, cells = _columns(table), [], []
    for name, (values, is_number) in columns.items():
        if name.endswith("_url") and name.removesuffix("_url") in columns:
            continue
        texts = list(map(_text, values))
        kind = "number" if is_number else "long" if max(map(len, texts), default=0) > LONG else ""
        heads.append((kind, name.replace("_", " ")))
        addresses = map(_address, columns[f"{name}_url"][0]) if f"{name}_url" in columns else repeat("")
        cells.append(list(zip(repeat(kind), texts, addresses, strict=False)))
    return heads, list(zip(*cells, strict=True))


def _columns(table: Table) -> dict[str, tuple[Sequence, bool]]:
    """Returns {name: (values, whether they are numbers)}."""
    if isinstance(table, pd.DataFrame):
        is_number = pd.api.types.is_numeric_dtype
        return {str(name): (table[name].tolist(), is_number(table[name])) for name in table.columns}
    return {
        name: (values, all(type(v) in (int, float) for v in values) and len(values) > 0)
        for name, values in table.items()
    }


def _address(url: object) -> str:
    return url if isinstance(url, str) and _ADDRESS.fullmatch(url) else ""


def _text(value: object) -> str:
    """Writes fractions with four significant digits, integers with commas, NaN and None as ""."""
    if type(value) is str:
        return value
    if type(value) is float:  # these two first: a site has a million cells
        return f"{value:.4g}" if value == value else ""
    if isinstance(value, bool) or type(value).__name__ == "bool":
        return "yes" if value else "no"
    if value is None or (isinstance(value, numbers.Real) and value != value):
        return ""
    if isinstance(value, numbers.Integral):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, numbers.Real) else str(value)
