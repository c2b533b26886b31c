"""Compute ratio against what a study varies: lines over numbers, groups of points over names; the paper's beside."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from gram_platform.analysis.ratios import VARIANT
from gram_platform.config.identity import invalid
from gram_platform.pages.figures.ratios import CLASS_TITLES, HIDDEN
from gram_platform.pages.figures.style import GREY, Style, behind, domain_styles, method_style, reference_line, styled
from gram_platform.paper.paper import PAPER_SCALES, paper_value

IN_PAPER = "the paper, at its scale"


def variant_figure(table: pd.DataFrame, varies: str, size: str, profile: str, value: str, study: str = "") -> go.Figure:
    """One class of the table's rows of a size and profile against the variants; `table` has a column `variant`.

    Error bars are 90% intervals over seeds. Hollow diamonds are the paper's values for `study`, at its own scale. The
    baseline is drawn where it is not the unit, that is where a value differs from 1. Empty where there is no value;
    ValueError for an unknown class.
    """
    if value not in CLASS_TITLES:
        raise invalid("value", value, "one of " + ", ".join(CLASS_TITLES))
    shown = _shown(table, size, profile)
    rows, variants = shown[shown[value].notna()], list(dict.fromkeys(table[VARIANT]))
    figure = go.Figure()
    if rows.empty:
        return figure
    for method, line in rows.groupby("method", sort=False):
        ends = (line[f"{value}_low"], line[f"{value}_high"])
        _add_series(figure, line[VARIANT], line[value], ends, method_style(method), variants, behind(line))
    _add_paper(figure, list(dict.fromkeys(rows["method"])), value, study, variants)
    _finish(figure, f"{CLASS_TITLES[value]}, {size}", varies, variants)
    columns = [name + end for name in CLASS_TITLES for end in ("", "_low", "_high")]
    figure.update_yaxes(range=_range([*shown[columns].to_numpy(float).ravel(), *_drawn(figure)]))
    return figure


def domain_variant_figure(domains: pd.DataFrame, varies: str, method: str, size: str) -> go.Figure:
    """Every domain of a method against the variants: core, and each other domain in its own profile, core with it.

    `domains` is `domain_table`'s frame with a column `variant`. Where a study has no such profile, the domain under
    core alone. Empty where there is nothing.
    """
    rows = domains[(domains["method"] == method) & (domains["size"] == size)]
    variants, figure = list(dict.fromkeys(rows[VARIANT])), go.Figure()
    for domain, style in domain_styles(rows["domain"]).items():
        mine = rows[(rows["domain"] == domain) & (rows["class"] != "elicited")]
        own = mine[mine["profile"] == f"core+{domain}"]
        line = (own if len(own) else mine[mine["profile"] == "core"]).drop_duplicates(VARIANT)
        if len(line):
            ends = (line["low"], line["high"])
            _add_series(figure, line[VARIANT], line["compute_ratio"], ends, style, variants, behind(line))
    if len(figure.data):
        _finish(figure, f"{method_style(method).label} by domain, {size}", varies, variants)
    return figure


def _shown(table: pd.DataFrame, size: str, profile: str) -> pd.DataFrame:
    """The rows of a profile; of the baseline those that are not 1 by construction, under whatever profile it has."""
    of_size = table[table["size"] == size]
    own = of_size[(of_size["profile"] == profile) & ~of_size["method"].isin(HIDDEN)]
    differs = (of_size[["core", "retain"]] - 1.0).abs().max(axis="columns") > 1e-6
    baselines = of_size[of_size["method"].isin(HIDDEN) & (of_size["profile"] == "all") & differs]
    return pd.concat([own, baselines])


def is_numeric(variants: Sequence[str]) -> bool:
    """Whether every variant is a number, so that they have an axis and not only an order."""
    try:
        return all(np.isfinite(float(variant)) for variant in variants)
    except ValueError:
        return False


def _add_series(
    figure: go.Figure, variants, values, ends, style: Style, all_variants: Sequence[str], runs: np.ndarray
) -> None:
    """`runs`: the run ids behind each value, for the hover."""
    low, high = ends
    whiskers = {"array": high - values, "arrayminus": values - low}
    numeric = is_numeric(all_variants)
    figure.add_scatter(
        x=variants.astype(float) if numeric else variants,
        y=values,
        name=style.label,
        mode="lines+markers" if numeric else "markers",
        line={"color": style.colour, "dash": style.dash, "width": 2.5},
        marker={"symbol": style.symbol, "size": 9, "color": style.colour},
        error_y={"type": "data", "thickness": 1.3, "width": 4, "color": style.colour, **whiskers},
        offsetgroup=style.label,
        customdata=np.stack([low, high, runs], axis=1),
        hovertemplate="<b>%{fullData.name}</b>, %{x}<br>%{y:.3f} [%{customdata[0]:.3f}, %{customdata[1]:.3f}]<br>"
        "%{customdata[2]}<extra></extra>",
    )


def _add_paper(figure: go.Figure, methods: Sequence[str], value: str, study: str, variants: Sequence[str]) -> None:
    """The paper's values of each method, in the method's colour."""
    if study not in PAPER_SCALES:
        return
    for method in methods:
        found = [(variant, *paper_value(study, variant, method, value)) for variant in variants]
        points = [point for point in found if not np.isnan(point[1]) and not (method in HIDDEN and point[1] == 1.0)]
        if not points:
            continue
        names, values, errors = zip(*points, strict=True)
        style = method_style(method)
        figure.add_scatter(
            x=[float(name) for name in names] if is_numeric(variants) else names,
            y=values,
            name=f"{style.label}, {IN_PAPER}",
            mode="markers",
            marker={"symbol": "diamond-open", "size": 9, "color": style.colour, "line": {"width": 2}},
            error_y={"type": "data", "thickness": 1.0, "width": 3, "color": GREY, "array": errors},
            offsetgroup=style.label,
            hovertemplate="%{fullData.name}: %{y:.3f}<extra></extra>",
        )


def _finish(figure: go.Figure, title: str, varies: str, variants: Sequence[str]) -> None:
    reference_line(figure)
    styled(figure, title, varies.replace("_", " "), "compute ratio")
    if is_numeric(variants):
        places = [float(variant) for variant in variants]
        figure.update_xaxes(tickvals=places, ticktext=list(variants))
    else:
        figure.update_layout(scattermode="group", scattergap=0.5)
        figure.update_xaxes(categoryorder="array", categoryarray=list(variants), type="category")


def _drawn(figure: go.Figure) -> list[float]:
    """The values of every series, and the ends of their error bars."""
    found = [1.0]
    for series in figure.data:
        values = np.array(series.y, float)
        errors = np.nan_to_num(np.array(series.error_y.array, float))
        found += [*values, *(values + errors), *(values - errors)]
    return found


def _range(values: Sequence[float]) -> list[float]:
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    margin = 0.05 * max(high - low, 0.1)
    return [low - margin, high + margin]
