"""Shows which modules learn unlabelled text, and how more active modules lower compute ratios."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from gram_platform.analysis.ratios import MEAN
from gram_platform.analysis.tables import (
    interval_text,
    over_seeds,
    readable_table,
    with_intervals,
)
from gram_platform.analysis.variants import (
    COMPOSED,
    MODULES,
    MODULES_CELL,
    drop_table,
    final_shares,
    share_curves,
)
from gram_platform.config import core_first
from gram_platform.methods.nodes import VARIANT
from gram_platform.pages.figures.study import variant_figure
from gram_platform.pages.figures.style import (
    GREY,
    Style,
    add_band,
    domain_styles,
    drop_empty,
    hover_runs,
    lay_out,
    level_line,
    method_style,
    with_table,
)
from gram_platform.pages.report.page import Section, render, section_by_size
from gram_platform.pages.results.record import Results

OWN_WIDTH, OTHER_WIDTH = 3.5, 1.2
OTHER_OPACITY = 0.55
AXIS = "modules_on"
MARGIN = 0.2
NUMBERS_TEXT = """Compute ratio of core, and of the domains whose modules are on, against the number
of modules on at once. Within a seed, the mean over the subsets of this size; error bars are 90%
intervals over seeds."""
DROPS = """How far a class's compute ratio drops from one module to all, within a seed. “Less than
GRAM” is GRAM's drop minus the method's, within a seed; above 0, the method composes better.
Intervals are 90% t-intervals over seeds."""


def absorption_sections(study: Results) -> list[Section]:
    """Shows modules' shares of the squared gradient, by variant, method, size and domain.

    Returns [] if no run measured gradient shares.
    """
    if study.absorption is None or study.absorption.empty:
        return []
    figures: dict[str, dict[str, go.Figure]] = {}
    curves = share_curves(study.absorption)
    names = [name for name in (VARIANT, "method", "size") if name in curves]
    several = [name for name in names if name == "size" or curves[name].nunique() > 1]
    for key, rows in curves.groupby(names, sort=False):
        cells = dict(zip(names, key, strict=True))
        labels = [method_style(cells[n]).label if n == "method" else cells[n] for n in several]
        for domain in core_first(tuple(dict.fromkeys(rows["domain"]))):
            title = f"Batches of {', '.join([domain, *labels])}"
            panel = absorption_figure(rows, domain, title)
            figures.setdefault(cells["size"], {})["-".join(("absorption", *key, domain))] = panel
    table = readable_shares(final_shares(study.absorption))
    table = table.rename(columns={VARIANT: study.record.varies or VARIANT})
    title = "Which module learns what is not labelled"
    return [section_by_size(title, render("probes.html"), figures, table, table_is_open=True)]


def absorption_figure(curves: pd.DataFrame, domain: str, title: str) -> go.Figure:
    """Draws each module's share of the squared gradient on batches of one domain.

    `curves` contains the rows of `share_curves` for one variant, method and size. The band is the
    90% interval over seeds for the domain's own module.
    """
    rows, figure = curves[curves["domain"] == domain], go.Figure()
    styles = domain_styles(curves["domain"])
    modules = sorted(set(rows["module"]), key=lambda module: (module == domain, module))
    for module in modules:
        style = styles.get(module, Style(module, GREY, "circle", "solid"))
        line, is_own = rows[rows["module"] == module], module == domain
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
            customdata=np.column_stack([line[["low", "high", "num_seeds"]], hover_runs(line)]),
            hovertemplate=(
                "<b>%{fullData.name}</b>, step %{x}<br>%{y:.1%} [%{customdata[0]:.1%},"
                " %{customdata[1]:.1%}], %{customdata[2]} seeds<br>%{customdata[3]}<extra></extra>"
            ),
        )
    level_line(figure, 1.0 / len(modules), "an even split")
    lay_out(figure, title, "step", "share of the squared gradient")
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(range=[0.0, 1.0], tickformat=".0%")
    return with_table(figure, rows)


def readable_shares(final: pd.DataFrame) -> pd.DataFrame:
    """Tabulates final gradient shares: a row for batches of each domain, a column per module."""
    rows, own = [], "its own module"
    names = [name for name in (VARIANT, "method", "size") if name in final]
    texts = map(interval_text, final["share"], final["low"], final["high"])
    for key, group in final.assign(text=list(texts)).groupby([*names, "domain"], sort=False):
        row = dict(zip([*names, "batches of"], key, strict=True))
        row |= {own: "".join(group.loc[group["is_own"], "text"])}
        row |= dict(zip(group["module"], group["text"], strict=True))
        rows.append({**row, "num_seeds": group["num_seeds"].iloc[0]})
    modules = [module for module in dict.fromkeys(final["module"]) if module != MEAN]
    columns = [*names, "batches of", own, *modules, "num_seeds"]
    return pd.DataFrame(rows, columns=columns).fillna("")


def composing_sections(study: Results) -> list[Section]:
    """Shows compute ratios of core and retain against the number of active modules.

    A second section tabulates how far both drop from one active module to all. Returns [] if the
    study does not vary this number.
    """
    if study.by_number is None or study.by_number.empty:
        return []
    profiles = study.by_number.groupby(MODULES_CELL, sort=False)["num_profiles"].first()
    table = over_seeds(study.by_number, MODULES_CELL).assign(num_profiles=profiles.tolist())
    panels = {size: _number_panels(table, size) for size in dict.fromkeys(table["size"])}
    readable = readable_table(table).rename(columns={MODULES: AXIS})
    readable = readable.assign(num_profiles=table["num_profiles"])
    title = "By the number of modules on"
    sections = [section_by_size(title, NUMBERS_TEXT, panels, readable)]
    drops = readable_drops(drop_table(study.by_number, study.analysis.per_seed))
    if len(drops):
        title = "From one module to all"
        sections.append(Section(title, DROPS, table=drops, table_is_open=True))
    return sections


def readable_drops(drops: pd.DataFrame) -> pd.DataFrame:
    names, values = ("method", "size", "class"), ("one", "all", "drop", "less_than_gram")
    return with_intervals(drops, names, values).assign(num_seeds=drops["num_seeds"])


def _number_panels(table: pd.DataFrame, size: str) -> Mapping[str, go.Figure]:
    rows = table.sort_values(MODULES, kind="stable")
    rows = rows.assign(**{VARIANT: rows[MODULES].astype(str), "profile": ""})
    panels = {f"modules-{n}-{size}": variant_figure(rows, AXIS, size, "", n) for n in COMPOSED}
    for panel in panels.values():
        panel.update_xaxes(range=[-MARGIN, table[MODULES].max() + MARGIN])
    return drop_empty(panels)
