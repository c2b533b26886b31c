"""Turns the facts of a storage into the sections of the index and of the pages of studies and searches."""

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import pandas as pd
from markupsafe import Markup

from gram_platform.config import State
from gram_platform.methods.nodes import node_name
from gram_platform.pages.figures.thumbnail import thumbnail_svg
from gram_platform.pages.report.page import Section, Shell, clock, document, render, with_verdicts
from gram_platform.pages.report.sections import FEW
from gram_platform.pages.site.facts import REPORT, TABLE, Facts, StudyFacts, Totals
from gram_platform.paper.verdicts import verdict_counts

Links = Mapping[str, str]  # {node id: page in MLflow}; empty without a tracking server

TERMS = """A node is a run or an evaluation. Missing: not begun, or interrupted. Rank hours: the hours of work of all
ranks. Cost: by the planner's price of the machine that a run recorded; empty if a run recorded none, or one without a
known price. Time at work: the time in which at least one node was at work. Compute units are the paper's: tokens times
active parameters. Times are UTC."""
_OF_HEADS = re.compile(r"<(meta|base|link|style)[\s/>]", re.I)  # elements that lead elsewhere, or change the whole page
_REPORT = re.compile(
    r"<title>(.*?)</title>.*?</h1>(.*?)</header>\s*<main[^>]*>(.*?)</main>\s*<footer>(.*?)</footer>", re.S
)


class Card(NamedTuple):
    """A study in short: a link to its page, its main figure as a still picture, and its verdicts."""

    title: str
    address: str  # of the study's page
    verdicts: Sequence[str]  # of the study's claims
    picture: str = ""  # of `picture_of`
    runs_url: str = ""  # MLflow's page of the study's runs

    @property
    def verdict_counts(self) -> str:
        return verdict_counts(self.verdicts) if self.verdicts else "no claims judged"


def picture_of(sections: Sequence[Section]) -> str:
    """Draws the first figures of a page as a small SVG; "" for a page without any."""
    return thumbnail_svg(next((tuple(section.figures.values()) for section in sections if section.figures), ()))


def cards_html(cards: Sequence[Card]) -> Markup:
    return render("cards.html", cards=cards)


def index_sections(
    facts: Facts,
    totals: Mapping[str, Totals],
    uses: Mapping[str, Sequence[str]],
    claims: Mapping[str, int],
    cards: Sequence[Card],
    links: Links,
) -> list[Section]:
    """Builds the index. `claims` is {verdict: number of claims}; `cards` has one for each study."""
    searches = [study for study in facts.studies if study.record is None]
    rows = [_study_row(study, totals[study.name], uses, facts) for study in facts.studies if study.record is not None]
    text = "" if cards else "No study has been submitted to this storage."
    sections = [Section("Studies", text, markup=cards_html(cards)), *_failures(facts, links)]
    if rows:
        sections.append(Section("State", _sharing(uses, facts), table=pd.DataFrame(rows), table_is_open=True))
    if searches:
        table = pd.DataFrame([_search_row(search, totals[search.name]) for search in searches])
        text = "Trials by state, and the runs behind them."
        sections.append(Section("Searches", text, table=table, table_is_open=True))
    if claims:
        text = "Verdicts of our runs on the paper's claims, at the scale of our runs: see the page of claims."
        sections.append(Section("Claims", text, table=pd.DataFrame([claims]), table_is_open=True))
    return sections


def _study_row(study: StudyFacts, totals: Totals, uses: Mapping[str, Sequence[str]], facts: Facts) -> dict:
    runs = [node_id for node_id in study.node_ids if node_id in facts.runs]
    return {
        "study": study.title,
        "study_url": f"studies/{study.name}.html",
        "done": f"{totals.counts[State.COMPLETE]} of {totals.num_nodes}",
        "running": totals.counts[State.RUNNING],
        "failed": totals.counts[State.FAILED],
        "missing": totals.counts[State.MISSING] + totals.counts[State.INTERRUPTED],
        "shared_runs": f"{sum(len(uses[run_id]) > 1 for run_id in runs)} of {len(runs)}",
        **_cost(totals),
    }


def _cost(totals: Totals) -> dict:
    return {
        "rank_hours": hours(totals.rank_hours),
        "cost": dollars(totals.dollars),
        "time_at_work": clock(totals.busy_s),
        "compute_units": f"{totals.compute_units:.3g}",
        "last_change": moment(totals.changed),
    }


def _sharing(uses: Mapping[str, Sequence[str]], facts: Facts) -> str:
    """Says how much training is saved by sharing runs between studies."""
    shared = [facts.runs[run_id] for run_id, names in uses.items() if len(names) > 1 and run_id in facts.runs]
    used = [run_id for run_id in uses if run_id in facts.runs]
    saved = sum((len(uses[node.node_id]) - 1) * node.rank_hours for node in shared if node.seconds == node.seconds)
    text = f"{len(shared)} of {len(used)} runs belong to more than one study or search"
    return text + (f": training them once saved {hours(saved)} rank hours." if shared else ".")


def _search_row(search: StudyFacts, totals: Totals) -> dict:
    return {
        "search": search.title,
        "search_url": f"studies/{search.name}.html" if search.files else "",
        "driver": search.driver or "no driver",
        "trials": _counts(search.trials) or "none written yet",
        "size": search.search.get("size", ""),
        "runs": len(search.node_ids),
        **_cost(totals),
    }


