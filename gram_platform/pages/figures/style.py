"""Styles every figure: colours, markers and dashes, and a layout for light and dark pages.

Colours are Okabe and Ito's set for colour-blind readers, without black and yellow, which vanish on
a dark or a white page. Markers and dashes differ too, so that no series is told by colour alone.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from textwrap import wrap
from typing import NamedTuple
from urllib.parse import quote

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from gram_platform.analysis.tables import points_of, table_csv
from gram_platform.config import core_first
from gram_platform.methods import method_label

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, GREY = "#CC79A7", "#56B4E9", "#8C8C8C"
# Both are readable on white; a dark page recolours them.
INK, GRID = "#5f6368", "rgba(128, 128, 128, 0.28)"
# What a legend calls a published value.
IN_PAPER = "the paper, at its scale"
# Pixels: of a figure, a row of its legend, a further line of its title.
HEIGHT, LEGEND_ROW, TITLE_ROW = 360, 20, 18
# Letters in a further line of a title, in the narrowest figure.
TITLE_LETTERS = 64
# Steps of a decade, each closer than those before.
TICK_STEPS = (
    (1, 2, 5),
    (1, 1.5, 2, 3, 4, 6, 8),
    *([1 + i / n for i in range(9 * n)] for n in (2, 5, 10)),
)


class Style(NamedTuple):
    """The look of one series."""

    label: str
    colour: str
    symbol: str
    dash: str


class Hover(NamedTuple):
    """What a series shows below the pointer."""

    # Columns for each point.
    data: np.ndarray | None
    # The text, which names some of them.
    template: str | None


NO_HOVER = Hover(None, None)
_LOOKS = {
    "baseline": (GREY, "circle", "dot"),
    "filtering": (ORANGE, "square", "dash"),
    "gram": (BLUE, "circle", "solid"),
    "gram_subsets": (BLUE, "circle-open", "dashdot"),
    "gram_lora": (SKY, "circle-open", "longdash"),
    "ft_full": (VERMILION, "diamond", "dashdot"),
    "ft_lora": (GREEN, "triangle-up", "dash"),
    "ft_mlp": (GREEN, "triangle-up-open", "dot"),
    "maxent": (PURPLE, "x", "longdashdot"),
    "rmu": (PURPLE, "x-open", "dot"),
    "graddiff": (VERMILION, "cross-open", "longdash"),
    "demix": (VERMILION, "cross", "dot"),
}
METHOD_STYLES = {method: Style(method_label(method), *look) for method, look in _LOOKS.items()}
DOMAIN_COLOURS = (GREY, BLUE, ORANGE, GREEN, PURPLE, VERMILION, SKY)
DOMAIN_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star")
DOMAIN_DASHES = ("solid", "dash", "dot", "dashdot")


def method_style(method: str) -> Style:
    """Returns the style of a method; grey for an unknown name."""
    return METHOD_STYLES.get(method, Style(method, GREY, "star", "longdash"))


def domain_styles(domains: Sequence[str]) -> dict[str, Style]:
    """Returns a style for each domain: core grey and first, then by name; colours repeat after
    seven, dashes shift."""
    styles = {}
    for i, domain in enumerate(core_first(tuple(dict.fromkeys(domains)))):
        lap, place = divmod(i, len(DOMAIN_COLOURS))
        dash = DOMAIN_DASHES[(lap + place) % len(DOMAIN_DASHES)]
        styles[domain] = Style(
            domain, DOMAIN_COLOURS[place], DOMAIN_SYMBOLS[(place + lap) % 7], dash
        )
    return styles


def translucent(colour: str, opacity: float = 0.18) -> str:
    """Turns `#RRGGBB` into an rgba() of that opacity."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {opacity})"


def styled(figure: go.Figure, title: str, x: str, y: str) -> go.Figure:
    """Gives the figure the common layout: transparent, as wide as its frame, the legend below."""
    legend = {
        "orientation": "h",
        "yref": "container",
        "y": 0.01,
        "yanchor": "bottom",
        "x": 0,
        "xanchor": "left",
    }
    legend |= {"tracegroupgap": 0}
    figure.update_layout(
        template="none",
        title={"text": title, "x": 0.02, "xanchor": "left", "font": {"size": 15}},
        font={
            "family": "system-ui, -apple-system, 'Segoe UI', sans-serif",
            "size": 12,
            "color": INK,
        },
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        autosize=True,
        height=HEIGHT,
        margin={"l": 56, "r": 16, "t": 44 + TITLE_ROW * title.count("<br>"), "b": 52},
        legend=legend,
        hoverlabel={"align": "left"},
    )
    for axis, text in ((figure.layout.xaxis, x), (figure.layout.yaxis, y)):
        axis.update(
            title={"text": text, "standoff": 8},
            gridcolor=GRID,
            zerolinecolor=GRID,
            linecolor=GRID,
            automargin=True,
            exponentformat="none",
            separatethousands=True,
        )
    return figure


