"""Draws the errors of compute ratios against the shares of the steps that they stand for."""

import pandas as pd
import plotly.graph_objects as go

from gram_platform.analysis.calibration import AUXILIARY, FIT, UNIT, by_class
from gram_platform.analysis.intervals import interval_columns
from gram_platform.config import CORE
from gram_platform.pages.figures.style import BLUE, GREY, ORANGE, Style, add_line, styled, with_table

STYLES = {
    (UNIT, CORE): Style("core, finished baselines", BLUE, "circle", "solid"),
    (UNIT, AUXILIARY): Style("auxiliary, finished baselines", ORANGE, "square", "solid"),
    (FIT, CORE): Style("core, left-out points", BLUE, "circle-open", "dot"),
    (FIT, AUXILIARY): Style("auxiliary, left-out points", ORANGE, "square-open", "dot"),
}


def calibration_figure(errors: pd.DataFrame, size: str) -> go.Figure:
    """Draws the errors of a size, core's and the auxiliary domains' mean, as means over seeds with 90% t-intervals.

    `errors` has ERROR_COLUMNS. A line for each of `STYLES` that has values; empty if none has.
    """
    found, figure, drawn = by_class(errors[errors["size"] == size]), go.Figure(), []
    for (error_of, domain), style in STYLES.items():
        cell = found[(found["error_of"] == error_of) & (found["domain"] == domain)]
        rows = [{"share": share, **interval_columns("error", of["error"])} for share, of in cell.groupby("share")]
        if rows:
            add_line(figure, pd.DataFrame(rows), "share", "error", style)
            drawn.append(pd.DataFrame(rows).assign(series=style.label))
    if len(figure.data):
        styled(figure, f"Error of the compute ratio, {size}", "true share of the steps", "compute ratio minus share")
        figure.add_hline(y=0.0, line={"color": GREY, "dash": "dot", "width": 1.5})
        with_table(figure, pd.concat(drawn))
    return figure
