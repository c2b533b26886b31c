"""Builds the report of a study: tables and figures as one self-contained HTML page."""

import pandas as pd
import plotly.graph_objects as go

from gram_platform.analysis.compute_ratio import POOR_RMS, POOR_STEP_RMS
from gram_platform.pages.report.page import Section, page_html
from gram_platform.pages.report.sections import attack_sections, plain_figures, plain_sections
from gram_platform.pages.report.study import StudyReport, headline_sections, shared_profile, with_verdicts
from gram_platform.pages.report.tables import is_attack, readable_runs
from gram_platform.pages.report.variants import varied_figures, varied_sections

__all__ = ["StudyReport", "build_report", "report_footer", "report_sections", "shared_profile", "study_figures"]

FOOTER = f"""Compute ratio: the share of the baseline's training steps after which the baseline has the same loss on a
domain; 1 is the baseline at its end. Core: the core domain. Retain: the auxiliary domains that the profile keeps;
higher is better. Forget: the auxiliary domains that the profile switches off; lower is better. Profile mean: the
average over the profiles of core with at most one auxiliary domain.

Intervals are 90% t-intervals over training seeds; one seed has none. They leave out the uncertainty of the baseline's
curve. A fit is at its bound if the shift s0 is at an end of its range, and poor if its residual is above
{POOR_RMS:.0%} of the loss or {POOR_STEP_RMS:.0%} of the steps: read compute ratios on such a domain with care."""

ATTACK = """Elicited: forget after an attack, which finetunes the profile's model on a small sample of the forgotten
domain; lower is better. The loss is that of the attack's best checkpoint on validation data: this choice follows the
paper and favours the attacker. No attack trains on validation data."""


def build_report(title: str, intro: str, study: StudyReport) -> str:
    """Renders the page of a study as HTML; a partial study has a partial page that names what is missing."""
    return page_html(title, with_verdicts(intro, study.claims), report_sections(study), report_footer(study.runs))


def report_sections(study: StudyReport) -> list[Section]:
    """Builds the sections of the study's page, in the report and on the site.

    They are: six numbers, main figure, claims, missing results, tables, other figures, runs.
    """
    return [
        *headline_sections(study),
        *(varied_sections(study) if study.varies else plain_sections(study)),
        *([Section("Runs", table=readable_runs(study.runs))] if len(study.runs) else []),
        *attack_sections(study),
    ]


def report_footer(runs: pd.DataFrame) -> str:
    """Defines the terms of the page, those of attacks only if there are attacks."""
    return f"{ATTACK}\n\n{FOOTER}" if is_attack(runs).any() else FOOTER


def study_figures(study: StudyReport) -> dict[str, go.Figure]:
    """Draws every figure of the page; keys name files: `scaling-core`, `aggregate-core-small`, `curves-small`, ..."""
    return varied_figures(study) if study.varies else plain_figures(study)
