"""How few tokens carry the loss of a removed capability: curves of concentration, and bars with intervals."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from gram_platform.analysis.localization import CONTROL, FORGET, RETAIN
from gram_platform.analysis.order import MEAN
from gram_platform.pages.figures.style import GREY, behind, method_style, styled

TITLES = {"gini": "Gini coefficient of increases", "increase": "increase of the loss (nats)"}
PATTERNS = {FORGET: "", RETAIN: "/"}


def concentration_figure(curves: pd.DataFrame, size: str) -> go.Figure:
    """Share of the positive increases on forgotten domains against the share of tokens, most increased first.

    A line a method; the dotted line is the control, the thin one what evenly spread increases would give.
    """
    rows = curves[(curves["size"] == size) & curves["class"].isin([FORGET, CONTROL])]
    figure = go.Figure()
    for (method, kind), points in rows.groupby(["method", "class"], sort=False):
        style = method_style(method)
        label = "another seed's baseline" if kind == CONTROL else style.label
        figure.add_scatter(
            x=points["tokens"],
            y=points["share"],
            name=label,
            mode="lines",
            line={"color": style.colour, "dash": "dot" if kind == CONTROL else style.dash, "width": 2},
            customdata=behind(points),
            hovertemplate=f"<b>{label}</b><br>%{{x:.0%}} of the tokens: %{{y:.1%}}<br>%{{customdata}}<extra></extra>",
        )
    figure.add_scatter(
        x=[0, 1], y=[0, 1], mode="lines", line={"color": GREY, "width": 1}, showlegend=False, hoverinfo="skip"
    )
    styled(figure, f"Forgotten domains, {size}", "share of the tokens", "share of the increase")
    figure.update_xaxes(tickformat=".0%", range=[0, 1])
    figure.update_yaxes(tickformat=".0%", range=[0, 1.02])
    return figure


def localization_bars(table: pd.DataFrame, size: str, value: str) -> go.Figure:
    """One value of the `mean` rows: a solid bar for forgotten domains and a hatched one for retained ones.

    `value` is a key of TITLES. The dotted line is the control.
    """
    means = table[(table["profile"] == MEAN) & (table["size"] == size) & table[value].notna()]
    figure = go.Figure()
    for kind, pattern in PATTERNS.items():
        rows = means[means["class"] == kind]
        if rows.empty:
            continue
        ends = {"array": rows[f"{value}_high"] - rows[value], "arrayminus": rows[value] - rows[f"{value}_low"]}
        figure.add_bar(
            x=[method_style(method).label for method in rows["method"]],
            y=rows[value],
            name={FORGET: "forgotten", RETAIN: "retained"}[kind],
            marker={
                "color": [method_style(method).colour for method in rows["method"]],
                "pattern": {"shape": pattern, "size": 6},
            },
            error_y={"type": "data", "thickness": 1.3, "width": 3, "color": GREY, **ends},
            customdata=np.column_stack([rows[[f"{value}_low", f"{value}_high", "num_seeds"]], behind(rows)]),
            hovertemplate="<b>%{x}</b>, %{fullData.name}<br>%{y:.3f} [%{customdata[0]:.3f}, %{customdata[1]:.3f}], "
            "%{customdata[2]} seeds<br>%{customdata[3]}<extra></extra>",
        )
    for level in means.loc[means["class"] == CONTROL, value]:
        line = {"color": GREY, "dash": "dot", "width": 1.5}
        figure.add_hline(y=level, line=line, annotation_text="another seed's baseline")
    styled(figure, f"{TITLES[value][0].upper()}{TITLES[value][1:]}, {size}", "", TITLES[value])
    figure.update_layout(barmode="group", title_font_size=13)
    return figure
