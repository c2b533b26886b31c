"""Builds the page of a study: the main numbers, and the sections of studies with variants."""

import math

from gram_platform.analysis.ratios import ELICITED, PSEUDO
from gram_platform.analysis.tables import (
    CLASSES,
    POINTS,
    domain_table,
    readable_table,
)
from gram_platform.pages.figures.study import HIDDEN
from gram_platform.pages.figures.style import drop_empty, method_style
from gram_platform.pages.figures.variants import domain_variant_figure, variant_figure
from gram_platform.pages.report.answers import answer_study, headline_rows, ratio_text
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
    recovery_sections,
    rename_variant,
    scaling_sections,
    trend_sections,
)
from gram_platform.pages.report.warning import limits_section, unit_error, warning_sections
from gram_platform.pages.results.record import Results, StudyRecord, study_report
from gram_platform.paper.paper import PAPER_SCALES
from gram_platform.paper.verdicts import TOO_LITTLE, UNJUDGED_PRESET
from gram_platform.tracking import Tracker


def study_page(record: StudyRecord, study: Results, tracker: Tracker | None) -> Page:
    """Builds the page of a study, complete or not; the page names what is missing."""
    lead, others = report_sections(study)
    answers = answer_study(study) + [TOO_LITTLE] * (record.preset == UNJUDGED_PRESET)
    return study_report(
        record, others, study.source, tracker, study.claims, answers=answers, lead=lead
    )


def report_sections(study: Results) -> tuple[list[Section], list[Section]]:
    """Returns the sections before the set-up, which answer the question, and those after it."""
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
        *published_sections(study),
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
    """Returns (label, number with one error, its parts) for each class with a value."""
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
    table, profile, words = study.table, study.main_profile, study.record.varies.replace("_", " ")
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
