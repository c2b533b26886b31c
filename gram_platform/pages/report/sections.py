"""Builds the report page of a study, and sections that other measurements' pages reuse."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from gram_platform.analysis.compute_ratio import PUBLISHED_STEP_RMS
from gram_platform.analysis.ratios import ALL, ELICITED, MEAN, PSEUDO, ROW
from gram_platform.analysis.recovery import EVERY, RECOVERY
from gram_platform.analysis.tables import (
    CLASSES,
    IN_NATS,
    POINTS,
    domain_table,
    find_mean_profiles,
    in_reading_order,
    interval_text,
    nats_table,
    readable_table,
    table_csv,
)
from gram_platform.analysis.trends import trend_table
from gram_platform.methods.nodes import VARIANT
from gram_platform.pages.figures.study import (
    HIDDEN,
    aggregate_figure,
    domain_variant_figure,
    learning_curve_figure,
    profile_bars_figure,
    scaling_figure,
    variant_figure,
)
from gram_platform.pages.figures.style import drop_empty, method_style
from gram_platform.pages.report.answers import (
    answer_study,
    headline_rows,
    limits_section,
    ratio_text,
    unit_error,
    warning_sections,
)
from gram_platform.pages.report.claims import claim_sections
from gram_platform.pages.report.modules import absorption_sections, composing_sections
from gram_platform.pages.report.page import (
    Page,
    Section,
    is_attack,
    readable_attacks,
    readable_runs,
    render,
    section_by_size,
    terms_section,
)
from gram_platform.pages.results.record import Results, StudyRecord, study_report
from gram_platform.paper.paper import (
    COST_PROFILES,
    COST_SIZE,
    COST_TABLE,
    PAPER_SCALES,
    beside_paper,
    beside_published,
    read_printed,
)
from gram_platform.paper.verdicts import TOO_LITTLE, UNJUDGED_PRESET
from gram_platform.tracking import Tracker

TREND = """A power law in the parameter count, fitted to the means of at least three smaller sizes,
predicts the largest size. Intervals are 90% t-intervals, whose degrees of freedom are two fewer
than the fitted sizes. They are too narrow if the largest size has fewer seeds than the others."""
ATTACKS = """Each attack finetunes a view on a sample of a domain that it forgets, the same sample
for all views. The result is the best validation loss, as in the paper, which favours the attacker.
No attack trains on validation data."""
ABOUT_FITS = f"""A fit is at its bound if the shift s0 is at an end of its range, and poor if its
residual is above that of every published curve, {PUBLISHED_STEP_RMS[1]:.0%} of the steps."""
NATS = """Mean validation losses with 90% t-intervals over seeds, lower is better, and their
differences from filtering's, paired by seed, on the profiles that both have."""
AT_ITS_SCALE = (
    "Our numbers stand beside them for reading, and are compared only at the paper's scale."
)
PUBLISHED_ROWS = """Rows marked published are computed in the same way from the losses that the
paper's authors published."""
CURVES, MISSING, RUNS = "Learning curves and their fits", "Missing", "Runs"
FEW = 10


def scaling_sections(study: Results) -> list[Section]:
    """Shows compute ratios against model size.

    Returns [] for a study of one size whose ratios `aggregate_sections` already shows as bars.
    """
    table, profile = study.table, study.main_profile
    if len(set(table["size"])) == 1 and _find_mean_sizes(table):
        return []
    text = (
        f"Compute ratio against model size for the profile {profile}; bands are 90% intervals over"
        " seeds."
    )
    if study.published is not None:
        text += " Hollow markers: the published points."
    rows, parameters = readable_table(table[table["profile"] == profile]), study.record.parameters
    panels = {
        f"scaling-{name}": scaling_figure(table, parameters, profile, name, study.published)
        for name in CLASSES
    }
    return [Section("Scaling", text, drop_empty(panels), table=rows)]


def aggregate_sections(study: Results) -> list[Section]:
    """Shows the methods' mean compute ratios over profiles, next to the paper's printed means.

    If the paper prints none, shows the means that its authors published.
    """
    table, sizes = study.table, _find_mean_sizes(study.table)
    if not sizes:
        return []
    text = "Compute ratios averaged over the profiles; error bars are 90% intervals over seeds."
    title, means = "Methods", readable_table(table[table["profile"] == MEAN])
    if study.record.compare_with in PAPER_SCALES:
        title += ", ours beside the paper's"
        text += f" The diamonds are the paper's. {AT_ITS_SCALE}"
    elif study.published is not None and set(sizes) & set(study.published["size"]):
        text += " The diamonds are the published means at the same size."
    paper, panels = read_printed(study.record.compare_with), {}
    for size in sizes:
        theirs, published = paper[paper[VARIANT] == ""], study.published
        if theirs.empty and published is not None:
            theirs = published[(published["profile"] == MEAN) & (published["size"] == size)]
        bars = {f"aggregate-{n}-{size}": aggregate_figure(table, size, n, theirs) for n in CLASSES}
        panels[size] = drop_empty(bars)
    return [section_by_size(title, text, panels, means)]


