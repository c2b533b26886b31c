"""Compute ratio against model size: a line for each method, with its interval over seeds."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from gram_platform.config.identity import invalid
from gram_platform.pages.figures.style import Style, add_band, behind, method_style, reference_line, styled
from gram_platform.pages.figures.trends import add_trends

CLASS_TITLES = {
    "core": "Core (higher is better)",
    "retain": "Retain (higher is better)",
    "forget": "Forget (lower is better)",
    "elicited": "Elicited forget (lower is better)",
}
HIDDEN = ("baseline",)  # the line at 1


def scaling_figure(
    table: pd.DataFrame,
    parameters: Mapping[str, float],
    profile: str,
    value: str,
    published: pd.DataFrame | None = None,
) -> go.Figure:
    """One class of `table` (the columns of table.csv) at one profile against the number of parameters, log scale.

    `parameters` gives the count of each size (ValueError if one is not there). Bands are the table's 90% intervals,
    error bars where there is only one size; methods without the profile or the class have no line. `published` is a
    table like `table`: its points of the methods drawn are thin lines of hollow markers.
    """
    if value not in CLASS_TITLES:
        raise invalid("value", value, "one of " + ", ".join(CLASS_TITLES))
    beside = table.iloc[:0] if published is None else published[published["method"].isin(table["method"])]
    unknown = sorted({*table["size"], *beside["size"]} - set(parameters))
    if unknown:
        raise invalid("parameters", sorted(parameters), f"a number for each size, also {', '.join(unknown)}")
    rows, theirs = (_points(frame, parameters, profile, value) for frame in (table, beside))
    figure = go.Figure()
    for method, line in theirs.groupby("method", sort=False):
        _add_published(figure, line, value, method_style(method))
    for method, line in rows.groupby("method", sort=False):
        _add_method(figure, line, value, method_style(method))
    add_trends(figure, rows, parameters, value)
    reference_line(figure)
    styled(figure, CLASS_TITLES[value], "parameters", "compute ratio")
    ticks = pd.concat([rows, theirs]).drop_duplicates("size")
    text = [f"{size}<br>{_short(n)}" for size, n in zip(ticks["size"], ticks["parameters"], strict=True)]
    figure.update_xaxes(type="log", tickvals=ticks["parameters"].tolist(), ticktext=text)
    shown = [frame[(frame["profile"] == profile) & ~frame["method"].isin(HIDDEN)] for frame in (table, beside)]
    figure.update_yaxes(range=_common_range(pd.concat(shown)))
    return figure


def _points(table: pd.DataFrame, parameters: Mapping[str, float], profile: str, value: str) -> pd.DataFrame:
    """The rows that have a point, from the smallest size to the largest."""
    rows = table[(table["profile"] == profile) & ~table["method"].isin(HIDDEN) & table[value].notna()]
    return rows.assign(parameters=rows["size"].map(parameters)).sort_values("parameters", kind="stable")


def _add_published(figure: go.Figure, line: pd.DataFrame, value: str, style: Style) -> None:
    low, high = f"{value}_low", f"{value}_high"
    ends = {"array": line[high] - line[value], "arrayminus": line[value] - line[low]}
    figure.add_scatter(
        x=line["parameters"],
        y=line[value],
        name=f"{style.label}, published",
        legendrank=1001,  # after ours
        mode="lines+markers",
        line={"color": style.colour, "dash": "dot", "width": 1.2},
        marker={"symbol": "diamond-open", "size": 9, "color": style.colour, "line": {"width": 1.5}},
        error_y={"type": "data", "thickness": 1.0, "width": 3, "color": style.colour, **ends},
        customdata=line[["size", low, high, "num_seeds"]].to_numpy(object),
        hovertemplate="<b>%{fullData.name}</b>, %{customdata[0]} (%{x:.3s})<br>%{y:.3f} "
        "[%{customdata[1]:.3f}, %{customdata[2]:.3f}], %{customdata[3]} seeds<extra></extra>",
    )


def _add_method(figure: go.Figure, line: pd.DataFrame, value: str, style: Style) -> None:
    low, high = f"{value}_low", f"{value}_high"
    sure = line[line[low].notna() & line[high].notna()]
    has_band = len(sure) > 1
    if has_band:
        add_band(figure, sure["parameters"], sure[low], sure[high], style)
    bars = {} if has_band else {"array": line[high] - line[value], "arrayminus": line[value] - line[low]}
    figure.add_scatter(
        x=line["parameters"],
        y=line[value],
        name=style.label,
        legendgroup=style.label,
        mode="lines+markers",
        line={"color": style.colour, "dash": style.dash, "width": 2.5},
        marker={"symbol": style.symbol, "size": 9, "color": style.colour},
        error_y={"type": "data", **bars} if bars else None,
        customdata=np.column_stack([line[["size", low, high, "num_seeds"]].to_numpy(object), behind(line)]),
        hovertemplate="<b>%{fullData.name}</b>, %{customdata[0]} (%{x:.3s})<br>%{y:.3f} "
        "[%{customdata[1]:.3f}, %{customdata[2]:.3f}], %{customdata[3]} seeds<br>%{customdata[4]}<extra></extra>",
    )


def _common_range(shown: pd.DataFrame) -> list[float]:
    """One scale for the panels of all classes, so that they can be compared: their intervals, and 1."""
    columns = [name + end for name in CLASS_TITLES for end in ("", "_low", "_high")]
    values = np.append(shown[columns].to_numpy(float).ravel(), 1.0)
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    margin = 0.05 * max(high - low, 0.1)
    return [low - margin, high + margin]


def _short(number: float) -> str:
    """1,234,567 as 1.2M."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:g}"
