"""Draws a search: trials in order, the objective against each parameter, and the importance of parameters.

Of a search of several objectives: the Pareto front in projections and in space, and its growing volume. References are
points to compare the front with, such as a study's method: a frame with `label`, the objectives and, if known, `runs`
and `url`. They are not trials and never on the front.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations

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
    Objectives,
    best_trial,
    finished,
    pareto_front,
    running_best,
)
from gram_platform.config import State
from gram_platform.config.identity import invalid
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
MAX_RUNS = 3  # run ids in a hover; the table of trials has them all
BETTER = {"max": "higher is better", "min": "lower is better"}
LABEL = "label"  # of a reference
SPACE_HEIGHT = 460  # pixels
FLAT_SYMBOLS = ("star-diamond-open", "star-square-open", "hexagram-open", "star-open")  # of references
SOLID_SYMBOLS = ("diamond-open", "square-open", "circle-open", "cross")  # plotly has no others in space
# height of trials without a value on a second axis, from 0 at the bottom to 1 at the top
UNMEASURED = {State.DIVERGED: ("diverged (penalty)", "x", 0.97), State.FAILED: ("failed", "x-open", 0.91)}


def history_figure(trials: pd.DataFrame, objective: str, direction: str) -> go.Figure:
    """Draws the objective of every finished trial by number, and the best so far as a line.

    Trials without a value stand at the top edge: crosses if diverged, open crosses if failed.
    """
    figure = go.Figure()
    best = running_best(trials, objective, direction).dropna()
    if len(best):
        step = {"color": GREEN, "width": 2, "shape": "hv"}
        hover = "best after trial %{x}: %{y:.4~r}<extra></extra>"
        figure.add_scatter(x=best.index, y=best, name="best so far", mode="lines", line=step, hovertemplate=hover)
    _add_trials(figure, trials, TRIAL, objective, direction)
    styled(figure, f"{objective} ({BETTER[direction]})", "trial", objective)
    return _with_edge(trial_axis(with_table(figure, trials, None), trials))


def trial_axis(figure: go.Figure, trials: pd.DataFrame) -> go.Figure:
    """Labels the axis of trials with whole numbers, and every trial if there are few."""
    return figure.update_xaxes(tickformat="d", dtick=1 if len(trials) <= FEW_TRIALS else None)


def slice_figure(trials: pd.DataFrame, parameter: Parameter, objective: str, direction: str) -> go.Figure:
    """Draws the objective of every finished trial against one parameter, over the parameter's range and scale.

    Trials without the parameter are left out.
    """
    figure = go.Figure()
    rows = trials[trials[parameter.name].notna()]
    _add_trials(figure, rows, parameter.name, objective, direction)
    styled(figure, parameter.name, parameter.name, objective)
    if parameter.log:
        ticks = log_ticks(parameter.low, parameter.high, (1,) if parameter.high > 100 * parameter.low else ())
        log_axis(figure.update_xaxes, ticks)
    figure.update_xaxes(range=_padded(parameter))
    return _with_edge(with_table(figure, rows, None))


def importance_figure(importances: Mapping[str, float], objective: str, num_trials: int) -> go.Figure:
    """Draws a bar for each parameter, the most important on top; empty without importances."""
    figure = go.Figure()
    if not importances:
        return figure
    names = sorted(importances, key=importances.get)
    figure.add_bar(
        x=[importances[name] for name in names],
        y=names,
        orientation="h",
        marker={"color": BLUE},
        hovertemplate="%{y}: %{x:.1%}<extra></extra>",
        showlegend=False,
    )
    styled(figure, f"What {objective} depends on ({num_trials} trials)", "share of the variance explained alone", "")
    figure.update_xaxes(range=[0, 1], tickformat=".0%")
    return with_table(figure, pd.DataFrame({"parameter": names, "importance": [importances[n] for n in names]}), None)


def trial_details(trials: pd.DataFrame, names: Sequence[str]) -> np.ndarray:
    """Returns customdata [N, 2]: the hover text with a trial's `names` (parameters, metrics) and runs, and its page."""
    rows = []
    for trial in trials.to_dict("records"):
        lines = [f"<b>trial {trial[TRIAL]}</b> of {trial[SEARCH]}, {trial[STATE]}"]
        lines += [f"{name} {_short(trial[name])}" for name in names if not pd.isna(trial[name])]
        rows.append(("<br>".join([*lines, *runs_text(trial[RUNS])]), trial.get(URL) or ""))
    return np.array(rows, object).reshape(-1, 2)


