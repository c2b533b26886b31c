"""Draws losses over grids of learning rate and batch size, and scaling laws of their optima."""

import math

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from gram_platform.analysis.intervals import ENDS
from gram_platform.analysis.lr_grid import POOLED
from gram_platform.pages.figures.searches import runs_text
from gram_platform.pages.figures.style import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    VERMILION,
    Style,
    add_band,
    lay_out,
    log_axis,
    log_ticks,
    size_axis,
    whiskers,
    with_notes,
    with_table,
)

AXIS_TITLES = {"lr": "Peak learning rate", "batch": "Batch (sequences)"}
NUM_CONTOURS = 14
OUTLINE = {"width": 1, "color": "white"}
# An optimum farther than this factor from both laws does not extend the axis of a law.
FAR = 30.0
# A minimum farther than this factor beyond the grid does not extend the axes of a surface.
BEYOND = 4.0


def surface_figure(
    cells: pd.DataFrame, optima: pd.DataFrame, surfaces: pd.DataFrame, size: str
) -> go.Figure:
    """Draws one size's grid cells and loss minima over contours of the loss fitted to all seeds.

    The frames come from `lr_grid`. If `cells` has a column `url`, a click on a cell opens its URL.
    - Star: the fit's minimum. Its bars span all points whose fitted loss is within 0.1% of it.
    - Ring: the best cell, if the fit has no minimum.
    - Small diamonds: the minima of single seeds' fits.
    - Crosses: cells with a diverged seed, which the fits leave out.
    """
    of_size, minima = cells[cells["size"] == size], optima[optima["size"] == size]
    figure = go.Figure()
    _add_contours(figure, surfaces[surfaces["size"] == size])
    _add_cells(figure, of_size)
    diamond = {"symbol": "diamond", "size": 7, "color": ORANGE}
    star = {"symbol": "star", "size": 15, "color": VERMILION}
    for row in minima[(minima["seed"] != POOLED) & minima["convex"]].to_dict("records"):
        _add_minimum(figure, row, f"seed {row['seed']}", diamond, False)
    pooled = minima[minima["seed"] == POOLED].to_dict("records")
    notes = "; ".join(row["notes"] for row in pooled if row["notes"])
    for row in pooled:
        if row["convex"]:
            _add_minimum(figure, row, "minimum", star, True)
        elif not math.isnan(row["best_loss"]):
            _add_best_cell(figure, row)
    lay_out(figure, with_notes(size, notes), AXIS_TITLES["lr"], AXIS_TITLES["batch"])
    for axis, name in ((figure.update_xaxes, "lr"), (figure.update_yaxes, "batch")):
        values = sorted(set(of_size[name]))
        log_axis(axis, values)
        axis(range=_range(values, pooled, name))
    return with_table(figure, of_size, None)


def law_figure(
    lines: pd.DataFrame, optima: pd.DataFrame, laws: pd.DataFrame, quantity: str
) -> go.Figure:
    """Draws the optimal `quantity` (lr or batch) against the parameter count, with the fitted law.

    Bars span all points whose fitted loss is within 0.1% of the minimum. Hollow markers are optima
    at the edge of their grid. The band is the law's 90% interval over seeds. The dashed line is the
    paper's law. Laws are drawn up to REACH times beyond the sizes to which they were fitted. If
    there is no law, the title says why.
    """
    line = lines[lines["quantity"] == quantity]
    law = laws[laws["quantity"] == quantity].iloc[0]
    has_place = np.isfinite(optima[quantity].astype(float)) & (optima[quantity] > 0)
    shown = optima[optima["convex"] & has_place]
    figure = go.Figure()
    sure = line[line["low"].notna()]
    if len(sure):
        band = Style("90% over seeds", BLUE, "", "")
        add_band(figure, sure["parameters"], sure["low"], sure["high"], band)
        figure.data[-1].update(name=band.label, showlegend=True)
    _add_line(figure, line, "paper", "the paper's law", {"color": GREY, "dash": "dash", "width": 2})
    _add_line(figure, line, "value", "our law", {"color": BLUE, "width": 2.5})
    _add_optima(figure, shown, quantity, False)
    _add_optima(figure, shown, quantity, True)
    text = with_notes("no law", law["no_law"]) if law["no_law"] else _law_text(law)
    lay_out(figure, f"{AXIS_TITLES[quantity]}: {text}", "", AXIS_TITLES[quantity])
    size_axis(figure, optima)
    low, high = _extent(line, shown.loc[shown["seed"] == POOLED, quantity])
    log_axis(figure.update_yaxes, log_ticks(low, high))
    figure.update_yaxes(range=[math.log10(low), math.log10(high)])
    ends = [quantity + end for end in ENDS]
    return with_table(
        figure,
        shown.filter(["size", "parameters", "seed", *ends, "on_edge", "loss", "notes"]),
        None,
    )


def _add_contours(figure: go.Figure, surface: pd.DataFrame) -> None:
    if surface.empty:
        return
    mesh = surface.pivot(index="batch", columns="lr", values="loss")
    figure.add_contour(
        x=mesh.columns.to_numpy(),
        y=mesh.index.to_numpy(),
        z=mesh.to_numpy(),
        ncontours=NUM_CONTOURS,
        colorscale="Cividis",
        opacity=0.75,
        line={"width": 0.5},
        colorbar={"title": {"text": "loss (fit)", "side": "right"}, "thickness": 10},
        hovertemplate="fit: loss %{z:.4f}<br>lr %{x:.3~r}, batch %{y:.3~r}<extra></extra>",
        name="fit",
    )


