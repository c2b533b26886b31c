"""Draws a study's compute ratios by size, method and profile, and its learning curves."""

from collections.abc import Mapping, Sequence
from textwrap import wrap

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from gram_platform.analysis.intervals import ENDS
from gram_platform.analysis.ratios import ALL, ELICITED, MEAN
from gram_platform.analysis.tables import points_of
from gram_platform.methods.nodes import VARIANT
from gram_platform.pages.figures.style import (
    GREY,
    HEIGHT,
    IN_PAPER,
    INK,
    LEGEND_ROW,
    Style,
    add_line,
    add_paper_points,
    add_points,
    domain_styles,
    lay_out,
    log_axis,
    log_ticks,
    method_style,
    ratio_axis,
    ratio_hover,
    reference_line,
    size_axis,
    translucent,
    whiskers,
    with_table,
)
from gram_platform.paper.paper import read_printed

CLASS_TITLES = {
    "core": "Core (higher is better)",
    "retain": "Retain (higher is better)",
    "forget": "Forget (lower is better)",
    "elicited": "Elicited forget (lower is better)",
}
# Methods without a series. The baseline is the line at 1.
HIDDEN = ("baseline",)
SIZE_HOVER = "<b>%{fullData.name}</b>, %{customdata[0]} (%{x:.3s})"
# If both are drawn, our bar moves left and the paper's point moves right by this distance.
OFFSET = 0.2
# The letters in a line of a label below bars, and the line's height in pixels.
MAX_LETTERS, LINE_HEIGHT = 10, 13


def aggregate_figure(
    table: pd.DataFrame, size: str, value: str, theirs: pd.DataFrame | None = None
) -> go.Figure:
    """Draws the methods' mean compute ratios of one class at one size, as bars with intervals.

    Means are over profiles. Hollow diamonds are the authors' means in `theirs`, a frame
    with the columns of table.csv. The figures of all four classes have the same vertical axis.
    """
    means = table[
        (table["profile"] == MEAN) & (table["size"] == size) & ~table["method"].isin(HIDDEN)
    ]
    rows = means[means[value].notna()].reset_index(drop=True)
    figure = go.Figure()
    if rows.empty:
        return figure
    theirs = table.iloc[:0] if theirs is None else theirs[theirs["method"].isin(means["method"])]
    beside = rows[["method"]].merge(theirs[["method", *(value + end for end in ENDS)]], on="method")
    labels, colours, *_ = zip(*map(method_style, rows["method"]), strict=True)
    places = [place - (OFFSET if len(beside) else 0.0) for place in rows.index]
    bars = go.Bar(
        ratio_hover(rows, f"{value}_", "<b>%{customdata[0]}</b>", labels),
        x=places,
        y=rows[value],
        width=0.36 if len(beside) else 0.6,
        name="this study",
        showlegend=False,
        marker={"color": colours},
        error_y=whiskers(rows, value),
    )
    figure.add_trace(bars)
    add_points(figure, places, points_of(rows, value), INK)
    if len(beside):
        places = rows.index[rows["method"].isin(beside["method"])] + OFFSET
        add_paper_points(figure, places, beside, value, IN_PAPER, GREY)
    reference_line(figure)
    lay_out(figure, f"{CLASS_TITLES[value]}, {size}", "", "compute ratio")
    span = [-0.6, len(rows) - 0.4]
    figure.update_xaxes(tickvals=list(rows.index), ticktext=labels, range=span)
    ratio_axis(figure, class_means(means, theirs))
    if len(beside):
        rows = pd.concat([rows.assign(source="ours"), beside.assign(source=IN_PAPER)])
    return with_table(figure, class_table(rows, value))


def scaling_figure(
    table: pd.DataFrame,
    parameters: Mapping[str, float],
    profile: str,
    value: str,
    published: pd.DataFrame | None = None,
) -> go.Figure:
    """Draws the compute ratio of one class at one profile against the number of parameters.

    `parameters` maps sizes to parameter counts. `published` contains the authors' results and
    has the columns of `table`. Thin lines with hollow markers show these results, for methods in
    `table` only. A method without ratios of this profile and class has no line.
    """
    if published is None:
        published = table.iloc[:0]
    published = published[published["method"].isin(table["method"])]
    shown = [_of_profile(frame, parameters, profile) for frame in (table, published)]
    rows, theirs = (frame[frame[value].notna()] for frame in shown)
    figure = go.Figure()
    for method, line in theirs.groupby("method", sort=False):
        _add_published(figure, line, value, method_style(method))
    for method, line in rows.groupby("method", sort=False):
        hover = ratio_hover(line, f"{value}_", SIZE_HOVER, line["size"])
        add_line(figure, line, "parameters", value, method_style(method), hover)
    reference_line(figure)
    lay_out(figure, CLASS_TITLES[value], "", "compute ratio")
    size_axis(figure, pd.concat([rows, theirs]))
    ratio_axis(figure, class_means(*shown))
    if len(published):
        rows = pd.concat([rows.assign(source="ours"), theirs.assign(source="published")])
    return with_table(figure, class_table(rows, value))


