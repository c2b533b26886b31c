"""The report of a study: its tables and figures as one self-contained HTML page."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd
import plotly.graph_objects as go

from gram_platform.analysis.paper import PAPER, beside_paper
from gram_platform.analysis.provenance import with_runs
from gram_platform.analysis.ratios import ALL
from gram_platform.analysis.tables import CLASSES, MEAN, Analysis, averaged_profiles, domain_table
from gram_platform.figures.aggregate import aggregate_figure
from gram_platform.figures.curves import learning_curve_figure
from gram_platform.figures.profiles import profile_bars_figure
from gram_platform.figures.scaling import HIDDEN, scaling_figure
from gram_platform.report.page import Section, page_html
from gram_platform.report.tables import (
    is_attack,
    readable_attacks,
    readable_claims,
    readable_costs,
    readable_runs,
    readable_table,
)
from gram_platform.report.variants import curve_sections, domain_sections, renamed, variant_figures, variant_sections

FOOTER = """Compute ratio: the share of the baseline's training steps after which the baseline has the same loss on a
domain; 1 is the baseline at its end. Core: the core domain. Retain: the auxiliary domains that the profile keeps;
higher is better. Forget: those it switches off; lower is better. Profile mean: the average over the profiles of core
with at most one auxiliary domain.

Intervals are 90% t-intervals over training seeds; with one seed there is none. They do not include the uncertainty of
the baseline's curve. A fit is at its bound when the shift s0 is at an end of its range, and poor when its residual is
above 2%: read compute ratios on such a domain with care."""

ATTACK = """Elicited: forget after an attack, which finetunes the profile's model on a small sample of the forgotten
domain; lower is better. Its loss is that of the attack's best checkpoint on validation data: choosing it there follows
the paper and favours the attacker. No attack trains on validation data."""


def build_report(
    title: str,
    intro: str,
    analysis: Analysis,
    curves: pd.DataFrame,
    runs: pd.DataFrame,
    parameters: Mapping[str, float],
    profile: str | None = None,
    claims: pd.DataFrame | None = None,
    costs: Sequence[Mapping] = (),
    compare_with: str = "",
    varies: str = "",
) -> str:
    """The page of a study as HTML text; partial studies give partial pages that name what is missing.

    `curves` are the points given to `analyse`; `runs` one row a run, evaluation or attack (those with a non-empty
    `elicited`), shown as far as it has the columns `run_id, kind, method, size, seed, profile, status, steps,
    num_tokens, elapsed_s, tokens_per_second, best_loss, error`, with `run_id_url` for links to MLflow; `parameters` the
    count of each size; `profile` the one of the scaling figure (`shared_profile` by default); `claims` the frame of
    `claims_frame`; `costs` rows of `size, method` and `method_costs`; `compare_with` the study beside whose numbers in
    the paper ours stand; `varies` the name of what the frames' column `variant` holds.
    """
    sections = report_sections(analysis, curves, runs, parameters, profile, claims, costs, compare_with, varies)
    return page_html(title, intro, sections, report_footer(runs))


def report_sections(
    analysis: Analysis,
    curves: pd.DataFrame,
    runs: pd.DataFrame,
    parameters: Mapping[str, float],
    profile: str | None = None,
    claims: pd.DataFrame | None = None,
    costs: Sequence[Mapping] = (),
    compare_with: str = "",
    varies: str = "",
) -> list[Section]:
    """The sections of that page, as a site's page of the study has them too."""
    analysis = replace(analysis, table=with_runs(analysis.table, analysis.ratios))
    profile = profile or shared_profile(analysis.table)
    body = _varied if varies else _plain
    return [
        *_missing(analysis.missing),
        *body(analysis, curves, runs, parameters, profile, claims, costs, compare_with, varies),
        Section("Runs", table=readable_runs(runs), table_is_open=True),
        *_attacks(runs),
    ]


def report_footer(runs: pd.DataFrame) -> str:
    """What the terms mean; attacks only where there are some."""
    return f"{ATTACK}\n\n{FOOTER}" if is_attack(runs).any() else FOOTER


