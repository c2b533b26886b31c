"""Bars of every method's mean over profiles (the paper's "Aggregate compute ratios"), beside the paper's values."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from gram_platform.analysis.order import MEAN
from gram_platform.analysis.tables import CLASSES
from gram_platform.config.identity import invalid
from gram_platform.pages.figures.scaling import CLASS_TITLES, HIDDEN
from gram_platform.pages.figures.style import GREY, behind, method_style, reference_line, styled

OFFSET = 0.2  # of ours to the left and the paper's to the right of a method's place, where both are drawn

Paper = Mapping[str, tuple[tuple[float, float], ...]]  # {method: (value, half-width of its interval) of each class}


def aggregate_figure(table: pd.DataFrame, size: str, value: str, paper: Paper | None = None) -> go.Figure:
    """One class of the table's `mean` rows at one size: a bar for each method with its 90% interval.

    `paper` adds a hollow diamond with its interval for the methods that it has. The four classes share one scale.
    Empty when no method has a value; ValueError for an unknown class.
    """
    if value not in CLASS_TITLES:
        raise invalid("value", value, "one of " + ", ".join(CLASS_TITLES))
    means = table[(table["profile"] == MEAN) & (table["size"] == size) & ~table["method"].isin(HIDDEN)]
    rows = means[means[value].notna()].reset_index(drop=True)
    figure = go.Figure()
    if rows.empty:
        return figure
    beside = {place: paper[m][CLASSES.index(value)] for place, m in rows["method"].items() if m in (paper or {})}
    _add_bars(figure, rows, value, OFFSET if beside else 0.0)
    if beside:
        _add_paper(figure, beside)
    reference_line(figure)
    styled(figure, f"{CLASS_TITLES[value]}, {size}", "", "compute ratio")
    labels = [method_style(method).label for method in rows["method"]]
    figure.update_xaxes(tickvals=list(range(len(rows))), ticktext=labels, range=[-0.6, len(rows) - 0.4])
    figure.update_yaxes(range=_common_range(means, paper or {}))
    return figure


def _add_bars(figure: go.Figure, rows: pd.DataFrame, value: str, shift: float) -> None:
    low, high = rows[f"{value}_low"], rows[f"{value}_high"]
    labels = [method_style(method).label for method in rows["method"]]
    whiskers = {"array": high - rows[value], "arrayminus": rows[value] - low}
    figure.add_bar(
        x=[place - shift for place in range(len(rows))],
        y=rows[value],
        width=0.36 if shift else 0.6,
        name="this study",
        showlegend=False,
        marker={"color": [method_style(method).colour for method in rows["method"]]},
        error_y={"type": "data", "thickness": 1.3, "width": 3, "color": GREY, **whiskers},
        customdata=np.stack([np.array(labels, object), low, high, rows["num_seeds"], behind(rows)], axis=1),
        hovertemplate="<b>%{customdata[0]}</b><br>%{y:.3f} [%{customdata[1]:.3f}, %{customdata[2]:.3f}], "
        "%{customdata[3]} seeds<br>%{customdata[4]}<extra></extra>",
    )


def _add_paper(figure: go.Figure, beside: Mapping[int, tuple[float, float]]) -> None:
    figure.add_scatter(
        x=[place + OFFSET for place in beside],
        y=[value for value, _ in beside.values()],
        name="the paper, at its scale",
        mode="markers",
        marker={"symbol": "diamond-open", "size": 9, "color": GREY, "line": {"width": 2}},
        error_y={"type": "data", "thickness": 1.3, "width": 3, "color": GREY, "array": [e for _, e in beside.values()]},
        hovertemplate="the paper: %{y:.3f}<extra></extra>",
        showlegend=True,
    )


def _common_range(means: pd.DataFrame, paper: Paper) -> list[float]:
    """From zero, or below it where a value is, to just above the highest end of an interval of any class."""
    columns = [name + end for name in CLASSES for end in ("", "_low", "_high")]
    given = [
        end
        for m in means["method"]
        if m in paper
        for value, error in paper[m]
        for end in (value - error, value + error)
    ]
    values = np.array([*means[columns].to_numpy(float).ravel(), *given, 0.0, 1.0])
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    return [low * 1.05, high + 0.06 * (high - low)]
