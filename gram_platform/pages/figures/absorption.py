"""Which module a domain's batches pull at as training goes on: a line for each module, the domain's own one thick."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from gram_platform.pages.figures.style import GREY, Style, add_band, behind, domain_styles, styled

OWN_WIDTH, OTHER_WIDTH = 3.5, 1.2
OTHER_OPACITY = 0.55


def absorption_figure(curves: pd.DataFrame, domain: str, title: str) -> go.Figure:
    """`curves` are the rows of `absorption.share_curves` of one method and size; empty for a domain without any.

    Bands are 90% intervals over seeds, of the domain's own module alone. The dotted line is an even split.
    """
    rows, figure = curves[curves["domain"] == domain], go.Figure()
    if rows.empty:
        return figure
    styles = domain_styles(curves["domain"])
    modules = sorted(set(rows["module"]), key=lambda module: (module == domain, module))  # its own one on top
    for module in modules:
        style = styles.get(module, Style(module, GREY, "circle", "solid"))
        _add_module(figure, rows[rows["module"] == module], style, module == domain)
    figure.add_hline(y=1.0 / len(modules), line={"color": GREY, "dash": "dot", "width": 1.5}, annotation_text="even")
    styled(figure, title, "step", "share of the squared gradient")
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(range=[0.0, 1.0], tickformat=".0%")
    return figure


def _add_module(figure: go.Figure, line: pd.DataFrame, style: Style, is_own: bool) -> None:
    sure = line[line["low"].notna()]
    width, dash = (OWN_WIDTH, "solid") if is_own else (OTHER_WIDTH, style.dash)
    if is_own and len(sure) > 1:
        add_band(figure, sure["step"], sure["low"], sure["high"], style)
    figure.add_scatter(
        x=line["step"],
        y=line["share"],
        name=f"{style.label}, its own" if is_own else style.label,
        legendgroup=style.label,
        legendrank=1 if is_own else 1000,
        mode="lines",
        line={"color": style.colour, "dash": dash, "width": width},
        opacity=1.0 if is_own else OTHER_OPACITY,
        customdata=np.column_stack([line[["low", "high", "num_seeds"]], behind(line)]),
        hovertemplate="<b>%{fullData.name}</b>, step %{x}<br>%{y:.1%} [%{customdata[0]:.1%}, %{customdata[1]:.1%}], "
        "%{customdata[2]} seeds<br>%{customdata[3]}<extra></extra>",
    )
