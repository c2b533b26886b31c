"""A page as one string of HTML that needs nothing else: no network, no server, no other file.

Every text that comes from data is escaped. plotly.js is written into the page once, figures as JSON that a few lines
of script draw when they come into view.
"""

import html
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

import pandas as pd
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

LONG = 40  # letters of a cell that may be broken


@dataclass(frozen=True)
class Section:
    """A heading, what it says, figures side by side, ready HTML, and the table behind them."""

    title: str
    text: str = ""
    figures: Sequence[go.Figure] = ()
    more_figures: Sequence[go.Figure] = ()  # folded away, under `more_label`
    more_label: str = "More"
    table: pd.DataFrame | None = None
    table_is_open: bool = False  # shown in full; otherwise folded under the figures
    is_warning: bool = False
    markup: str = ""  # HTML of ours, in which every text that comes from data is escaped


def page_html(title: str, intro: str, sections: Sequence[Section], footer: str = "") -> str:
    """The whole document. `intro` and `footer` are plain text; blank lines in them separate paragraphs."""
    numbering = iter(range(1_000_000))
    body = "".join(_section(section, numbering) for section in sections)
    files = resources.files(__package__)
    parts = (
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">',
        f"<title>{html.escape(title)}</title>",
        f"<style>{files.joinpath('page.css').read_text(encoding='utf-8')}</style>",
        f"</head><body><header><h1>{html.escape(title)}</h1>{_paragraphs(intro)}</header>",
        f"<main>{body}</main><footer>{_paragraphs(footer)}</footer>",
        f"<script>{get_plotlyjs()}</script>",
        f"<script>{files.joinpath('page.js').read_text(encoding='utf-8')}</script>",
        "</body></html>",
    )
    return "\n".join(parts) + "\n"


def table_html(frame: pd.DataFrame, caption: str) -> str:
    """A frame as a table. A column `<name>_url` makes links of column `<name>` where it holds an http(s) address."""
    names = [c for c in frame.columns if not (c.endswith("_url") and c.removesuffix("_url") in frame.columns)]
    classes = {c: _class(frame[c]) for c in names}
    head = "".join(f'<th scope="col"{classes[c]}>{html.escape(str(c).replace("_", " "))}</th>' for c in names)
    rows = []
    for record in frame.to_dict("records"):
        cells = (f"<td{classes[c]}>{_cell(record[c], record.get(f'{c}_url'))}</td>" for c in names)
        rows.append(f"<tr>{''.join(cells)}</tr>")
    label = html.escape(caption)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{label}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _class(column: pd.Series) -> str:
    """Numbers stand to the right; only sentences are broken into lines."""
    if pd.api.types.is_numeric_dtype(column):
        return ' class="number"'
    return ' class="long"' if column.map(lambda value: len(str(value))).max() > LONG else ""


def _section(section: Section, numbering) -> str:
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
        parts.append(f"<details><summary>The numbers ({len(section.table)} rows)</summary>{table}</details>")
    kind = ' class="warn"' if section.is_warning else ""
    return f"<section{kind}>{''.join(parts)}</section>"


def _figures(figures: Sequence[go.Figure], numbering) -> str:
    """Side by side: two in a row where that comes out even and three does not."""
    layout = "figures pairs" if len(figures) % 2 == 0 and len(figures) % 3 else "figures"
    return f'<div class="{layout}">{"".join(_figure(figure, next(numbering)) for figure in figures)}</div>'


def _figure(figure: go.Figure, number: int) -> str:
    label = html.escape(str(figure.layout.title.text or f"figure {number}"))
    source = str(figure.to_json()).replace("<", "\\u003c")  # so that no text in it can end the script element
    return (
        f'<figure><div class="plot" role="img" aria-label="{label}" data-source="figure-{number}"></div>'
        f'<script type="application/json" id="figure-{number}">{source}</script></figure>'
    )


def _paragraphs(text: str) -> str:
    return "".join(f"<p>{html.escape(part.strip())}</p>" for part in text.split("\n\n") if part.strip())


def _cell(value: object, url: object) -> str:
    text = html.escape(_text(value))
    if isinstance(url, str) and url.startswith(("http://", "https://")):
        return f'<a href="{html.escape(url)}">{text}</a>'
    return text


def _text(value: object) -> str:
    """Four significant digits for fractions, thousands apart for integers, nothing for what does not exist."""
    if isinstance(value, bool) or type(value).__name__ == "bool":
        return "yes" if value else "no"
    if value is None or (isinstance(value, numbers.Real) and value != value):
        return ""
    if isinstance(value, numbers.Integral):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, numbers.Real) else str(value)
