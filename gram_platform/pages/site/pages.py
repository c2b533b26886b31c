"""Reads all that one build of the site shows, and writes each page with what it depends on."""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from gram_platform.pages.figures.thumbnail import is_thumbnail
from gram_platform.pages.report.page import Section, Shell, page_html, sections_html
from gram_platform.pages.results.record import with_links
from gram_platform.pages.site.claims import are_claim_rows, claim_rows, claim_sections, csv_claim_rows, scale_of
from gram_platform.pages.site.facts import CLAIMS, REPORT, Facts, NodeFacts, StudyFacts, Totals, totals, uses
from gram_platform.pages.site.folder import SiteFolder
from gram_platform.pages.site.sections import (
    TERMS,
    Card,
    embedded,
    index_sections,
    no_results,
    picture_of,
    search_runs,
    search_state,
    state_sections,
    study_intro,
)
from gram_platform.paper.verdicts import VERDICTS
from gram_platform.store import Store
from gram_platform.tracking import Tracker, TrackingUnavailable

NAVIGATION = (("Studies", "index.html"), ("Claims", "claims.html"))
STUDIES, CLAIMS_PAGE = (label for label, _ in NAVIGATION)
SUMMARY = {"claims": are_claim_rows, "problem": str}  # of a page, as the manifest keeps it
STUDY_SUMMARY = {**SUMMARY, "picture": is_thumbnail}


@dataclass(frozen=True)
class Snapshot:
    """The storage, its links into MLflow, and sums over the storage."""

    store: Store
    facts: Facts
    tracker: Tracker | None
    links: Mapping[str, str]  # {node id: its page in MLflow}
    note: str  # says what the links need, or why there are none
    is_beside: bool  # whether the site lies in the storage, where it can link to files of studies
    measurements: Mapping[str, Any]  # of `studies/measurements.py`, by the name in a study's record

    @cached_property
    def totals(self) -> Mapping[str, Totals]:
        """The states and costs of every study, by name."""
        return {study.name: totals(study.node_ids, self.facts) for study in self.facts.studies}

    @cached_property
    def uses(self) -> Mapping[str, tuple[str, ...]]:
        """The studies that have a node, by the node's id."""
        return uses(self.facts.studies)

    def pages(self, study: str) -> dict[str, str]:
        """Returns {what it shows: address} of MLflow's pages about a study; {} while MLflow is away."""
        with suppress(TrackingUnavailable):
            return self.tracker.view_urls(study) if self.tracker and self.links else {}
        return {}

    def num_shared(self, study: StudyFacts) -> int:
        """Counts the study's runs that other studies have too."""
        return sum(len(self.uses[i]) > 1 for i in study.node_ids if i in self.facts.runs)


def shell(current: str, root: str = "../") -> Shell:
    return Shell(root, NAVIGATION, current)


def write_studies(site: SiteFolder, snapshot: Snapshot) -> dict[str, dict]:
    """Writes a page for each study and search; returns {name: claims, problem and picture}."""
    summaries, links = {}, snapshot.links
    for study in snapshot.facts.studies:
        nodes = [node for i in study.node_ids if (node := snapshot.facts.node(i)) is not None]
        inputs = [
            vars(study) | {"record": study.record and study.record.to_json().decode()},
            vars(snapshot.totals[study.name]),
            snapshot.num_shared(study),
            [_identity(node) for node in nodes],
            [snapshot.note, [links.get(node.node_id, "") for node in nodes], snapshot.is_beside],
        ]
        render, shape = (_search_page, SUMMARY) if study.record is None else (_study_page, STUDY_SUMMARY)
        page = f"studies/{study.name}.html", inputs, partial(render, snapshot, study), shape
        summaries[study.name] = site.page(*page)
    return summaries


def _identity(node: NodeFacts) -> tuple:
    return node.node_id, node.status, dict(node.tags), (node.result or {}).get("sha256", ""), node.error


