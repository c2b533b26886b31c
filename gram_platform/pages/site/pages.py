"""Writes every page of the site from a snapshot, and says what each page depends on."""

from collections import Counter
from collections.abc import Mapping
from functools import partial

from gram_platform.pages.report.page import Section, Shell, page_html, sections_html
from gram_platform.pages.site.cards import Card, picture_of
from gram_platform.pages.site.claims import RULE, VERDICTS, claim_rows, claim_sections, csv_claim_rows, scale_of
from gram_platform.pages.site.facts import NodeFacts
from gram_platform.pages.site.folder import SiteFolder
from gram_platform.pages.site.overview import TERMS, index_sections, runs_sections
from gram_platform.pages.site.run_page import RunContext, run_intro, run_sections, run_title
from gram_platform.pages.site.search_page import embedded, runs_section, state_section
from gram_platform.pages.site.snapshot import Snapshot
from gram_platform.pages.site.studies import CLAIMS, REPORT, StudyFacts
from gram_platform.pages.site.study_page import no_results, state_sections, study_intro, with_pages
from gram_platform.tracking.entry import node_name

LINKS = (("Studies", "index.html"), ("Runs", "runs.html"), ("Claims", "claims.html"))
STUDIES, RUNS, CLAIMS_PAGE = (label for label, _ in LINKS)


def shell(current: str, root: str = "../") -> Shell:
    return Shell(root, LINKS, current)


# -------------------------------------------------------------------------------------------------------- runs


def write_runs(site: SiteFolder, snapshot: Snapshot) -> None:
    """Writes a page for each run, and the list of all runs."""
    evaluations, branches = snapshot.evaluations_by_run(), snapshot.branches_by_run()
    names = {study.name: _names_in(study) for study in snapshot.studies}
    for run_id, node in snapshot.facts.runs.items():
        context = RunContext(
            studies=tuple(
                _use(snapshot, study, names[study].get(run_id, "")) for study in snapshot.uses.get(run_id, ())
            ),
            evaluations=tuple(evaluations.get(run_id, ())),
            branches=tuple((b.node_id, node_name("run", b.node_id, b.tags)) for b in branches.get(run_id, ())),
            mlflow_url=snapshot.mirror.links.get(run_id, ""),
        )
        inputs = [vars(node), {**vars(context), "evaluations": [_identity(e) for e in context.evaluations]}]
        site.page(f"runs/{run_id}.html", inputs, partial(_run_page, snapshot, node, context))
    page = page_html("Runs", "", runs_sections(snapshot.facts, snapshot.uses), "", shell(RUNS, ""))
    site.page("runs.html", page, lambda: (page, None))


def _run_page(snapshot: Snapshot, node: NodeFacts, context: RunContext) -> tuple[str, None]:
    records = snapshot.store.run(node.node_id).records()
    sections = run_sections(node, context, records)
    footer = f"Read from the run directory, runs/{node.node_id} of the storage."
    return page_html(run_title(node), run_intro(node), sections, footer, shell(RUNS)), None


def _names_in(study: StudyFacts) -> dict[str, str]:
    """Returns {node id: first name of the node in the study}."""
    entries = study.record.entries if study.record else ()
    return {entry["id"]: node_name(entry["kind"], entry["id"], entry["tags"]) for entry in reversed(entries)}


def _use(snapshot: Snapshot, name: str, run_name: str) -> tuple[str, str, str]:
    title = next(study.title for study in snapshot.studies if study.name == name)
    return title, f"../studies/{name}.html", run_name


def _identity(node: NodeFacts) -> tuple:
    return node.node_id, node.status, dict(node.tags), (node.result or {}).get("sha256", ""), dict(node.failure or {})


# ----------------------------------------------------------------------------------------------------- studies


