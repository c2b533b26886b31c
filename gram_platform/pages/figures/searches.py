"""Draws the objective of an Optuna search against the trial number and each parameter."""

from collections.abc import Sequence

import numpy as np
import optuna
import pandas as pd
import plotly.graph_objects as go
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState, create_trial
from optuna.visualization import plot_optimization_history, plot_slice

from gram_platform.analysis.trials import (
    ELAPSED,
    RUNS,
    SEARCH,
    STARTED,
    STATE,
    TRIAL,
    URL,
    select_finished,
)
from gram_platform.config import State
from gram_platform.config.space import Parameter
from gram_platform.pages.figures.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    VERMILION,
    lay_out,
    log_axis,
    log_ticks,
    with_table,
)

FEW_TRIALS = 12
MAX_RUNS = 3
WITH_VALUE = "trial (star: the best)"
# Label, symbol and height of trials without a value, on a second axis from 0 to 1.
UNMEASURED = {
    State.DIVERGED: ("diverged (penalty)", "x", 0.97),
    State.FAILED: ("failed", "x-open", 0.91),
}


def history_figure(trials: pd.DataFrame, objective: str) -> go.Figure:
    """Draws the objective against the trial number, with a line for the best value so far.

    Crosses at the top edge are diverged trials. Open crosses are failed trials.
    """
    figure = plot_optimization_history(_study_of(trials, objective), target_name=objective)
    best = {"name": "best so far", "line": {"color": GREEN, "shape": "hv"}}
    figure.update_traces(best, selector={"mode": "lines"})
    figure.update_traces(marker={"color": BLUE}, selector={"mode": "markers"})
    _add_facts(figure, trials, TRIAL, objective)
    figure.update_xaxes(tickformat="d", dtick=1 if len(trials) <= FEW_TRIALS else None)
    return lay_out(figure, f"{objective} (lower is better)", "trial", objective)


def slice_figure(trials: pd.DataFrame, parameter: Parameter, objective: str) -> go.Figure:
    """Draws the objective of every finished trial against a parameter.

    The horizontal axis has the parameter's range and scale. Colours show the trial number.
    """
    rows = trials[trials[parameter.name].notna()]
    study = _study_of(rows, objective, parameter)
    figure = plot_slice(study, params=[parameter.name], target_name=objective)
    bar = {"title": "trial", "thickness": 10, "xpad": 4}
    figure.update_traces(marker={"colorscale": [BLUE, VERMILION], "colorbar": bar})
    _add_facts(figure, rows, parameter.name, objective)
    low, high = parameter.low, parameter.high
    if parameter.log:
        log_axis(figure.update_xaxes, log_ticks(low, high, (1,) if high > 100 * low else ()))
        low, high = np.log10([low, high])
    margin = 0.04 * (high - low)
    figure.update_xaxes(range=[low - margin, high + margin])
    return lay_out(figure, parameter.name, parameter.name, objective)


def search_figures(
    trials: pd.DataFrame, objective: str, parameters: Sequence[Parameter]
) -> dict[str, go.Figure]:
    figures = {f"history-{objective}": history_figure(trials, objective)}
    for parameter in parameters:
        figures[f"slice-{objective}-{parameter.name}"] = slice_figure(trials, parameter, objective)
    return figures


def _study_of(
    trials: pd.DataFrame, objective: str, parameter: Parameter | None = None
) -> optuna.Study:
    study, ranges = optuna.create_study(), {}
    if parameter:
        values = [parameter.low, parameter.high, *trials[parameter.name]]
        ranges = {parameter.name: FloatDistribution(min(values), max(values), log=parameter.log)}
    done = select_finished(trials, objective).index
    for place, trial in trials.sort_values(TRIAL).iterrows():
        state = TrialState.COMPLETE if place in done else TrialState.FAIL
        value, point = trial[objective] if place in done else None, trial[list(ranges)].to_dict()
        study.add_trial(create_trial(state=state, value=value, params=point, distributions=ranges))
    return study


def runs_text(runs: str) -> list[str]:
    """Returns [a line of hover text with the first MAX_RUNS ids in `runs`].

    If `runs` has no ids, returns [].
    """
    ids = str(runs).split()
    more = f" and {len(ids) - MAX_RUNS} more" if len(ids) > MAX_RUNS else ""
    return [f"runs {' '.join(ids[:MAX_RUNS])}{more}"] if ids else []


def _add_facts(figure: go.Figure, trials: pd.DataFrame, x: str, objective: str) -> None:
    done = select_finished(trials, objective)
    if len(done):
        is_best = done.index == done[objective].idxmin()
        symbols, sizes = np.where(is_best, "star", "circle"), np.where(is_best, 14, 7)
        marker = {"symbol": symbols, "size": sizes, "opacity": 1}
        figure.data[0].update(name=WITH_VALUE, marker=marker, showlegend=True, **_hover(done))
    for state, (label, symbol, height) in UNMEASURED.items():
        rows = trials[trials[STATE] == state]
        if len(rows):
            marker = {"symbol": symbol, "size": 9, "color": INK if state == State.FAILED else GREY}
            look = {"x": rows[x], "y": [height] * len(rows), "yaxis": "y2", "mode": "markers"}
            figure.add_scatter(**look, name=label, marker=marker, **_hover(rows))
    edge = {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True}
    with_table(figure, trials, None).update_layout(yaxis2=edge)


def _hover(trials: pd.DataFrame) -> dict:
    skipped = {SEARCH, TRIAL, STATE, RUNS, URL, ELAPSED, STARTED}
    names, rows = [name for name in trials.columns if name not in skipped], []
    for trial in trials.to_dict("records"):
        lines = [f"<b>trial {trial[TRIAL]}</b> of {trial[SEARCH]}, {trial[STATE]}"]
        lines += [f"{name} {_short(trial[name])}" for name in names if not pd.isna(trial[name])]
        rows.append(("<br>".join([*lines, *runs_text(trial[RUNS])]), trial.get(URL) or ""))
    data = np.array(rows, object).reshape(-1, 2)
    template = "%{customdata[0]}<extra></extra>"
    return {"customdata": data, "hovertemplate": template, "meta": {"url": 1}}


def _short(value: object) -> str:
    return str(value) if isinstance(value, str) else f"{value:.4g}"
