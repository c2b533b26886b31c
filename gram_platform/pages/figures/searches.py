"""Draws a search: trials in order, and the objective against each parameter."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from gram_platform.analysis.trials import (
    ELAPSED,
    RUNS,
    SEARCH,
    STARTED,
    STATE,
    TRIAL,
    URL,
    best_trial,
    finished,
    running_best,
)
from gram_platform.config import State
from gram_platform.config.space import Parameter
from gram_platform.pages.figures.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    VERMILION,
    log_axis,
    log_ticks,
    styled,
    with_table,
)

FEW_TRIALS = 12
# The most run ids in a hover.
MAX_RUNS = 3
# The height of trials without a value is on a second axis from 0 to 1.
UNMEASURED = {
    State.DIVERGED: ("diverged (penalty)", "x", 0.97),
    State.FAILED: ("failed", "x-open", 0.91),
}


def history_figure(trials: pd.DataFrame, objective: str) -> go.Figure:
    """Draws the objective of every finished trial by number, and the best so far as a line.

    Trials without a value are crosses at the top edge, open if they failed.
    """
    figure = go.Figure()
    best = running_best(trials, objective).dropna()
    if len(best):
        step = {"color": GREEN, "width": 2, "shape": "hv"}
        hover = "best after trial %{x}: %{y:.4~r}<extra></extra>"
        figure.add_scatter(
            x=best.index, y=best, name="best so far", mode="lines", line=step, hovertemplate=hover
        )
    _add_trials(figure, trials, TRIAL, objective)
    styled(figure, f"{objective} (lower is better)", "trial", objective)
    figure.update_xaxes(tickformat="d", dtick=1 if len(trials) <= FEW_TRIALS else None)
    return _with_edge(with_table(figure, trials, None))


def slice_figure(trials: pd.DataFrame, parameter: Parameter, objective: str) -> go.Figure:
    """Draws the objective of every finished trial against a parameter, on its range and scale."""
    figure = go.Figure()
    rows = trials[trials[parameter.name].notna()]
    _add_trials(figure, rows, parameter.name, objective)
    styled(figure, parameter.name, parameter.name, objective)
    if parameter.log:
        ticks = log_ticks(
            parameter.low, parameter.high, (1,) if parameter.high > 100 * parameter.low else ()
        )
        log_axis(figure.update_xaxes, ticks)
    figure.update_xaxes(range=_padded(parameter))
    return _with_edge(with_table(figure, rows, None))


def search_figures(
    trials: pd.DataFrame, objective: str, parameters: Sequence[Parameter]
) -> dict[str, go.Figure]:
    figures = {f"history-{objective}": history_figure(trials, objective)}
    for parameter in parameters:
        figures[f"slice-{objective}-{parameter.name}"] = slice_figure(trials, parameter, objective)
    return figures


def _add_markers(
    figure: go.Figure, trials: pd.DataFrame, x: str, y: Sequence[float], name: str, marker: dict
) -> None:
    """Adds a marker for each trial, whose customdata has its text and the page for `meta.url`."""
    skipped = {SEARCH, TRIAL, STATE, RUNS, URL, ELAPSED, STARTED}
    names, rows = [name for name in trials.columns if name not in skipped], []
    for trial in trials.to_dict("records"):
        lines = [f"<b>trial {trial[TRIAL]}</b> of {trial[SEARCH]}, {trial[STATE]}"]
        lines += [f"{name} {_short(trial[name])}" for name in names if not pd.isna(trial[name])]
        rows.append(("<br>".join([*lines, *runs_text(trial[RUNS])]), trial.get(URL) or ""))
    figure.add_scatter(
        x=trials[x],
        y=y,
        name=name,
        mode="markers",
        marker=marker,
        customdata=np.array(rows, object).reshape(-1, 2),
        hovertemplate="%{customdata[0]}<extra></extra>",
        meta={"url": 1},
    )


def runs_text(runs: str) -> list[str]:
    """Returns the line of a hover that names the first runs, [] without a run."""
    ids = str(runs).split()
    more = f" and {len(ids) - MAX_RUNS} more" if len(ids) > MAX_RUNS else ""
    return [f"runs {' '.join(ids[:MAX_RUNS])}{more}"] if ids else []


def _add_trials(figure: go.Figure, trials: pd.DataFrame, x: str, objective: str) -> None:
    """Adds finished trials at their objective, the best as a star, and the rest at the top edge."""
    done = finished(trials, objective)
    best = best_trial(trials, objective)
    rest = done if best is None else done.drop(best.name)
    if len(rest):
        circle = {"symbol": "circle", "size": 7, "color": BLUE, "opacity": 0.75}
        _add_markers(figure, rest, x, rest[objective], "trial", circle)
    if best is not None:
        row = done.loc[[best.name]]
        star = {"symbol": "star", "size": 13, "color": VERMILION}
        _add_markers(figure, row, x, row[objective], "best", star)
    for state, (label, symbol, height) in UNMEASURED.items():
        rows = trials[trials[STATE] == state]
        if len(rows):
            cross = {"symbol": symbol, "size": 9, "color": INK if state == State.FAILED else GREY}
            _add_markers(figure, rows, x, [height] * len(rows), label, cross)
            figure.data[-1].update(yaxis="y2")


def _with_edge(figure: go.Figure) -> go.Figure:
    """Adds an invisible second axis, which stays in place while the first is zoomed."""
    edge = {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True}
    return figure.update_layout(yaxis2=edge)


def _padded(parameter: Parameter) -> list[float]:
    ends = np.array([parameter.low, parameter.high], float)
    low, high = np.log10(ends) if parameter.log else ends
    margin = 0.04 * (high - low) or 0.5
    return [low - margin, high + margin]


def _short(value: object) -> str:
    return str(value) if isinstance(value, str) else f"{value:.4g}"