def _failures(facts: Facts, links: Links) -> list[Section]:
    failed = [node for node in facts.runs.values() if node.status == State.FAILED]
    rows = [{"run_id": node.node_id, "run_id_url": links.get(node.node_id, ""), "error": node.error} for node in failed]
    table, is_open = pd.DataFrame(rows), len(rows) <= FEW
    return [Section("Failed runs", table=table, table_is_open=is_open, is_warning=True)] if rows else []


# --------------------------------------------------------------------------------------------------------- of one study


def study_intro(study: StudyFacts, totals: Totals, source: str, claims: pd.DataFrame | None) -> str:
    """Writes the verdicts on the study's claims, whether it is complete, its question, and how it was run."""
    record, num_left = study.record, totals.num_nodes - totals.counts[State.COMPLETE]
    state = f"{num_left} of {totals.num_nodes} nodes are not complete: see Not complete.\n\n" if num_left else ""
    return with_verdicts(f"{state}{record.question}\n\n{' '.join(record.facts)} {source}".strip(), claims)


def state_sections(
    study: StudyFacts, totals: Totals, facts: Facts, num_shared: int, files: str, links: Links, pages: Links
) -> list[Section]:
    """Builds the sections below the results: nodes that are not complete, and the study's state.

    `files` is the address of the study's folder, "" if the site lies outside the storage; `pages` are {what it shows:
    address} of MLflow's pages about the study.
    """
    rows = [
        ("nodes", _counts(totals.counts) or "none", ""),
        *_cost_rows(totals),
        ("compute units", f"{totals.compute_units:.3g}", ""),
        ("runs shared with other studies", str(num_shared), ""),
        *((f"{what} in MLflow", "open", address) for what, address in pages.items()),
        *((f"its {name}", name, f"{files}{name}") for name in (REPORT, TABLE) if files and name in study.files),
    ]
    return [*_incomplete(study, facts, links), Section("State", table=_fact_table(rows), table_is_open=True)]


def _incomplete(study: StudyFacts, facts: Facts, links: Links) -> list[Section]:
    entries = {entry["id"]: entry for entry in study.record.entries}
    rows = []
    for node_id in study.node_ids:
        node = facts.node(node_id)
        status = node.status if node else State.MISSING
        if status != State.COMPLETE:
            name = node_name(entries[node_id]["kind"], node_id, (node and node.tags) or entries[node_id]["tags"])
            row = {"status": status, "node": name, "id": node_id, "id_url": links.get(node_id, "")}
            rows.append({**row, "error": node.error if node else ""})
    if not rows:
        return []
    text = f"{len(rows)} of {len(study.node_ids)} nodes are not complete: results that need them are missing here."
    return [Section("Not complete", text, table=pd.DataFrame(rows), table_is_open=len(rows) <= FEW, is_warning=True)]


def no_results(is_known: bool) -> Section:
    text = "No baseline is complete with its evaluation yet, so there is nothing to compare with."
    if not is_known:
        text = "This study has results of an unknown kind: see its report."
    return Section("Results", text)


# -------------------------------------------------------------------------------------------------------- of one search


def embedded(report: str, shell: Shell, before: Markup, after: Markup) -> str | None:
    """Makes a search's self-contained report a page of the site, with `before` and `after` around its sections.

    Scripts in the report do not run there. None for a report in another form, or with elements of a document's head.
    """
    found = _REPORT.search(report)
    if found is None or any(map(_OF_HEADS.search, found.groups())):
        return None
    title, intro, main, footer = map(Markup, found.groups())
    return document(title, intro, before + main + after, footer, shell)


def search_state(search: StudyFacts, totals: Totals) -> Section:
    """Builds the state of a search, with or without a report."""
    rows = [
        ("driver", search.driver or "none", ""),
        ("trials", _counts(search.trials), ""),
        *_cost_rows(totals),
    ]
    text = "" if REPORT in search.files else "It has written no report yet."
    return Section("State", text, table=_fact_table(rows), table_is_open=True)


def search_runs(search: StudyFacts, facts: Facts, links: Links) -> Section:
    """Lists the runs behind the trials with links to MLflow; folded, there are hundreds."""
    runs = [(i, facts.runs[i]) for i in search.node_ids if i in facts.runs]
    rows = [(i, links.get(i, ""), node_name("run", i, run.tags), run.status) for i, run in runs]
    return Section(
        "Runs behind the trials", table=pd.DataFrame(rows, columns=["run_id", "run_id_url", "run", "status"])
    )


# ---------------------------------------------------------------------------------------------------------------- words


def _cost_rows(totals: Totals) -> list[tuple[str, str, str]]:
    return [
        ("rank hours", hours(totals.rank_hours), ""),
        ("cost at the planner's prices", dollars(totals.dollars), ""),
        ("time with something at work (h:mm:ss)", clock(totals.busy_s) if totals.busy_s else "", ""),
        ("last change (UTC)", moment(totals.changed), ""),
    ]


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in counts.items() if count)


def _fact_table(rows: Iterable[tuple[str, str, str]]) -> pd.DataFrame:
    """Makes a table of (name, value, address that the value links to or ""); leaves out rows without a value."""
    return pd.DataFrame([row for row in rows if row[1]], columns=["what", "value", "value_url"])


def moment(seconds: float) -> str:
    """Writes seconds of the epoch as a UTC time; "" for 0."""
    if not seconds:
        return ""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M")


def hours(value: float) -> str:
    return f"{value:.3g}" if value == value else ""


def dollars(value: float | None) -> str:
    """Writes whole cents, or two significant digits below a dollar; "" for an unknown price."""
    if value is None:
        return ""
    return f"${value:,.2f}" if value >= 1 or not value else f"${value:.2g}"