def class_table(rows: pd.DataFrame, value: str) -> pd.DataFrame:
    first = ("source", "method", "size", "parameters", "profile", VARIANT)
    return rows.filter([*first, *(value + end for end in ENDS), "num_seeds", "runs"])


def class_means(*frames: pd.DataFrame) -> np.ndarray:
    """Returns the compute ratios of all classes [N], whose figures have the same axis."""
    return pd.concat(frames)[list(CLASS_TITLES)].to_numpy(float).ravel()


def _of_profile(table: pd.DataFrame, parameters: Mapping[str, float], profile: str) -> pd.DataFrame:
    rows = table[(table["profile"] == profile) & ~table["method"].isin(HIDDEN)]
    rows = rows.assign(parameters=rows["size"].map(parameters))
    return rows.sort_values("parameters", kind="stable")


def _add_published(figure: go.Figure, line: pd.DataFrame, value: str, style: Style) -> None:
    published = go.Scatter(
        ratio_hover(line, f"{value}_", SIZE_HOVER, line["size"]),
        x=line["parameters"],
        y=line[value],
        name=f"{style.label}, published",
        legendrank=1001,
        mode="lines+markers",
        line={"color": style.colour, "dash": "dot", "width": 1.2},
        marker={"symbol": "diamond-open", "size": 9, "color": style.colour, "line": {"width": 1.5}},
        error_y=whiskers(line, value, style.colour, thickness=1.0),
    )
    figure.add_trace(published)


def profile_bars_figure(domains: pd.DataFrame, method: str, size: str) -> go.Figure:
    """Draws the compute ratio of each profile and domain as a bar, hatched for forgotten domains.

    An outline around a hatched bar is the ratio after an attack on the domain. `domains` is the
    result of `domain_table`. Figures of one size have the same axes, so profiles that `method`
    lacks appear without bars.
    """
    of_size = domains[(domains["size"] == size) & ~domains["method"].isin(HIDDEN)]
    rows, figure = of_size[of_size["method"] == method], go.Figure()
    if rows.empty:
        return figure
    # All methods have the same legend, of solid bars.
    for domain, style in domain_styles(of_size["domain"]).items():
        figure.add_bar(
            x=[None],
            y=[None],
            marker={"color": style.colour},
            name=style.label,
            legendgroup=style.label,
            offsetgroup=style.label,
        )
        _add_profile_bars(figure, rows[rows["domain"] == domain], style)
    reference_line(figure)
    lay_out(figure, f"{method_style(method).label}, {size}", "", "compute ratio")
    profiles = of_size["profile"].unique()
    profiles = sorted(profiles, key=lambda name: (name == ALL, name.count("+")))
    text = [_wrap(profile) for profile in profiles]
    figure.update_xaxes(
        type="category",
        categoryorder="array",
        categoryarray=profiles,
        tickvals=profiles,
        ticktext=text,
        tickangle=0,
        range=[-0.5, len(profiles) - 0.5],
        tickfont_size=10,
    )
    num_lines = max(label.count("<br>") + 1 for label in text)
    height = HEIGHT + LINE_HEIGHT * num_lines
    figure.update_layout(bargap=0.25, scattermode="group", scattergap=0.25, height=height)
    ratio_axis(figure, of_size["compute_ratio"])
    return with_table(figure, rows)


def _wrap(profile: str) -> str:
    lines = [
        part if len(part) <= MAX_LETTERS else part[: MAX_LETTERS - 1] + "…"
        for domain in profile.replace("+", "\n+ ").split("\n")
        for part in wrap(domain, MAX_LETTERS, break_long_words=False)
    ]
    return "<br>".join(lines)


def _add_profile_bars(figure: go.Figure, rows: pd.DataFrame, style: Style) -> None:
    colour, outline = style.colour, {"color": style.colour, "width": 1.5}
    hatch = {"shape": "/", "fgcolor": colour, "bgcolor": translucent(colour), "size": 6}
    markers = {
        "kept": {"color": colour},
        "forget": {"color": colour, "pattern": hatch, "line": outline},
        ELICITED: {"color": "rgba(0,0,0,0)", "line": outline},
    }
    head = "<b>%{fullData.name}</b> (%{customdata[0]}), profile %{x}"
    kinds = rows["class"].where(rows["class"].isin(markers), "kept")
    for kind, marker in markers.items():
        bars = rows[kinds == kind]
        if bars.empty:
            continue
        look = (colour, 1.8, 6) if kind == ELICITED else ()
        trace = go.Bar(
            ratio_hover(bars, "", head, bars["class"]),
            x=bars["profile"],
            y=bars["compute_ratio"],
            error_y=whiskers(bars, "compute_ratio", *look, prefix=""),
            marker=marker,
            name=style.label,
            legendgroup=style.label,
            offsetgroup=style.label,
            showlegend=False,
            meta={"runs": 4},
        )
        figure.add_trace(trace)


