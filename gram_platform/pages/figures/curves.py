"""Draws the baselines' learning curves with the fitted power laws that the compute ratio inverts."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from gram_platform.pages.figures.style import Style, domain_styles, log_ticks, styled

LINE_POINTS = 80


def learning_curve_figure(curves: pd.DataFrame, fits: pd.DataFrame, size: str) -> go.Figure:
    """Draws validation loss against step at one size: points of every seed and domain, and each domain's pooled fit.

    `curves` has `size, seed, step, domain, loss` (and `run_id` for the hover), `fits` the columns of `fits_frame`.
    Both axes are logarithmic. A domain without a fit has points only; the legend marks fits at a bound and poor ones.
    """
    points, laws = curves[curves["size"] == size], fits[fits["size"] == size].set_index("domain")
    figure = go.Figure()
    for domain, style in domain_styles(points["domain"]).items():
        _add_points(figure, points[points["domain"] == domain], style)
        if domain in laws.index:
            _add_fit(figure, laws.loc[domain], style)
    styled(figure, f"Baseline, {size}", "step", "validation loss (nats a token)")
    positive = points["step"][points["step"] > 0]
    ticks = log_ticks(positive.min(), positive.max()) if len(positive) else []
    figure.update_xaxes(type="log", tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks])
    figure.update_yaxes(type="log", nticks=6)
    return figure


def _add_points(figure: go.Figure, points: pd.DataFrame, style: Style) -> None:
    runs = points["run_id"] if "run_id" in points else pd.Series("", index=points.index)
    figure.add_scatter(
        x=points["step"],
        y=points["loss"],
        name=style.label,
        legendgroup=style.label,
        mode="markers",
        marker={"symbol": style.symbol, "size": 5, "color": style.colour, "opacity": 0.6},
        customdata=np.stack([points["seed"].to_numpy(object), runs.to_numpy(object)], axis=1),
        hovertemplate="<b>%{fullData.name}</b>, step %{x}<br>loss %{y:.4f}<br>seed %{customdata[0]} %{customdata[1]}"
        "<extra></extra>",
        meta={"runs": 1},
    )


def _add_fit(figure: go.Figure, fit: pd.Series, style: Style) -> None:
    steps = np.geomspace(max(fit["first_step"], 1.0), fit["last_step"], LINE_POINTS)
    shifted = (steps + fit["s0"]) / (fit["first_step"] + fit["s0"])
    warning = " at its bound" * bool(fit["at_bound"]) + " poor" * bool(fit["poor"])
    law = f"A {fit['A']:.4g}, alpha {fit['alpha']:.4g}, s0 {fit['s0']:.4g}"
    law += f", residual {fit['rms']:.2%} of the loss, {fit['step_rms']:.1%} of the steps"
    figure.add_scatter(
        x=steps,
        y=fit["first_loss"] * shifted ** -fit["alpha"],
        name=f"{style.label} fit{' (' + warning.strip() + ')' if warning else ''}",
        legendgroup=style.label,
        showlegend=bool(warning),
        mode="lines",
        line={"color": style.colour, "dash": style.dash, "width": 2},
        hovertemplate=f"<b>{style.label}</b> fit{warning}<br>step %{{x:.0f}}, loss %{{y:.4f}}<br>{law}<extra></extra>",
    )
