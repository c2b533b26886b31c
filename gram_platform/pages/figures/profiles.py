"""Bars of compute ratios: every domain under every profile of one method at one size."""

from textwrap import wrap

import pandas as pd
import plotly.graph_objects as go

from gram_platform.analysis.elicited import ELICITED
from gram_platform.pages.figures.style import (
    GREY,
    HEIGHT,
    Style,
    domain_styles,
    method_style,
    reference_line,
    styled,
    translucent,
)

MAX_LETTERS, LINE_HEIGHT = 10, 13  # of the labels below the groups: letters a line, pixels


def profile_bars_figure(domains: pd.DataFrame, method: str, size: str) -> go.Figure:
    """A group of bars for each profile, a bar for each domain: solid if core or retained, hatched if forgotten.

    The outline around a hatched bar is what an attack on the domain recovers, where there was one. `domains` is
    `domain_table`'s frame: mean compute ratio over seeds with its 90% interval, the error bars. A method or size that
    is not in the frame gives an empty figure.
    """
    rows = domains[(domains["method"] == method) & (domains["size"] == size)]
    figure = go.Figure()
    for domain, style in domain_styles(rows["domain"]).items():
        mine = rows[rows["domain"] == domain]
        forgotten, attacked = mine[mine["class"] == "forget"], mine[mine["class"] == ELICITED]
        kept = mine[~mine["class"].isin(["forget", ELICITED])]
        if len(kept):
            figure.add_bar(**_bars(kept, style), marker={"color": style.colour})
        if len(forgotten):
            hatch = {"shape": "/", "fgcolor": style.colour, "bgcolor": translucent(style.colour), "size": 6}
            outline = {"color": style.colour, "width": 1.5}
            marker = {"color": style.colour, "pattern": hatch, "line": outline}
            figure.add_bar(**_bars(forgotten, style), marker=marker, showlegend=not len(kept))
        if len(attacked):
            outline = {"color": "rgba(0,0,0,0)", "line": {"color": style.colour, "width": 1.5}}
            figure.add_bar(**_bars(attacked, style, has_whiskers=False), marker=outline, showlegend=False)
    reference_line(figure)
    styled(figure, f"{method_style(method).label}, {size}", "profile", "compute ratio")
    profiles = list(dict.fromkeys(rows["profile"]))
    figure.update_layout(barmode="group", bargap=0.25)
    text = [_wrapped(profile) for profile in profiles]
    figure.update_xaxes(categoryorder="array", categoryarray=profiles, tickvals=profiles, ticktext=text, tickangle=0)
    num_lines = max((label.count("<br>") + 1 for label in text), default=1)
    figure.update_xaxes(title_text="", tickfont_size=10)
    figure.update_layout(height=HEIGHT + LINE_HEIGHT * num_lines)
    figure.update_yaxes(rangemode="tozero")
    return figure


def _wrapped(profile: str) -> str:
    """A profile's name on short lines, a line break before every domain, so that it fits under its group of bars."""
    lines = [
        part
        for domain in profile.replace("+", "\n+ ").split("\n")
        for part in wrap(domain, MAX_LETTERS, break_long_words=False)
    ]
    return "<br>".join(line if len(line) <= MAX_LETTERS else line[: MAX_LETTERS - 1] + "…" for line in lines)


def _bars(bars: pd.DataFrame, style: Style, has_whiskers: bool = True) -> dict:
    """What the bars of a domain have in common."""
    ends = {"array": bars["high"] - bars["compute_ratio"], "arrayminus": bars["compute_ratio"] - bars["low"]}
    whiskers = {"error_y": {"type": "data", "thickness": 1.3, "width": 3, "color": GREY, **ends}}
    return {
        **(whiskers if has_whiskers else {}),
        "x": bars["profile"],
        "y": bars["compute_ratio"],
        "name": style.label,
        "legendgroup": style.label,
        "offsetgroup": style.label,
        "customdata": bars[["class", "low", "high", "num_seeds", "runs"]].to_numpy(object),
        "hovertemplate": "<b>%{fullData.name}</b> (%{customdata[0]}), profile %{x}<br>%{y:.3f} "
        "[%{customdata[1]:.3f}, %{customdata[2]:.3f}], %{customdata[3]} seeds<br>%{customdata[4]}<extra></extra>",
        "meta": {"runs": 4},
    }
