"""A page as one string of HTML that needs nothing else: no network, no server, no other file; or a page of a site.

Every text that comes from data is escaped. Figures are written as JSON that a few lines of script draw when they come
into view; plotly.js is in the page once, or beside the pages of a site.
"""

import html
import json
import numbers
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import zip_longest

import pandas as pd
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

LONG = 26  # letters of a cell that may be broken: an interval has 23
PLOTLY = "plotly.min.js"
ASSETS = ("page.css", "page.js", PLOTLY)  # what pages of a site share
_ADDRESS = re.compile(r"https?://\S+|(\.\./)*\w[\w+.=@/-]*\.(html|csv)(#[\w-]+)?", re.ASCII)

# plain data beside the libraries' objects, which take too long to make for thousands of pages
Figure = go.Figure | Mapping  # plotly's own {"data": [...], "layout": {...}}
Table = pd.DataFrame | Mapping[str, Sequence]  # {column: values}, all of one length


@dataclass(frozen=True)
class Section:
    """A heading, what it says, figures side by side, ready HTML, and the table behind them."""

    title: str
    text: str = ""
    figures: Sequence[Figure] = ()
    more_figures: Sequence[Figure] = ()  # folded away, under `more_label`
    more_label: str = "More"
    table: Table | None = None
    table_is_open: bool = False  # shown in full; otherwise folded under the figures
    is_warning: bool = False
    markup: str = ""  # HTML of ours, in which every text that comes from data is escaped


@dataclass(frozen=True)
class Shell:
    """What pages of one folder share: they refer to its files instead of carrying them, and to one another."""

    root: str = ""  # the way from the page to that folder: "" or "../"
    links: Sequence[tuple[str, str]] = ()  # (label, address in the folder) of the navigation
    current: str = ""  # the label that the page belongs to


def page_html(title: str, intro: str, sections: Sequence[Section], footer: str = "", shell: Shell | None = None) -> str:
    """The whole document. `intro` and `footer` are plain text; blank lines in them separate paragraphs.

    Without a `shell` it is self-contained; with one, `ASSETS` lie in the shell's folder.
    """
    body = sections_html(sections)
    has_figures = any(section.figures or section.more_figures for section in sections)
    parts = (
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">',
        f"<title>{html.escape(title)}</title>",
        _style(shell),
        f"</head>{body_html(shell)}",
        f"{navigation(shell)}<header><h1>{html.escape(title)}</h1>{_paragraphs(intro)}</header>",
        f'<main id="main" tabindex="-1">{body}</main><footer>{_paragraphs(footer)}</footer>',
        *_scripts(shell, has_figures),
        "</body></html>",
    )
    return "\n".join(parts) + "\n"


def sections_html(sections: Sequence[Section]) -> str:
    """The sections as a page has them, one after the other; each can be reached by its title in small letters."""
    numbering, anchors = iter(range(1_000_000)), _anchors(section.title for section in sections)
    return "".join(_section(*pair, numbering) for pair in zip(sections, anchors, strict=True))


def _anchors(titles: Iterable[str]) -> list[str]:
    """An id for each title, no two alike: its words in small letters, with a number from the second time on."""
    anchors, seen = [], Counter()
    for title in titles:
        anchor = "-".join(re.findall(r"\w+", title.lower())) or "section"
        seen[anchor] += 1
        anchors.append(anchor if seen[anchor] == 1 else f"{anchor}--{seen[anchor]}")
    return anchors


def body_html(shell: Shell | None) -> str:
    """The beginning of a body; its `data-runs` says where the figures' runs have their pages."""
    runs = f' data-runs="{shell.root}runs/"' if shell else ""
    return f'<body{runs}><a class="skip" href="#main">Skip to the content</a>'


def asset(name: str) -> str:
    """The text of one of `ASSETS`."""
    if name == PLOTLY:
        return get_plotlyjs()
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def navigation(shell: Shell | None) -> str:
    """The links of a shell, nothing without one."""
    if shell is None or not shell.links:
        return ""
    items = []
    for label, address in shell.links:
        mark = ' aria-current="page"' if label == shell.current else ""
        items.append(f'<a href="{html.escape(shell.root + address)}"{mark}>{html.escape(label)}</a>')
    return f'<nav aria-label="Site">{"".join(items)}</nav>'


def _style(shell: Shell | None) -> str:
    if shell is None:
        return f"<style>{asset('page.css')}</style>"
    return f'<link rel="stylesheet" href="{shell.root}page.css">'


def _scripts(shell: Shell | None, has_figures: bool) -> list[str]:
    names = ([PLOTLY] if has_figures or shell is None else []) + ["page.js"]
    if shell is None:
        return [f"<script>{asset(name)}</script>" for name in names]
    return [f'<script defer src="{shell.root}{name}"></script>' for name in names]


