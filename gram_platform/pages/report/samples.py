"""The report of the samples study: one prompt, and how every method goes on with its topic kept and removed."""

import html
from collections.abc import Sequence

import pandas as pd

from gram_platform.config import CORE
from gram_platform.pages.figures.style import method_style
from gram_platform.pages.report.page import Section, page_html
from gram_platform.pages.report.tables import readable_runs

KEPT, REMOVED = "kept", "removed"
COLUMNS = ["method", "size", "seed", "profile", "domain", "topic", "document", "prompt", "truth", "continuation"]
FOOTER = """Continuations are drawn at the temperature named above, with the same random numbers for every model, from
the first documents of each domain's validation split that are longer than the prompt: they are not chosen. Topic kept:
the profile of core and this domain (the baseline has all of them); for DEMix the domain's expert. Topic removed: core
alone; for DEMix the core expert. Core is in every profile: its documents have a row for each. The paper chose its two
prompts; read these for how a model goes on, not as a measure.
\u00b6 is the end of a text."""


def build_samples_report(
    title: str, intro: str, samples: pd.DataFrame, missing: Sequence[tuple[str, str]], runs: pd.DataFrame
) -> str:
    """The page as HTML text. `samples`: COLUMNS, a row a continuation; `runs` as in `StudyReport`."""
    return page_html(title, intro, samples_sections(samples, missing, runs), FOOTER)


def samples_sections(samples: pd.DataFrame, missing: Sequence[tuple[str, str]], runs: pd.DataFrame) -> list[Section]:
    """The sections of that page."""
    sections = []
    if missing:
        table = pd.DataFrame(missing, columns=["what", "why"])
        sections.append(Section("Missing", "", table=table, table_is_open=True, is_warning=True))
    for (domain, document), rows in samples.groupby(["domain", "document"], sort=False):
        sections.append(_prompt(domain, int(document), rows))
    return [*sections, Section("Runs", table=readable_runs(runs))]


def _prompt(domain: str, document: int, rows: pd.DataFrame) -> Section:
    """A document's prompt and truth, and a row for each method (and size and seed, where there are several); for core,
    which no profile removes, a row for each profile too.
    """
    first = rows.iloc[0]
    markup = _quoted("Prompt, the same for all", first["prompt"]) + _quoted("The true text", first["truth"])
    names = ["method", *(name for name in ("size", "seed") if rows[name].nunique() > 1)]
    names += ["profile"] if domain == CORE else []
    table = []
    for key, group in rows.groupby(names, sort=False):
        own = dict(zip(names, key, strict=True))
        texts = {topic: part["continuation"].iloc[0] for topic, part in group.groupby("topic")}
        cells = {"topic kept": texts.get(KEPT, ""), "topic removed": texts.get(REMOVED, "")}
        if domain == CORE:
            cells = {"continuation": texts[KEPT]}
        table.append({**own, "method": method_style(own["method"]).label, **cells})
    frame = pd.DataFrame(table)
    return Section(f"{domain}, document {document}", markup=markup, table=frame, table_is_open=True)


def _quoted(label: str, text: str) -> str:
    return f'<p class="tokens-label">{html.escape(label)}</p><blockquote>{html.escape(text.strip())}</blockquote>'
