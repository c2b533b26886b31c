"""The report of a study: its tables and figures as one self-contained HTML page."""

from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go

from gram_platform.analysis.ratios import ALL
from gram_platform.analysis.tables import CLASSES, MEAN, ROW, Analysis, domain_table
from gram_platform.figures.curves import learning_curve_figure
from gram_platform.figures.profiles import profile_bars_figure
from gram_platform.figures.scaling import HIDDEN, scaling_figure
from gram_platform.report.page import Section, page_html

RUN_COLUMNS = ("run_id", "run_id_url", "kind", "method", "size", "seed", "profile", "status", "steps", "num_tokens")
RUN_COLUMNS += ("elapsed", "tokens_per_second", "error")
FOOTER = """Compute ratio: the share of the baseline's training steps after which the baseline has the same loss on a
domain; 1 is the baseline at its end. Core: the core domain. Retain: the auxiliary domains that the profile keeps;
higher is better. Forget: those it switches off; lower is better. Profile mean: the average over the profiles of core
with at most one auxiliary domain.

Intervals are 90% t-intervals over training seeds; with one seed there is none. They do not include the uncertainty of
the baseline's curve. A fit is at its bound when the shift s0 is at an end of its range, and poor when its residual is
above 2%: read compute ratios on such a domain with care."""


def build_report(
    title: str,
    intro: str,
    analysis: Analysis,
    curves: pd.DataFrame,
    runs: pd.DataFrame,
    parameters: Mapping[str, float],
    profile: str | None = None,
    claims: pd.DataFrame | None = None,
) -> str:
    """The page of a study as HTML text; partial studies give partial pages that name what is missing.

    `curves` are the points given to `analyse`; `runs` one row a run or evaluation, shown as far as it has the columns
    `run_id, kind, method, size, seed, profile, status, steps, num_tokens, elapsed_s, tokens_per_second, error`, with
    `run_id_url` for links to MLflow; `parameters` the count of each size; `profile` the one of the scaling figure
    (`shared_profile` by default); `claims` the frame of `claims_frame`.
    """
    profile = profile or shared_profile(analysis.table)
    sections = [
        *_missing(analysis.missing),
        Section("Capabilities", _progress(runs), table=readable_table(analysis.table), table_is_open=True),
        *_claims(claims),
        *_scaling(analysis.table, parameters, profile),
        *_profiles(analysis),
        *_learning_curves(analysis, curves),
        Section("Runs", table=readable_runs(runs), table_is_open=True),
    ]
    return page_html(title, intro, sections, FOOTER)


def study_figures(
    analysis: Analysis, curves: pd.DataFrame, parameters: Mapping[str, float], profile: str | None = None
) -> dict[str, go.Figure]:
    """Every figure of the page by a name fit for a file: `scaling-core`, `profiles-gram-small`, `curves-small`."""
    profile, domains = profile or shared_profile(analysis.table), domain_table(analysis.ratios)
    figures = {f"scaling-{name}": scaling_figure(analysis.table, parameters, profile, name) for name in CLASSES}
    figures = {name: figure for name, figure in figures.items() if _has_lines(figure)}
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


def _claims(claims: pd.DataFrame | None) -> list[Section]:
    text = "Each claim is a difference between runs of the same seed: agreed or disagreed when its 90% interval lies "
    text += "wholly on one side. Detectable: the true difference that this many seeds would show four times in five."
    return [] if claims is None or claims.empty else [Section("Claims", text, table=claims, table_is_open=True)]


def _scaling(table: pd.DataFrame, parameters: Mapping[str, float], profile: str) -> list[Section]:
    figures = [scaling_figure(table, parameters, profile, name) for name in CLASSES]
    text = f"Compute ratio against model size for the profile {profile}; bands are 90% intervals over seeds."
    rows = readable_table(table[table["profile"] == profile])
    return [Section("Scaling", text, [f for f in figures if _has_lines(f)], table=rows)]


def _profiles(analysis: Analysis) -> list[Section]:
    domains = domain_table(analysis.ratios)
    pairs = _method_sizes(domains)
    sizes = _in_order(size for _, size in pairs)
    figures = {pair: profile_bars_figure(domains, *pair) for pair in pairs}
    shown = [figure for (_, size), figure in figures.items() if size == sizes[-1]]
    folded = [figure for (_, size), figure in figures.items() if size != sizes[-1]]
    text = "Compute ratio on every domain: solid bars are core and retained domains, hatched bars forgotten ones."
    table = domains.drop(columns="runs")
    return [Section("Profiles", text, shown, folded, "The other sizes", table)]


def _learning_curves(analysis: Analysis, curves: pd.DataFrame) -> list[Section]:
    figures = [learning_curve_figure(curves, analysis.fits, size) for size in _in_order(analysis.fits["size"])]
    text = "Validation losses of the baselines, all seeds, and the fitted curves that turn a loss into steps."
    return [Section("Learning curves and their fits", text, figures, table=analysis.fits)]


# ------------------------------------------------------------------------------------------------------- tables


def readable_table(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of table.csv with each class as one text, `mean [low, high]`; classes without any value are left out."""
    readable = table[ROW].copy()
    for name in CLASSES:
        if table[name].notna().any():
            triples = zip(table[name], table[f"{name}_low"], table[f"{name}_high"], strict=True)
            readable[name] = [_interval_text(*triple) for triple in triples]
    return readable.assign(num_seeds=table["num_seeds"])


def readable_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """The columns of RUN_COLUMNS that there are, with the elapsed time as h:mm:ss."""
    if "elapsed_s" in runs:
        runs = runs.assign(elapsed=[_clock(seconds) for seconds in runs["elapsed_s"]])
    if "tokens_per_second" in runs:
        runs = runs.assign(tokens_per_second=[_whole(rate) for rate in runs["tokens_per_second"]])
    return runs[[name for name in RUN_COLUMNS if name in runs]]


def _interval_text(mean: float, low: float, high: float) -> str:
    if mean != mean:
        return ""
    return f"{mean:.3f}" + (f" [{low:.3f}, {high:.3f}]" if low == low else "")


def _clock(seconds: float | None) -> str:
    if seconds is None or seconds != seconds:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def _whole(number: float | None) -> str:
    return "" if number is None or number != number else f"{round(number):,}"


def _progress(runs: pd.DataFrame) -> str:
    if "status" not in runs or runs.empty:
        return ""
    counts = runs["status"].value_counts()
    return f"{len(runs)} nodes: " + ", ".join(f"{count} {status}" for status, count in counts.items()) + "."


def _has_lines(figure: go.Figure) -> bool:
    return len(figure.data) > 0


def _in_order(values) -> Sequence[str]:
    return tuple(dict.fromkeys(values))


def _method_sizes(domains: pd.DataFrame) -> list[tuple[str, str]]:
    """(method, size) of the bars, in the tables' order; the baseline is 1 by construction and has none."""
    pairs = dict.fromkeys(zip(domains["method"], domains["size"], strict=True))
    return [pair for pair in pairs if pair[0] not in HIDDEN]
