"""Renders the page of a search: the report that the search wrote, as a page of the site."""

import re

import pandas as pd
from markupsafe import Markup

from gram_platform.pages.report.page import Section, Shell, clock, document
from gram_platform.pages.site.facts import Facts
from gram_platform.pages.site.studies import REPORT, StudyFacts, Totals
from gram_platform.pages.site.words import dollars, fact_table, hours, moment
from gram_platform.tracking.entry import node_name

_REPORT = re.compile(
    r"<title>(.*?)</title>.*?</h1>(.*?)</header>\s*<main[^>]*>(.*?)</main>\s*<footer>(.*?)</footer>", re.S
)


def embedded(report: str, shell: Shell, before: Markup, after: Markup) -> str:
    """Makes a search's self-contained report a page of the site, with `before` and `after` around its sections.

    A report in another form is returned as it is.
    """
    found = _REPORT.search(report)
    if found is None:
        return report
    title, intro, main, footer = map(Markup, found.groups())
    return document(title, intro, before + main + after, footer, shell)


def state_section(search: StudyFacts, totals: Totals) -> Section:
    """Builds the state of a search, with or without a report."""
    trials = ", ".join(f"{count} {state}" for state, count in (search.trials or {}).items())
    rows = [
        ("driver", search.driver or "none", ""),
        ("trials", trials, ""),
        ("rank hours", hours(totals.rank_hours), ""),
        ("cost at the planner's prices", dollars(totals.dollars), ""),
        ("time with something at work (h:mm:ss)", clock(totals.busy_s) if totals.busy_s else "", ""),
        ("last change (UTC)", moment(totals.changed), ""),
    ]
    text = "" if REPORT in (search.files or {}) else "It has written no report yet."
    return Section("State", text, table=fact_table(rows), table_is_open=True)


def runs_section(search: StudyFacts, facts: Facts) -> Section:
    """Lists the runs behind the trials with links to their pages; folded, there are hundreds."""
    runs = [(i, facts.runs[i]) for i in search.node_ids if i in facts.runs]
    rows = [(i, f"../runs/{i}.html", node_name("run", i, run.tags), run.status) for i, run in runs]
    return Section(
        "Runs behind the trials", table=pd.DataFrame(rows, columns=["run_id", "run_id_url", "run", "status"])
    )
