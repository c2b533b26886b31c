"""The page of one study: its state, and the sections of its report with links to the pages of runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from gram_platform.config import LOSSES, SAMPLES, TOKENS, State
from gram_platform.pages.report import localization, report_footer, report_sections, samples
from gram_platform.pages.report.localization import TokenResults, localization_sections, read_tokens
from gram_platform.pages.report.page import Section
from gram_platform.pages.report.samples import SampleResults, read_samples, samples_sections
from gram_platform.pages.report.sections import FEW
from gram_platform.pages.report.study import with_verdicts
from gram_platform.pages.report.tables import clock
from gram_platform.pages.results.record import StudyRecord
from gram_platform.pages.results.results import Results, read_results, study_report
from gram_platform.pages.site.facts import Facts
from gram_platform.pages.site.studies import StudyFacts, Totals
from gram_platform.pages.site.words import dollars, fact_table, hours, moment, name_of

RUN_PAGES = "../runs/"


def study_sections(record: StudyRecord, results: Results) -> list[Section]:
    """The report's sections: the paper's figure from our runs, beside the paper's own values where it prints them."""
    return report_sections(study_report(record, results, results.runs))


@dataclass(frozen=True)
class StudyPage:
    """How a kind of study is read and shown. `read` takes what `read_results` takes, and may give None.

    What it gives has `source` (a text) and, as far as there are any, `runs` and `claims` as `Results` has them.
    """

    read: Callable[..., Any] = read_results
    sections: Callable[[StudyRecord, Any], list[Section]] = study_sections
    footer: Callable[[pd.DataFrame], str] = report_footer  # of the frame of runs


def _token_sections(record: StudyRecord, results: TokenResults) -> list[Section]:
    return localization_sections(results.found, results.texts, results.claims, results.runs)


def _sample_sections(record: StudyRecord, results: SampleResults) -> list[Section]:
    return samples_sections(results.samples, results.missing, results.runs)


STUDY_PAGES = {  # by what a study measures; the frames that the site has read are of use to losses alone
    LOSSES: StudyPage(),
    TOKENS: StudyPage(lambda *place: read_tokens(*place[:4]), _token_sections, lambda runs: localization.FOOTER),
    SAMPLES: StudyPage(lambda *place: read_samples(*place[:4]), _sample_sections, lambda runs: samples.FOOTER),
}


def page_of(record: StudyRecord) -> StudyPage | None:
    """None for a kind that the site does not know: its page links to the report that the study wrote."""
    return STUDY_PAGES.get(record.measurement)


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
    record, num_left = study.record, totals.num_nodes - totals.counts[State.COMPLETE]
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
        status = node.status if node else State.MISSING
        if status == State.COMPLETE:
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


def result_footer(record: StudyRecord, results: Any) -> str:
    page, runs = page_of(record), getattr(results, "runs", None)
    return "" if runs is None or page is None else page.footer(runs)


def nothing_yet(study: StudyFacts) -> Sequence[Section]:
    text = "No baseline is complete with its evaluation yet, so there is nothing to compare with."
    if study.record is not None and page_of(study.record) is None:
        text = "What this study measured is in its own report."
    return [Section("Results", text)]