def runs_text(runs: str) -> list[str]:
    """Returns the line of a hover that names the first runs; [] without a run."""
    ids = str(runs).split()
    more = f" and {len(ids) - MAX_RUNS} more" if len(ids) > MAX_RUNS else ""
    return [f"runs {' '.join(ids[:MAX_RUNS])}{more}"] if ids else []


def trial_markers(trials: pd.DataFrame) -> dict:
    """Returns arguments for hover and click: `meta.url` is the index in customdata of the page that a click opens."""
    skipped = {SEARCH, TRIAL, STATE, RUNS, URL, ELAPSED, STARTED}
    names = [name for name in trials.columns if name not in skipped]
    hover = "%{customdata[0]}<extra></extra>"
    return {"customdata": trial_details(trials, names), "hovertemplate": hover, "meta": {"url": 1}}


def _add_trials(figure: go.Figure, trials: pd.DataFrame, x: str, objective: str, direction: str) -> None:
    """Adds finished trials at their objective, the best as a star, and the others at the upper edge."""
    done = finished(trials, (objective,))
    best = best_trial(trials, objective, direction)
    rest = done if best is None else done.drop(best.name)
    if len(rest):
        circle = {"symbol": "circle", "size": 7, "color": BLUE, "opacity": 0.75}
        look = {"name": "trial", "mode": "markers", "marker": circle}
        figure.add_scatter(x=rest[x], y=rest[objective], **look, **trial_markers(rest))
    if best is not None:
        row = done.loc[[best.name]]
        star = {"symbol": "star", "size": 13, "color": VERMILION}
        figure.add_scatter(x=row[x], y=row[objective], name="best", mode="markers", marker=star, **trial_markers(row))
    for state, (label, symbol, height) in UNMEASURED.items():
        rows = trials[trials[STATE] == state]
        if len(rows):
            place = {"x": rows[x], "y": [height] * len(rows), "yaxis": "y2"}
            cross = {"symbol": symbol, "size": 9, "color": INK if state == State.FAILED else GREY}
            figure.add_scatter(**place, name=label, mode="markers", marker=cross, **trial_markers(rows))


def _with_edge(figure: go.Figure) -> go.Figure:
    """Adds an invisible second axis, which stays in place while the first is zoomed."""
    edge = {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True}
    return figure.update_layout(yaxis2=edge)


def _padded(parameter: Parameter) -> list[float]:
    """Returns the parameter's range with 4% on either side, in the unit of the axis."""
    ends = np.array([parameter.low, parameter.high], float)
    low, high = np.log10(ends) if parameter.log else ends
    margin = 0.04 * (high - low) or 0.5
    return [low - margin, high + margin]


def _short(value: object) -> str:
    return str(value) if isinstance(value, str) else f"{value:.4g}"


# ------------------------------------------------------------------------------------------------- several objectives


def front_figures(trials: pd.DataFrame, objectives: Objectives, references: pd.DataFrame | None = None) -> list:
    """Draws every projection onto two objectives and, for three objectives, the points in space."""
    pairs = combinations(objectives, 2)
    figures = [projection_figure(trials, objectives, x, y, references) for x, y in pairs]
    return figures + ([space_figure(trials, objectives, references)] if len(objectives) == 3 else [])


def projection_figure(
    trials: pd.DataFrame, objectives: Objectives, x: str, y: str, references: pd.DataFrame | None = None
) -> go.Figure:
    """Draws finished trials in two objectives: strong on the front of all objectives, faint elsewhere.

    The line joins the front of these two objectives alone.
    """
    figure = go.Figure()
    done = finished(trials, tuple(objectives))
    line = done[pareto_front(done, {name: objectives[name] for name in (x, y)})].sort_values(x)
    if len(line):
        dots = {"color": GREEN, "width": 1.5, "dash": "dot"}
        name = f"front of {x} and {y} alone"
        figure.add_scatter(x=line[x], y=line[y], name=name, mode="lines", line=dots, hoverinfo="skip")
    for name, rows, marker in _classes(trials, objectives):
        figure.add_scatter(x=rows[x], y=rows[y], name=name, mode="markers", marker=marker, **trial_markers(rows))
    for row, symbol in _marked(references, FLAT_SYMBOLS):
        figure.add_scatter(x=[row[x]], y=[row[y]], **_reference_mark(row, objectives, symbol))
    styled(figure, f"{x} and {y}", _axis_title(x, objectives), _axis_title(y, objectives))
    return with_table(figure, _points(trials, objectives, references), None)


