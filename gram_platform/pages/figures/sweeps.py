"""Draws compute ratios against a hyperparameter (a knob), next to the paper's curves."""

import pandas as pd
import plotly.graph_objects as go

from gram_platform.analysis.intervals import ENDS
from gram_platform.pages.figures.study import CLASS_TITLES
from gram_platform.pages.figures.style import (
    BLUE,
    GREEN,
    IN_PAPER,
    ORANGE,
    PURPLE,
    VERMILION,
    Style,
    add_band,
    add_line,
    drop_empty,
    lay_out,
    log_axis,
    ratio_axis,
    ratio_hover,
    reference_line,
    with_table,
)
from gram_platform.paper.sweeps import PAPER_SWEEPS

CLASS_STYLES = {
    "core": Style("Core", BLUE, "circle", "solid"),
    "core_partial": Style("Core-Partial", ORANGE, "square", "solid"),
    "core_full": Style("Core-Full", BLUE, "circle", "solid"),
    "retain": Style("Retain", GREEN, "triangle-up", "solid"),
    "forget": Style("Forget", VERMILION, "diamond", "solid"),
    "elicited": Style("Elicited", PURPLE, "x", "solid"),
}


def sweep_figure(table: pd.DataFrame, knob: str, method: str, size: str, value: str) -> go.Figure:
    """Draws the compute ratio of one class against a knob. `table` is `SweepAnalysis.table`.

    If the paper's figure has separate lines for core with one module and core without modules, so
    does this figure. The paper's curves are dashed with hollow markers. All figures of a knob have
    the same vertical axis.
    """
    is_shown = (table["knob"] == knob) & (table["method"] == method) & (table["size"] == size)
    rows, names = table[is_shown].sort_values("value", kind="stable"), _lines(knob, value)
    figure = go.Figure()
    if not len(rows) or rows[list(names)].isna().all(axis=None):
        return figure
    for name in names:
        if name in PAPER_SWEEPS[knob].curves:
            _add_paper(figure, PAPER_SWEEPS[knob].curves[name], CLASS_STYLES[name])
        line = rows[rows[name].notna()].assign(runs=rows["runs"].str.replace(" ", "<br>"))
        hover = ratio_hover(line, f"{name}_", f"<b>%{{fullData.name}}</b>, {knob} %{{x:g}}")
        add_line(figure, line, "value", name, CLASS_STYLES[name], hover)
    reference_line(figure)
    lay_out(figure, f"{CLASS_TITLES[value]}, {size}", PAPER_SWEEPS[knob].title, "compute ratio")
    _scale(figure, rows, knob)
    columns = [name + end for name in names for end in ENDS]
    return with_table(
        figure, rows.filter(["knob", "value", "method", "size", *columns, "num_seeds", "runs"])
    )


def sweep_figures(table: pd.DataFrame) -> dict[str, go.Figure]:
    """Returns {name: figure} without empty figures. Names look like `p_cr-gram-0.4M-core`."""
    sweeps = dict.fromkeys(zip(table["knob"], table["method"], table["size"], strict=True))
    figures = {
        f"{knob}-{method}-{size}-{value}": sweep_figure(table, knob, method, size, value)
        for knob, method, size in sweeps
        for value in CLASS_TITLES
    }
    return drop_empty(figures)


def _lines(knob: str, value: str) -> tuple[str, ...]:
    if value != "core":
        return (value,)
    return tuple(name for name in PAPER_SWEEPS[knob].curves if name.startswith("core"))


def _add_paper(figure: go.Figure, curve: pd.DataFrame, style: Style) -> None:
    add_band(figure, curve.index, curve["low"], curve["high"], style, 0.07, IN_PAPER)
    figure.add_scatter(
        x=curve.index,
        y=curve["mean"],
        name=f"{style.label}, {IN_PAPER}",
        legendgroup=style.label + IN_PAPER,
        mode="lines+markers",
        line={"color": style.colour, "dash": "dash", "width": 1.3},
        marker={"symbol": f"{style.symbol}-open", "size": 6, "color": style.colour},
        customdata=curve[["low", "high"]].to_numpy(),
        hovertemplate=(
            "%{fullData.name}: %{y:.3f} [%{customdata[0]:.3f}, %{customdata[1]:.3f}]<extra></extra>"
        ),
    )


def _scale(figure: go.Figure, rows: pd.DataFrame, knob: str) -> None:
    names = [name for panel in CLASS_TITLES for name in _lines(knob, panel)]
    theirs = (mean for curve in PAPER_SWEEPS[knob].curves.values() for mean in curve["mean"])
    ratio_axis(figure, [*rows[names].to_numpy(float).ravel(), *theirs])
    if PAPER_SWEEPS[knob].is_log:
        ticks = sorted({*rows["value"], *PAPER_SWEEPS[knob].values})
        log_axis(figure.update_xaxes, ticks)