def _plain(analysis, curves, runs, parameters, profile, claims, costs, compare_with, varies) -> list[Section]:
    """The sections of a study whose rows are named by method, size and profile."""
    return [
        Section("Capabilities", _progress(runs), table=readable_table(analysis.table), table_is_open=True),
        *_aggregate(analysis.table, compare_with),
        *_claims(claims),
        *_scaling(analysis.table, parameters, profile),
        *_profiles(analysis),
        *_costs(costs),
        *_learning_curves(analysis, curves),
    ]


def _varied(analysis, curves, runs, parameters, profile, claims, costs, compare_with, varies) -> list[Section]:
    """The sections of a study that varies something more."""
    table = renamed(readable_table(analysis.table), varies)
    return [
        *variant_sections(analysis, varies, profile, compare_with),
        *_claims(claims),
        Section("Capabilities", _progress(runs), table=table, table_is_open=True),
        *domain_sections(analysis, varies),
        *_costs(costs),
        *curve_sections(analysis, curves),
    ]


def study_figures(
    analysis: Analysis,
    curves: pd.DataFrame,
    parameters: Mapping[str, float],
    profile: str | None = None,
    compare_with: str = "",
    varies: str = "",
) -> dict[str, go.Figure]:
    """Every figure of the page by a name fit for a file: `scaling-core`, `aggregate-core-small`, `curves-small`, ..."""
    analysis = replace(analysis, table=with_runs(analysis.table, analysis.ratios))
    table = analysis.table
    profile, domains = profile or shared_profile(table), domain_table(analysis.ratios)
    if varies:
        return variant_figures(analysis, curves, varies, profile, compare_with)
    figures = {f"scaling-{name}": scaling_figure(table, parameters, profile, name) for name in CLASSES}
    for size in _aggregated_sizes(table):
        panels = zip(CLASSES, _panels(table, size, compare_with), strict=True)
        figures |= {f"aggregate-{name}-{size}": panel for name, panel in panels}
    figures = {name: figure for name, figure in figures.items() if _is_drawn(figure)}
    for method, size in _method_sizes(domains):
        figures[f"profiles-{method}-{size}"] = profile_bars_figure(domains, method, size)
    for size in _in_order(analysis.fits["size"]):
        figures[f"curves-{size}"] = learning_curve_figure(curves, analysis.fits, size)
    return figures


def shared_profile(table: pd.DataFrame) -> str:
    """The profile that most methods have and that retains something; `mean` if there is no such profile."""
    rows = table[~table["profile"].isin([ALL, MEAN]) & table["retain"].notna() & ~table["method"].isin(HIDDEN)]
    counts = rows.groupby("profile", sort=True)["method"].nunique()
    return MEAN if counts.empty else str(counts.idxmax())


# ----------------------------------------------------------------------------------------------------- sections


def _missing(missing: pd.DataFrame) -> list[Section]:
    text = "These are not in the tables and figures below."
    return [Section("Missing", text, table=missing, table_is_open=True, is_warning=True)] if len(missing) else []


def _aggregate(table: pd.DataFrame, compare_with: str) -> list[Section]:
    """The methods' means over profiles, beside the paper's where the study declares it."""
    sizes = _aggregated_sizes(table)
    if not sizes:
        return []
    panels = {size: [f for f in _panels(table, size, compare_with) if _is_drawn(f)] for size in sizes}
    text = "Compute ratios averaged over the profiles; error bars are 90% intervals over seeds."
    title, means = "Methods", readable_table(table[table["profile"] == MEAN])
    if compare_with in PAPER:
        title, means = "Methods, ours beside the paper's", beside_paper(table, compare_with)
        text += " The diamonds and the rows marked paper are those of the paper: ours are set beside them for reading, "
        text += "and are compared only at the paper's scale."
    folded = [figure for size in sizes[:-1] for figure in panels[size]]
    return [Section(title, text, panels[sizes[-1]], folded, "The other sizes", means, compare_with in PAPER)]


def _claims(claims: pd.DataFrame | None) -> list[Section]:
    text = "Each claim is a difference between runs of the same seed: agreed or disagreed when its 90% interval lies "
    text += "wholly on one side. Detectable: the true difference that this many seeds would show four times in five."
    if claims is None or claims.empty:
        return []
    if "paper" in claims:
        text += " A claim that two things match is agreed when the interval lies within the margin. Paper: the "
        text += "difference in its table, at its scale."
    return [Section("Claims", text, table=readable_claims(claims), table_is_open=True)]


