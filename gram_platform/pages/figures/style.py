"""Defines the colours, markers, dashes and layout of all figures, for light and dark pages.

The colours are Okabe and Ito's colour-blind-safe palette, without black (hard to see on dark pages)
and yellow (hard to see on white pages).
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
# A dark page recolours both.
INK, GRID = "#5f6368", "rgba(128, 128, 128, 0.28)"
IN_PAPER = "the paper, at its scale"
# Heights of a figure, a row of its legend and a further line of its title, in pixels.
HEIGHT, LEGEND_ROW, TITLE_ROW = 360, 20, 18
TITLE_LETTERS = 64
RATIO_END = 1.2
ARROWS = {"x": ("left", "right"), "y": ("down", "up")}
# Ticks of a decade, from far apart to close.
TICK_STEPS = (
    (1, 2, 5),
    (1, 1.5, 2, 3, 4, 6, 8),
    *([1 + i / n for i in range(9 * n)] for n in (2, 5, 10)),
)


class Style(NamedTuple):
    label: str
    colour: str
    symbol: str
    dash: str

    def line(self, width: float) -> dict:
        return {"color": self.colour, "dash": self.dash, "width": width}

    def marker(self, size: float) -> dict:
        return {"symbol": self.symbol, "size": size, "color": self.colour}


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
    "undo": (PURPLE, "square-open", "solid"),
    "demix": (VERMILION, "cross", "dot"),
    "sgtm": (SKY, "star", "dashdot"),
}
METHOD_STYLES = {method: Style(method_label(method), *look) for method, look in _LOOKS.items()}
DOMAIN_COLOURS = (GREY, BLUE, ORANGE, GREEN, PURPLE, VERMILION, SKY)
DOMAIN_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star")
DOMAIN_DASHES = ("solid", "dash", "dot", "dashdot")


def method_style(method: str) -> Style:
    return METHOD_STYLES.get(method, Style(method, GREY, "star", "longdash"))


def domain_styles(domains: Sequence[str]) -> dict[str, Style]:
    """Returns a style for each domain: core first, in grey, then the others sorted by name.

    Colours repeat after seven domains, with other symbols and dashes.
    """
    styles = {}
    for i, domain in enumerate(core_first(tuple(dict.fromkeys(domains)))):
        lap, place = divmod(i, 7)
        symbol, dash = DOMAIN_SYMBOLS[(lap + place) % 7], DOMAIN_DASHES[(lap + place) % 4]
        styles[domain] = Style(domain, DOMAIN_COLOURS[place], symbol, dash)
    return styles


def translucent(colour: str, opacity: float = 0.18) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {opacity})"


def lay_out(figure: go.Figure, title: str, x: str, y: str) -> go.Figure:
    """Applies the common layout: transparent background, full width, legend at the bottom."""
    legend = {
        "orientation": "h",
        "yref": "container",
        "y": 0.01,
        "yanchor": "bottom",
        "x": 0,
        "xanchor": "left",
        "tracegroupgap": 0,
    }
    # Further lines of a title go downwards, into the margin.
    top = {"x": 0.02, "xanchor": "left", "y": 1, "yanchor": "top", "pad": {"t": 14}}
    rows = TITLE_ROW * title.count("<br>")
    figure.update_layout(
        template="none",
        title={"text": title, "font": {"size": 15}, **top},
        font={
            "family": "system-ui, -apple-system, 'Segoe UI', sans-serif",
            "size": 12,
            "color": INK,
        },
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        autosize=True,
        height=HEIGHT + rows,
        margin={"l": 56, "r": 16, "t": 44 + rows, "b": 52},
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
    return "<br>".join([title, *(f"<sub>{part}</sub>" for part in wrap(notes, TITLE_LETTERS))])


def drop_empty(figures: Mapping[str, go.Figure]) -> dict[str, go.Figure]:
    return {name: figure for name, figure in figures.items() if len(figure.data)}


def whiskers(
    rows: pd.DataFrame,
    value: str,
    color: str = GREY,
    thickness: float = 1.3,
    width: float | None = 3,
    prefix: str | None = None,
) -> dict | None:
    """Returns error bars for the column `value`, from `<prefix>low` to `<prefix>high`.

    `prefix` is `<value>_` by default. Rows without an interval have no bar. Returns None if no row
    has an interval.
    """
    prefix = f"{value}_" if prefix is None else prefix
    names = (value, f"{prefix}low", f"{prefix}high")
    values, low, high = (rows[name].to_numpy(float) for name in names)
    if not np.isfinite(high - low).any():
        return None
    # In a list, plotly would draw the caps of a bar for NaN.
    return {
        "type": "data",
        "thickness": thickness,
        "width": width,
        "color": color,
        "array": high - values,
        "arrayminus": values - low,
    }


def log_axis(update: Callable, ticks: Sequence[float], texts: Sequence[str] = ()) -> None:
    """Makes an axis logarithmic, with `ticks`. `update` is `update_xaxes` or `update_yaxes`."""
    update(type="log", tickvals=ticks, ticktext=texts or list(map(_tick, ticks)))


def _tick(value: float) -> str:
    rounded = float(f"{value:.3g}")
    return (
        f"{rounded:,.0f}" if rounded.is_integer() else np.format_float_positional(rounded, trim="-")
    )


def with_table(figure: go.Figure, rows: pd.DataFrame, fractions: str | None = "%.6f") -> go.Figure:
    """Attaches the plotted data to a figure. The page links to it as CSV below the figure."""
    return figure.update_layout(meta={"csv": quote(table_csv(rows, fractions))})


def size_axis(figure: go.Figure, rows: pd.DataFrame) -> None:
    """Makes the x axis logarithmic, with a tick per model size at its number of parameters."""
    counts = dict(zip(rows["size"], rows["parameters"].tolist(), strict=True))
    texts = [f"{size}<br>{_short(count)}" for size, count in counts.items()]
    log_axis(figure.update_xaxes, list(counts.values()), texts)
    figure.update_xaxes(title_text="parameters of the dense model")


def _short(count: float) -> str:
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:g}"


def add_band(
    figure: go.Figure, x, low, high, style: Style, opacity: float = 0.18, group: str = ""
) -> None:
    """Fills the area between `low` and `high`. It shares the legend entry of its line."""
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
    figure: go.Figure, rows: pd.DataFrame, x: str, y: str, style: Style, hover: dict | None = None
) -> None:
    """Draws column `y` as a line with a band of intervals. A single interval is an error bar."""
    low, high = rows[f"{y}_low"], rows[f"{y}_high"]
    is_sure = low.notna() & high.notna()
    has_band = is_sure.sum() > 1
    if has_band:
        add_band(figure, rows[x][is_sure], low[is_sure], high[is_sure], style)
    line = go.Scatter(
        hover,
        x=rows[x],
        y=rows[y],
        name=style.label,
        legendgroup=style.label,
        mode="lines+markers",
        line=style.line(2.5),
        marker=style.marker(9),
        error_y=None if has_band else whiskers(rows, y, style.colour, thickness=2, width=4),
    )
    figure.add_trace(line)
    add_points(figure, rows[x], points_of(rows, y), style.colour)


def add_points(figure: go.Figure, places: Iterable, points: Iterable[tuple], colour: str) -> None:
    """Draws single seeds' values as small circles, where two seeds are too few for an interval.

    For each of `places`, `points` has the two values, or () if there are more or fewer seeds.
    """
    pairs = [(at, value) for at, pair in zip(places, points, strict=True) for value in pair]
    if pairs:
        marker = {"symbol": "circle-open", "size": 5, "color": colour}
        x, y = zip(*pairs, strict=True)
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
    figure.add_scatter(
        x=x,
        y=rows[y],
        name=name,
        mode="markers",
        marker={"symbol": "diamond-open", "size": 9, "color": colour, "line": {"width": 2}},
        error_y=whiskers(rows, y),
        hovertemplate="%{fullData.name}: %{y:.3f}<extra></extra>",
        offsetgroup=offsetgroup,
    )


def level_line(figure: go.Figure, level: float, name: str) -> None:
    """Adds a dotted horizontal line. The legend names it, because a label would cover points."""
    line = {"color": GREY, "dash": "dot", "width": 1.5}
    figure.add_hline(y=level, line=line, name=name, showlegend=True, legendrank=2000)
    figure.update_layout(showlegend=True)


def reference_line(figure: go.Figure) -> None:
    level_line(figure, 1.0, "baseline")


def ratio_end(means: Iterable[float]) -> float:
    """Returns the end of a compute ratio axis: RATIO_END or, if larger, 1.05 x the largest mean."""
    return max(RATIO_END, 1.05 * float(np.nanmax([*means, 1.0])))


def ratio_axis(figure: go.Figure, means: Iterable[float]) -> None:
    """Sets the vertical axis from 0 to `ratio_end`, and clips error bars to it.

    `means` are the mean compute ratios in all figures that share this axis.
    """
    span = 0.0, ratio_end(means)
    figure.update_yaxes(range=span)
    cut_intervals(figure, "y", span)


def cut_intervals(figure: go.Figure, axis: str, span: Sequence[float]) -> None:
    """Clips error bars to the range `span`.

    Arrows mark where error bars and bands leave this range, and show their true ends on hover.
    """
    other = "yx"["xy".index(axis)]
    for trace in figure.data:
        error, middle = trace[f"error_{axis}"], np.array(trace[axis], float)
        low = high = middle
        if error.array is not None:
            low, high = middle - error.arrayminus, middle + error.array
            lows, highs = np.maximum(low, span[0]), np.minimum(high, span[1])
            error.update(array=highs - middle, arrayminus=middle - lows)
        elif trace.type == "bar" or not trace.fill:
            continue
        beyond = (low, low < span[0]), (high, high > span[1])
        for (end, is_cut), bound, way in zip(beyond, span, ARROWS[axis], strict=True):
            if is_cut.any():
                arrows = go.Scatter(
                    {axis: [bound] * is_cut.sum(), other: np.array(trace[other])[is_cut]},
                    text=[f"{trace.name or trace.legendgroup}: to {at:.3f}" for at in end[is_cut]],
                    hovertemplate="%{text}<extra></extra>",
                    mode="markers",
                    marker={"symbol": f"triangle-{way}", "size": 9, "color": GREY},
                    cliponaxis=False,
                    showlegend=False,
                    legendgroup=trace.legendgroup,
                    offsetgroup=trace.offsetgroup,
                )
                figure.add_trace(arrows)


def pad_range(values: Iterable[float]) -> list[float]:
    """Returns [smallest value, largest value], extended by 5% on either side. Ignores NaN."""
    numbers = np.array([*values])
    low, high = float(np.nanmin(numbers)), float(np.nanmax(numbers))
    margin = 0.05 * max(high - low, 0.1)
    return [low - margin, high + margin]


def log_ticks(low: float, high: float, steps: Sequence[float] = ()) -> list[float]:
    """Returns the ticks of a logarithmic axis from `low` to `high`, which are positive.

    Ticks are `steps` times powers of 10. The default steps are 1, 2 and 5, or denser ones if these
    give fewer than three ticks.
    """
    decades = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    for chosen in [steps] if steps else TICK_STEPS:
        multiples = (step * 10.0**decade for decade in decades for step in chosen)
        ticks = [tick for tick in multiples if low <= tick <= high]
        if len(ticks) >= 3:
            break
    return ticks


def hover_runs(rows: pd.DataFrame) -> np.ndarray:
    """Returns each row's run ids as hover text. If there is no column `runs`, all texts are ""."""
    runs = rows.get("runs", pd.Series("", rows.index))
    return runs.fillna("").str.replace(", ", "<br>").to_numpy(object)


def ratio_hover(rows: pd.DataFrame, prefix: str, head: str, named: Sequence = ()) -> dict:
    """Returns a trace's `customdata` and `hovertemplate`.

    The hover text is `head`, then value, interval, number of seeds and run ids. The intervals are
    in the columns `<prefix>low` and `<prefix>high`. `named` becomes the first column of
    `customdata`, to which the template `head` can refer.
    """
    first = [named] if len(named) else []
    low, high, seeds, runs = (f"%{{customdata[{len(first) + i}]" for i in range(4))
    text = f"%{{y:.3f}} [{low}:.3f}}, {high}:.3f}}], {seeds}}} seeds<br>{runs}}}<extra></extra>"
    shown = rows[[f"{prefix}low", f"{prefix}high", "num_seeds"]].to_numpy(object)
    data = np.column_stack([*first, shown, hover_runs(rows)])
    return {"customdata": data, "hovertemplate": f"{head}<br>{text}"}