def with_notes(title: str, notes: str) -> str:
    """Puts notes in small letters below a title, in lines that fit."""
    return "<br>".join([title, *(f"<sub>{part}</sub>" for part in wrap(notes, TITLE_LETTERS))])


def drawn(figures: Mapping[str, go.Figure]) -> dict[str, go.Figure]:
    """Leaves out the figures without data."""
    return {name: figure for name, figure in figures.items() if len(figure.data)}


def whiskers(
    values, low, high, color: str = GREY, thickness: float = 1.3, width: float | None = 3
) -> dict | None:
    """Returns error bars [n] from `low` to `high`.

    A value without an interval (NaN) has no bar; None if no value has one.
    """
    values, low, high = (np.asarray(numbers, float) for numbers in (values, low, high))
    if not np.isfinite(high - low).any():
        return None
    # Plotly leaves out the NaN of arrays. Of a list it makes null, and draws the caps of a bar
    # without length.
    return {
        "type": "data",
        "thickness": thickness,
        "width": width,
        "color": color,
        "array": high - values,
        "arrayminus": values - low,
    }


def log_axis(update: Callable, ticks: Sequence[float], texts: Sequence[str] = ()) -> None:
    """Makes an axis logarithmic with these ticks; `update` is `update_xaxes` or `update_yaxes`."""
    update(type="log", tickvals=ticks, ticktext=texts or list(map(_tick, ticks)))


def _tick(value: float) -> str:
    """Writes a tick with three significant digits and no exponent: 0.00005, 0.25, 2,000."""
    rounded = float(f"{value:.3g}")
    return (
        f"{rounded:,.0f}" if rounded.is_integer() else np.format_float_positional(rounded, trim="-")
    )


def with_table(figure: go.Figure, rows: pd.DataFrame, fractions: str | None = "%.6f") -> go.Figure:
    """Gives the figure the table that it draws, by `table_csv`, for the page's link below it."""
    return figure.update_layout(meta={"csv": quote(table_csv(rows, fractions))})


def size_axis(figure: go.Figure, rows: pd.DataFrame) -> None:
    """Labels the logarithmic axis of parameters with each `size` in the rows and its
    `parameters`."""
    counts = dict(zip(rows["size"], rows["parameters"].tolist(), strict=True))
    texts = [f"{size}<br>{_short(count)}" for size, count in counts.items()]
    log_axis(figure.update_xaxes, list(counts.values()), texts)
    figure.update_xaxes(title_text="name of the size, and its parameters")


def _short(count: float) -> str:
    """Writes 1,234,567 as 1.23M."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:g}"


def add_band(
    figure: go.Figure, x, low, high, style: Style, opacity: float = 0.18, group: str = ""
) -> None:
    """Adds the area between `low` and `high`; the legend hides it with this style's series."""
    figure.add_scatter(
        x=[*x, *x[::-1]],
        y=[*high, *low[::-1]],
        fill="toself",
        fillcolor=translucent(style.colour, opacity),
        line={"width": 0},
        mode="lines",
        hoverinfo="skip",
        legendgroup=style.label + group,
        showlegend=False,
    )


def add_line(
    figure: go.Figure, rows: pd.DataFrame, x: str, y: str, style: Style, hover: Hover = NO_HOVER
) -> None:
    """Adds a line of column `y` and its 90% intervals `<y>_low, <y>_high`: a band, or error bars
    for a single one."""
    low, high = rows[f"{y}_low"], rows[f"{y}_high"]
    is_sure = low.notna() & high.notna()
    has_band = is_sure.sum() > 1
    if has_band:
        add_band(figure, rows[x][is_sure], low[is_sure], high[is_sure], style)
    figure.add_scatter(
        x=rows[x],
        y=rows[y],
        name=style.label,
        legendgroup=style.label,
        mode="lines+markers",
        line={"color": style.colour, "dash": style.dash, "width": 2.5},
        marker={"symbol": style.symbol, "size": 9, "color": style.colour},
        error_y=(
            None
            if has_band
            else whiskers(rows[y], low, high, thickness=2, width=4, color=style.colour)
        ),
        customdata=hover.data,
        hovertemplate=hover.template,
    )
    add_points(figure, rows[x], points_of(rows, y), style.colour)


