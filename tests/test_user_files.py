"""Every file of text that a user names: what is no such file is refused at once, by an error that
names it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gram_platform.config.ladder import load_law
from gram_platform.config.written import (
    LFS_POINTER,
    MAX_RECORD_BYTES,
    read_assignment,
    read_toml,
)
from gram_platform.corpora.recipe_file import read_description
from gram_platform.corpora.sources import find_units
from gram_platform.engine.handover import read_nodes
from gram_platform.pages.results.external import read_external
from gram_platform.release.export import RECORD, require_unchanged
from gram_platform.release.importing import read_config
from gram_platform.release.serving.policy_file import load_policy
from tests.external_folder import curve_lines, scaling_rows, write_folder
from tests.refused import refused
from tests.special_files import SPECIAL

pytestmark = pytest.mark.timeout(60)  # a reader of a pipe would wait for ever
DEEP = 900  # levels that the parsers take, and that comparing, showing and writing do not


def deep(path: Path) -> bytes:
    if path.suffix == ".toml":
        return b"[profiles]\ncore" + b".a" * DEEP + b" = 1\n"
    return b'{"name":' * DEEP + b"1" + b"}" * DEEP


WHAT: dict[str, Callable[[Path], object]] = {
    **SPECIAL,
    "deep": lambda path: path.write_bytes(deep(path)),
    "UTF-16": lambda path: path.write_bytes('{"a": 1}'.encode("utf-16")),
    "a long number": lambda path: path.write_bytes(
        (b"a = " if path.suffix == ".toml" else b"") + b"9" * 5000
    ),
}
READERS: dict[str, Callable[[Path], object]] = {
    "preset.toml": lambda path: read_toml("preset", path),
    "recipe.toml": lambda path: read_description(path) or find_units(path),
    "policy.toml": lambda path: load_policy(str(path)),
    "law.json": lambda path: load_law(str(path)),
    "globs.json": find_units,
    "nodes.json": read_nodes,
    "config.json": lambda path: read_config(path.parent),
    RECORD: lambda path: require_unchanged(path.parent),
    "studies.json": lambda path: read_external(path.parent),
    "losses.csv": lambda path: read_external(path.parent),
    "curves.jsonl": lambda path: read_external(path.parent),
}


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_file_of_text_is_refused(tmp_path, name, what):
    write_folder(tmp_path, scaling_rows(), curve_lines())
    path = tmp_path / name
    path.unlink(missing_ok=True)
    WHAT[what](path)
    with pytest.raises(ValueError, match=rf"{path.stem}|{tmp_path}"):
        READERS[name](path)


@pytest.mark.parametrize("name", sorted(READERS.keys() - {"policy.toml"}))
def test_pointers_of_git_lfs_and_huge_files_are_named(tmp_path, name):
    path = write_folder(tmp_path, scaling_rows(), curve_lines()) / name
    path.write_bytes(LFS_POINTER + b"v1\n")
    with pytest.raises(ValueError, match=rf"{name}.*git lfs pull"):
        READERS[name](path)
    path.write_bytes(b"")
    os.truncate(path, MAX_RECORD_BYTES + 1)
    with pytest.raises(ValueError, match=rf"{name}.* bytes"):
        READERS[name](path)


@pytest.mark.parametrize("value", ["[" * 5000, "[" * 200 + "]" * 200, "9" * 5000])
def test_an_assignment_that_is_too_deep_or_long_is_refused(value):
    for text in (f"a={value}", "a" + ".a" * 5000 + "=1"):
        with refused("set"):
            read_assignment(text)
