"""What all sizes but the largest predict for it, as dashed lines in the figures against model size."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from gram_platform.analysis.trends import TREND_CLASSES, Trend, trends
from gram_platform.pages.figures.style import Style, method_style

LINE_POINTS = 25


def add_trends(figure: go.Figure, rows: pd.DataFrame, parameters: Mapping[str, float], value: str) -> None:
    """For each method in `rows` (of one profile) the law of `analysis.trends`, core and forget alone.

    Dashed from the smallest size to the largest, which it has not seen, with its 90% prediction interval there.
    """
    if value not in TREND_CLASSES:
        return
    for method, trend in trends(rows, parameters, value).items():
        smallest = rows.loc[rows["method"] == method, "size"].map(parameters).min()
        _add_trend(figure, trend, smallest, method_style(method))


def _add_trend(figure: go.Figure, trend: Trend, smallest: float, style: Style) -> None:
    along = np.geomspace(smallest, trend.parameters, LINE_POINTS)
    rest = np.full(LINE_POINTS - 1, np.nan)
    above, below = trend.high - trend.predicted, trend.predicted - trend.low
    figure.add_scatter(
        x=along,
        y=trend.law.predict(along),
        name=f"{style.label}, predicted",
        legendgroup=style.label,
        showlegend=False,
        mode="lines",
        line={"color": style.colour, "dash": "dash", "width": 1.2},
        error_y={"type": "data", "array": [*rest, above], "arrayminus": [*rest, below], "thickness": 1.2, "width": 6},
        hovertemplate=f"<b>%{{fullData.name}}</b> from the smaller sizes<br>%{{y:.3f}}, at the largest "
        f"{trend.predicted:.3f} [{trend.low:.3f}, {trend.high:.3f}], measured {trend.measured:.3f}<extra></extra>",
    )
