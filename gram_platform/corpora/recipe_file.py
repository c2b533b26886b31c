"""Reads corpora that users describe: a recipe in TOML, or an address `hf://ORG/NAME?...`."""

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
    meant,
    to_plain,
    without_secrets,
)
from gram_platform.config.written import Written, read_toml, target_kind
from gram_platform.corpora import catalog
from gram_platform.corpora.catalog import HubCorpus, StoriesCorpus, TextCorpus
from gram_platform.corpora.hub import found_labels
from gram_platform.corpora.recipe import BUILDERS, HubRow
from gram_platform.corpora.records import Unit
from gram_platform.corpora.sources import find_units, labelled_units
from gram_platform.corpora.tokenizer import is_on_hub

SUFFIX, SCHEME = ".toml", "hf://"
IN_URL = ("label", "text", "labels", "core", "config", "split", "files")
# The fields of errors, as a recipe names them.
IN_RECIPE = {"core_label": "core_labels", "label": "globs"}
IN_RECIPE |= {"tokenizer": "tokenizer", "end_of_text": "end_of_text"}


def described_corpus(corpus: str | Path) -> HubCorpus | StoriesCorpus | TextCorpus | None:
    """Returns the description of a corpus by its name in the catalog, a recipe's path or a URL.

    None for any other path. ValueError with file, line and field for a recipe that cannot be used.
    For a URL without `labels`, reads the labels of the first records from the hub.
    """
    name = str(corpus)
    if name.startswith(SCHEME):
        return _from_url(name)
    found = catalog.CORPORA.get(name) or (
        local_path("corpus", name) if name.endswith(SUFFIX) else None
    )
    if not isinstance(found, Path):
        return found
    return _from_file(found)[1] if target_kind("corpus", found) == A_FILE else None


def recipe_text(corpus: str) -> str:
    """Returns a recipe or a URL as JSON, without secrets; "" for other corpora."""
    is_ours = corpus in catalog.STORIES or corpus in catalog.HUB
    described = None if is_ours else described_corpus(corpus)
    return canonical_json(without_secrets(to_plain(described))) if described else ""


def text_units(corpus: str | Path) -> tuple[Unit, ...]:
    """Finds the files of a recipe of local text; ValueError with file, line and field if none."""
    path = catalog.CORPORA.get(str(corpus)) or local_path("corpus", corpus)
    written, text = _from_file(path)
    root = path.parent / text.root
    with written.located():
        records = [unit for name in text.records for unit in find_units(_existing(root, name))]
        return (
            *labelled_units({label: list(globs) for label, globs in text.globs.items()}, root),
            *records,
        )


@contextlib.contextmanager
def errors_located(corpus: str | Path, flags: Collection[str]) -> Iterator[None]:
    """Adds file, line and field of a recipe to errors about its labels and its tokenizer.

    `flags`: fields of flags, whose errors stay.
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
    """Reads a recipe: of datasets of the hub if it has `rows`, otherwise of local text."""
    written = read_toml("corpus", path)
    found = written.build(HubCorpus if "rows" in written.plain else TextCorpus)
    if isinstance(found, HubCorpus):
        found = replace(found, rows=tuple(_placed(row, path.parent) for row in found.rows))
        labels = {label for row in found.rows for label in row.all_labels}
        if strangers := sorted(set(found.core_labels) - labels):
            raise written.error(
                invalid(
                    "core_labels", strangers, "labels of its rows: " + ", ".join(sorted(labels))
                )
            )
    return written, replace(found, tokenizer=_beside(path.parent, found.tokenizer))


def _beside(folder: Path, tokenizer: str) -> str:
    """Returns the path of a recipe's tokenizer, or its name on the hub."""
    path = folder / os.path.expanduser(tokenizer)
    is_named = not tokenizer or (is_on_hub(tokenizer) and not target_kind("tokenizer", path))
    return tokenizer if is_named else str(path)


def _placed(row: HubRow, folder: Path) -> HubRow:
    """Makes the paths of a row's local files absolute; they are relative to `folder`."""
    is_local = row.dataset in BUILDERS
    return replace(
        row, files=tuple(str(folder / f) if is_local and "://" not in f else f for f in row.files)
    )


# Labels come over the network, and studies ask several times.
@functools.cache
def _from_url(url: str) -> HubCorpus:
    place, _, query = url.removeprefix(SCHEME).partition("?")
    dataset, _, revision = place.partition("@")
    written = [field.partition("=")[::2] for field in query.split("&") if field]
    fields = dict(written)
    for name, value in written:
        if name not in IN_URL:
            expected = f"one of the fields {', '.join(IN_URL)} in {url}{meant(name, IN_URL)}"
            raise invalid(f"corpus: {name}", value, expected)
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
        name: tuple(_unquoted(part) for part in fields.get(name, "").split(",") if part)
        for name in ("text", "labels", "core", "files")
    }
    row = HubRow(
        dataset,
        _unquoted(revision) or "main",
        lists["text"] or ("text",),
        label_field=_unquoted(fields["label"]),
        labels=lists["labels"] or ("",),
        config=_unquoted(fields.get("config", "")),
        split=_unquoted(fields.get("split", "train")),
        files=lists["files"],
    )
    row = row if lists["labels"] else replace(row, labels=found_labels(row))
    return HubCorpus((row,), lists["core"])


def _unquoted(value: str) -> str:
    """Replaces %XX by its byte, so that a URL can name any path. A + is a plus."""
    return os.fsdecode(unquote_to_bytes(os.fsencode(value)))
