"""The report of the token study: where the loss of removed capabilities sits."""

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from gram_platform.analysis.localization import MEASURES, ROW, Localization
from gram_platform.analysis.order import MEAN
from gram_platform.analysis.shading import ShadedText
from gram_platform.analysis.text import interval_text
from gram_platform.pages.figures.localization import TITLES, concentration_figure, localization_bars
from gram_platform.pages.report.headline import with_verdicts
from gram_platform.pages.report.page import Section, page_html
from gram_platform.pages.report.sections import JUDGED, judged_sections, missing_sections
from gram_platform.pages.report.shading import increases_frame, shaded_html
from gram_platform.pages.report.tables import readable_runs

FOOTER = """Increase: a token's loss under a view less its loss under the baseline of the same size and seed. Gini: of
the positive increases, over the tokens that have one; 0 is an even spread, 1 a single token, 0.41 and 0.5 are normal
and exponential spreads. Positive: the share of the tokens with an increase above 0. Top share: the part of the sum of
positive increases that sits on the tenth of all tokens with the largest ones.
Forget and retain: domains that a profile switches off and keeps. Control: the baseline of the next seed in the place of
a view, which shows how uneven mere noise between trainings is. Mean: over domains and over the profiles of core with at
most one auxiliary domain, within a seed; intervals are 90% t-intervals over seeds.

Shaded texts are the first sequence of each domain's validation split, not chosen, and one seed's. Full colour is the
90th percentile of the increases of the model filtered to core on that very text, as in the paper."""


def build_localization_report(
    title: str,
    intro: str,
    found: Localization,
    texts: Sequence[ShadedText],
    claims: pd.DataFrame,
    runs: pd.DataFrame,
) -> str:
    """The page as HTML text; `runs` as in `StudyReport`."""
    return page_html(title, with_verdicts(intro, claims), localization_sections(found, texts, claims, runs), FOOTER)


def localization_sections(
    found: Localization, texts: Sequence[ShadedText], claims: pd.DataFrame, runs: pd.DataFrame
) -> list[Section]:
    """The sections of that page."""
    sections = [_concentration(found), *judged_sections(claims, CLAIMS), *missing_sections(found.missing)]
    sections += [_shaded(text) for text in texts]
    table = readable_localization(found.table)
    sections.append(Section("Every profile and domain", "", table=table, table_is_open=False))
    return [*sections, Section("Runs", table=readable_runs(runs))]


CLAIMS = f"What the paper observes on single sentences, judged over whole sequences. {JUDGED}"


def localization_figures(found: Localization) -> dict[str, go.Figure]:
    """Every figure of the page by a name fit for a file."""
    figures = {}
    for size in dict.fromkeys(found.table["size"]):
        figures[f"concentration-{size}"] = concentration_figure(found.curves, size)
        figures |= {f"{v}-{size}": localization_bars(found.table, size, v) for v in TITLES}
    return {name: figure for name, figure in figures.items() if len(figure.data)}


def readable_localization(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of table.csv with each value as one text, `mean [low, high]`."""
    readable = table[ROW].copy()
    for name in MEASURES:
        triples = zip(table[name], table[f"{name}_low"], table[f"{name}_high"], strict=True)
        readable[name] = [interval_text(*triple) for triple in triples]
    return readable.assign(num_tokens=table["num_tokens"], num_seeds=table["num_seeds"])


def _concentration(found: Localization) -> Section:
    text = "How few tokens carry the loss of what was removed: the higher a curve rises at its left end, the fewer."
    means = readable_localization(found.table[found.table["profile"] == MEAN])
    figures = list(localization_figures(found).values())
    return Section("Concentration", text, figures, table=means.drop(columns=["profile", "domain"]), table_is_open=True)


def _shaded(text: ShadedText) -> Section:
    about = "The same text under every view: what the method removed, and the same with this domain kept."
    markup, table = shaded_html(text), increases_frame(text)
    return Section(f"Tokens of {text.domain}", about, markup=markup, table=table)
