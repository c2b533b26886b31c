"""Makes the index of a site from the facts of its storage: what came out, what is not complete, a card for each."""

import datetime
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from gram_platform.analysis.tables import CLASSES
from gram_platform.config import State
from gram_platform.config.identity import has_shape
from gram_platform.methods.nodes import node_name
from gram_platform.pages.figures.style import method_style
from gram_platform.pages.report.build import FIRST
from gram_platform.pages.report.page import HOW_TO_READ, REPORT_FILE, SOURCE_ID, Page, Section, render
from gram_platform.pages.report.sections import FEW
from gram_platform.pages.site.facts import SEARCH_TEXTS, STATES, TABLE, Facts, StudyFacts, Totals, totals, uses
from gram_platform.pages.site.pictures import (
    Picture,
    complete_trials,
    number,
    search_picture,
    shown_rows,
    study_picture,
)
from gram_platform.paper.verdicts import verdict_counts
from gram_platform.store.root import HISTORY

LINKED = (REPORT_FILE, TABLE)  # the files of a study or a search to which a site leads
COLUMNS = {"varied": [str], "objectives": [str]}  # of a search's trials
QUESTION = "Which capabilities of a language model can be switched off, and what does it cost?"
TERMS = """A node is a run or an evaluation. Missing: not begun, or interrupted. Rank time: the work of all ranks. Cost:
by the planner's price of the machine that a run recorded. At work: the time in which at least one node was at work.
Times are UTC."""


@dataclass(frozen=True)
class Addresses:
    """Where the links of a site lead."""

    studies: str  # the folder with a folder of LINKED for each study and search
    nodes: Mapping[str, str]  # {node id: page in MLflow}; empty without a tracking server
    views: Mapping[str, Mapping[str, str]]  # {study: {what it shows: page in MLflow}}

    def file(self, study: StudyFacts, name: str) -> str:
        """Returns the address of a study's file; "" if it has not been written."""
        return f"{self.studies}{study.name}/{name}" if name in study.files else ""


@dataclass(frozen=True)
class Card:
    """What the index says of a study or a search."""

    title: str
    address: str  # of its report; "" before it is written
    question: str
    picture: Picture | None
    result: str
    lines: Sequence[str]
    links: Sequence[tuple[str, str]]  # (label, address)
    source: str  # the address of the command and commit of its picture; "" if they are not known


def index_page(facts: Facts, place: str, note: str, addresses: Addresses, built: float) -> Page:
    """Makes the index of the storage at `place`, built at `built` in seconds of the epoch.

    `note` says what links into MLflow need, or why there are none.
    """
    studies = [study for study in facts.studies if study.record is not None]
    searches = [study for study in facts.studies if study.record is None]
    used = uses(facts.studies)
    sections = _incomplete(facts, used, addresses)
    if studies:
        cards = render("cards.html", cards=[_study_card(study, facts, addresses) for study in studies])
        sections.append(Section("Studies", _sharing(used, facts), markup=cards))
    if searches:
        cards = render("cards.html", cards=[_search_card(search, facts, addresses) for search in searches])
        sections.append(Section("Searches", markup=cards))
    verdicts = [row["verdict"] for study in facts.studies for row in study.claims]
    counts = f"Verdicts on claims: {verdict_counts(verdicts)}." if verdicts else "No claim can be judged yet."
    what = f"{_several(len(studies), 'study', 'studies')} and {_several(len(searches), 'search', 'searches')}"
    text = f"{QUESTION} This page has {what} of the storage {place}. {counts} Built {moment(built)} UTC."
    text = text if facts.studies else f"No study has been submitted to the storage {place}. Built {moment(built)} UTC."
    return Page("Overview", f"{text}\n\n{note}", [*sections, Section(HOW_TO_READ, TERMS)])


def _study_card(study: StudyFacts, facts: Facts, addresses: Addresses) -> Card:
    record, sums = study.record, totals(study.node_ids, facts)
    shown = shown_rows(study.rows, record.sizes, record.profile, record.varies)
    note = ""
    if REPORT_FILE not in study.files:
        note = "The report is not written yet."
    elif not facts.is_shown(study):
        # An earlier version did not write what a report shows, and a submission that begins does not know it yet.
        age = "older" if record.shown else "perhaps older"
        note = f"The report is {age} than its nodes: gram report {study.name}"
    lines = [*_verdicts(study), _state(sums), *filter(None, [note]), _cost(sums)]
    earlier, links = f"{addresses.studies}{study.name}/{HISTORY}", _links(study, addresses)
    for date in study.history:
        links.append((f"until {date[:10]} {date[11:13]}:{date[13:15]}", f"{earlier}/{date}/{REPORT_FILE}"))
    return Card(
        title=study.title,
        address=addresses.file(study, REPORT_FILE),
        question=record.question,
        picture=study_picture(*shown),
        result=_study_result(*shown),
        lines=lines,
        links=links,
        source=_source(study),
    )