def _scaling(table: pd.DataFrame, parameters: Mapping[str, float], profile: str) -> list[Section]:
    """Left out where the bars of a single size have said it all."""
    if len(set(table["size"])) == 1 and _aggregated_sizes(table):
        return []
    figures = [scaling_figure(table, parameters, profile, name) for name in CLASSES]
    text = f"Compute ratio against model size for the profile {profile}; bands are 90% intervals over seeds."
    rows = readable_table(table[table["profile"] == profile])
    return [Section("Scaling", text, [f for f in figures if _is_drawn(f)], table=rows)]


def _profiles(analysis: Analysis) -> list[Section]:
    domains = domain_table(analysis.ratios)
    pairs = _method_sizes(domains)
    sizes = _in_order(size for _, size in pairs)
    figures = {pair: profile_bars_figure(domains, *pair) for pair in pairs}
    shown = [figure for (_, size), figure in figures.items() if size == sizes[-1]]
    folded = [figure for (_, size), figure in figures.items() if size != sizes[-1]]
    text = "Compute ratio on every domain: solid bars are core and retained domains, hatched bars forgotten ones."
    if "elicited" in set(domains["class"]):
        text += " The outline around a hatched bar: after the attack."
    table = domains.drop(columns="runs")
    return [Section("Profiles", text, shown, folded, "The other sizes", table)]


def _costs(costs: Sequence[Mapping]) -> list[Section]:
    text = "Of all models that serve the profiles, over the baseline's, computed from the configs. Train FLOPs: tokens "
    text += "x active parameters by the paper's formula; by its plan: core batches with a companion module counted at "
    text += "what they cost. The paper's are those of its dual-use models."
    return [Section("Cost", text, table=readable_costs(costs), table_is_open=True)] if costs else []


def _learning_curves(analysis: Analysis, curves: pd.DataFrame) -> list[Section]:
    figures = [learning_curve_figure(curves, analysis.fits, size) for size in _in_order(analysis.fits["size"])]
    text = "Validation losses of the baselines, all seeds, and the fitted curves that turn a loss into steps."
    return [Section("Learning curves and their fits", text, figures, table=analysis.fits)]


def _attacks(runs: pd.DataFrame) -> list[Section]:
    """Folded away: there are hundreds."""
    attacks = readable_attacks(runs)
    text = "Every view finetuned on a sample of each domain that it forgets, the same sample for all. The best loss on "
    text += "validation data is the result: choosing it there follows the paper and favours the attacker. "
    return [Section("Attacks", text + _progress(runs[is_attack(runs)]), table=attacks)] if len(attacks) else []


# ------------------------------------------------------------------------------------------------------ helpers


def _aggregated_sizes(table: pd.DataFrame) -> list[str]:
    """Sizes at which all methods have the same profiles, so that their means are of the same things."""
    rows = table[~table["method"].isin(HIDDEN)]
    sizes = {
        size: {averaged_profiles(own) for _, own in group.groupby("method")} for size, group in rows.groupby("size")
    }
    with_means = set(rows[rows["profile"] == MEAN]["size"])
    return [size for size in _in_order(rows["size"]) if size in with_means and len(sizes[size]) == 1]


def _panels(table: pd.DataFrame, size: str, compare_with: str) -> list[go.Figure]:
    paper = PAPER.get(compare_with, {}).get("")
    return [aggregate_figure(table, size, name, paper) for name in CLASSES]


def _progress(runs: pd.DataFrame) -> str:
    if "status" not in runs or runs.empty:
        return ""
    counts = runs["status"].value_counts()
    return f"{len(runs)} nodes: " + ", ".join(f"{count} {status}" for status, count in counts.items()) + "."


def _is_drawn(figure: go.Figure) -> bool:
    return len(figure.data) > 0


def _in_order(values) -> Sequence[str]:
    return tuple(dict.fromkeys(values))


def _method_sizes(domains: pd.DataFrame) -> list[tuple[str, str]]:
    """(method, size) of the bars, in the tables' order; the baseline is 1 by construction and has none."""
    pairs = dict.fromkeys(zip(domains["method"], domains["size"], strict=True))
    return [pair for pair in pairs if pair[0] not in HIDDEN]
