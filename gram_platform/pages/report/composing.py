"""The sections and figures of a study that switches on more and more modules at once."""

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go

from gram_platform.analysis.composing import COMPOSED, MODULES, drop_table, number_table
from gram_platform.analysis.ratios import VARIANT
from gram_platform.analysis.text import interval_text
from gram_platform.pages.figures.variants import variant_figure
from gram_platform.pages.report.page import Section
from gram_platform.pages.report.study import StudyReport
from gram_platform.pages.report.tables import readable_table

AXIS = "modules_on"
MARGIN = 0.2  # of the axis beyond the least and the most modules
TEXT = """Compute ratio of core, and of the domains whose modules are on, against how many modules are on at once.
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
    folded = [figure for size in others for figure in _panels(table, size).values()]
    shown = readable_table(table).rename(columns={MODULES: AXIS}).assign(num_profiles=table["num_profiles"])
    panels = list(_panels(table, last).values())
    sections = [Section("By the number of modules on", TEXT, panels, folded, "The other sizes", shown)]
    drops = readable_drops(drop_table(study.by_number, study.analysis.per_seed))
    return sections + [Section("From one module to all", DROPS, table=drops, table_is_open=True)] * (len(drops) > 0)


def composing_figures(study: StudyReport) -> dict[str, go.Figure]:
    """Every figure of these sections by a name fit for a file."""
    if study.by_number is None:
        return {}
    table = number_table(study.by_number)
    panels = {size: _panels(table, size) for size in dict.fromkeys(table["size"])}
    return {f"modules-{name}-{size}": figure for size, own in panels.items() for name, figure in own.items()}


def readable_drops(drops: pd.DataFrame) -> pd.DataFrame:
    """The rows of `drop_table` with each value as one text, `mean [low, high]`."""
    readable = drops[["method", "size", "class"]].copy()
    for name in ("one", "all", "drop", "less_than_gram"):
        triples = zip(drops[name], drops[f"{name}_low"], drops[f"{name}_high"], strict=True)
        readable[name] = [interval_text(*triple) for triple in triples]
    return readable.assign(num_seeds=drops["num_seeds"])


def _panels(table: pd.DataFrame, size: str) -> Mapping[str, go.Figure]:
    """The numbers of modules drawn as the values of what a study varies."""
    drawn = table.rename(columns={MODULES: VARIANT}).sort_values(VARIANT, kind="stable").assign(profile="")
    drawn[VARIANT] = drawn[VARIANT].astype(str)
    figures = {name: variant_figure(drawn, AXIS, size, "", name) for name in COMPOSED}
    panels = {name: figure for name, figure in figures.items() if len(figure.data)}
    for panel in panels.values():
        panel.update_xaxes(range=[-MARGIN, table[MODULES].max() + MARGIN])
    return panels
