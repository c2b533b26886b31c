"""Makes the index of a site from the facts of its storage."""

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from gram_platform.config import State
from gram_platform.methods.nodes import node_name
from gram_platform.pages.report.page import REPORT_FILE, Page, Section, clock
from gram_platform.pages.report.sections import FEW
from gram_platform.pages.site.facts import STATES, Facts, StudyFacts, Totals, totals, uses
from gram_platform.paper.verdicts import VERDICTS, verdict_counts

TABLE_FILE = "table.csv"
LINKED = (REPORT_FILE, TABLE_FILE)  # the files of a study or a search to which a site leads
TERMS = """A node is a run or an evaluation. Missing: not begun, or interrupted. Rank hours: the hours of work of all
ranks. Cost: by the planner's price of the machine that a run recorded; empty if a run recorded none, or one without a
known price. Time at work: the time in which at least one node was at work. Compute units are the paper's: tokens times
active parameters. Times are UTC."""


@dataclass(frozen=True)
class Addresses:
    """Where the links of a site lead."""

    studies: str  # the folder with a folder of LINKED for each study and search
    nodes: Mapping[str, str]  # {node id: page in MLflow}; empty without a tracking server
    views: Mapping[str, Mapping[str, str]]  # {study: {what it shows: page in MLflow}}

    def file(self, study: StudyFacts, name: str) -> str:
        """Returns the address of a study's file; "" if it has not been written."""
        return f"{self.studies}{study.name}/{name}" if name in study.files else ""


def index_page(facts: Facts, place: str, note: str, addresses: Addresses) -> Page:
    """Makes the index of the storage at `place`; `note` says what links into MLflow need, or why there are none."""
    studies = [study for study in facts.studies if study.record is not None]
    searches = [study for study in facts.studies if study.record is None]
    sums = {study.name: totals(study.node_ids, facts) for study in facts.studies}
    used = uses(facts.studies)
    text = "" if facts.studies else "No study has been submitted to this storage."
    sections = [
        _table("Studies", text, [_study_row(study, facts, addresses) for study in studies]),
        *_incomplete(facts, used, addresses),
    ]
    if studies:
        rows = [_state_row(study, sums[study.name], used, facts, addresses) for study in studies]
        sections.append(_table("State", _sharing(used, facts), rows))
    if searches:
        rows = [_search_row(search, sums[search.name], addresses) for search in searches]
        sections.append(_table("Searches", "Trials by state, and the runs behind them.", rows))
    if counts := Counter(row["verdict"] for study in facts.studies for row in study.claims):
        text = "Verdicts of our runs on the paper's claims, at the scale of our runs: see the page of claims."
        sections.append(_table("Claims", text, [{verdict: counts[verdict] for verdict in VERDICTS}]))
    return Page("Studies", f"Storage {place}. {note}", sections, TERMS)


def _table(title: str, text: str, rows: Sequence[Mapping]) -> Section:
    return Section(title, text, table=pd.DataFrame(rows) if rows else None, table_is_open=True)


def _study_row(study: StudyFacts, facts: Facts, addresses: Addresses) -> dict:
    # an earlier version did not write what a report shows, and a submission that begins does not know it yet
    age = "older" if study.record.shown else "perhaps older"
    note = "shows every complete node" if facts.is_shown(study) else f"{age} than its nodes: gram report {study.name}"
    return {
        "study": study.title,
        "study_url": addresses.file(study, REPORT_FILE),
        **_results(study, addresses),
        "report": note if REPORT_FILE in study.files else "not written yet",
    }


def _results(study: StudyFacts, addresses: Addresses) -> dict:
    """Returns the cells of the verdicts, of the table, and of the pages in MLflow."""
    address = addresses.file(study, TABLE_FILE)
    verdicts = verdict_counts(row["verdict"] for row in study.claims) if study.claims else ""
    pages = {}
    for what, page in addresses.views.get(study.name, {}).items():
        pages |= {f"MLflow {what}": "open", f"MLflow {what}_url": page}
    return {
        "claims": "its claims.csv cannot be read" if study.problem else verdicts,
        "claims_url": "claims.html" if study.claims else "",
        "table": TABLE_FILE if address else "",
        "table_url": address,
        **pages,
    }


def _state_row(
    study: StudyFacts, totals: Totals, used: Mapping[str, Sequence[str]], facts: Facts, addresses: Addresses
) -> dict:
    runs = [node_id for node_id in study.node_ids if node_id in facts.runs]
    return {
        "study": study.title,
        "study_url": addresses.file(study, REPORT_FILE),
        "done": f"{totals.counts[State.COMPLETE]} of {totals.num_nodes}",
        "running": totals.counts[State.RUNNING],
        "failed": totals.counts[State.FAILED],
        "missing": totals.counts[State.MISSING] + totals.counts[State.INTERRUPTED],
        "shared_runs": f"{sum(len(used[run_id]) > 1 for run_id in runs)} of {len(runs)}",
        **_cost(totals),
    }


def _search_row(search: StudyFacts, totals: Totals, addresses: Addresses) -> dict:
    return {
        "search": search.title,
        "search_url": addresses.file(search, REPORT_FILE),
        "driver": search.driver or "no driver",
        "trials": _counts(search.trials) or "none written yet",
        "size": search.search.get("size", ""),
        "runs": len(search.node_ids),
        **_results(search, addresses),
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


def _sharing(used: Mapping[str, Sequence[str]], facts: Facts) -> str:
    """Says how much training is saved by sharing runs between studies."""
    shared = [facts.runs[run_id] for run_id, names in used.items() if len(names) > 1 and run_id in facts.runs]
    num_used = sum(run_id in facts.runs for run_id in used)
    saved = sum((len(used[node.node_id]) - 1) * node.rank_hours for node in shared if node.seconds == node.seconds)
    text = f"{len(shared)} of {num_used} runs belong to more than one study or search"
    return text + (f": training them once saved {hours(saved)} rank hours." if shared else ".")


def _incomplete(facts: Facts, used: Mapping[str, Sequence[str]], addresses: Addresses) -> list[Section]:
    """Lists the nodes of all studies and searches that are not complete, and every failed run; [] without any."""
    entries = {e["id"]: e for study in facts.studies if study.record is not None for e in study.record.entries}
    failed = [node_id for node_id, run in facts.runs.items() if run.status == State.FAILED]
    rows = []
    for node_id in dict.fromkeys([*failed, *used]):
        status, node = facts.status(node_id), facts.node(node_id)
        if status != State.COMPLETE:
            entry = entries.get(node_id, {"kind": "run", "tags": {}})
            name, error = node_name(entry["kind"], node_id, (node and node.tags) or entry["tags"]), node and node.error
            row = {"status": status, "node": name, "id": node_id, "id_url": addresses.nodes.get(node_id, "")}
            rows.append({**row, "studies": ", ".join(used.get(node_id, ())), "error": error or ""})
    if not rows:
        return []
    rows.sort(key=lambda row: (row["status"] != State.FAILED, STATES.index(row["status"])))
    text = f"{len(rows)} nodes are not complete: reports lack results that need them."
    return [Section("Not complete", text, table=pd.DataFrame(rows), table_is_open=len(rows) <= FEW, is_warning=True)]


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in counts.items() if count)


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