def _find_mean_sizes(table: pd.DataFrame) -> list[str]:
    sizes = []
    for size, rows in table[~table["method"].isin(HIDDEN)].groupby("size", sort=False):
        averaged = {find_mean_profiles(of_method) for _, of_method in rows.groupby("method")}
        if len(averaged) == 1 and (rows["profile"] == MEAN).any():
            sizes.append(size)
    return sizes


def profile_sections(study: Results) -> list[Section]:
    """Shows the compute ratio on every domain as bars, with a figure per method and size.

    If a study has profiles for every subset of modules, shows only those with 0, 1 or all modules.
    """
    domains = shown = domain_table(study.analysis.ratios)
    if study.by_number is not None:
        shown = domains[domains["profile"].isin({*find_mean_profiles(domains), ALL})]
    figures: dict[str, dict[str, go.Figure]] = {}
    for method, size in dict.fromkeys(zip(shown["method"], shown["size"], strict=True)):
        if method not in HIDDEN:
            bars = profile_bars_figure(shown, method, size)
            figures.setdefault(size, {})[f"profiles-{method}-{size}"] = bars
    if not figures:
        return []
    text = (
        "Compute ratio on every domain: solid bars are core and retained domains, hatched bars"
        " forgotten ones."
    )
    if ELICITED in set(domains["class"]):
        text += " The outline around a hatched bar: after the attack."
    text += " A profile without bars is one that the method was not trained for."
    return [section_by_size("Profiles", text, figures, domains.drop(columns="runs"))]


def trend_sections(study: Results) -> list[Section]:
    """Predicts the compute ratios of core and forget at the largest size from smaller sizes.

    Returns [] if no method has at least three smaller sizes.
    """
    table = study.table
    rows = table[(table["profile"] == study.main_profile) & ~table["method"].isin(HIDDEN)]
    trends = trend_table(rows, study.record.parameters)
    if trends.empty:
        return []
    texts = {name: trends[name].map("{:.3f}".format) for name in ("exponent", "measured")}
    texts["predicted"] = [*map(interval_text, trends["predicted"], trends["low"], trends["high"])]
    table = trends.drop(columns=["parameters", "low", "high"]).assign(**texts)
    title = "The largest size, predicted from the others"
    return [Section(title, TREND, table=table, table_is_open=True)]


def paper_sections(study: Results) -> list[Section]:
    """Compares our results with the paper's tables and with the losses that its authors published.

    Next to the paper's rows, tables show our mean over profiles or, for studies with variants, our
    main profile.
    """
    table, paper, varies, tables = study.table, study.record.compare_with, study.record.varies, {}
    if paper in PAPER_SCALES and (varies or _find_mean_sizes(table)):
        profile = study.main_profile if varies else MEAN
        text = f"Profile {profile}. The rows marked paper are the paper's. {AT_ITS_SCALE}"
        beside = rename_variant(beside_paper(table, paper, profile), varies)
        tables["Beside the paper"] = text, beside
    if study.published is not None:
        beside = beside_published(table, study.published, study.main_profile)
        tables["Beside the published"] = PUBLISHED_ROWS, beside
    return [
        Section(title, text, table=beside, table_is_open=True)
        for title, (text, beside) in tables.items()
        if len(beside)
    ]


def curve_sections(study: Results) -> list[Section]:
    """Shows the baselines' learning curves, collapsed if the study has variants."""
    figures = curve_figures(study)
    shown, folded = ({}, figures) if study.record.varies else (figures, {})
    text = (
        "Validation losses of the baselines and the fitted curves that turn a loss into steps."
        f" {ABOUT_FITS}"
    )
    title, fits = CURVES, study.analysis.fits.rename(columns={VARIANT: "for"})
    return [Section(title, text, shown, folded, "The curves", fits)] if figures else []


