"""Draws compute ratio against a study's variants: lines over numbers, points over names."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from gram_platform.methods.nodes import VARIANT
from gram_platform.pages.figures.study import CLASS_TITLES, HIDDEN, class_means, class_table
from gram_platform.pages.figures.style import (
    IN_PAPER,
    Style,
    add_paper_points,
    domain_styles,
    method_style,
    ratio_axis,
    ratio_hover,
    reference_line,
    styled,
    whiskers,
    with_table,
)
from gram_platform.paper.paper import read_printed


def variant_figure(
    table: pd.DataFrame, varies: str, size: str, profile: str, value: str, study: str = ""
) -> go.Figure:
    """Draws one class of the rows of a size and profile against the column `variant`.

    Hollow diamonds are the paper's values for `study`, at the paper's scale. The baseline is drawn
    only if a value differs from 1, a name only if there are no numbers. The figure is empty if
    there is no value.
    """
    variants = list(dict.fromkeys(table[VARIANT]))
    numbers = [variant for variant in variants if is_numeric([variant])]
    variants = numbers if len(numbers) > 1 else variants
    shown = _shown(table[table[VARIANT].isin(variants)], size, profile)
    rows = shown[shown[value].notna()]
    figure = go.Figure()
    if rows.empty:
        return figure
    for method, line in rows.groupby("method", sort=False):
        _add_series(figure, line, value, f"{value}_", method_style(method), variants)
    paper = read_printed(study)
    is_unit = paper["method"].isin(HIDDEN) & (paper[value] == 1.0)
    is_drawn = paper["method"].isin(rows["method"]) & paper[VARIANT].isin(variants) & ~is_unit
    paper = paper[is_drawn & paper[value].notna()]
    for method in dict.fromkeys(rows["method"]):
        points, (label, colour, *_) = paper[paper["method"] == method], method_style(method)
        if len(points):
            x = points[VARIANT].astype(float) if is_numeric(variants) else points[VARIANT]
            name = f"{label}, {IN_PAPER}"
            add_paper_points(figure, x, points, value, name, colour, offsetgroup=label)
    _finish(figure, f"{CLASS_TITLES[value]}, {size}", varies, variants)
    ratio_axis(figure, [*class_means(shown), *paper[value]])
    return with_table(figure, class_table(rows, value))


def domain_variant_figure(domains: pd.DataFrame, varies: str, method: str, size: str) -> go.Figure:
    """Draws every domain of a method against the variants, under the profile core+domain.

    `domains` is `domain_table`'s frame with a column `variant`. A domain without this profile is
    drawn under core. The figure is empty if there is no row.
    """
    rows = domains[(domains["method"] == method) & (domains["size"] == size)]
    variants, figure, lines = list(dict.fromkeys(rows[VARIANT])), go.Figure(), []
    for domain, style in domain_styles(rows["domain"]).items():
        of_domain = rows[(rows["domain"] == domain) & (rows["class"] != "elicited")]
        kept = of_domain[of_domain["profile"] == f"core+{domain}"]
        line = kept if len(kept) else of_domain[of_domain["profile"] == "core"]
        line = line.drop_duplicates(VARIANT)
        if len(line):
            lines.append(line)
            _add_series(figure, line, "compute_ratio", "", style, variants)
    if len(figure.data):
        _finish(figure, f"{method_style(method).label} by domain, {size}", varies, variants)
        ratio_axis(figure, pd.concat(lines)["compute_ratio"])
        with_table(figure, pd.concat(lines))
    return figure


def _shown(table: pd.DataFrame, size: str, profile: str) -> pd.DataFrame:
    """Selects the rows of a profile, and the baseline's rows that are not 1 by construction."""
    of_size = table[table["size"] == size]
    of_profile = of_size[(of_size["profile"] == profile) & ~of_size["method"].isin(HIDDEN)]
    differs = (of_size[["core", "retain"]] - 1.0).abs().max(axis="columns") > 1e-6
    baselines = of_size[of_size["method"].isin(HIDDEN) & (of_size["profile"] == "all") & differs]
    return pd.concat([of_profile, baselines])


def is_numeric(variants: Sequence[str]) -> bool:
    try:
        return all(np.isfinite(float(variant)) for variant in variants)
    except ValueError:
        return False


def _add_series(
    figure: go.Figure,
    line: pd.DataFrame,
    value: str,
    prefix: str,
    style: Style,
    variants: Sequence[str],
) -> None:
    numeric = is_numeric(variants)
    series = go.Scatter(
        ratio_hover(line, prefix, "<b>%{fullData.name}</b>, %{x}"),
        x=line[VARIANT].astype(float) if numeric else line[VARIANT],
        y=line[value],
        name=style.label,
        mode="lines+markers" if numeric else "markers",
        line=style.line(2.5),
        marker=style.marker(9),
        error_y=whiskers(line, value, style.colour, width=4, prefix=prefix),
        offsetgroup=style.label,
    )
    figure.add_trace(series)


def _finish(figure: go.Figure, title: str, varies: str, variants: Sequence[str]) -> None:
    reference_line(figure)
    styled(figure, title, varies.replace("_", " "), "compute ratio")
    if is_numeric(variants):
        places = [float(variant) for variant in variants]
        figure.update_xaxes(tickvals=places, ticktext=list(variants))
    else:
        figure.update_layout(scattermode="group", scattergap=0.5)
        figure.update_xaxes(categoryorder="array", categoryarray=list(variants), type="category")
