"""Writes the pages and tables of studies of external losses: an index, a page for each study, and all claims."""

from collections import Counter
from collections.abc import Mapping, Sequence

import pandas as pd

from gram_platform.analysis.intervals import CURVE_FIXED
from gram_platform.analysis.tables import table_csv
from gram_platform.pages.report.build import report_footer, report_sections
from gram_platform.pages.report.page import ASSETS, Section, asset, page_html, with_verdicts
from gram_platform.pages.report.sections import renamed
from gram_platform.pages.results.record import Results
from gram_platform.pages.site.claims import claim_rows, claim_sections
from gram_platform.pages.site.folder import writing
from gram_platform.pages.site.pages import CLAIMS_PAGE, STUDIES, shell
from gram_platform.pages.site.sections import Card, cards_html, picture_of
from gram_platform.paper.verdicts import VERDICTS
from gram_platform.store.folders import open_folder

INTRO = f"""Losses measured elsewhere, analysed as this platform analyses its runs: compute ratios, their 90% intervals,
and verdicts on the paper's claims. As in the paper, an interval is the {CURVE_FIXED}: unlike those of the platform's
runs, it leaves the error of the baseline's curve out."""


def write_replication(studies: Sequence[Results], out: str, facts: str) -> dict[str, str]:
    """Writes the pages and tables into the folder `out`; returns {study or "all": path of the page}.

    `<study>/` holds report.html, table.csv, per_seed.csv and claims.csv. `facts` says where the numbers are from.
    ValueError if `out` cannot be written.
    """
    folder, sections = open_folder(out, writable=True), {s.record.name: report_sections(s) for s in studies}
    with writing(folder):
        files = {name: asset(name) for name in ASSETS}
        files |= {"claims.html": _claims_page(studies), "index.html": _index(studies, sections, facts)}
        for name, text in files.items():
            folder.write(name, text.encode(), durable=False)
        for study in studies:
            for name, text in _files(study, sections[study.record.name]).items():
                folder.child(study.record.name).write(name, text.encode(), durable=False)
    paths = {study.record.name: folder.child(study.record.name).address("report.html") for study in studies}
    return {**paths, "all": folder.address("index.html")}


def _files(study: Results, sections: Sequence[Section]) -> dict[str, str]:
    record = study.record
    intro = with_verdicts(f"{record.question}\n\n{' '.join(record.facts)}".strip(), study.claims)
    page = page_html(record.title, intro, sections, report_footer(study), shell(STUDIES))
    tables = {
        "table.csv": study.analysis.table,
        "per_seed.csv": study.analysis.per_seed,
        "claims.csv": study.claims,
    }
    return {"report.html": page} | {name: table_csv(renamed(t, record.varies)) for name, t in tables.items()}


def _index(studies: Sequence[Results], sections: Mapping[str, Sequence[Section]], facts: str) -> str:
    rows, cards = [], []
    for study in studies:
        record, analysis = study.record, study.analysis
        verdicts, address = Counter(study.claims["verdict"]), f"{record.name}/report.html"
        picture = picture_of(sections[record.name])
        cards.append(Card(record.title, address, study.claims["verdict"].tolist(), picture))
        rows.append(
            {
                "study": record.title,
                "study_url": address,
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
    shown = [Section("Studies", markup=cards_html(cards)), Section("Tables", text, table=table, table_is_open=True)]
    return page_html("Replication", f"{INTRO}\n\n{facts}", shown, "", shell(STUDIES, ""))


def _claims_page(studies: Sequence[Results]) -> str:
    rows = {s.record.name: claim_rows(s.claims, f"{s.source} ({', '.join(s.record.sizes)})") for s in studies}
    titles = {s.record.name: (s.record.title, f"{s.record.name}/report.html") for s in studies}
    return page_html("Claims", "", claim_sections(rows, titles), "", shell(CLAIMS_PAGE, ""))


def _notes(number: int) -> str:
    return f"{number} note{'s' * (number > 1)}" if number else ""
