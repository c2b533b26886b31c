"""Builds the page of a study: the main numbers, and the sections of studies with variants."""

import math

import pandas as pd

from gram_platform.analysis.intervals import CURVE_FIXED
from gram_platform.analysis.ratios import ELICITED, PSEUDO
from gram_platform.analysis.tables import (
    CLASSES,
    domain_table,
    interval_cell,
    labelled,
    readable_table,
)
from gram_platform.methods.nodes import VARIANT
from gram_platform.pages.figures.study import HIDDEN
from gram_platform.pages.figures.style import drawn, method_style
from gram_platform.pages.figures.variants import domain_variant_figure, variant_figure
from gram_platform.pages.report.claims import claim_sections
from gram_platform.pages.report.modules import absorption_sections, composing_sections
from gram_platform.pages.report.page import (
    Page,
    Section,
    is_attack,
    readable_runs,
    render,
    terms_section,
)
from gram_platform.pages.report.sections import (
    AT_ITS_SCALE,
    RUNS,
    aggregate_sections,
    attack_sections,
    capabilities_section,
    cost_sections,
    curve_sections,
    missing_sections,
    nats_sections,
    paper_sections,
    profile_sections,
    published_sections,
    renamed,
    scaling_sections,
    trend_sections,
)
from gram_platform.pages.report.warning import unit_error, unit_warning, warning_sections
from gram_platform.pages.results.record import Results, StudyRecord, study_report
from gram_platform.paper.paper import PAPER_SCALES
from gram_platform.tracking import Tracker

RATIO_TERMS = (
    (
        "Compute ratio",
        (
            "the step at which the baseline's fitted learning curve has a model's loss, over the"
            " step of the baseline's final loss; 1 is the baseline at its end. It is no share of a"
            " finished, shorter training: the study calibration measures how far the two are apart."
        ),
    ),
    (
        "Profile",
        (
            "the domains that are on; mean averages over the profiles of core with at most one"
            " auxiliary domain."
        ),
    ),
    ("Core", "the ratio on the core domain; higher is better."),
    ("Retain", "the ratio on the auxiliary domains that the profile keeps; higher is better."),
    ("Forget", "the ratio on those that it switches off; lower is better."),
)
ELICITED_TERM = (
    "Elicited",
    (
        "forget after an attack, which finetunes the profile's model on a small sample of the"
        " forgotten domain, at the attack's best checkpoint; lower is better."
    ),
)
FEW_SEEDS = "One seed has none, nor have two, whose two points stand in round brackets."
INTERVALS = f"""90% over training seeds, by the leave-one-seed-out jackknife: it contains the error
of the curve between seeds, and not what all seeds share, as a decay, steps or a floor that the
curve lacks. {FEW_SEEDS}"""
FIXED_INTERVALS = f"""the 90% {CURVE_FIXED}, as in the paper: it leaves out the uncertainty of the
baseline's curve. {FEW_SEEDS}"""


def study_page(record: StudyRecord, study: Results, tracker: Tracker | None) -> Page:
    """Builds the page of a study, complete or not; the page names what is missing."""
    return study_report(record, report_sections(study), study.source, tracker, study.claims)


def report_sections(study: Results) -> list[Section]:
    if study.record.varies:
        main, others = _variant_sections(study), _domain_sections(study)
    else:
        main = [*composing_sections(study), *scaling_sections(study), *aggregate_sections(study)]
        others = [*trend_sections(study), *profile_sections(study)]
    return [
        *warning_sections(study, unit_warning(study.record)),
        terms_section(study_terms(study)),
        *headline_sections(study),
        *main[:1],
        *absorption_sections(study),
        *claim_sections(study),
        *missing_sections(study.analysis.missing),
        capabilities_section(study),
        *nats_sections(study),
        *paper_sections(study),
        *published_sections(study),
        *main[1:],
        *others,
        *cost_sections(study),
        *curve_sections(study),
        *([Section(RUNS, table=readable_runs(study.runs))] if len(study.runs) else []),
        *attack_sections(study),
    ]


def study_terms(study: Results) -> list[tuple[str, str]]:
    has_attacks = is_attack(study.runs).any() or study.table[ELICITED].notna().any()
    intervals = INTERVALS if PSEUDO in study.analysis.ratios else FIXED_INTERVALS
    return [
        *RATIO_TERMS,
        *([ELICITED_TERM] if has_attacks else []),
        ("Interval [low, high]", intervals),
    ]


