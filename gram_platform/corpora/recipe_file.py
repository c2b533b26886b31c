"""Reads a user's corpus description from a TOML recipe or a URL `hf://ORG/NAME?...`."""

import contextlib
import functools
import os
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote_to_bytes

from gram_platform.config.crash_safe import A_FILE
from gram_platform.config.identity import (
    InvalidField,
    canonical_json,
    invalid,
    local_path,
    suggest,
    to_plain,
    without_secrets,
)
from gram_platform.config.written import Written, read_toml, target_kind
from gram_platform.corpora import catalog
from gram_platform.corpora.catalog import HubCorpus, StoriesCorpus, TextCorpus
from gram_platform.corpora.hub import read_labels
from gram_platform.corpora.recipe import BUILDERS, HubRow
from gram_platform.corpora.records import Unit
from gram_platform.corpora.sources import find_labelled_units, find_units
from gram_platform.corpora.tokenizer import is_on_hub

SUFFIX, SCHEME = ".toml", "hf://"
IN_URL = ("label", "text", "labels", "core", "config", "split", "files")
# Maps the field of an error to its name in a recipe.
IN_RECIPE = {"core_label": "core_labels", "label": "globs"}
IN_RECIPE |= {name: name for name in ("tokenizer", "end_of_text")}


def read_description(corpus: str | Path) -> HubCorpus | StoriesCorpus | TextCorpus | None:
    """Returns the description of a catalog name, TOML recipe or URL. Returns None for other paths.

    If a URL has no `labels`, reads them from the Hub. Raises ValueError with file, line and field
    for an invalid recipe.
    """
    name = str(corpus)
    if name.startswith(SCHEME):
        return _from_url(name)
    entry = catalog.CORPORA.get(name) or (
        local_path("corpus", name) if name.endswith(SUFFIX) else None
    )
    if not isinstance(entry, Path):
        return entry
    return _from_file(entry)[1] if target_kind("corpus", entry) == A_FILE else None


def recipe_text(corpus: str) -> str:
    """Returns a user's recipe or URL as JSON without secrets. Returns "" for other corpora."""
    is_ours = corpus in catalog.STORIES or corpus in catalog.HUB
    description = None if is_ours else read_description(corpus)
    return canonical_json(without_secrets(to_plain(description))) if description else ""


def text_units(corpus: str | Path) -> tuple[Unit, ...]:
    """Finds the files of a recipe for local text. Raises ValueError if files are missing."""
    path = catalog.CORPORA.get(str(corpus)) or local_path("corpus", corpus)
    written, text = _from_file(path)
    root = path.parent / text.root
    with written.locate_errors():
        records = [unit for name in text.records for unit in find_units(_existing(root, name))]
        return (
            *find_labelled_units({label: list(globs) for label, globs in text.globs.items()}, root),
            *records,
        )


@contextlib.contextmanager
def locate_errors(corpus: str | Path, flags: Collection[str]) -> Iterator[None]:
    """Context manager that adds a recipe's file, line and field to errors about its values.

    Does not change errors about the fields in `flags`: their values do not come from the recipe.
    """
    try:
        yield
    except InvalidField as error:
        is_written = error.field in IN_RECIPE and error.field not in flags and not error.place
        if not (is_written and str(corpus).endswith(SUFFIX)):
            raise
        written, _ = _from_file(local_path("corpus", corpus))
        table = IN_RECIPE[error.field]
        field, steps = (
            ("label", (table, error.value)) if error.field == "label" else (table, (table,))
        )
        raise written.error(
            InvalidField(field, error.value, error.expected, steps=steps)
        ) from error


def _existing(root: Path, name: str) -> Path:
    if not target_kind("records", path := root / name):
        raise invalid("records", name, f"a file or folder that exists below {root}")
    return path


def _from_file(path: Path) -> tuple[Written, HubCorpus | TextCorpus]:
    written = read_toml("corpus", path)
    corpus = written.build(HubCorpus if "rows" in written.plain else TextCorpus)
    if isinstance(corpus, HubCorpus):
        corpus = replace(corpus, rows=tuple(_place_files(row, path.parent) for row in corpus.rows))
        labels = {label for row in corpus.rows for label in row.all_labels}
        if unknown := sorted(set(corpus.core_labels) - labels):
            expected = "labels of its rows: " + ", ".join(sorted(labels))
            raise written.error(invalid("core_labels", unknown, expected))
    return written, replace(corpus, tokenizer=_find_tokenizer(path.parent, corpus.tokenizer))


def _find_tokenizer(folder: Path, tokenizer: str) -> str:
    path = folder / os.path.expanduser(tokenizer)
    is_named = not tokenizer or (is_on_hub(tokenizer) and not target_kind("tokenizer", path))
    return tokenizer if is_named else str(path)


def _place_files(row: HubRow, folder: Path) -> HubRow:
    is_local = row.dataset in BUILDERS
    return replace(
        row, files=tuple(str(folder / f) if is_local and "://" not in f else f for f in row.files)
    )


# Cached, because the labels are read over the network and studies need them several times.
@functools.cache
def _from_url(url: str) -> HubCorpus:
    name, _, query = url.removeprefix(SCHEME).partition("?")
    dataset, _, revision = name.partition("@")
    written = [field.partition("=")[::2] for field in query.split("&") if field]
    fields = dict(written)
    for name, value in written:
        if name not in IN_URL:
            raise invalid(
                f"corpus: {name}",
                value,
                f"one of the fields {', '.join(IN_URL)} in {url}{suggest(name, IN_URL)}",
            )
        if value != fields[name]:
            raise invalid(
                f"corpus: {name}",
                value,
                f"each field once, several values separated by commas, in {url}",
            )
    if not fields.get("label") or not (dataset.count("/") == 1 or dataset in BUILDERS):
        raise invalid(
            "corpus",
            url,
            f"{SCHEME}ORG/NAME?label=FIELD&text=FIELD, or {SCHEME}ORG/NAME@REVISION?...",
        )
    lists = {
        name: tuple(_unquote(part) for part in fields.get(name, "").split(",") if part)
        for name in ("text", "labels", "core", "files")
    }
    row = HubRow(
        dataset,
        _unquote(revision) or "main",
        lists["text"] or ("text",),
        label_field=_unquote(fields["label"]),
        labels=lists["labels"] or ("",),
        config=_unquote(fields.get("config", "")),
        split=_unquote(fields.get("split", "train")),
        files=lists["files"],
    )
    row = row if lists["labels"] else replace(row, labels=read_labels(row))
    return HubCorpus((row,), lists["core"])


def _unquote(value: str) -> str:
    return os.fsdecode(unquote_to_bytes(os.fsencode(value)))
