"""The section that says which module learns what is not labelled."""

from collections.abc import Iterator

import pandas as pd
import plotly.graph_objects as go

from gram_platform.analysis.absorption import final_shares, share_curves
from gram_platform.analysis.order import MEAN
from gram_platform.analysis.ratios import VARIANT
from gram_platform.analysis.text import interval_text
from gram_platform.config import core_first
from gram_platform.pages.figures.absorption import absorption_figure
from gram_platform.pages.figures.style import method_style
from gram_platform.pages.report.page import Section
from gram_platform.pages.report.study import StudyReport

TEXT = """Text of each domain passes through the model as an unlabelled batch does, with every module on. Each panel
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
    figures = [(size, figure) for size, _, figure in _panels(study.absorption)]
    shown = [figure for size, figure in figures if size == last]
    folded = [figure for size, figure in figures if size != last]
    table = readable_shares(final_shares(study.absorption)).rename(columns={VARIANT: study.varies or VARIANT})
    title = "Which module learns what is not labelled"
    return [Section(title, TEXT, shown, folded, "The other sizes", table, table_is_open=True)]


def absorption_figures(study: StudyReport) -> dict[str, go.Figure]:
    """Every figure of this section by a name fit for a file."""
    return {} if study.absorption is None else {name: figure for _, name, figure in _panels(study.absorption)}


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


def _panels(shares: pd.DataFrame) -> Iterator[tuple[str, str, go.Figure]]:
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
