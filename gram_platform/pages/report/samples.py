"""Reports the samples study: continuations by models that keep or remove the prompt's topic."""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from gram_platform.config import CORE
from gram_platform.corpora.tokenizer import decode, load_tokenizer
from gram_platform.pages.report.measurements import Presentation
from gram_platform.pages.report.page import HOW_TO_READ, Page, Section, readable_runs, render
from gram_platform.pages.report.sections import missing_sections
from gram_platform.pages.results.record import StudyRecord, study_report
from gram_platform.pages.results.results import Brief, nodes_frame
from gram_platform.store import Store
from gram_platform.store.data import open_corpus
from gram_platform.tracking import Tracker
from gram_platform.tracking.frame import Frames, store_frames

KEPT, REMOVED = "kept", "removed"
SAMPLE_FIELDS = [
    "method",
    "size",
    "seed",
    "profile",
    "domain",
    "topic",
    "document",
    "prompt",
    "truth",
    "continuation",
]


@dataclass(frozen=True)
class SampleResults:
    """The stored continuations of a samples study."""

    samples: pd.DataFrame
    # The columns are `what, why`.
    missing: pd.DataFrame
    runs: pd.DataFrame
    source: str
    # A sentence on prompts, lengths and temperature.
    sampling: str


def read_samples(
    record: StudyRecord, store: Store, frames: Frames | None = None
) -> SampleResults | None:
    """Reads all stored continuations. Returns None if there are none.

    The states of runs come from `frames`, or from the storage if `frames` is None.
    """
    views = [entry for entry in record.entries if entry["kind"] == "evaluation"]
    results = {entry["id"]: store.evaluation(entry["id"]).result() for entry in views}
    done = [entry for entry in views if results[entry["id"]] is not None]
    if not done:
        return None
    config = store.evaluation(done[0]["id"]).config()
    tokenizer = load_tokenizer(open_corpus(store, config["data_id"]).tokenizer_path)
    rows = [
        {**names, **{name: decode(tokenizer, tokens) for name, tokens in texts.items()}}
        for entry in done
        for names, texts in _continuations(entry["tags"], results[entry["id"]], config)
    ]
    samples = pd.DataFrame(rows, columns=SAMPLE_FIELDS)
    samples = samples.sort_values(["domain", "document"], kind="stable", ignore_index=True)
    lacking = [
        " ".join(entry["tags"][key] for key in ("method", "size", "profile"))
        for entry in views
        if entry not in done
    ]
    missing = pd.DataFrame({"what": lacking, "why": "its continuations are not there"})
    frame, _, source = frames or store_frames(store, record.ids, ())
    length = "given" if config.get("texts") else f"of {config['num_prompt_tokens']} tokens"
    sampling = (
        f"Prompts {length}, then at most {config['num_tokens']}"
        f" tokens drawn at temperature {config['temperature']:g}."
    )
    return SampleResults(samples, missing, nodes_frame(record, frame), source, sampling)


def samples_text(record: StudyRecord, results: SampleResults) -> str:
    """Formats the first prompt and its continuations for a terminal."""
    samples, names = results.samples, ["domain", "document"]
    # Core comes last.
    first = samples.loc[(samples["domain"] == CORE).idxmin()]
    lines = [f"{first['domain']}, document {first['document']}: {first['prompt'].strip()} ..."]
    for row in samples[(samples[names] == first[names]).all(axis=1)].to_dict("records"):
        lines.append(f"{row['method']}, topic {row['topic']}: ...{row['continuation']}")
    return "\n".join(lines)


def samples_page(record: StudyRecord, results: SampleResults, tracker: Tracker | None) -> Page:
    terms = Section(HOW_TO_READ, results.sampling, markup=render("samples.html"))
    prompts = results.samples.groupby(["domain", "document"], sort=False)
    sections = [
        terms,
        *missing_sections(results.missing),
        *(_show_prompt(*key, rows) for key, rows in prompts),
        Section("Runs", table=readable_runs(results.runs)),
    ]
    source = f"{results.source}; continuations from the storage"
    return study_report(record, sections, source, tracker)


def _show_prompt(domain: str, document: int, rows: pd.DataFrame) -> Section:
    quotes = {"Prompt, the same for all": "prompt", "The true text": "truth"}
    quotes = [(title, rows.iloc[0][name].strip()) for title, name in quotes.items()]
    names = ["method", *(name for name in ("size", "seed") if rows[name].nunique() > 1)]
    names += ["profile"] if domain == CORE else []
    table = []
    for key, group in rows.groupby(names, sort=False):
        texts = group.drop_duplicates("topic").set_index("topic")["continuation"]
        cells = {"topic kept": texts.get(KEPT, ""), "topic removed": texts.get(REMOVED, "")}
        if domain == CORE:
            cells = {"continuation": texts[KEPT]}
        table.append({**dict(zip(names, key, strict=True)), **cells})
    markup, title = render("quotes.html", quotes=quotes), f"{domain}, document {document}"
    return Section(title, markup=markup, table=pd.DataFrame(table), table_is_open=True)


def _continuations(tags: Mapping[str, str], result: Mapping, config: Mapping):
    retained = tags["retained"].split(",")
    for domain, drawn in result["continuations"].items():
        names = {key: tags[key] for key in ("method", "size", "seed", "profile")}
        names |= {"domain": domain, "topic": KEPT if domain in (CORE, *retained) else REMOVED}
        given = range(len(drawn)) if config.get("texts") else config["documents"]
        parts = zip(given, result["prompts"][domain], result["truths"][domain], drawn, strict=True)
        for document, prompt, truth, continuation in parts:
            yield (
                {**names, "document": document},
                {"prompt": prompt, "truth": truth, "continuation": continuation},
            )


SAMPLES_PRESENTATION = Presentation(
    read=read_samples,
    text=samples_text,
    brief=lambda record, results, _: Brief({}, text=samples_text(record, results)),
    table=lambda record, results: results.samples,
    page=samples_page,
)
