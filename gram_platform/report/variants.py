"""The sections of a study that varies something beside method, size and profile."""

from collections.abc import Iterator, Mapping

import pandas as pd
import plotly.graph_objects as go

from gram_platform.analysis.paper import PAPER, beside_paper
from gram_platform.analysis.ratios import VARIANT
from gram_platform.analysis.tables import CLASSES, Analysis, domain_table
from gram_platform.figures.curves import learning_curve_figure
from gram_platform.figures.scaling import HIDDEN
from gram_platform.figures.variants import domain_variant_figure, variant_figure
from gram_platform.report.page import Section
from gram_platform.report.tables import readable_table


def variant_sections(analysis: Analysis, varies: str, profile: str, compare_with: str) -> list[Section]:
    """A section a size: the four classes against the variants, beside the paper's values where it prints them."""
    table, sections = analysis.table, []
    text = f"Compute ratio against {varies.replace('_', ' ')} for the profile {profile}; error bars are 90% intervals "
    text += "over seeds."
    has_paper = compare_with in PAPER
    if has_paper:
        text += " Hollow diamonds and the rows marked paper are the paper's: ours are set beside them for reading, and "
        text += "are compared only at the paper's scale."
    for size in dict.fromkeys(table["size"]):
        figures = list(_panels(table, varies, size, profile, compare_with).values())
        rows = table[(table["size"] == size) & (table["profile"] == profile)]
        shown = beside_paper(rows, compare_with, profile) if has_paper else readable_table(rows)
        if figures:
            title = f"Against {varies.replace('_', ' ')}, {size}"
            sections.append(Section(title, text, figures, table=renamed(shown, varies), table_is_open=has_paper))
    return sections


def domain_sections(analysis: Analysis, varies: str) -> list[Section]:
    """Every method's domains against the variants."""
    domains = domain_table(analysis.ratios)
    figures = list(_domain_figures(domains, varies).values())
    text = "Core, and every other domain under the profile of core and it alone (under core alone where a study has no "
    text += "such profile)."
    table = renamed(domains.drop(columns="runs"), varies)
    return [Section("By domain", text, figures, table=table)] if figures else []


def curve_sections(analysis: Analysis, curves: pd.DataFrame) -> list[Section]:
    """The learning curves of every variant's baselines, each set of runs once."""
    figures = list(variant_curve_figures(analysis, curves).values())
    text = "Validation losses of the baselines and the fitted curves that turn a loss into steps."
    title, fits = "Learning curves and their fits", analysis.fits.rename(columns={VARIANT: "for"})
    return [Section(title, text, (), figures, "The curves", fits)] if figures else []


def variant_figures(
    analysis: Analysis, curves: pd.DataFrame, varies: str, profile: str, compare_with: str
) -> dict[str, go.Figure]:
    """Every figure of these sections by a name fit for a file."""
    table, figures = analysis.table, {}
    for size in dict.fromkeys(table["size"]):
        panels = _panels(table, varies, size, profile, compare_with)
        figures |= {f"{varies}-{name}-{size}": figure for name, figure in panels.items()}
    figures |= {f"domains-{name}": f for name, f in _domain_figures(domain_table(analysis.ratios), varies).items()}
    return figures | {f"curves-{name}": f for name, f in variant_curve_figures(analysis, curves).items()}


def renamed(frame: pd.DataFrame, varies: str) -> pd.DataFrame:
    """The frame with the variants' column under its own name."""
    return frame.rename(columns={VARIANT: varies})


def variant_curve_figures(analysis: Analysis, curves: pd.DataFrame) -> dict[str, go.Figure]:
    """By size, variant and, where each seed has its own fits, seed; fits that several variants share once."""
    figures, seen = {}, set()
    for name, fits in _groups(analysis.fits, [c for c in ("size", VARIANT, "seed") if c in analysis.fits]):
        key = fits.drop(columns=VARIANT, errors="ignore").to_csv(index=False)
        if key in seen:
            continue
        seen.add(key)
        of_fits = {column: fits[column].iloc[0] for column in ("seed",) if column in fits}
        variant = fits[VARIANT].iloc[0]
        own = curves[curves[VARIANT] == variant] if (curves[VARIANT] == variant).any() else curves
        own = own[(own[list(of_fits)] == pd.Series(of_fits)).all(axis="columns")] if of_fits else own
        own = own.drop_duplicates(["run_id", "step", "domain"])
        figure = learning_curve_figure(own, fits, fits["size"].iloc[0])
        figures[name] = figure.update_layout(title_text=f"Baseline, {name.replace('-', ', ')}")
    return figures


def _groups(frame: pd.DataFrame, columns: list[str]) -> Iterator[tuple[str, pd.DataFrame]]:
    for key, group in frame.groupby(columns, sort=False):
        yield "-".join(str(part) for part in key), group


def _panels(table: pd.DataFrame, varies: str, size: str, profile: str, compare_with: str) -> Mapping[str, go.Figure]:
    panels = {name: variant_figure(table, varies, size, profile, name, compare_with) for name in CLASSES}
    return {name: figure for name, figure in panels.items() if len(figure.data)}


def _domain_figures(domains: pd.DataFrame, varies: str) -> dict[str, go.Figure]:
    pairs = dict.fromkeys(zip(domains["method"], domains["size"], strict=True))
    figures = {f"{m}-{s}": domain_variant_figure(domains, varies, m, s) for m, s in pairs if m not in HIDDEN}
    return {name: figure for name, figure in figures.items() if len(figure.data)}
