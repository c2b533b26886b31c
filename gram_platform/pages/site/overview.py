"""Builds the sections of the index, with the state of every study and search, and of the list of all runs."""

from collections.abc import Mapping, Sequence

import pandas as pd

from gram_platform.config import State
from gram_platform.pages.report.page import Section, clock, whole
from gram_platform.pages.report.sections import FEW
from gram_platform.pages.site.cards import Card, cards_html
from gram_platform.pages.site.facts import Facts, NodeFacts
from gram_platform.pages.site.run_page import steps_done
from gram_platform.pages.site.studies import StudyFacts, Totals
from gram_platform.pages.site.words import dollars, hours, moment
from gram_platform.tracking.entry import config_steps

TERMS = """A node is a run or an evaluation. Missing: not begun, or interrupted. Rank hours: the hours of work of all
ranks. Cost: by the planner's price of the machine that a run recorded; empty if a run recorded none. Time at work: the
time in which at least one node was at work. Compute units are the paper's: tokens times active parameters. Times are
UTC."""


def index_sections(
    studies: Sequence[StudyFacts],
    totals: Mapping[str, Totals],
    uses: Mapping[str, Sequence[str]],
    facts: Facts,
    claims: Mapping[str, int],
    cards: Sequence[Card],
) -> list[Section]:
    """Builds the index. `claims` is {verdict: number of claims}; `cards` has one for each study."""
    searches = [study for study in studies if study.record is None]
    rows = [_study_row(study, totals[study.name], uses, facts) for study in studies if study.record is not None]
    text = "" if cards else "No study has been submitted to this storage."
    sections = [Section("Studies", text, markup=cards_html(cards)), *_failures(facts)]
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
    trials = search.trials or {}
    return {
        "search": search.title,
        "search_url": f"studies/{search.name}.html" if search.files else "",
        "driver": search.driver or "no driver",
        "trials": ", ".join(f"{count} {state}" for state, count in trials.items()) or "none written yet",
        "size": (search.search or {}).get("size", ""),
        "runs": len(search.node_ids),
        **_cost(totals),
    }


def _failures(facts: Facts) -> list[Section]:
    failed = [node for node in facts.runs.values() if node.status == State.FAILED]
    if not failed:
        return []
    errors = {node.node_id: (node.failure or {}).get("message", "") for node in failed}
    rows = [{"run_id": i, "run_id_url": f"runs/{i}.html", "error": error} for i, error in errors.items()]
    return [Section("Failed runs", table=pd.DataFrame(rows), table_is_open=len(rows) <= FEW, is_warning=True)]


def runs_sections(facts: Facts, uses: Mapping[str, Sequence[str]]) -> list[Section]:
    """Lists every run of the storage, the last changed first."""
    nodes = sorted(facts.runs.values(), key=lambda node: (-node.changed, node.node_id))
    if not nodes:
        return [Section("All runs", "No run has been attempted in this storage.")]
    table = pd.DataFrame([_run_row(node, uses.get(node.node_id, ())) for node in nodes])
    return [Section("All runs", table=table, table_is_open=True)]


def _run_row(node: NodeFacts, names: Sequence[str]) -> dict:
    tags = node.tags
    total = config_steps(node.config) if node.config else 0
    return {
        "run_id": node.node_id,
        "run_id_url": f"runs/{node.node_id}.html",
        "status": node.status,
        **{key: tags.get(key, "") for key in ("method", "size", "profile", "seed")},
        "attacked_for": tags.get("elicited", ""),
        "steps": f"{steps_done(node):,} of {total:,}",
        "trained_for": clock(node.timing.get("elapsed_s")),
        "tokens_per_second": whole(node.timing.get("tokens_per_second")),
        "attempts": len(node.attempts),
        "last_change": moment(node.changed),
        "studies": ", ".join(names),
    }