def _study_result(rows: Sequence[Mapping[str, str]], place: str) -> str:
    """Gives the compute ratios of GRAM, or of the first method."""
    row = next((row for row in rows if row["method"] == FIRST[0]), next(iter(rows), {}))
    values = {name: number(row, name) for name in CLASSES}
    texts = [f"{name} {value:.2f}" for name, value in values.items() if math.isfinite(value)]
    return f"{method_style(row['method']).label}: {', '.join(texts)} at {place}" if texts else ""


def _search_card(search: StudyFacts, facts: Facts, addresses: Addresses) -> Card:
    about, sums = search.search, totals(search.node_ids, facts)
    columns = about if has_shape(about, COLUMNS) else {"varied": [], "objectives": []}
    trials = dict(Counter(row.get("state") or "" for row in search.rows))
    if trials:
        trials.setdefault(State.FAILED, 0)
    state = ", ".join(f"{count} {name}" for name, count in trials.items()) or "none written yet"
    led = f"Running, {search.driver}" if search.driver else "Not running"
    lines = [*_verdicts(search), f"{led}. Trials: {state}.", _cost(sums)]
    question = about["question"] if has_shape(about, SEARCH_TEXTS) else ""
    return Card(
        title=search.title,
        address=addresses.file(search, REPORT_FILE),
        question=question,
        picture=search_picture(search.rows, columns["varied"], columns["objectives"]),
        result=_search_result(search.rows, columns),
        lines=lines,
        links=_links(search, addresses),
        source=_source(search),
    )


def _search_result(rows: Sequence[Mapping[str, str]], columns: Mapping[str, Sequence[str]]) -> str:
    """Says from where to where the objectives go; of a single one, also what has the lowest."""
    parts = []
    for name in columns["objectives"]:
        if done := complete_trials(rows, (name,)):
            lowest, highest = (pick(done, key=lambda row: number(row, name)) for pick in (min, max))
            parts.append(f"{name.replace('_', ' ')} {number(lowest, name):.3g} to {number(highest, name):.3g}")
    if len(parts) == 1:
        at = [f"{name} {lowest[name]}" for name in ("size", *columns["varied"]) if lowest.get(name)]
        parts += [f"the lowest at {', '.join(at)}"] if at else []
    text = ", ".join(parts)
    return text[:1].upper() + text[1:]


def _verdicts(study: StudyFacts) -> list[str]:
    if study.problem:
        return ["Its claims.csv cannot be read."]
    return [f"Claims: {verdict_counts(row['verdict'] for row in study.claims)}."] if study.claims else []


def _links(study: StudyFacts, addresses: Addresses) -> list[tuple[str, str]]:
    files = {"report": REPORT_FILE, "table.csv": TABLE}
    found = [(label, addresses.file(study, name)) for label, name in files.items() if name in study.files]
    found += [("claims", "claims.html")] if study.claims else []
    return [*found, *((f"MLflow {what}", page) for what, page in addresses.views.get(study.name, {}).items())]


def _source(study: StudyFacts) -> str:
    return f"#{SOURCE_ID}" if study.submissions else ""


def _state(sums: Totals) -> str:
    """Says how far a study is."""
    done, missing = sums.counts[State.COMPLETE], sums.counts[State.MISSING] + sums.counts[State.INTERRUPTED]
    is_running, failed = sums.counts[State.RUNNING], sums.counts[State.FAILED]
    state = "Running" if is_running else "Complete" if done == sums.num_nodes else "Not complete"
    others = {"running": is_running, "failed": failed, "missing": missing}
    left = "".join(f", {count} {name}" for name, count in others.items() if count or name == "failed")
    return f"{state}: {done} of {sums.num_nodes} nodes done{left}."


def _cost(sums: Totals) -> str:
    if not sums.changed:
        return "No work yet."
    price = f" ({dollars(sums.dollars)})" if sums.dollars is not None else ""
    work = f"{span(3600 * sums.rank_hours)} of rank time{price}, {span(sums.busy_s)} at work"
    return f"Cost: {work}; last change {moment(sums.changed)}."


def _sharing(used: Mapping[str, Sequence[str]], facts: Facts) -> str:
    """Says how much training is saved by sharing runs between studies."""
    shared = [facts.runs[run_id] for run_id, names in used.items() if len(names) > 1 and run_id in facts.runs]
    num_used = sum(run_id in facts.runs for run_id in used)
    saved = sum((len(used[node.node_id]) - 1) * node.rank_hours for node in shared if node.seconds == node.seconds)
    text = f"{len(shared)} of {num_used} runs belong to more than one study or search"
    return f"{text}: training them once saved {span(3600 * saved)} of rank time." if shared else ""


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


def _several(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def moment(seconds: float) -> str:
    """Writes seconds of the epoch as a UTC time; "" for 0."""
    if not seconds:
        return ""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M")


def span(seconds: float) -> str:
    """Writes a length of time in the unit that people would use."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:,.1f} h"


def dollars(value: float) -> str:
    """Writes whole cents; less than one as that."""
    return "less than $0.01" if 0 < value < 0.01 else f"${value:,.2f}"
