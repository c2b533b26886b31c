"""Implements `gram list` and `gram show`: what can be run, and what a storage knows of one run or evaluation."""

import inspect
import json
from collections.abc import Iterator
from typing import Literal

from gram_platform.analysis.tables import aligned
from gram_platform.cli.flags import AsJson, Positional, Storage, stored
from gram_platform.cli.run import find_study, study_names
from gram_platform.config.flops import total_parameters
from gram_platform.config.identity import flatten
from gram_platform.corpora import catalog_names
from gram_platform.corpora.resolution import describe_corpus
from gram_platform.methods import METHODS
from gram_platform.release.selection import the_one
from gram_platform.store import Store
from gram_platform.studies.searches.definition import Search

Row = dict[str, object]


def list_command(
    what: Positional[Literal["studies", "methods", "presets", "corpora", "sizes"]],
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


def show_command(node_id: Positional[str], storage: Storage = "", as_json: AsJson = False) -> None:
    """Show what a storage knows of a run or an evaluation: state, studies, config, result, times.

    Args:
        node_id: id of a run or an evaluation, or the beginning of it
        storage: folder or URL of the storage
    """
    shown = describe_node(stored(storage), node_id)
    if as_json:
        print(json.dumps(shown, indent=1, sort_keys=True))
        return
    for part, value in shown.items():
        if not isinstance(value, dict):
            print(f"{part:10} {', '.join(value) if isinstance(value, list) else value}")
            continue
        flat = flatten(value)
        width = max(map(len, flat), default=0)
        print("\n".join([f"\n{part}", *(f"  {key:{width}}  {one}" for key, one in flat.items())]))


def describe_node(store: Store, beginning: str) -> Row:
    """Returns id, kind, state, folder, studies, tags, config, result and times; ValueError as `the_one`."""
    listed = {"run": store.list_runs(), "evaluation": store.list_evaluations()}
    kind_of = {node_id: kind for kind, ids in listed.items() for node_id in ids}
    node_id = the_one("node_id", beginning, kind_of, f"a run or an evaluation in {store.root}, as `gram status` prints")
    kind = kind_of[node_id]
    node = store.node(kind, node_id)
    records = {name: store.study_dir(name).read_json("study.json") or {} for name in store.list_studies()}
    studies = [n for n, plain in records.items() if any(e["id"] == node_id for e in plain.get("entries", ()))]
    facts = {"id": node_id, "kind": kind, "state": str(node.status()), "folder": node.folder.path, "studies": studies}
    parts = {"tags": node.tags(), "config": node.config(), "result": node.result() or {}, "timing": node.timing()}
    failure = {"failure": found} if kind == "run" and (found := node.failure()) else {}
    return {**facts, **parts, **failure}
