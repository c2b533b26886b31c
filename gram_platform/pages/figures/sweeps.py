"""Compute ratio against a knob's value: ours with intervals, over the paper's curves where it has them."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from gram_platform.config.identity import invalid
from gram_platform.pages.figures.ratios import CLASS_TITLES
from gram_platform.pages.figures.style import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    VERMILION,
    Style,
    add_band,
    reference_line,
    styled,
)
from gram_platform.paper.sweeps import PAPER_SWEEPS, paper_curve

CLASS_STYLES = {
    "core": Style("Core", BLUE, "circle", "solid"),
    "core_partial": Style("Core-Partial", ORANGE, "square", "solid"),
    "core_full": Style("Core-Full", BLUE, "circle", "solid"),
    "retain": Style("Retain", GREEN, "triangle-up", "solid"),
    "forget": Style("Forget", VERMILION, "diamond", "solid"),
    "elicited": Style("Elicited", PURPLE, "x", "solid"),
}
IN_PAPER = "the paper's, at its scale"


def sweep_figure(table: pd.DataFrame, knob: str, method: str, size: str, value: str) -> go.Figure:
    """One class against the values of a knob; `table` is `SweepAnalysis.table`.

    Core is two lines, with one module and with none, where the paper draws it so. Bands are 90% intervals, error bars
    where there is one point; the paper's curves are dashed with hollow markers, for reading. The panels of a knob share
    one scale. Empty where we have no value; ValueError for an unknown class.
    """
    if value not in CLASS_TITLES:
        raise invalid("value", value, "one of " + ", ".join(CLASS_TITLES))
    is_shown = (table["knob"] == knob) & (table["method"] == method) & (table["size"] == size)
    rows, names = table[is_shown].sort_values("value", kind="stable"), _lines(knob, value)
    figure = go.Figure()
    if not len(rows) or rows[list(names)].isna().all(axis=None):
        return figure
    has_paper = knob in PAPER_SWEEPS and PAPER_SWEEPS[knob].method == method
    for name in names:
        if has_paper:
            _add_paper(figure, paper_curve(knob, name), CLASS_STYLES[name])
        _add_ours(figure, rows[rows[name].notna()], knob, name)
    reference_line(figure)
    styled(figure, f"{CLASS_TITLES[value]}, {size}", _axis_title(knob), "compute ratio")
    _scale(figure, rows, knob, has_paper)
    return figure


def sweep_figures(table: pd.DataFrame) -> dict[str, go.Figure]:
    """Every panel that shows something, in the table's order, by a name fit for a file: `p_cr-gram-0.4M-core`."""
    sweeps = dict.fromkeys(zip(table["knob"], table["method"], table["size"], strict=True))
    figures = {
        "-".join((*sweep, value)): sweep_figure(table, *sweep, value) for sweep in sweeps for value in CLASS_TITLES
    }
    return {name: figure for name, figure in figures.items() if len(figure.data)}


def _lines(knob: str, value: str) -> tuple[str, ...]:
    """The classes of a panel: of core those that the paper's figure has."""
    if value != "core" or knob not in PAPER_SWEEPS:
        return (value,)
    return tuple(name for name in PAPER_SWEEPS[knob].classes if name.startswith("core"))


def _axis_title(knob: str) -> str:
    return PAPER_SWEEPS[knob].title if knob in PAPER_SWEEPS else knob


def _add_ours(figure: go.Figure, line: pd.DataFrame, knob: str, name: str) -> None:
    style, low, high = CLASS_STYLES[name], f"{name}_low", f"{name}_high"
    sure = line[line[low].notna() & line[high].notna()]
    has_band = len(sure) > 1
    if has_band:
        add_band(figure, sure["value"], sure[low], sure[high], style)
    bars = {} if has_band else {"array": line[high] - line[name], "arrayminus": line[name] - line[low]}
    runs = line["runs"].str.replace(" ", "<br>")
    figure.add_scatter(
        x=line["value"],
        y=line[name],
        name=style.label,
        legendgroup=style.label,
        mode="lines+markers",
        line={"color": style.colour, "dash": style.dash, "width": 2.5},
        marker={"symbol": style.symbol, "size": 9, "color": style.colour},
        error_y={"type": "data", **bars} if bars else None,
        customdata=np.stack([line[low], line[high], line["num_seeds"], runs.to_numpy(object)], axis=1),
        hovertemplate=f"<b>%{{fullData.name}}</b>, {knob} %{{x:g}}<br>%{{y:.3f}} "
        "[%{customdata[0]:.3f}, %{customdata[1]:.3f}], %{customdata[2]} seeds<br>%{customdata[3]}<extra></extra>",
    )


def _add_paper(figure: go.Figure, curve: pd.DataFrame, style: Style) -> None:
    if curve.empty:
        return
    add_band(figure, curve["value"], curve["low"], curve["high"], style, 0.07, IN_PAPER)
    figure.add_scatter(
        x=curve["value"],
        y=curve["mean"],
        name=f"{style.label}, {IN_PAPER}",
        legendgroup=style.label + IN_PAPER,
        mode="lines+markers",
        line={"color": style.colour, "dash": "dash", "width": 1.3},
        marker={"symbol": f"{style.symbol}-open", "size": 6, "color": style.colour},
        customdata=curve[["low", "high"]].to_numpy(),
        hovertemplate="%{fullData.name}: %{y:.3f} [%{customdata[0]:.3f}, %{customdata[1]:.3f}]<extra></extra>",
    )


def _scale(figure: go.Figure, rows: pd.DataFrame, knob: str, has_paper: bool) -> None:
    """One vertical scale for all panels of a knob: every interval drawn in them, and 1; the knob's own horizontal."""
    names = [name for panel in CLASS_TITLES for name in _lines(knob, panel)]
    columns = [name + end for name in names for end in ("", "_low", "_high")]
    given = PAPER_SWEEPS[knob].classes.values() if has_paper else ()
    ends = [end for points in given for point in points for end in point]
    drawn = np.array([*rows[columns].to_numpy(float).ravel(), *ends, 1.0])
    low, high = float(np.nanmin(drawn)), float(np.nanmax(drawn))
    margin = 0.05 * max(high - low, 0.1)
    figure.update_yaxes(range=[low - margin, high + margin])
    if knob in PAPER_SWEEPS and PAPER_SWEEPS[knob].is_log:
        ticks = sorted({*rows["value"], *PAPER_SWEEPS[knob].values})
        figure.update_xaxes(type="log", tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks])
