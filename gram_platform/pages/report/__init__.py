"""The report of a study: its tables and figures as one self-contained HTML page."""

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
higher is better. Forget: those it switches off; lower is better. Profile mean: the average over the profiles of core
with at most one auxiliary domain.

Intervals are 90% t-intervals over training seeds; with one seed there is none. They do not include the uncertainty of
the baseline's curve. A fit is at its bound when the shift s0 is at an end of its range, and poor when its residual is
above {POOR_RMS:.0%} of the loss or {POOR_STEP_RMS:.0%} of the steps: read compute ratios on such a domain with care."""

ATTACK = """Elicited: forget after an attack, which finetunes the profile's model on a small sample of the forgotten
domain; lower is better. Its loss is that of the attack's best checkpoint on validation data: choosing it there follows
the paper and favours the attacker. No attack trains on validation data."""


def build_report(title: str, intro: str, study: StudyReport) -> str:
    """The page of a study as HTML text; partial studies give partial pages that name what is missing."""
    return page_html(title, with_verdicts(intro, study.claims), report_sections(study), report_footer(study.runs))


def report_sections(study: StudyReport) -> list[Section]:
    """The sections of that page, as a site's page of the study has them too.

    Six numbers, the main figure, the claims, what is missing, the tables, the other figures, the runs.
    """
    return [
        *headline_sections(study),
        *(varied_sections(study) if study.varies else plain_sections(study)),
        *([Section("Runs", table=readable_runs(study.runs))] if len(study.runs) else []),
        *attack_sections(study),
    ]


def report_footer(runs: pd.DataFrame) -> str:
    """What the terms mean; attacks only where there are some."""
    return f"{ATTACK}\n\n{FOOTER}" if is_attack(runs).any() else FOOTER


def study_figures(study: StudyReport) -> dict[str, go.Figure]:
    """Every figure of the page by a name fit for a file: `scaling-core`, `aggregate-core-small`, `curves-small`, ..."""
    return varied_figures(study) if study.varies else plain_figures(study)
