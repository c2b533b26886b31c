"""Draws figures as one small SVG without script, for pages that show many studies."""

import html
import re
from collections.abc import Callable, Iterable, Sequence
from xml.etree import ElementTree

import numpy as np
import plotly.graph_objects as go

from gram_platform.pages.figures.style import GREY

WIDTH, HEIGHT, HEAD, GAP = 132, 92, 15, 6  # of a panel and its title, in SVG units
BAR = 9  # total width of the bars at one x
MOST = 4  # panels
LETTERS = 21  # of a title that fits above a panel
DASHES = {"solid": "", "dot": "1.5 2", "dash": "4 2", "dashdot": "4 2 1 2", "longdash": "6 2", "longdashdot": "6 2 1 2"}

# what `thumbnail_svg` writes: elements that show shapes and text, no attribute of which runs or fetches anything
_ELEMENTS = "svg|g|text|rect|path|polygon|polyline|circle"
_ATTRIBUTES = "viewBox|role|aria-label|transform|x|y|cx|cy|r|d|points|width|height|fill|stroke|font-size|textLength"
_ATTRIBUTES += "|lengthAdjust|stroke-opacity|stroke-dasharray|stroke-width"
_DRAWING = re.compile(rf"""(</(?:{_ELEMENTS})>|<(?:{_ELEMENTS})(?: (?:{_ATTRIBUTES})="[^"<>]*")*/?>|[^<>])*""")

Point = tuple[float, float]


def thumbnail_svg(figures: Sequence[go.Figure]) -> str:
    """Draws the first four figures as panels, two in a row: lines, bands and bars, without axes; "" without figures.

    Titles are escaped.
    """
    shown = [figure for figure in figures[:MOST] if len(figure.data)]
    if not shown:
        return ""
    num_columns = min(2, len(shown))
    num_rows = -(-len(shown) // num_columns)
    size = f"{num_columns * (WIDTH + GAP) - GAP} {num_rows * (HEIGHT + HEAD + GAP) - GAP}"
    titles = [str(figure.layout.title.text or "").partition(" (")[0] for figure in shown]
    panels = "".join(
        f'<g transform="translate({i % num_columns * (WIDTH + GAP)} {i // num_columns * (HEIGHT + HEAD + GAP)})">'
        f'<text y="10" font-size="11" fill="currentColor"{_fitted(title)}>{html.escape(title)}</text>'
        f"{_panel(figure)}</g>"
        for i, (figure, title) in enumerate(zip(shown, titles, strict=True))
    )
    label = html.escape("Main figure: " + ", ".join(filter(None, titles)))
    return f'<svg viewBox="0 0 {size}" role="img" aria-label="{label}">{panels}</svg>'


def is_thumbnail(text: object) -> bool:
    """Tells whether a stored text can be a picture in a page: "", or one that `thumbnail_svg` could have written."""
    if not isinstance(text, str) or not _DRAWING.fullmatch(text) or "url(" in text.lower():
        return False
    try:
        return not text or ElementTree.fromstring(text).tag == "svg"
    except ElementTree.ParseError:
        return False


def _fitted(title: str) -> str:
    """Squeezes a long title into the width of its panel."""
    return f' textLength="{WIDTH}" lengthAdjust="spacingAndGlyphs"' if len(title) > LETTERS else ""


def _panel(figure: go.Figure) -> str:
    series = [trace for trace in figure.data if trace.type in ("scatter", "bar") and trace.orientation != "h"]
    series = [trace for trace in series if trace.x is not None and trace.y is not None]
    bars, places = [trace for trace in series if trace.type == "bar"], _places(figure)
    points = [_known(zip(map(places, trace.x), trace.y, strict=True)) for trace in series]
    lines = [float(shape.y0) for shape in figure.layout.shapes if shape.type == "line" and shape.y0 == shape.y1]
    xs, ys = [x for of_series in points for x, _ in of_series], [y for of_series in points for _, y in of_series]
    across = _scale(min(xs, default=0.0), max(xs, default=1.0), 8, WIDTH - 8)
    ends = [*ys, *lines, *([0.0] if bars else [])]
    low, high = figure.layout.yaxis.range or (min(ends, default=0.0), max(ends, default=1.0))
    up = _scale(float(low), float(high), HEAD + HEIGHT - 3, HEAD + 3)
    frame = f'<rect x=".5" y="{HEAD}.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" fill="none" stroke="{GREY}"'
    parts = [f'{frame} stroke-opacity=".4"/>']
    parts += [f'<path d="M0 {up(y):.1f}H{WIDTH}" stroke="{GREY}" stroke-dasharray="1.5 2"/>' for y in lines]
    for trace, of_series in zip(series, points, strict=True):
        drawn, bottom = [(across(x), up(y)) for x, y in of_series], up(max(0.0, float(low)))
        parts.append(_bars(trace, drawn, bars, bottom) if trace.type == "bar" else _line(trace, drawn))
    return "".join(parts)


def _bars(trace: go.Bar, points: Sequence[Point], bars: Sequence[go.Bar], bottom: float) -> str:
    """Draws a bar for each point; several series stand side by side."""
    width = BAR / len(bars)
    shift = width * (bars.index(trace) - (len(bars) - 1) / 2)
    colours = trace.marker.color if isinstance(trace.marker.color, tuple) else (trace.marker.color,) * len(points)
    return "".join(
        f'<path d="M{x + shift:.1f} {bottom:.1f}V{y:.1f}" stroke="{colour or GREY}" stroke-width="{width:.1f}"/>'
        for (x, y), colour in zip(points, colours, strict=False)
    )


def _line(trace: go.Scatter, points: Sequence[Point]) -> str:
    if not points:
        return ""
    way = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    if trace.fill:
        return f'<polygon points="{way}" fill="{trace.fillcolor or GREY}"/>'
    colour, mode, parts = trace.line.color or trace.marker.color or GREY, trace.mode or "lines", []
    if "lines" in mode:
        dash = f' stroke-dasharray="{DASHES[trace.line.dash]}"' if DASHES.get(trace.line.dash) else ""
        parts.append(f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="1.5"{dash}/>')
    if "markers" in mode:
        look = f'fill="none" stroke="{colour}"' if "open" in str(trace.marker.symbol) else f'fill="{colour}"'
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" {look}/>' for x, y in points]
    return "".join(parts)


def _places(figure: go.Figure) -> Callable[[object], float]:
    """Returns a function from x values to numbers: logarithms on a log axis, the order of names, else the number."""
    axis = figure.layout.xaxis
    given = [value for trace in figure.data for value in (() if trace.x is None else trace.x)]
    if any(isinstance(value, str) for value in given):
        order = {name: float(i) for i, name in enumerate(dict.fromkeys([*(axis.categoryarray or ()), *given]))}
        return order.__getitem__
    return (lambda value: float(np.log10(value))) if axis.type == "log" else float


def _known(points: Iterable[Point]) -> list[Point]:
    return [(x, float(y)) for x, y in points if y is not None and np.isfinite(x) and np.isfinite(float(y))]


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Returns the linear map from `low` to `start` and `high` to `end`; constant in the middle if both are equal."""
    if not high > low:
        return lambda value: (start + end) / 2
    return lambda value: start + (value - low) / (high - low) * (end - start)