def space_figure(trials: pd.DataFrame, objectives: Objectives, references: pd.DataFrame | None = None) -> go.Figure:
    """Draws the same trials in three objectives; ValueError for another number of objectives."""
    if len(objectives) != 3:
        raise invalid("objectives", tuple(objectives), "three objectives")
    figure = go.Figure()
    for name, rows, marker in _classes(trials, objectives):
        place = dict(zip("xyz", (rows[axis] for axis in objectives), strict=True))
        smaller = {**marker, "size": marker["size"] // 2 + 1}
        figure.add_scatter3d(**place, name=name, mode="markers", marker=smaller, **trial_markers(rows))
    for row, symbol in _marked(references, SOLID_SYMBOLS):
        place = dict(zip("xyz", ([row[axis]] for axis in objectives), strict=True))
        figure.add_scatter3d(**place, **_reference_mark(row, objectives, symbol))
    styled(figure, "In all three", "", "")
    plain = {"gridcolor": GREY, "zerolinecolor": GREY, "linecolor": GREY, "showbackground": False}  # WebGL: no alpha
    axes = {f"{a}axis": {**plain, "title": {"text": name}} for a, name in zip("xyz", objectives, strict=True)}
    camera = {"eye": {"x": 1.45, "y": 1.45, "z": 1.0}, "center": {"x": 0.0, "y": 0.0, "z": -0.15}}
    scene = {**axes, "camera": camera, "bgcolor": "rgba(0,0,0,0)"}
    figure.update_layout(scene=scene, height=SPACE_HEIGHT)
    return with_table(figure, _points(trials, objectives, references), None)


def _points(trials: pd.DataFrame, objectives: Objectives, references: pd.DataFrame | None) -> pd.DataFrame:
    """Returns the finished trials, marked if on the front, and below them the references."""
    done = finished(trials, tuple(objectives))
    done = done.assign(on_front=pareto_front(trials, objectives)[done.index])
    return done if references is None else pd.concat([done, references])


def hypervolume_figure(history: pd.DataFrame, reference: Mapping[str, float]) -> go.Figure:
    """Draws the volume dominated by the front after each finished trial; `history` is `hypervolume_history`'s frame.

    Empty if the frame is.
    """
    figure = go.Figure()
    if history.empty:
        return figure
    figure.add_scatter(
        x=history[TRIAL],
        y=history["hypervolume"],
        customdata=history[["front_size"]].to_numpy(object),
        mode="lines+markers",
        line={"color": BLUE, "width": 2, "shape": "hv"},
        marker={"size": 5},
        hovertemplate="after trial %{x}: %{y:.4~r}<br>%{customdata[0]} trials on the front<extra></extra>",
        showlegend=False,
    )
    bound = ", ".join(f"{name} {value:g}" for name, value in reference.items())
    styled(figure, f"Hypervolume against {bound}", "trial", "hypervolume")
    figure.update_yaxes(rangemode="tozero")
    return trial_axis(with_table(figure, history, None), history)


def _classes(trials: pd.DataFrame, objectives: Objectives) -> list[tuple[str, pd.DataFrame, dict]]:
    """Returns (name, finished trials, marker) of the dominated trials and of the front, without empty classes."""
    done = finished(trials, tuple(objectives))
    is_front = pareto_front(trials, objectives)[done.index]
    faint = {"symbol": "circle", "size": 7, "color": GREY, "opacity": 0.4}
    strong = {"symbol": "diamond", "size": 10, "color": BLUE}
    found = (("dominated", done[~is_front], faint), ("Pareto front", done[is_front], strong))
    return [one for one in found if len(one[1])]


def _marked(references: pd.DataFrame | None, symbols: tuple[str, ...]) -> list[tuple[dict, str]]:
    """Returns the references as rows, each with a symbol; symbols repeat if there are too few."""
    rows = [] if references is None else references.to_dict("records")
    return [(row, symbols[i % len(symbols)]) for i, row in enumerate(rows)]


def _reference_mark(row: dict, objectives: Objectives, symbol: str) -> dict:
    lines = [f"<b>{row[LABEL]}</b>", *(f"{name} {row[name]:.4g}" for name in objectives), *runs_text(row.get(RUNS, ""))]
    return {
        "name": row[LABEL],
        "mode": "markers",
        "marker": {"symbol": symbol, "size": 11, "color": VERMILION},
        "customdata": np.array([("<br>".join(lines), row.get(URL) or "")], object),
        "hovertemplate": "%{customdata[0]}<extra></extra>",
        "meta": {"url": 1},
    }


def _axis_title(name: str, objectives: Objectives) -> str:
    return f"{name} ({BETTER[objectives[name]]})"