# The methods that the main numbers prefer.
FIRST = ("gram", "filtering")


def headline_sections(study: Results) -> list[Section]:
    rows = headline_rows(study)
    if rows.empty:
        return []
    first = rows.iloc[0]
    place = f" at {first['size']}, profile {first['profile']}"
    if study.record.varies:
        place += f", {study.record.varies.replace('_', ' ')} {first[VARIANT]}"
    seeds = zip(labelled(rows)["method"], rows["num_seeds"], strict=True)
    named = " and ".join(f"{label} ({n} seed{'s' * (n != 1)})" for label, n in seeds)
    text = f"{named}{place}: compute ratios with 90% intervals over seeds."
    records = rows.to_dict("records")
    methods = [(method_style(r["method"]).colour, _tiles(r, study.record)) for r in records]
    return [Section("At a glance", text, markup=render("tiles.html", methods=methods))]


def headline_rows(study: Results) -> pd.DataFrame:
    """Selects the rows of the two main methods at the shown profile, one size and variant.

    Places with numbers of both methods and their intervals come first, then the largest size, then
    the last variant.
    """
    table = study.table if VARIANT in study.table else study.table.assign(**{VARIANT: ""})
    methods = [method for method in dict.fromkeys(table["method"]) if method not in HIDDEN]
    methods = list(dict.fromkeys([*(m for m in FIRST if m in methods), *methods]))[:2]
    variants = list(dict.fromkeys(table[VARIANT]))
    rows = table[(table["profile"] == study.shown_profile) & table["method"].isin(methods)]
    rows = rows[rows[list(CLASSES)].notna().any(axis="columns")]
    places = dict(iter(rows.groupby(["size", VARIANT], sort=False)))

    def rank(place: tuple[str, str]) -> tuple:
        here, (size, variant) = places[place], place
        num_sure = here[[f"{name}_low" for name in CLASSES]].notna().any(axis="columns").sum()
        num_parameters = study.record.parameters.get(size, 0)
        return len(here), num_sure, num_parameters, variants.index(variant)

    rows = places[max(places, key=rank)] if places else rows
    return rows.sort_values("method", key=lambda names: names.map(methods.index), kind="stable")


def _tiles(row: dict, record: StudyRecord) -> list[tuple[str, str, str]]:
    """Returns (label, number, interval and unit's error) for each class with a value."""
    label, tiles = method_style(row["method"]).label, []
    for name in CLASSES:
        value, _, interval = interval_cell(row, name).partition(" ")
        margins = interval or "no interval"
        if not math.isnan(error := unit_error(record, row["size"], name).ratio):
            margins += f", unit \u00b1{error:.2f}"
        if value:
            tiles.append((f"{label} {name}", value, margins))
    return tiles


def _variant_sections(study: Results) -> list[Section]:
    table, profile, words = study.table, study.shown_profile, study.record.varies.replace("_", " ")
    text = (
        f"Compute ratio against {words} for the profile {profile}; error bars are 90% intervals"
        " over seeds."
    )
    varies, paper = study.record.varies, study.record.compare_with
    if paper in PAPER_SCALES:
        text += f" Hollow diamonds are the paper's. {AT_ITS_SCALE}"
    sections = []
    for size in reversed(dict.fromkeys(table["size"])):
        rows = table[(table["size"] == size) & (table["profile"] == profile)]
        panels = {
            f"{varies}-{name}-{size}": variant_figure(table, varies, size, profile, name, paper)
            for name in CLASSES
        }
        if figures := drawn(panels):
            below = renamed(readable_table(rows), varies)
            sections.append(Section(f"Against {words}, {size}", text, figures, table=below))
    return sections


def _domain_sections(study: Results) -> list[Section]:
    domains, varies = domain_table(study.analysis.ratios), study.record.varies
    figures = {
        f"domains-{method}-{size}": domain_variant_figure(domains, varies, method, size)
        for method, size in dict.fromkeys(zip(domains["method"], domains["size"], strict=True))
        if method not in HIDDEN
    }
    figures = drawn(figures)
    text = (
        "Core, and every other domain under the profile of core and that domain (under core alone"
        " if a study lacks this profile)."
    )
    table = renamed(domains.drop(columns="runs"), varies)
    return [Section("By domain", text, figures, table=table)] if figures else []
