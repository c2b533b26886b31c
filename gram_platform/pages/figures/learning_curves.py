"""Draws learning curves: baselines' validation losses and the fits that turn a loss into steps."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from gram_platform.pages.figures.style import (
    HEIGHT,
    LEGEND_ROW,
    Style,
    domain_styles,
    log_axis,
    log_ticks,
    styled,
    with_table,
)

LINE_POINTS = 80


def learning_curve_figure(curves: pd.DataFrame, fits: pd.DataFrame, size: str) -> go.Figure:
    """Draws validation loss against step at one size: every seed's points, each domain's fit.

    `curves` has `size, seed, step, domain, loss` (and `run_id` for the hover), `fits` the columns
    of `fits_frame`. Both axes are logarithmic. A domain without a fit has points only; the legend
    has one entry a domain and marks fits at a bound and poor ones. The figure's table has the
    points.
    """
    points, laws = curves[curves["size"] == size], fits[fits["size"] == size].set_index("domain")
    figure = go.Figure()
    for domain, style in domain_styles(points["domain"]).items():
        fit = laws.loc[domain] if domain in laws.index else None
        warning = "" if fit is None else _warning(fit)
        _add_points(figure, points[points["domain"] == domain], style, showlegend=not warning)
        if fit is not None:
            _add_fit(figure, fit, style, warning)
    styled(figure, f"Baseline, {size}", "step", "loss (nats a token)")
    for update, values in (
        (figure.update_xaxes, points["step"]),
        (figure.update_yaxes, points["loss"]),
    ):
        positive = values[values > 0]
        log_axis(update, log_ticks(positive.min(), positive.max()) if len(positive) else [])
    # The legend has two entries a row in a narrow figure, and takes its place from the axes.
    num_rows = (points["domain"].nunique() + 1) // 2
    figure.update_layout(height=HEIGHT + LEGEND_ROW * max(0, num_rows - 1))
    return with_table(figure, points.filter(["size", "seed", "step", "domain", "loss", "run_id"]))


def _warning(fit: pd.Series) -> str:
    """Says what is wrong with a fit, in brackets after its name; "" for a good one."""
    flaws = [text for name, text in (("at_bound", "at its bound"), ("poor", "poor")) if fit[name]]
    return f" ({', '.join(flaws)})" if flaws else ""


def _add_points(figure: go.Figure, points: pd.DataFrame, style: Style, showlegend: bool) -> None:
    about = points.reindex(columns=["seed", "run_id"], fill_value="")
    figure.add_scatter(
        x=points["step"],
        y=points["loss"],
        name=style.label,
        legendgroup=style.label,
        showlegend=showlegend,
        mode="markers",
        marker={"symbol": style.symbol, "size": 5, "color": style.colour, "opacity": 0.6},
        customdata=about.to_numpy(object),
        hovertemplate=(
            "<b>%{fullData.name}</b>, step %{x}<br>loss %{y:.4f}<br>seed %{customdata[0]}"
            " %{customdata[1]}<extra></extra>"
        ),
        meta={"runs": 1},
    )


def _add_fit(figure: go.Figure, fit: pd.Series, style: Style, warning: str) -> None:
    steps = np.geomspace(max(fit["first_step"], 1.0), fit["last_step"], LINE_POINTS)
    shifted = (steps + fit["s0"]) / (fit["first_step"] + fit["s0"])
    law = f"A {fit['A']:.4g}, alpha {fit['alpha']:.4g}, s0 {fit['s0']:.4g}"
    law += f", residual {fit['rms']:.2%} of the loss, {fit['step_rms']:.1%} of the steps"
    figure.add_scatter(
        x=steps,
        y=fit["first_loss"] * shifted ** -fit["alpha"],
        name=f"{style.label} fit{warning}",
        legendgroup=style.label,
        showlegend=bool(warning),
        mode="lines",
        line={"color": style.colour, "dash": style.dash, "width": 2},
        hovertemplate=(
            f"<b>{style.label}</b> fit{warning}<br>step %{{x:.0f}}, loss"
            f" %{{y:.4f}}<br>{law}<extra></extra>"
        ),
    )
