"""What more modules at once cost, and which module learns what is not labelled: sections and figures."""

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from gram_platform.analysis.ratios import MEAN, VARIANT
from gram_platform.analysis.tables import interval_text
from gram_platform.analysis.variants import COMPOSED, MODULES, drop_table, final_shares, number_table, share_curves
from gram_platform.config import core_first
from gram_platform.pages.figures.style import GREY, Style, add_band, domain_styles, hover_runs, method_style, styled
from gram_platform.pages.figures.variants import variant_figure
from gram_platform.pages.report.page import Section
from gram_platform.pages.report.study import StudyReport
from gram_platform.pages.report.tables import readable_table

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
        customdata=np.column_stack([line[["low", "high", "num_seeds"]], hover_runs(line)]),
        hovertemplate="<b>%{fullData.name}</b>, step %{x}<br>%{y:.1%} [%{customdata[0]:.1%}, %{customdata[1]:.1%}], "
        "%{customdata[2]} seeds<br>%{customdata[3]}<extra></extra>",
    )


PROBES = """Text of each domain passes through the model as an unlabelled batch does, with every module on. Each panel
shows the share of the modules' squared gradient that falls on every module; the thick line is the domain's own. It is
measured on validation text between steps, and trains nothing. Biases do not count: that of the output has the same
gradient in every module. Bands are 90% intervals over seeds. AdamW rescales the gradients of every module, so a share
says where a batch pulls, not how far weights move. The table has the shares after the last step; its mean is that of
the domains' own modules. Read from the run directories."""


def absorption_sections(study: StudyReport) -> list[Section]:
    """A panel a domain of every method, the last size shown; none for a study without probes."""
    if study.absorption is None or study.absorption.empty:
        return []
    last = list(dict.fromkeys(study.absorption["size"]))[-1]
    figures = [(size, figure) for size, _, figure in _probe_panels(study.absorption)]
    shown = [figure for size, figure in figures if size == last]
    folded = [figure for size, figure in figures if size != last]
    table = readable_shares(final_shares(study.absorption)).rename(columns={VARIANT: study.varies or VARIANT})
    title = "Which module learns what is not labelled"
    return [Section(title, PROBES, shown, folded, "The other sizes", table, table_is_open=True)]


def absorption_figures(study: StudyReport) -> dict[str, go.Figure]:
    """Every figure of this section by a name fit for a file."""
    return {} if study.absorption is None else {name: figure for _, name, figure in _probe_panels(study.absorption)}


def readable_shares(final: pd.DataFrame) -> pd.DataFrame:
    """One row a domain whose batches are passed through: its own module's share, then every module's, as
    `mean [low, high]`.
    """
    names = [name for name in (VARIANT, "method", "size") if name in final]
    texts = [interval_text(*row) for row in final[["share", "low", "high"]].itertuples(index=False, name=None)]
    final, rows = final.assign(text=texts), []
    for key, group in final.groupby([*names, "domain"], sort=False):
        own = group.loc[group["is_own"], "text"]
        others = dict(zip(group["module"], group["text"], strict=True)) if key[-1] != MEAN else {}
        row = dict(zip([*names, "batches of"], key, strict=True)) | {"its own module": own.iloc[0] if len(own) else ""}
        rows.append({**row, **others, "num_seeds": group["num_seeds"].iloc[0]})
    modules = [module for module in dict.fromkeys(final["module"]) if module != MEAN]
    return pd.DataFrame(rows, columns=[*names, "batches of", "its own module", *modules, "num_seeds"]).fillna("")


def _probe_panels(shares: pd.DataFrame) -> Iterator[tuple[str, str, go.Figure]]:
    """(size, name fit for a file, figure), core's batches first."""
    curves = share_curves(shares)
    names = [name for name in (VARIANT, "method", "size") if name in curves]
    several = [name for name in names if name == "size" or curves[name].nunique() > 1]
    for key, own in curves.groupby(names, sort=False):
        cell = dict(zip(names, key, strict=True))
        labels = [method_style(cell[n]).label if n == "method" else cell[n] for n in several]
        for domain in core_first(tuple(dict.fromkeys(own["domain"]))):
            title = f"Batches of {', '.join([domain, *labels])}"
            yield cell["size"], "-".join(("absorption", *key, domain)), absorption_figure(own, domain, title)


AXIS = "modules_on"
MARGIN = 0.2  # of the axis beyond the least and the most modules
NUMBERS = """Compute ratio of core, and of the domains whose modules are on, against how many modules are on at once.
Within a seed the mean over the subsets of so many modules; error bars are 90% intervals over seeds."""
DROPS = """What a class loses from one module to all, in compute ratio: one less all, of the same seed. Less than GRAM:
GRAM's drop less the method's own, of the same seed; above 0 the method composes better. 90% t-intervals over seeds."""


def composing_sections(study: StudyReport) -> list[Section]:
    """Core and retain against the number of modules that are on, the largest size first, and the drops; none for a
    study that is not about this.
    """
    if study.by_number is None or study.by_number.empty:
        return []
    table = number_table(study.by_number)
    *others, last = dict.fromkeys(table["size"])
    folded = [figure for size in others for figure in _number_panels(table, size).values()]
    shown = readable_table(table).rename(columns={MODULES: AXIS}).assign(num_profiles=table["num_profiles"])
    panels = list(_number_panels(table, last).values())
    sections = [Section("By the number of modules on", NUMBERS, panels, folded, "The other sizes", shown)]
    drops = readable_drops(drop_table(study.by_number, study.analysis.per_seed))
    return sections + [Section("From one module to all", DROPS, table=drops, table_is_open=True)] * (len(drops) > 0)


def composing_figures(study: StudyReport) -> dict[str, go.Figure]:
    """Every figure of these sections by a name fit for a file."""
    if study.by_number is None:
        return {}
    table = number_table(study.by_number)
    panels = {size: _number_panels(table, size) for size in dict.fromkeys(table["size"])}
    return {f"modules-{name}-{size}": figure for size, own in panels.items() for name, figure in own.items()}


def readable_drops(drops: pd.DataFrame) -> pd.DataFrame:
    """The rows of `drop_table` with each value as one text, `mean [low, high]`."""
    readable = drops[["method", "size", "class"]].copy()
    for name in ("one", "all", "drop", "less_than_gram"):
        triples = zip(drops[name], drops[f"{name}_low"], drops[f"{name}_high"], strict=True)
        readable[name] = [interval_text(*triple) for triple in triples]
    return readable.assign(num_seeds=drops["num_seeds"])


def _number_panels(table: pd.DataFrame, size: str) -> Mapping[str, go.Figure]:
    """The numbers of modules drawn as the values of what a study varies."""
    drawn = table.rename(columns={MODULES: VARIANT}).sort_values(VARIANT, kind="stable").assign(profile="")
    drawn[VARIANT] = drawn[VARIANT].astype(str)
    figures = {name: variant_figure(drawn, AXIS, size, "", name) for name in COMPOSED}
    panels = {name: figure for name, figure in figures.items() if len(figure.data)}
    for panel in panels.values():
        panel.update_xaxes(range=[-MARGIN, table[MODULES].max() + MARGIN])
    return panels