def _study_page(snapshot: Snapshot, study: StudyFacts) -> tuple[str, dict]:
    record, totals = study.record, snapshot.totals[study.name]
    problem, results = "", None
    page = snapshot.measurements.get(record.measurement)  # None: a kind that this version does not know
    if page is not None:
        try:
            results = page.read(record, snapshot.store)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            # a record of another version, or altered by hand: write the other pages
            problem = f"{study.name}: its results cannot be read: {error}"
    sections = [Section("Results", problem, is_warning=True)] if problem else []
    claims, footer, source = None, "", snapshot.note
    if results is None:
        sections.append(no_results(page is not None))
    else:
        results = _linked(results, snapshot)
        sections += page.sections(record, results)
        claims, footer = getattr(results, "claims", None), page.footer(results)
        source = f"Read from {results.source}. {source}"
    intro, picture = study_intro(study, totals, source, claims), picture_of(sections)
    files, shared = f"../../studies/{study.name}/" if snapshot.is_beside else "", snapshot.num_shared(study)
    pages = snapshot.pages(study.name)
    sections += state_sections(study, totals, snapshot.facts, shared, files, snapshot.links, pages)
    text = page_html(study.title, intro, sections, footer, shell(STUDIES))
    return text, {"claims": claim_rows(claims, scale_of(record)), "problem": problem, "picture": picture}


def _linked(results: Any, snapshot: Snapshot) -> Any:
    """Adds to the runs of the results, where there are any, their pages in MLflow and their errors."""
    if getattr(results, "runs", None) is None:
        return results
    errors = {node_id: node.error for node_id, node in snapshot.facts.runs.items()}
    return replace(results, runs=with_links(results.runs, errors, snapshot.links))


def _search_page(snapshot: Snapshot, search: StudyFacts) -> tuple[str, dict]:
    """Renders the search's report between the search's state and the list of its runs."""
    folder, claims = snapshot.store.study_dir(search.name), []
    state = search_state(search, snapshot.totals[search.name])
    runs = search_runs(search, snapshot.facts, snapshot.links)
    text, problem = None, ""
    if CLAIMS in search.files:
        try:
            claims = csv_claim_rows(folder.read(CLAIMS), f"preset {search.search.get('preset', '?')}")
        except ValueError as error:
            problem = f"{search.name}: its {CLAIMS} cannot be read: {error}"
    if REPORT in search.files:
        report = folder.read(REPORT).decode(errors="replace")
        text = embedded(report, shell(STUDIES), sections_html([state]), sections_html([runs]))
        problem = (
            problem if text else f"{search.name}: its {REPORT} has another form than this version writes: not shown"
        )
    if text is None:
        notes = [Section("Report", problem, is_warning=True)] if problem else []
        text = page_html(search.title, "", [*notes, state, runs], "", shell(STUDIES))
    return text, {"claims": claims, "problem": problem}


def write_overview(site: SiteFolder, snapshot: Snapshot, summaries: Mapping[str, Mapping]) -> None:
    """Writes the page of claims and the index; `summaries` are those of `write_studies`."""
    studies = snapshot.facts.studies
    rows = {name: summary["claims"] for name, summary in summaries.items()}
    titles = {study.name: (study.title, f"studies/{study.name}.html") for study in studies}
    claims = page_html("Claims", "", claim_sections(rows, titles), "", shell(CLAIMS_PAGE, ""))
    site.page("claims.html", claims, lambda: (claims, None))
    counts = Counter(row["verdict"] for found in rows.values() for row in found)
    ordered = {verdict: counts[verdict] for verdict in VERDICTS if counts}
    cards = [_card(snapshot, study, titles[study.name], summaries) for study in studies if study.record is not None]
    sections = index_sections(snapshot.facts, snapshot.totals, snapshot.uses, ordered, cards, snapshot.links)
    intro = f"Storage {snapshot.store.root}. {snapshot.note}"
    index = page_html("Studies", intro, sections, TERMS, shell(STUDIES, ""))
    site.page("index.html", index, lambda: (index, None))


def _card(snapshot: Snapshot, study: StudyFacts, title: tuple[str, str], summaries: Mapping[str, Mapping]) -> Card:
    summary, pages = summaries[study.name], snapshot.pages(study.name)
    return Card(*title, [row["verdict"] for row in summary["claims"]], summary["picture"], pages.get("runs", ""))
