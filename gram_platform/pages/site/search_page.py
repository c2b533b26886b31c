"""The page of a search: the report that it wrote, with the site's navigation and one plotly.js for all pages."""

import re
from collections.abc import Callable

import pandas as pd

from gram_platform.pages.report.page import PLOTLY, Section, Shell, body_html, navigation
from gram_platform.pages.report.tables import clock
from gram_platform.pages.site.facts import Facts
from gram_platform.pages.site.studies import REPORT, StudyFacts, Totals
from gram_platform.pages.site.words import dollars, fact_table, hours, moment

_STYLE = re.compile(r"<style>.*?</style>", re.S)
_PLOTLY = re.compile(r"<script>(?=[^<]{0,300}plotly\.js v).*?</script>", re.S)
_SCRIPT = re.compile(r'<script>\s*"use strict";.*?</script>', re.S)
_SKIP = re.compile(r'<a class="skip".*?</a>', re.S)
_MAIN = re.compile(r"<main[^>]*>")


def embedded(report: str, shell: Shell, before: str, after: str) -> str:
    """A self-contained report as a page of the site: style and scripts become references to shared files.

    `before` and `after` are HTML around its sections. A report in a form that is not ours keeps what it carries.
    """
    style = f'<link rel="stylesheet" href="{shell.root}page.css">'
    page = _STYLE.sub(lambda _: style, report, count=1)
    page = _PLOTLY.sub(lambda _: f'<script defer src="{shell.root}{PLOTLY}"></script>', page, count=1)
    page = _SCRIPT.sub(lambda _: f'<script defer src="{shell.root}page.js"></script>', page, count=1)
    page = _SKIP.sub("", page, count=1)
    page = page.replace("<body>", f"{body_html(shell)}{navigation(shell)}", 1)
    page = _MAIN.sub(lambda _: f'<main id="main" tabindex="-1">{before}', page, count=1)
    return page.replace("</main>", f"{after}</main>", 1)


def state_section(search: StudyFacts, totals: Totals) -> Section:
    """What the site knows of a search, whether or not it has written a report."""
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


def runs_section(search: StudyFacts, facts: Facts, names: Callable[[str], str]) -> Section:
    """The runs behind the trials, each with its page; folded, there are hundreds."""
    ids = [run_id for run_id in search.node_ids if run_id in facts.runs]
    rows = [
        {"run_id": i, "run_id_url": f"../runs/{i}.html", "run": names(i), "status": facts.runs[i].status} for i in ids
    ]
    columns = ["run_id", "run_id_url", "run", "status"]
    return Section("Runs behind the trials", table=pd.DataFrame(rows, columns=columns))
