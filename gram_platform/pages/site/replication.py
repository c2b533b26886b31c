"""Writes the pages and tables of studies of external losses: an index, a page for each study, and all claims."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pandas as pd

from gram_platform.analysis.intervals import CURVE_FIXED
from gram_platform.analysis.ratios import VARIANT
from gram_platform.analysis.tables import frame_text, table_csv
from gram_platform.config.identity import local_path
from gram_platform.config.provenance import code_of_process, command_line
from gram_platform.config.terminal import say
from gram_platform.pages.report.build import report_sections
from gram_platform.pages.report.page import REPORT_FILE, Page, Section, closing_sections
from gram_platform.pages.report.sections import renamed
from gram_platform.pages.results.external import read_external
from gram_platform.pages.results.record import Results, sizes_text
from gram_platform.pages.results.replication import prepare, published_studies, replicate
from gram_platform.pages.results.results import summary_text
from gram_platform.pages.site.claims import claim_rows, claims_page
from gram_platform.pages.site.folder import make_folder, writing
from gram_platform.paper.paper import SOURCE, beside_published
from gram_platform.paper.verdicts import VERDICTS
from gram_platform.store.folders import open_folder

REPLICATION_PAGES = (("Replication", "index.html"), ("Claims", "claims.html"))
INTRO = f"""Losses measured elsewhere, analysed as this platform analyses its runs: compute ratios, their 90% intervals,
and verdicts on the paper's claims. As in the paper, an interval is the {CURVE_FIXED}: unlike those of the platform's
runs, it leaves the error of the baseline's curve out."""


def replicated_studies(losses: str, is_beside: bool, out: str) -> Iterator[Results]:
    """Yields the studies of the folder `losses`, "" for the published ones, with published rows beside if asked.

    Reads and checks everything, and makes the folder `out`, before the first fit. ValueError for bad losses.
    """
    if not losses:
        make_folder(out)
        yield from published_studies()
        return
    external = read_external(losses)
    say(f"{external.folder}: {len(external.losses):,} losses, {external.curves['row'].nunique():,} curves")
    studies = prepare(external)
    make_folder(out)
    for prepared in studies:
        study = replicate(prepared, is_beside)
        say(f"{study.record.name}: {len(study.analysis.table)} rows")
        yield study


def replication_text(study: Results) -> str:
    """Formats the table with the published rows, the claims, and missing values."""
    parts = [summary_text(study.record, study)]
    if study.published is not None:
        rows = beside_published(study.analysis.table, study.published, study.shown_profile)
        parts.append(f"beside the published\n\n{frame_text(rows)}")
    missing = study.analysis.missing
    return "\n\n".join([*parts, *([f"missing\n\n{frame_text(missing)}"] if len(missing) else [])])


def write_replication(studies: Sequence[Results], out: str, losses: str) -> dict[str, str]:
    """Writes the pages and tables into the folder `out`; returns {study or "all": path of the page}.

    `<study>/` holds report.html, table.csv, per_seed.csv and claims.csv. `losses` as in `replicated_studies`.
    ValueError if `out` cannot be written.
    """
    folder = open_folder(out, writable=True)
    facts = f"From {local_path('folder', losses).resolve()}." if losses else f"{SOURCE}."
    source = f"Made by `{command_line()}`, {code_of_process()}."
    sizes = sizes_text(*(study.record.parameters for study in studies))
    last = closing_sections(sizes, [("Every study", source)])
    pages = {"index.html": _index(studies, facts), "claims.html": _claims_page(studies)}
    pages = {name: replace(page, sections=[*page.sections, *last]) for name, page in pages.items()}
    with writing(folder):
        for name, page in pages.items():
            folder.write(name, page.html(REPLICATION_PAGES).encode(), durable=False)
        for study in studies:
            for name, data in _files(study, source).items():
                folder.child(study.record.name).write(name, data, durable=False)
    paths = {study.record.name: folder.child(study.record.name).address(REPORT_FILE) for study in studies}
    return {**paths, "all": folder.address("index.html")}


def _files(study: Results, source: str) -> dict[str, bytes]:
    record = study.record
    facts = " ".join([*record.facts, sizes_text(record.parameters)])
    intro, claims = f"{record.question}\n\n{facts}".strip(), renamed(study.claims, record.varies)
    page = Page(record.title, intro, report_sections(study), claims=claims, source=source)
    tables = {"table.csv": study.analysis.table, "per_seed.csv": study.analysis.per_seed}
    return page.files | {name: table_csv(renamed(t, record.varies)).encode() for name, t in tables.items()}


def _index(studies: Sequence[Results], facts: str) -> Page:
    rows = []
    for study in studies:
        record, analysis = study.record, study.analysis
        verdicts = Counter(study.claims["verdict"])
        rows.append(
            {
                "study": record.title,
                "study_url": _address(study),
                "sizes": ", ".join(record.sizes),
                "seeds": analysis.table["num_seeds"].max(),
                "variants": ", ".join(record.variants),
                **{verdict: verdicts[verdict] for verdict in VERDICTS},
                "missing": _notes(len(analysis.missing)),
                "table": "table.csv",
                "table_url": f"{record.name}/table.csv",
            }
        )
    table = pd.DataFrame(rows)
    table = table if table["variants"].any() else table.drop(columns="variants")
    text = "The columns agree, disagree and cannot tell count the claims of the paper that a study can judge."
    return Page("Replication", f"{INTRO}\n\n{facts}", [Section("Studies", text, table=table, table_is_open=True)])


def _claims_page(studies: Sequence[Results]) -> Page:
    rows = {s.record.name: claim_rows(s.claims, f"{s.source} ({', '.join(s.record.sizes)})", VARIANT) for s in studies}
    return claims_page(rows, {s.record.name: (s.record.title, _address(s)) for s in studies})


def _address(study: Results) -> str:
    return f"{study.record.name}/{REPORT_FILE}"


def _notes(number: int) -> str:
    return f"{number} note{'s' * (number > 1)}" if number else ""