def _add_cells(figure: go.Figure, cells: pd.DataFrame) -> None:
    diverged = cells["num_diverged"] > 0
    kinds = (
        (
            "cell",
            cells["used"],
            "circle",
            "loss %{customdata[0]:.4f} [%{customdata[1]:.4f}, %{customdata[2]:.4f}]",
        ),
        ("diverged", diverged, "x", "%{customdata[4]} diverged, left out of the fit"),
        ("no result", ~cells["used"] & ~diverged, "circle-open", "no complete run"),
    )
    for name, chosen, symbol, text in kinds:
        rows = cells[chosen]
        if rows.empty:
            continue
        facts = ["loss", "loss_low", "loss_high", "num_seeds", "num_diverged", "runs", "url"]
        shown = rows.assign(runs=["<br>".join(runs_text(ids)) for ids in rows["runs"]])
        shown = shown.reindex(columns=facts).astype({"url": object}).fillna({"url": ""})
        figure.add_scatter(
            x=rows["lr"],
            y=rows["batch"],
            name=name,
            mode="markers",
            marker={"symbol": symbol, "size": 8, "color": INK, "line": OUTLINE},
            customdata=shown.to_numpy(object),
            meta={"url": 6},
            hovertemplate=(
                f"<b>lr %{{x:.3~r}}, batch %{{y}}</b><br>{text}<br>%{{customdata[3]}} complete"
                " seeds<br>%{customdata[5]}<extra></extra>"
            ),
        )


def _add_minimum(figure: go.Figure, row: dict, name: str, marker: dict, has_span: bool) -> None:
    spans: list[dict | None] = [None, None]
    if has_span:
        rows = pd.DataFrame([row])
        spans = [whiskers(rows, name, VERMILION, 1.5, None) for name in ("lr", "batch")]
    figure.add_scatter(
        x=[row["lr"]],
        y=[row["batch"]],
        name=name,
        legendgroup="minimum" if has_span else "seeds",
        showlegend=has_span,
        mode="markers",
        marker={**marker, "line": OUTLINE},
        hovertemplate=(
            f"<b>{name}</b><br>lr %{{x:.3~r}}, batch %{{y:.3~r}}<br>loss {row['loss']:.4f}, "
            f"residual {row['rms']:.2g}<br>{row['notes']}<extra></extra>"
        ),
        error_x=spans[0],
        error_y=spans[1],
    )


def _add_best_cell(figure: go.Figure, row: dict) -> None:
    figure.add_scatter(
        x=[row["best_lr"]],
        y=[row["best_batch"]],
        name="best cell",
        mode="markers",
        marker={"symbol": "circle-open", "size": 18, "color": VERMILION, "line": {"width": 2.5}},
        hovertemplate="<b>best cell</b><br>lr %{x:.3~r}, batch %{y}<extra></extra>",
    )


def _range(values: list[float], pooled: list[dict], name: str) -> list[float]:
    low, high = values[0], values[-1]
    for row in pooled:
        if row["convex"] and low / BEYOND < row[name] < high * BEYOND:
            low, high = min(low, row[name]), max(high, row[name])
    margin = math.log10(2.0) / 2.0
    return [math.log10(low) - margin, math.log10(high) + margin]


def _add_line(figure: go.Figure, lines: pd.DataFrame, column: str, name: str, line: dict) -> None:
    known = lines[lines[column].notna()]
    hover = f"<b>{name}</b><br>%{{x:.3s}} parameters: %{{y:.3~r}}<extra></extra>"
    if len(known):
        x, y = known["parameters"], known[column]
        figure.add_scatter(x=x, y=y, name=name, mode="lines", line=line, hovertemplate=hover)


def _add_optima(figure: go.Figure, optima: pd.DataFrame, quantity: str, is_pooled: bool) -> None:
    rows = optima[(optima["seed"] == POOLED) == is_pooled]
    if rows.empty:
        return
    spans = whiskers(rows, quantity, VERMILION, thickness=1.5, width=None)
    name, size, shape, colour = (
        ("optimum (hollow: at the edge)", 11, "star", VERMILION)
        if is_pooled
        else ("single seeds", 5, "diamond", ORANGE)
    )
    symbols = [shape + "-open" * bool(on_edge) for on_edge in rows["on_edge"]]
    figure.add_scatter(
        x=rows["parameters"],
        y=rows[quantity].astype(float),
        name=name,
        mode="markers",
        marker={"symbol": symbols, "size": size, "color": colour},
        error_y=spans if is_pooled else None,
        customdata=rows[["size", "seed", "notes"]].to_numpy(object),
        hovertemplate=(
            "<b>%{customdata[0]}</b>,"
            " %{customdata[1]}<br>%{y:.4~r}<br>%{customdata[2]}<extra></extra>"
        ),
    )


def _extent(line: pd.DataFrame, pooled: pd.Series) -> tuple[float, float]:
    laws = pd.concat([line["value"], line["paper"]]).dropna().astype(float)
    near = (
        pooled[(pooled > laws.min() / FAR) & (pooled < laws.max() * FAR)] if len(laws) else pooled
    )
    shown = pd.concat([laws, near.astype(float)])
    return (shown.min() / 2.0, shown.max() * 2.0) if len(shown) else (0.5, 2.0)


def _law_text(law: pd.Series) -> str:
    text = f"{law['coefficient']:.3g} N^{law['exponent']:.3f}"
    return text if math.isnan(law["t_low"]) else f"{text} [{law['t_low']:.2f}, {law['t_high']:.2f}]"
