"""Draws one run's curves and routes in plotly's JSON form.

A `go.Figure` takes tens of milliseconds, and a site has hundreds of run pages with eight figures each.
"""

import math
from collections.abc import Mapping, Sequence

from gram_platform.pages.figures.style import (
    BLUE,
    GREEN,
    GREY,
    HEIGHT,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Style,
    domain_styles,
    styled_layout,
)

PlainFigure = dict  # {"data": [...], "layout": {...}}
Curve = Mapping[int, float]  # {step: value}

TOTAL = "all together"
BAR_HEIGHT, FRAME_HEIGHT = 26, 150  # pixels, of one bar and of what is around them
KIND_STYLES = {  # of a micro-batch's route, each with a hatch
    "the core alone": (GREY, ""),
    "another module and the core": (SKY, "/"),
    "its own module alone": (ORANGE, ""),
    "another module alone": (VERMILION, "."),
    "its own module and the core": (BLUE, "\\"),
    "everything": (PURPLE, "x"),
}


def curves_figure(title: str, y: str, curves: Mapping[str, Curve], styles: Mapping[str, Style], log: bool = False):
    """Draws a line for each curve against the step, in its style; grey for a name without a style."""
    data = [_line(curve, styles.get(name, Style(name, GREY, "circle", "solid"))) for name, curve in curves.items()]
    layout = styled_layout(title, "step", y)
    if log and all(value > 0 for curve in curves.values() for value in curve.values()):
        layout["yaxis"] |= {"type": "log", "nticks": 6}
    elif not log:
        layout["yaxis"]["rangemode"] = "tozero"
    return {"data": data, "layout": layout}


def set_styles(sets: Sequence[str]) -> dict[str, Style]:
    """Returns a style for each parameter set; a module has its domain's style."""
    modules = [name.removeprefix("module:") for name in sets if name.startswith("module:")]
    styles = {f"module:{domain}": style for domain, style in domain_styles(["core", *modules]).items()}
    own = {"shared": Style("shared", VERMILION, "diamond", "dot"), TOTAL: Style(TOTAL, GREEN, "cross", "longdash")}
    own["core_mlp"] = Style("core MLP", GREY, "circle", "solid")
    named = {name: style._replace(label=f"module {style.label}") for name, style in styles.items()}
    return {**named, **own}


def routes_figure(kinds: Mapping[str, Mapping[str, float]]) -> PlainFigure:
    """Draws a bar for each domain: the share of all micro-batches on each kind of route.

    `kinds` is {kind of KIND_STYLES: {domain: share}}.
    """
    data = []
    for kind, shares in kinds.items():
        colour, hatch = KIND_STYLES[kind]
        data.append(_bars(kind, shares, _marker(colour, hatch)))
    domains = list(dict.fromkeys(domain for shares in kinds.values() for domain in shares))
    layout = _bar_layout("Where micro-batches went: trained sets by domain", domains)
    return {"data": data, "layout": {**layout, "barmode": "stack"}}


def sets_figure(trained: Mapping[str, float], active: Mapping[str, float]) -> PlainFigure:
    """Draws two bars for each parameter set: the shares of micro-batches that trained it, and that had it active."""
    bars = (("trained", trained, _marker(BLUE, "")), ("active in the forward pass", active, _marker(SKY, "/")))
    data = [_bars(*bar) for bar in bars]
    layout = _bar_layout("How often each parameter set was trained and active", list(active), 2 * len(active))
    return {"data": data, "layout": {**layout, "barmode": "group"}}


def _line(curve: Curve, style: Style) -> dict:
    return {
        "type": "scatter",
        "name": style.label,
        "x": list(curve),
        "y": [_short(value) for value in curve.values()],
        "mode": "lines+markers" if len(curve) <= 30 else "lines",
        "line": {"color": style.colour, "dash": style.dash, "width": 2},
        "marker": {"symbol": style.symbol, "size": 6, "color": style.colour},
        "hovertemplate": "<b>%{fullData.name}</b>, step %{x}: %{y:.4g}<extra></extra>",
    }


def _marker(colour: str, hatch: str) -> dict:
    return {"color": colour, "pattern": {"shape": hatch, "bgcolor": colour, "fgcolor": "#ffffff", "size": 6}}


def _bars(name: str, shares: Mapping[str, float], marker: dict) -> dict:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "x": [_short(share) for share in shares.values()],
        "y": list(shares),
        "marker": marker,
        "hovertemplate": "<b>%{y}</b>, %{fullData.name}: %{x:.2%} of all micro-batches<extra></extra>",
    }


def _bar_layout(title: str, names: Sequence[str], num_bars: int = 0) -> dict:
    height = max(HEIGHT, FRAME_HEIGHT + BAR_HEIGHT * (num_bars or len(names)))
    layout = styled_layout(title, "share of micro-batches", "")
    layout |= {"height": height, "bargap": 0.4}
    layout["xaxis"] |= {"tickformat": ".0%", "rangemode": "tozero"}
    layout["yaxis"] |= {"autorange": "reversed", "categoryorder": "array", "categoryarray": list(names)}
    return layout


def _short(value: float) -> float | None:
    """Rounds to five significant digits; None, a gap, if not finite."""
    return float(f"{value:.5g}") if math.isfinite(value) else None
