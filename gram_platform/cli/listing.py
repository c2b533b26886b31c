"""Implements `gram list`: what can be run."""

import inspect
import json
from collections.abc import Iterator
from typing import Literal

from gram_platform.analysis.tables import aligned
from gram_platform.cli.flags import AsJson, Positional
from gram_platform.cli.run import find_study, study_names
from gram_platform.config.flops import total_parameters
from gram_platform.corpora import catalog_names
from gram_platform.corpora.resolution import describe_corpus
from gram_platform.methods import METHODS
from gram_platform.studies.searches.definition import Search

Row = dict[str, object]


def list_command(
    what: Positional[Literal["studies", "methods", "presets", "corpora", "sizes"]] = "studies",
    study: str = "",
    as_json: AsJson = False,
) -> None:
    """List what `gram run` can use: studies, methods, presets, corpora or sizes.

    Args:
        what: studies and searches; methods; presets with their corpus; corpora by name; sizes of presets
        study: presets and sizes of this study alone
    """
    rows = list(ROWS[what](study) if what in ("presets", "sizes") else ROWS[what]())
    print(json.dumps(rows, indent=1) if as_json else table_text(rows))


def _studies() -> Iterator[Row]:
    for name in study_names():
        found = find_study(name)
        kind = "search" if isinstance(found, Search) else "study"
        yield {"name": name, "kind": kind, "presets": list(found.presets), "title": found.title}


def _methods() -> Iterator[Row]:
    for name, plan in METHODS.items():
        text = inspect.getdoc(plan) or inspect.getmodule(plan).__doc__ or ""
        sentence = " ".join(text.split("\n\n")[0].split()).split(". ")[0]
        yield {"name": name, "about": sentence.rstrip(".") + "."}


def _presets(study: str) -> Iterator[Row]:
    for name in [study] if study else study_names():
        for preset_name, preset in find_study(name).presets.items():
            sizes = {"sizes": list(preset.sizes), "seeds": preset.num_seeds, "machine": preset.machine}
            yield {"study": name, "name": preset_name, "corpus": preset.corpus, **sizes, "family": preset.family}


def _sizes(study: str) -> Iterator[Row]:
    for name in [study] if study else study_names():
        for preset_name, preset in find_study(name).presets.items():
            for size in preset.sizes.values():
                numbers = {f: getattr(size, f) for f in ("core_tokens", "peak_lr", "batch_size", "seq_len")}
                row = {"study": name, "preset": preset_name, "name": size.name}
                yield {**row, "parameters": total_parameters(size.dense()), **numbers}


def _corpora() -> Iterator[Row]:
    for name in catalog_names():
        yield {"name": name, "about": describe_corpus(name)}


ROWS = {"studies": _studies, "methods": _methods, "presets": _presets, "corpora": _corpora, "sizes": _sizes}


def table_text(rows: list[Row]) -> str:
    """Aligns rows of equal keys in columns below their names."""
    if not rows:
        return ""
    return aligned([list(rows[0]), *([_cell(value) for value in row.values()] for row in rows)])


def _cell(value: object) -> str:
    if isinstance(value, list):
        return " ".join(value)
    return f"{value:,}" if isinstance(value, int) else str(value)
