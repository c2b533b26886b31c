"""The page of one study: its state, and the sections of its report with links to the pages of runs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import pandas as pd

from gram_platform.pages.report.page import Section
from gram_platform.pages.report.sections import FEW
from gram_platform.pages.report.study import with_verdicts
from gram_platform.pages.report.tables import clock
from gram_platform.pages.results.record import StudyRecord
from gram_platform.pages.site.facts import COMPLETE, MISSING, Facts
from gram_platform.pages.site.studies import StudyFacts, Totals
from gram_platform.pages.site.words import dollars, fact_table, hours, moment, name_of
from gram_platform.store import Store
from gram_platform.tracking.frame import Frames

RUN_PAGES = "../runs/"


class StudyPage(Protocol):
    """How a measurement is read and shown."""

    def read(self, record: StudyRecord, store: Store, uri: str | None, why_not: str, frames: Frames) -> Any:
        """Returns the results with `source`, and `runs` and `claims` where there are any; None without results."""

    def sections(self, record: StudyRecord, results: Any) -> list[Section]: ...

    def footer(self, results: Any) -> str: ...


def with_pages(results: Any, facts: Facts, links: Mapping[str, str]) -> Any:
    """The results with our pages behind the ids of runs, MLflow's beside them, and every error."""
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
    """How its claims came out, whether it is complete, the question, and how it was run."""
    record, num_left = study.record, totals.num_nodes - totals.counts[COMPLETE]
    state = f"{num_left} of {totals.num_nodes} nodes are not complete: see Not complete.\n\n" if num_left else ""
    return with_verdicts(f"{state}{record.question}\n\n{' '.join(record.facts)} {source}".strip(), claims)


def frame_sections(study: StudyFacts, totals: Totals, facts: Facts, shared: int, files: str) -> list[Section]:
    """What stands below the report's sections: what is not done, and the study's state.

    `files` is the way to the study's own folder, "" where the site does not lie beside it.
    """
    rows = [
        ("nodes", counts_text(totals), ""),
        ("rank hours", hours(totals.rank_hours), ""),
        ("cost at the planner's prices", dollars(totals.dollars), ""),
        ("time with something at work (h:mm:ss)", clock(totals.busy_s) if totals.busy_s else "", ""),
        ("compute units", f"{totals.compute_units:.3g}", ""),
        ("last change (UTC)", moment(totals.changed), ""),
        ("runs shared with other studies", str(shared), ""),
        *([(f"its {name}", name, f"{files}{name}") for name in ("report.html", "table.csv")] if files else []),
    ]
    kept = [row for row in rows if not row[2] or row[1] in (study.files or {})]
    return [*_unfinished(study, facts), Section("State", table=fact_table(kept), table_is_open=True)]


def counts_text(totals: Totals) -> str:
    return ", ".join(f"{count} {state}" for state, count in totals.counts.items() if count) or "none"


def _unfinished(study: StudyFacts, facts: Facts) -> list[Section]:
    """Every node that is not complete, with its error."""
    tags = {entry["id"]: entry for entry in (study.record.entries if study.record else ())}
    rows = []
    for node_id in study.node_ids:
        node = facts.node(node_id)
        status = node.status if node else MISSING
        if status == COMPLETE:
            continue
        entry = tags.get(node_id, {"kind": "run", "tags": {}})
        name = name_of(entry["kind"], node_id, entry["tags"])
        url = f"{RUN_PAGES}{node_id}.html" if node_id in facts.runs else ""
        error = ((node.failure if node else None) or {}).get("message", "")
        rows.append({"status": status, "node": name, "id": node_id, "id_url": url, "error": error})
    if not rows:
        return []
    text = f"{len(rows)} of {len(study.node_ids)} nodes are not complete: whatever needs them is missing on this page."
    return [Section("Not complete", text, table=pd.DataFrame(rows), table_is_open=len(rows) <= FEW, is_warning=True)]


def nothing_yet(page: StudyPage | None) -> Sequence[Section]:
    text = "No baseline is complete with its evaluation yet, so there is nothing to compare with."
    if page is None:
        text = "What this study measured is in its own report."
    return [Section("Results", text)]