def curve_figures(study: Results) -> dict[str, go.Figure]:
    """Draws learning curves with their fits, in a figure for each size and variant.

    Seeds that are fitted separately have separate figures. Variants with equal fits share a figure.
    """
    all_fits, figures, seen = study.analysis.fits, {}, set()
    names = [name for name in ("size", VARIANT, "seed") if name in all_fits]
    for key, fits in all_fits.groupby(names, sort=False):
        values = table_csv(fits.drop(columns=VARIANT, errors="ignore"), None)
        if values in seen:
            continue
        seen.add(values)
        points, of = study.curves, dict(zip(names, key, strict=True))
        if VARIANT in of:
            of_variant = points[points[VARIANT] == of[VARIANT]]
            points = of_variant if len(of_variant) else points
            points = points.drop_duplicates(["run_id", "step", "domain"])
        if "seed" in of:
            points = points[points["seed"] == of["seed"]]
        figure = learning_curve_figure(points, fits, of["size"])
        figure.update_layout(title_text=f"Baseline, {', '.join(key)}")
        figures["-".join(("curves", *key))] = figure
    return figures


def missing_sections(missing: pd.DataFrame) -> list[Section]:
    if missing.empty:
        return []
    text = "These are not in the tables and figures of this page."
    is_short = len(missing) <= FEW
    return [Section(MISSING, text, table=missing, table_is_open=is_short, is_warning=True)]


def capabilities_section(study: Results) -> Section:
    table = rename_variant(readable_table(in_reading_order(study.table)), study.record.varies)
    return Section("Capabilities", _progress(study.runs), table=table, table_is_open=True)


def nats_sections(study: Results) -> list[Section]:
    """Tabulates the losses in nats. Returns [] for published tables, which have no losses."""
    if IN_NATS[0] not in study.table:
        return []
    table = rename_variant(nats_table(study.table), study.record.varies)
    return [Section("Losses in nats a token", NATS, table=table)]


def recovery_sections(study: Results) -> list[Section]:
    if EVERY not in study.table or (table := study.table[study.table[EVERY].notna()]).empty:
        return []
    table = rename_variant(table.filter([VARIANT, *ROW, *RECOVERY]), study.record.varies)
    return [Section("Steps to recover", table=table)]


def attack_sections(study: Results) -> list[Section]:
    """Lists the attacks in a collapsed table, because a study can have hundreds."""
    attacks = readable_attacks(study.runs)
    text = f"{ATTACKS} {_progress(study.runs[is_attack(study.runs)])}"
    return [Section("Attacks", text, table=attacks)] if len(attacks) else []


def rename_variant(frame: pd.DataFrame, varies: str) -> pd.DataFrame:
    return frame.rename(columns={VARIANT: varies})


def _progress(runs: pd.DataFrame) -> str:
    if "status" not in runs or runs.empty:
        return ""
    counts = runs["status"].value_counts().items()
    return f"{len(runs)} nodes: {', '.join(f'{count} {status}' for status, count in counts)}."


COST_TITLES = {
    "train_all": "train FLOPs, all profiles",
    "plan_all": "by its plan, all profiles",
    "active_mlp": "active MLP",
    "total_mlp_all": "total MLP, all profiles",
}
# In the order of COST_TABLE.
PAPER_COSTS = ("train_all", "active_mlp", "total_mlp_all")


def cost_sections(study: Results) -> list[Section]:
    """Tabulates training costs. Returns [] for numbers measured elsewhere, which have none."""
    table = readable_costs(study.record.costs)
    if table.empty:
        return []
    markup = render("cost.html", profiles=COST_PROFILES * ("from" in table))
    table = rename_variant(table, study.record.varies)
    return [Section("Cost", markup=markup, table=table, table_is_open=True)]


def readable_costs(costs: Sequence[Mapping]) -> pd.DataFrame:
    """Tabulates costs: a row per method and size, then the paper's rows for the same methods.

    If the paper has such rows, the column `from` contains "ours" or "paper".
    """
    profiles = {cost["shown"] for cost in costs}
    of_shown = f"train FLOPs, {profiles.pop() if len(profiles) == 1 else 'one profile'}"
    in_paper = [m for m in dict.fromkeys(cost["method"] for cost in costs) if m in COST_TABLE]
    rows = [_cost_row(cost, of_shown, {"from": "ours"} if in_paper else {}) for cost in costs]
    titles = [COST_TITLES[name] for name in PAPER_COSTS]
    for method in in_paper:
        row = {"method": method, "size": COST_SIZE, "from": "paper"}
        row["all profiles"] = str(COST_PROFILES)
        rows.append(row | dict(zip(titles, COST_TABLE[method], strict=True)))
    return pd.DataFrame(rows).fillna("")


def _cost_row(cost: Mapping, of_shown: str, source: Mapping[str, str]) -> dict[str, str]:
    num_runs, num_branches = cost["runs"]
    unserved = f" of {cost['of_profiles']}" if cost["served"] < cost["of_profiles"] else ""
    row = {name: cost[name] for name in ("method", "size", VARIANT) if name in cost} | source
    row |= {"profiles here": str(cost["profiles"]), of_shown: _times(cost["train_shown"])}
    row["all profiles"] = f"{cost['served']}{unserved}"
    row["runs for all"] = f"{num_runs} + {num_branches} from it" if num_branches else str(num_runs)
    return row | {title: _times(cost[name]) for name, title in COST_TITLES.items()}