LINE_POINTS = 80


def learning_curve_figure(curves: pd.DataFrame, fits: pd.DataFrame, size: str) -> go.Figure:
    """Draws validation loss against step at one size, with a fitted curve for each domain.

    `curves` has the columns `size, seed, step, domain, loss` and optionally `run_id`, for the hover
    text. `fits` has the columns of `fits_frame`. The legend has one entry per domain, and marks
    fits that are poor or have a parameter at its bound.
    """
    points, laws = curves[curves["size"] == size], fits[fits["size"] == size].set_index("domain")
    figure = go.Figure()
    for domain, style in domain_styles(points["domain"]).items():
        fit = laws.loc[domain] if domain in laws.index else None
        warning = "" if fit is None else _describe_flaws(fit)
        _add_points(figure, points[points["domain"] == domain], style, showlegend=not warning)
        if fit is not None:
            _add_fit(figure, fit, style, warning)
    lay_out(figure, f"Baseline, {size}", "step", "loss (nats a token)")
    for update, name in ((figure.update_xaxes, "step"), (figure.update_yaxes, "loss")):
        positive = points.loc[points[name] > 0, name]
        log_axis(update, log_ticks(positive.min(), positive.max()) if len(positive) else [])
    # The legend takes its place from the axes, and a row of it has two entries in a narrow figure.
    num_rows = (points["domain"].nunique() + 1) // 2
    figure.update_layout(height=HEIGHT + LEGEND_ROW * max(0, num_rows - 1))
    return with_table(figure, points.filter(["size", "seed", "step", "domain", "loss", "run_id"]))


def _describe_flaws(fit: pd.Series) -> str:
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
        marker=style.marker(5) | {"opacity": 0.6},
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
        line=style.line(2),
        hovertemplate=(
            f"<b>{style.label}</b> fit{warning}<br>step %{{x:.0f}}, loss"
            f" %{{y:.4f}}<br>{law}<extra></extra>"
        ),
    )


def variant_figure(
    table: pd.DataFrame, varies: str, size: str, profile: str, value: str, study: str = ""
) -> go.Figure:
    """Draws the compute ratio of one class against the column `variant`, at a size and profile.

    Hollow diamonds are the paper's printed values for `study`, at the paper's model size. Leaves
    out reference baselines, whose ratios of core and retain are 1 by definition. If at least two
    variants are numbers, leaves out all others.
    """
    variants = list(dict.fromkeys(table[VARIANT]))
    numbers = [variant for variant in variants if is_numeric([variant])]
    variants = numbers if len(numbers) > 1 else variants
    of_size = table[(table["size"] == size) & table[VARIANT].isin(variants)]
    is_baseline, is_profile = of_size["method"].isin(HIDDEN), of_size["profile"] == profile
    differs = (of_size[["core", "retain"]] - 1.0).abs().max(axis="columns") > 1e-6
    baselines = of_size[is_baseline & (of_size["profile"] == ALL) & differs]
    of_profile = pd.concat([of_size[is_profile & ~is_baseline], baselines])
    rows = of_profile[of_profile[value].notna()]
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
    ratio_axis(figure, [*class_means(of_profile), *paper[value]])
    return with_table(figure, class_table(rows, value))


def domain_variant_figure(domains: pd.DataFrame, varies: str, method: str, size: str) -> go.Figure:
    """Draws a method's compute ratio on every domain against the variants.

    A domain's ratio is from the profile core+domain, or from core if that profile has no results.
    `domains` is the result of `domain_table` with a column `variant`.
    """
    rows = domains[(domains["method"] == method) & (domains["size"] == size)]
    variants, figure, lines = list(dict.fromkeys(rows[VARIANT])), go.Figure(), []
    for domain, style in domain_styles(rows["domain"]).items():
        of_domain = rows[(rows["domain"] == domain) & (rows["class"] != ELICITED)]
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
    lay_out(figure, title, varies.replace("_", " "), "compute ratio")
    if is_numeric(variants):
        figure.update_xaxes(tickvals=list(map(float, variants)), ticktext=variants)
    else:
        figure.update_layout(scattermode="group", scattergap=0.5)
        figure.update_xaxes(categoryorder="array", categoryarray=variants, type="category")
