"""The token study from stored token losses to its tables and page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gram_platform.analysis.localization import (
    TABLE_COLUMNS,
    Localization,
    Measured,
    localize,
    tables,
)
from gram_platform.analysis.order import MEAN
from gram_platform.analysis.ratios import ALL, BASELINE
from gram_platform.analysis.shading import ShadedText, ShadedView, shading_scale
from gram_platform.analysis.text import aligned, table_csv
from gram_platform.config import CORE
from gram_platform.corpora.tokenizer import load_tokenizer, token_texts
from gram_platform.pages.figures.style import method_style
from gram_platform.pages.report.localization import (
    build_localization_report,
    localization_figures,
    readable_localization,
)
from gram_platform.pages.results.publishing import intro_text, publish, with_links
from gram_platform.pages.results.record import StudyRecord
from gram_platform.pages.results.results import load_frames, nodes_frame
from gram_platform.paper.claims import localization_claims
from gram_platform.paper.explanations import EXPLANATION, explained
from gram_platform.store import Store
from gram_platform.store.data import open_corpus
from gram_platform.tracking import Tracker

CALIBRATION_METHOD = "filtering"  # whose model without the domain sets the scale of colours
NUM_SHADED = 96  # tokens of a shaded text at most


@dataclass(frozen=True)
class TokenResults:
    """What the study has so far."""

    found: Localization
    texts: tuple[ShadedText, ...]
    claims: pd.DataFrame
    runs: pd.DataFrame
    source: str


def read_tokens(record: StudyRecord, store: Store, tracking_uri: str | None, why_not: str = "") -> TokenResults | None:
    """Everything from the token losses that are there; None while no baseline's are.

    Runs and their states are read from MLflow or the run directories, token losses always from the storage.
    """
    views = [entry for entry in record.entries if entry["kind"] == "evaluation"]
    done = {e["id"] for e in views if store.evaluation(e["id"]).result() is not None}
    if not any(e["id"] in done and _is_baseline(e) for e in views):
        return None
    rows, texts = [], {}
    for size, seed in dict.fromkeys((e["tags"]["size"], e["tags"]["seed"]) for e in views):
        of_size = [e for e in views if e["tags"]["size"] == size and e["id"] in done]
        cell = _loaded(store, [e for e in of_size if e["tags"]["seed"] == seed])
        references = {(m.size, m.seed): m for m in cell if m.method == BASELINE}
        control = _control(store, of_size, seed)
        rows.append(localize([*(m for m in cell if m.method != BASELINE), *control], references))
        if references:
            texts.setdefault(size, _texts(store, of_size[0]["id"], cell, references[size, seed]))
    lacking = [_named(e) for e in views if e["id"] not in done]
    found = tables(pd.concat(rows, ignore_index=True), lacking)
    frame, _, source = load_frames(record.ids, (), store, tracking_uri, why_not)
    claims = explained(localization_claims(found.per_seed), record.name, record.preset)
    runs = nodes_frame(record, frame)
    return TokenResults(found, texts[list(texts)[-1]] if texts else (), claims, runs, source)


def tokens_text(record: StudyRecord, results: TokenResults) -> str:
    """The means over domains and profiles, and the claims, for a terminal."""
    means = readable_localization(results.found.table[results.found.table["profile"] == MEAN])
    rows = [[str(value) or "-" for value in row] for row in means.itertuples(index=False)]
    judged = [f"{c['verdict']}: {c['claim']} {c[EXPLANATION]}".rstrip() for c in results.claims.to_dict("records")]
    return "\n".join([aligned([list(means.columns), *rows]), "", *judged]).rstrip()


def write_tokens(
    record: StudyRecord, store: Store, results: TokenResults, failures: Mapping[str, str], tracker: Tracker | None
) -> dict[str, str]:
    """As `write_results`."""
    runs = with_links(results.runs, failures, tracker)
    intro = intro_text(record, f"{results.source}; token losses from the storage", tracker)
    report = build_localization_report(record.title, intro, results.found, results.texts, results.claims, runs)
    figures = {} if tracker is None else localization_figures(results.found)
    return publish(record, store, table_csv(results.found.table[TABLE_COLUMNS]), report, figures, tracker)


# ------------------------------------------------------------------------------------------------------ reading


def _is_baseline(entry: Mapping) -> bool:
    return (entry["tags"]["method"], entry["tags"]["profile"]) == (BASELINE, ALL)


def _named(entry: Mapping) -> tuple[str, str, str, str]:
    tags = entry["tags"]
    return tags["method"], tags["size"], tags["seed"], tags["profile"]


def _loaded(store: Store, entries: Sequence[Mapping]) -> list[Measured]:
    """The token losses of views, as they are stored."""
    found = []
    for entry in entries:
        retained = tuple(part for part in entry["tags"]["retained"].split(",") if part)
        losses = {d: tensor.numpy() for d, tensor in store.evaluation(entry["id"]).tensors().items()}
        run_id = store.evaluation(entry["id"]).result()["run_id"]
        found.append(Measured(*_named(entry), retained, losses, run_id))
    return found


def _control(store: Store, of_size: Sequence[Mapping], seed: str) -> list[Measured]:
    """The baseline of the next seed, the first after the last, as if it were a view of this one; [] if it is alone."""
    baselines = {entry["tags"]["seed"]: entry for entry in of_size if _is_baseline(entry)}
    seeds = list(baselines)
    if seed not in seeds or len(seeds) < 2:
        return []
    other = _loaded(store, [baselines[seeds[(seeds.index(seed) + 1) % len(seeds)]]])
    return [Measured(m.method, m.size, seed, m.profile, m.retained, m.losses, m.run_id) for m in other]


def _texts(store: Store, eval_id: str, cell: Sequence[Measured], baseline: Measured) -> tuple[ShadedText, ...]:
    """The beginning of every domain's first validation sequence under core and under core with the domain.

    In the paper's order: the filtered model that sets the scale, then every method without and with the domain.
    """
    corpus = open_corpus(store, store.evaluation(eval_id).config()["data_id"])
    tokenizer, texts = load_tokenizer(corpus.tokenizer_path), []
    for domain in baseline.losses:
        tokens = corpus.validation(domain)[0, : NUM_SHADED + 1].tolist()
        num = len(tokens) - 1
        losses = baseline.losses[domain][0, :num]
        shown = [m for m in cell if m.profile in (CORE, f"{CORE}+{domain}") and m.method != BASELINE]
        views = [ShadedView(_label(m, domain), m.losses[domain][0, :num] - losses) for m in shown]
        filtered = [(m.method, m.profile) == (CALIBRATION_METHOD, CORE) for m in shown]
        scales = [shading_scale(view.increases) for view, is_it in zip(views, filtered, strict=True) if is_it]
        pieces = tuple(token_texts(tokenizer, tokens))
        texts.append(ShadedText(domain, pieces, losses, scales[0] if scales else np.nan, views))
    return tuple(texts)


def _label(view: Measured, domain: str) -> str:
    return f"{method_style(view.method).label}, {domain} {'kept' if domain in view.retained else 'removed'}"
