"""Builds the sections of a study's page: results, nodes that are not complete, and the study's state."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import pandas as pd

from gram_platform.config import State
from gram_platform.pages.report.page import Section, clock
from gram_platform.pages.report.sections import FEW
from gram_platform.pages.report.study import with_verdicts
from gram_platform.pages.results.record import StudyRecord
from gram_platform.pages.site.facts import Facts
from gram_platform.pages.site.studies import StudyFacts, Totals
from gram_platform.pages.site.words import dollars, fact_table, hours, moment
from gram_platform.store import Store
from gram_platform.tracking.entry import node_name
from gram_platform.tracking.frame import Frames

RUN_PAGES = "../runs/"


class StudyPage(Protocol):
    """How a measurement is read and shown."""

    def read(self, record: StudyRecord, store: Store, uri: str | None, why_not: str, frames: Frames) -> Any:
        """Returns the results with `source`, and `runs` and `claims` where there are any; None without results."""

    def sections(self, record: StudyRecord, results: Any) -> list[Section]: ...

    def footer(self, results: Any) -> str: ...


def with_pages(results: Any, facts: Facts, links: Mapping[str, str]) -> Any:
    """Adds to the runs of the results the addresses of their pages on the site and in MLflow, and their errors."""
    runs = getattr(results, "runs", None)
    if runs is None:
        return results
    found = {node_id: facts.node(node_id) for node_id in runs["id"]}
    errors = [(node.failure or {}).get("message", "") if (node := found[i]) else "" for i in runs["id"]]
    mlflow = [links.get(node_id, "") for node_id in runs["id"]]
    linked = runs.assign(
        run_id_url=[f"{RUN_PAGES}{run_id}.html#evaluations" for run_id in runs["run_id"]],
        run_id=runs["id"],
        error=errors,
        mlflow=["open" if url else "" for url in mlflow],
        mlflow_url=mlflow,
    )
    is_run = linked["kind"] == "run"
    linked.loc[is_run, "run_id_url"] = linked.loc[is_run, "run_id_url"].str.replace("#evaluations", "")
    return replace(results, runs=linked if any(mlflow) else linked.drop(columns=["mlflow", "mlflow_url"]))


def study_intro(study: StudyFacts, totals: Totals, source: str, claims: pd.DataFrame | None) -> str:
    """Writes the verdicts on the study's claims, whether it is complete, its question, and how it was run."""
    record, num_left = study.record, totals.num_nodes - totals.counts[State.COMPLETE]
    state = f"{num_left} of {totals.num_nodes} nodes are not complete: see Not complete.\n\n" if num_left else ""
    return with_verdicts(f"{state}{record.question}\n\n{' '.join(record.facts)} {source}".strip(), claims)


def state_sections(study: StudyFacts, totals: Totals, facts: Facts, num_shared: int, files: str) -> list[Section]:
    """Builds the sections below the results: nodes that are not complete, and the study's state.

    `files` is the address of the study's folder, "" if the site lies outside the storage.
    """
    rows = [
        ("nodes", counts_text(totals), ""),
        ("rank hours", hours(totals.rank_hours), ""),
        ("cost at the planner's prices", dollars(totals.dollars), ""),
        ("time with something at work (h:mm:ss)", clock(totals.busy_s) if totals.busy_s else "", ""),
        ("compute units", f"{totals.compute_units:.3g}", ""),
        ("last change (UTC)", moment(totals.changed), ""),
        ("runs shared with other studies", str(num_shared), ""),
        *([(f"its {name}", name, f"{files}{name}") for name in ("report.html", "table.csv")] if files else []),
    ]
    kept = [row for row in rows if not row[2] or row[1] in (study.files or {})]
    return [*_incomplete(study, facts), Section("State", table=fact_table(kept), table_is_open=True)]


def counts_text(totals: Totals) -> str:
    return ", ".join(f"{count} {state}" for state, count in totals.counts.items() if count) or "none"


def _incomplete(study: StudyFacts, facts: Facts) -> list[Section]:
    """Lists every node that is not complete, with its error."""
    entries = {entry["id"]: entry for entry in (study.record.entries if study.record else ())}
    rows = []
    for node_id in study.node_ids:
        node = facts.node(node_id)
        status = node.status if node else State.MISSING
        if status == State.COMPLETE:
            continue
        entry = entries.get(node_id, {"kind": "run", "tags": {}})
        name = node_name(entry["kind"], node_id, entry["tags"])
        url = f"{RUN_PAGES}{node_id}.html" if node_id in facts.runs else ""
        error = ((node.failure if node else None) or {}).get("message", "")
        rows.append({"status": status, "node": name, "id": node_id, "id_url": url, "error": error})
    if not rows:
        return []
    text = f"{len(rows)} of {len(study.node_ids)} nodes are not complete: results that need them are missing here."
    return [Section("Not complete", text, table=pd.DataFrame(rows), table_is_open=len(rows) <= FEW, is_warning=True)]


def no_results(page: StudyPage | None) -> Section:
    text = "No baseline is complete with its evaluation yet, so there is nothing to compare with."
    if page is None:
        text = "This study has results of an unknown kind: see its report."
    return Section("Results", text)
