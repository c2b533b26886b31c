"""Draws the Pareto front of a search of several objectives, in projections and in space, and its growing volume.

References are points to compare the front with, such as a study's method: a frame with `label`, the objectives and,
if known, `runs` and `url`. They are not trials and never on the front.
"""

from collections.abc import Mapping
from itertools import combinations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from gram_platform.analysis.trials import RUNS, TRIAL, URL, Objectives, finished, pareto_front
from gram_platform.config.identity import invalid
from gram_platform.pages.figures.searches import BETTER, runs_text, trial_axis, trial_markers
from gram_platform.pages.figures.style import BLUE, GREEN, GREY, VERMILION, styled

LABEL = "label"  # of a reference
SPACE_HEIGHT = 460  # pixels
FLAT_SYMBOLS = ("star-diamond-open", "star-square-open", "hexagram-open", "star-open")  # of references
SOLID_SYMBOLS = ("diamond-open", "square-open", "circle-open", "cross")  # plotly has no others in space


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
    return styled(figure, f"{x} and {y}", _axis_title(x, objectives), _axis_title(y, objectives))


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
    return figure


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
        hovertemplate="after trial %{x}: %{y:.4g}<br>%{customdata[0]} trials on the front<extra></extra>",
        showlegend=False,
    )
    bound = ", ".join(f"{name} {value:g}" for name, value in reference.items())
    styled(figure, f"Hypervolume against {bound}", "trial", "hypervolume")
    figure.update_yaxes(rangemode="tozero")
    return trial_axis(figure, history)


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