def add_points(figure: go.Figure, places: Iterable, points: Iterable[tuple], colour: str) -> None:
    """Marks the points of two seeds, which have no interval, at each of the places."""
    pairs = [(at, value) for at, pair in zip(places, points, strict=True) for value in pair]
    if pairs:
        marker = {"symbol": "circle-open", "size": 5, "color": colour}
        x, y = [at for at, _ in pairs], [value for _, value in pairs]
        figure.add_scatter(x=x, y=y, mode="markers", marker=marker, showlegend=False)


def add_paper_points(
    figure: go.Figure,
    x: Iterable,
    rows: pd.DataFrame,
    y: str,
    name: str,
    colour: str,
    offsetgroup: str | None = None,
) -> None:
    """Adds the paper's values, with their intervals, as hollow diamonds."""
    figure.add_scatter(
        x=x,
        y=rows[y],
        name=name,
        mode="markers",
        marker={"symbol": "diamond-open", "size": 9, "color": colour, "line": {"width": 2}},
        error_y=whiskers(rows[y], rows[f"{y}_low"], rows[f"{y}_high"]),
        hovertemplate="%{fullData.name}: %{y:.3f}<extra></extra>",
        offsetgroup=offsetgroup,
    )


def level_line(figure: go.Figure, level: float, name: str) -> None:
    """Adds a dotted horizontal line, named in the legend: a label would cover points."""
    line = {"color": GREY, "dash": "dot", "width": 1.5}
    figure.add_hline(y=level, line=line, name=name, showlegend=True, legendrank=2000)
    figure.update_layout(showlegend=True)


def reference_line(figure: go.Figure) -> None:
    """Adds the line at a compute ratio of 1, the baseline's by construction."""
    level_line(figure, 1.0, "baseline")


def padded_range(values: Iterable[float]) -> list[float]:
    """Returns the ends of an axis that holds the values and 5% on either side; NaN is ignored."""
    numbers = np.array([*values])
    low, high = float(np.nanmin(numbers)), float(np.nanmax(numbers))
    margin = 0.05 * max(high - low, 0.1)
    return [low - margin, high + margin]


def log_ticks(low: float, high: float, steps: Sequence[float] = ()) -> list[float]:
    """Returns round numbers for a logarithmic axis from `low` to `high`, both positive: these steps
    of each decade.

    By default 1, 2, 5, 10, 20, ..., and closer ones if fewer than three of them fit.
    """
    decades = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    ticks: list[float] = []
    for chosen in [steps] if steps else TICK_STEPS:
        ticks = [
            step * 10.0**decade
            for decade in decades
            for step in chosen
            if low <= step * 10.0**decade <= high
        ]
        if len(ticks) >= 3:
            break
    return ticks


def hover_runs(rows: pd.DataFrame) -> np.ndarray:
    """Returns the run ids of each row for a hover, one a line; blank without a column `runs`."""
    runs = rows["runs"] if "runs" in rows else pd.Series("", index=rows.index)
    return runs.fillna("").str.replace(", ", "<br>").to_numpy(object)


def ratio_hover(rows: pd.DataFrame, prefix: str, head: str, named: Sequence = ()) -> Hover:
    """Returns the hover of values, below a line `head`; `<prefix>low, <prefix>high` are their ends.

    The data have a column `named`, if given, which `head` may show, then the interval, the number
    of seeds, and the runs.
    """
    first = [named] if len(named) else []
    low, high, seeds, runs = (f"%{{customdata[{len(first) + i}]" for i in range(4))
    text = f"%{{y:.3f}} [{low}:.3f}}, {high}:.3f}}], {seeds}}} seeds<br>{runs}}}<extra></extra>"
    shown = rows[[f"{prefix}low", f"{prefix}high", "num_seeds"]].to_numpy(object)
    data = np.column_stack([*first, shown, hover_runs(rows)])
    return Hover(data, f"{head}<br>{text}")