def table_html(table: Table, caption: str) -> str:
    """A table.

    A column `<name>_url` makes links of column `<name>` where it holds an http(s) address or that of a page nearby.
    """
    columns = _columns(table)
    heads, cells = [], []
    for name in (c for c in columns if not (c.endswith("_url") and c.removesuffix("_url") in columns)):
        values, is_number = columns[name]
        texts = list(map(_text, values))
        kind = ' class="number"' if is_number else _class(texts)
        heads.append(f'<th scope="col"{kind}>{html.escape(str(name).replace("_", " "))}</th>')
        if not is_number or f"{name}_url" in columns:
            addresses, _ = columns.get(f"{name}_url", ((), False))
            texts = [_cell(*pair) for pair in zip_longest(texts, addresses)]
        cells.append([f"<td{kind}>{text}</td>" for text in texts])
    rows = "".join(f"<tr>{''.join(row)}</tr>" for row in zip(*cells, strict=True))
    label = html.escape(caption)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{label}"><table>'
        f'<caption class="hidden">{label}</caption>'
        f"<thead><tr>{''.join(heads)}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _columns(table: Table) -> dict[str, tuple[Sequence, bool]]:
    """{name: (values, whether they are numbers)}."""
    if isinstance(table, pd.DataFrame):
        is_number = pd.api.types.is_numeric_dtype
        return {name: (table[name].tolist(), is_number(table[name])) for name in table.columns}
    numbers = (int, float)
    return {
        name: (values, all(type(v) in numbers for v in values) and len(values) > 0) for name, values in table.items()
    }


def num_rows(table: Table) -> int:
    return len(table) if isinstance(table, pd.DataFrame) else max(map(len, table.values()), default=0)


def _class(texts: Sequence[str]) -> str:
    """Only sentences are broken into lines; numbers stand to the right."""
    return ' class="long"' if max(map(len, texts), default=0) > LONG else ""


def _section(section: Section, anchor: str, numbering) -> str:
    parts = [f"<h2>{html.escape(section.title)}</h2>", _paragraphs(section.text)]
    if section.figures:
        parts.append(_figures(section.figures, numbering))
    if section.more_figures:
        inner = _figures(section.more_figures, numbering)
        parts.append(f"<details><summary>{html.escape(section.more_label)}</summary>{inner}</details>")
    parts.append(section.markup)
    if section.table is not None and section.table_is_open:
        parts.append(table_html(section.table, section.title))
    elif section.table is not None:
        table = table_html(section.table, section.title)
        parts.append(f"<details><summary>The table ({num_rows(section.table)} rows)</summary>{table}</details>")
    kind = ' class="warn"' if section.is_warning else ""
    return f'<section id="{anchor}"{kind}>{"".join(parts)}</section>'


def _figures(figures: Sequence[Figure], numbering) -> str:
    """Side by side: two in a row where that comes out even and three does not."""
    layout = "figures pairs" if len(figures) % 2 == 0 and len(figures) % 3 else "figures"
    return f'<div class="{layout}">{"".join(_figure(figure, next(numbering)) for figure in figures)}</div>'


def _figure(figure: Figure, number: int) -> str:
    label = html.escape(figure_title(figure) or f"figure {number}")
    text = figure.to_json() if isinstance(figure, go.Figure) else json.dumps(figure, separators=(",", ":"))
    source = str(text).replace("<", "\\u003c")  # so that no text in it can end the script element
    return (
        f'<figure><div class="plot" role="img" aria-label="{label}" data-source="figure-{number}"></div>'
        f'<script type="application/json" id="figure-{number}">{source}</script></figure>'
    )


def figure_title(figure: Figure) -> str:
    title = figure.layout.title.text if isinstance(figure, go.Figure) else figure["layout"]["title"]["text"]
    return str(title or "")


def _paragraphs(text: str) -> str:
    return "".join(f"<p>{html.escape(part.strip())}</p>" for part in text.split("\n\n") if part.strip())


def _cell(text: str, url: object) -> str:
    if isinstance(url, str) and _ADDRESS.fullmatch(url):
        return f'<a href="{html.escape(url)}">{html.escape(text)}</a>'
    return html.escape(text)


def _text(value: object) -> str:
    """Four significant digits for fractions, thousands apart for integers, nothing for what does not exist."""
    if type(value) is str:
        return value
    if type(value) is float:  # these two at once: a site has a million cells
        return f"{value:.4g}" if value == value else ""
    if isinstance(value, bool) or type(value).__name__ == "bool":
        return "yes" if value else "no"
    if value is None or (isinstance(value, numbers.Real) and value != value):
        return ""
    if isinstance(value, numbers.Integral):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, numbers.Real) else str(value)
