"""Bars of compute ratios: every domain under every profile of one method at one size."""

import pandas as pd
import plotly.graph_objects as go

from gram_platform.figures.style import GREY, Style, domain_styles, method_style, reference_line, styled, translucent


def profile_bars_figure(domains: pd.DataFrame, method: str, size: str) -> go.Figure:
    """A group of bars for each profile, a bar for each domain: solid if core or retained, hatched if forgotten.

    `domains` is `domain_table`'s frame: mean compute ratio over seeds with its 90% interval, the error bars. A
    method or size that is not in the frame gives an empty figure.
    """
    rows = domains[(domains["method"] == method) & (domains["size"] == size)]
    figure = go.Figure()
    for domain, style in domain_styles(rows["domain"]).items():
        mine = rows[rows["domain"] == domain]
        kept, forgotten = mine[mine["class"] != "forget"], mine[mine["class"] == "forget"]
        if len(kept):
            figure.add_bar(**_bars(kept, style), marker={"color": style.colour})
        if len(forgotten):
            hatch = {"shape": "/", "fgcolor": style.colour, "bgcolor": translucent(style.colour), "size": 6}
            outline = {"color": style.colour, "width": 1.5}
            marker = {"color": style.colour, "pattern": hatch, "line": outline}
            figure.add_bar(**_bars(forgotten, style), marker=marker, showlegend=not len(kept))
    reference_line(figure)
    styled(figure, f"{method_style(method).label}, {size}", "profile", "compute ratio")
    profiles = list(dict.fromkeys(rows["profile"]))
    figure.update_layout(barmode="group", bargap=0.25)
    figure.update_xaxes(categoryorder="array", categoryarray=profiles)
    figure.update_yaxes(rangemode="tozero")
    return figure


def _bars(bars: pd.DataFrame, style: Style) -> dict:
    """What solid and hatched bars of a domain have in common."""
    whiskers = {"array": bars["high"] - bars["compute_ratio"], "arrayminus": bars["compute_ratio"] - bars["low"]}
    return {
        "x": bars["profile"],
        "y": bars["compute_ratio"],
        "name": style.label,
        "legendgroup": style.label,
        "offsetgroup": style.label,
        "error_y": {"type": "data", "thickness": 1.3, "width": 3, "color": GREY, **whiskers},
        "customdata": bars[["class", "low", "high", "num_seeds", "runs"]].to_numpy(object),
        "hovertemplate": "<b>%{fullData.name}</b> (%{customdata[0]}), profile %{x}<br>%{y:.3f} "
        "[%{customdata[1]:.3f}, %{customdata[2]:.3f}], %{customdata[3]} seeds<br>%{customdata[4]}<extra></extra>",
    }
