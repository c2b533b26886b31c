"""Collects the results of a storage's studies for one view."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from gram_platform.analysis.ratios import ROW
from gram_platform.analysis.tables import CLASSES, domain_table, interval_text
from gram_platform.config import LOSSES, View, evaluation_from_plain
from gram_platform.methods.nodes import VARIANT
from gram_platform.pages.results.record import StudyRecord, readable_record
from gram_platform.pages.results.results import Results, read_results
from gram_platform.store import Store
from gram_platform.store.directories import CONFIG

CLASS_COLUMNS = ["class", "domain", "loss (nats a token)", "this run"]
CLASS_COLUMNS += ["all seeds [90% interval]", "seeds"]


@dataclass(frozen=True)
class ProfileNumbers:
    """One study's results for a profile, formatted as text."""

    study: str
    title: str
    # The view's tags in the study: method, size, seed, profile, retained, variant.
    names: Mapping[str, str]
    facts: tuple[str, ...]
    # A row for each domain and class, with CLASS_COLUMNS.
    domains: pd.DataFrame
    # `mean [low, high]` over seeds, by class.
    classes: Mapping[str, str]
    num_seeds: int
    # Lines `missing number: reason`.
    missing: tuple[str, ...]

    @property
    def forget_domains(self) -> tuple[str, ...]:
        return tuple(self.domains.loc[self.domains["class"] == "forget", "domain"])


def profile_numbers(store: Store, view: View) -> tuple[ProfileNumbers, ...]:
    """Returns the view's results in each study that has a baseline and the view's losses."""
    numbers = []
    for record in (readable_record(store, name) for name in store.list_studies()):
        if record is None or record.measurement != LOSSES:
            continue
        entries = [entry for entry in record.entries if entry["kind"] == "evaluation"]
        # Several variants of a study can share the view.
        matches = [entry["tags"] for entry in entries if _view_of(store, entry["id"]) == view]
        if matches and (results := read_results(record, store)) is not None:
            numbers += [_numbers(record, results, tags) for tags in matches]
    return tuple(numbers)


def _view_of(store: Store, eval_id: str) -> View | None:
    node = store.evaluation(eval_id)
    return node.config_as(evaluation_from_plain).view if node.folder.exists(CONFIG) else None


def _numbers(record: StudyRecord, results: Results, tags: Mapping[str, str]) -> ProfileNumbers:
    analysis = results.analysis
    table, ratios = (_select(frame, tags) for frame in (analysis.table, analysis.ratios))
    row = table.iloc[0].to_dict() if len(table) else {}
    texts = {
        name: _ratio_text(row[name], row[f"{name}_low"], row[f"{name}_high"])
        for name in CLASSES
        if row
    }
    # In a note, a variant may precede the row's name, and a seed or domain may follow it.
    row_name = re.escape(" ".join(tags[name] for name in ROW))
    notes = analysis.missing[
        analysis.missing["what"].str.contains(rf"(?:^|: ){row_name}(?:,| seed|$)")
    ]
    return ProfileNumbers(
        study=record.name,
        title=record.title,
        names=tags,
        facts=record.facts,
        domains=_domains(ratios, tags["seed"]),
        classes={name: text for name, text in texts.items() if text},
        num_seeds=int(row.get("num_seeds", 0)),
        missing=tuple(f"{what}: {why}" for what, why in notes.itertuples(index=False, name=None)),
    )


def _ratio_text(mean: float, low: float, high: float) -> str:
    return f"{mean:.3f} [below 0, {high:.3f}]" if low < 0.0 else interval_text(mean, low, high)


def _select(frame: pd.DataFrame, tags: Mapping[str, str]) -> pd.DataFrame:
    for key in [*ROW, VARIANT] if VARIANT in tags else ROW:
        frame = frame[frame[key] == tags[key]]
    return frame


def _domains(ratios: pd.DataFrame, seed: str) -> pd.DataFrame:
    if not len(ratios):
        return pd.DataFrame(columns=CLASS_COLUMNS)
    means = {(row["class"], row["domain"]): row for row in domain_table(ratios).to_dict("records")}
    rows = []
    for this_run in ratios[ratios["seed"] == seed].to_dict("records"):
        over_seeds, count, key = "", 0, (this_run["class"], this_run["domain"])
        if mean := means.get(key):
            over_seeds = _ratio_text(mean["compute_ratio"], mean["low"], mean["high"])
            count = int(mean["num_seeds"])
        values = (this_run["loss"], this_run["compute_ratio"])
        numbers = [interval_text(value, math.nan, math.nan) for value in values]
        rows.append((*key, *numbers, over_seeds, count))
    rows.sort(key=lambda row: CLASSES.index(row[0]))
    return pd.DataFrame(rows, columns=CLASS_COLUMNS)