def write_studies(site: SiteFolder, snapshot: Snapshot) -> dict[str, dict]:
    """Writes a page for each study and search; returns {name: claims, problem and picture}."""
    summaries = {}
    for study in snapshot.studies:
        inputs = [
            vars(study) | {"record": study.record and study.record.to_json().decode()},
            vars(snapshot.totals[study.name]),
            snapshot.num_shared(study),
            [_identity(node) for i in study.node_ids if (node := snapshot.facts.node(i)) is not None],
            [snapshot.mirror.note, bool(snapshot.mirror.links), snapshot.is_beside],
        ]
        render = _search_page if study.record is None else _study_page
        summaries[study.name] = site.page(f"studies/{study.name}.html", inputs, partial(render, snapshot, study))
    return summaries


def _study_page(snapshot: Snapshot, study: StudyFacts) -> tuple[str, dict]:
    record, mirror, totals = study.record, snapshot.mirror, snapshot.totals[study.name]
    problem, results = "", None
    page = snapshot.measurements.get(record.measurement)  # None: a kind that this version does not know
    if page is not None:
        try:
            results = page.read(record, snapshot.store, mirror.tracking_uri, mirror.why_not, mirror.frames)
        except ValueError as error:  # a record of another version, or altered by hand: write the other pages
            problem = f"{study.name}: its results cannot be read: {error}"
    sections = [Section("Results", problem, is_warning=True)] if problem else []
    claims, footer, source = None, "", mirror.note
    if results is None:
        sections.append(no_results(page))
    else:
        results = with_pages(results, snapshot.facts, mirror.links)
        sections += page.sections(record, results)
        claims, footer = getattr(results, "claims", None), page.footer(results)
        source = f"Read from {results.source}. {source}"
    intro, picture = study_intro(study, totals, source, claims), picture_of(sections)
    files = f"../../studies/{study.name}/" if snapshot.is_beside else ""
    sections += state_sections(study, totals, snapshot.facts, snapshot.num_shared(study), files)
    text = page_html(study.title, intro, sections, footer, shell(STUDIES))
    return text, {"claims": claim_rows(claims, scale_of(record)), "problem": problem, "picture": picture}


def _search_page(snapshot: Snapshot, search: StudyFacts) -> tuple[str, dict]:
    """Renders the search's report between the search's state and the pages of its runs."""
    folder, files, claims = snapshot.store.study_dir(search.name), search.files or {}, []
    state, runs = state_section(search, snapshot.totals[search.name]), runs_section(search, snapshot.facts)
    if CLAIMS in files:
        scale = f"preset {(search.search or {}).get('preset', '?')}"
        claims = csv_claim_rows(folder.read(CLAIMS).decode(), scale)
    if REPORT in files:
        report = folder.read(REPORT).decode()
        text = embedded(report, shell(STUDIES), sections_html([state]), sections_html([runs]))
    else:
        text = page_html(search.title, "", [state, runs], "", shell(STUDIES))
    return text, {"claims": claims, "problem": ""}


# ---------------------------------------------------------------------------------------------------- overview


def write_overview(site: SiteFolder, snapshot: Snapshot, summaries: Mapping[str, Mapping]) -> None:
    """Writes the page of claims and the index; `summaries` are those of `write_studies`."""
    rows = {name: summary["claims"] for name, summary in summaries.items()}
    titles = {study.name: (study.title, f"studies/{study.name}.html") for study in snapshot.studies}
    claims = page_html("Claims", RULE, claim_sections(rows, titles), "", shell(CLAIMS_PAGE, ""))
    site.page("claims.html", claims, lambda: (claims, None))
    counts = Counter(row["verdict"] for found in rows.values() for row in found)
    ordered = {verdict: counts[verdict] for verdict in VERDICTS if counts}
    cards = [
        Card(*titles[study.name], [row["verdict"] for row in rows[study.name]], summaries[study.name]["picture"])
        for study in snapshot.studies
        if study.record is not None
    ]
    sections = index_sections(snapshot.studies, snapshot.totals, snapshot.uses, snapshot.facts, ordered, cards)
    intro = f"Storage {snapshot.store.root}. {snapshot.mirror.note}"
    index = page_html("Studies", intro, sections, TERMS, shell(STUDIES, ""))
    site.page("index.html", index, lambda: (index, None))