def _times(value: float | Sequence[float]) -> str:
    return " or ".join(dict.fromkeys(f"{times:.2f}x" for times in np.ravel(value)))


def study_page(record: StudyRecord, study: Results, tracker: Tracker | None) -> Page:
    """Builds a study's report page. For an incomplete study, the page lists what is missing."""
    lead, others = report_sections(study)
    answers = answer_study(study) + [TOO_LITTLE] * (record.preset == UNJUDGED_PRESET)
    return study_report(
        record, others, study.source, tracker, study.claims, answers=answers, lead=lead
    )


def report_sections(study: Results) -> tuple[list[Section], list[Section]]:
    """Returns (sections that answer the study's question, all other sections).

    The page shows the set-up between these two groups.
    """
    if study.record.varies:
        main, others = _variant_sections(study), _domain_sections(study)
    else:
        main = [*composing_sections(study), *scaling_sections(study), *aggregate_sections(study)]
        others = [*trend_sections(study), *profile_sections(study)]
    has_attacks = is_attack(study.runs).any() or study.table[ELICITED].notna().any()
    intervals = "jackknife" if PSEUDO in study.analysis.ratios else "fixed"
    lead = [
        *warning_sections(study),
        *headline_sections(study),
        *main[:1],
        limits_section(study, headline_rows(study)),
    ]
    others = [
        terms_section(has_attacks, intervals),
        *absorption_sections(study),
        *claim_sections(study),
        *missing_sections(study.analysis.missing),
        capabilities_section(study),
        *nats_sections(study),
        *recovery_sections(study),
        *paper_sections(study),
        *main[1:],
        *others,
        *cost_sections(study),
        *curve_sections(study),
        *([Section(RUNS, table=readable_runs(study.runs))] if len(study.runs) else []),
        *attack_sections(study),
    ]
    return lead, others


def headline_sections(study: Results) -> list[Section]:
    methods = [
        (method_style(row["method"]).colour, _tiles(row, study))
        for row in headline_rows(study).to_dict("records")
    ]
    return [Section("At a glance", markup=render("tiles.html", methods=methods))] if methods else []


def _tiles(row: dict, study: Results) -> list[tuple[str, str, str]]:
    label, tiles = method_style(row["method"]).label, []
    for name in CLASSES:
        if not (text := ratio_text(study, row, name)):
            continue
        half, points = (row[f"{name}_high"] - row[name]), row.get(name + POINTS, ())
        listed = " and ".join(f"{point:.2f}" for point in points)
        parts = [listed or "no interval" if math.isnan(half) else f"seeds \u00b1{half:.2f}"]
        if not math.isnan(error := unit_error(study.record, row["size"], name).ratio):
            parts.append(f"unit \u00b1{error:.2f}")
        tiles.append((f"{label} {name}", text, ", ".join(parts)))
    return tiles


def _variant_sections(study: Results) -> list[Section]:
    table, profile = study.table, study.main_profile
    varies, paper = study.record.varies, study.record.compare_with
    words = varies.replace("_", " ")
    text = (
        f"Compute ratio against {words} for the profile {profile}; error bars are 90% intervals"
        " over seeds."
    )
    if paper in PAPER_SCALES:
        text += f" Hollow diamonds are the paper's. {AT_ITS_SCALE}"
    sections = []
    for size in reversed(dict.fromkeys(table["size"])):
        rows = table[(table["size"] == size) & (table["profile"] == profile)]
        panels = {
            f"{varies}-{name}-{size}": variant_figure(table, varies, size, profile, name, paper)
            for name in CLASSES
        }
        if figures := drop_empty(panels):
            below = rename_variant(readable_table(rows), varies)
            sections.append(Section(f"Against {words}, {size}", text, figures, table=below))
    return sections


def _domain_sections(study: Results) -> list[Section]:
    domains, varies = domain_table(study.analysis.ratios), study.record.varies
    figures = {
        f"domains-{method}-{size}": domain_variant_figure(domains, varies, method, size)
        for method, size in dict.fromkeys(zip(domains["method"], domains["size"], strict=True))
        if method not in HIDDEN
    }
    figures = drop_empty(figures)
    text = (
        "Core, and every other domain under the profile of core and that domain (under core alone"
        " if a study lacks this profile)."
    )
    table = rename_variant(domains.drop(columns="runs"), varies)
    return [Section("By domain", text, figures, table=table)] if figures else []
