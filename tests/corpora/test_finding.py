"""Finding text: through links, and in folders that hold what cannot be read.

Nothing is left out in silence.
"""

import json
import os
import socket
import warnings

import pytest

from gram_platform.config.identity import InvalidField
from gram_platform.corpora import Packing, check, prepare, resolve
from gram_platform.corpora.sources import find_files, find_units, scan_units
from gram_platform.corpora.tokenizer import load_tokenizer
from tests.refused import refused


@pytest.fixture
def other(tmp_path, jsonl, labelled):
    """A folder beside the corpus with one more label."""
    records = [
        {**record, "label": "email"} for record in labelled(seed=1) if record["label"] == "core"
    ]
    jsonl(tmp_path / "other" / "deep" / "mails.jsonl", records)
    return tmp_path / "other"


def names(root, *patterns):
    return [path.relative_to(root).as_posix() for path in find_files(root, patterns)]


def test_a_linked_folder_is_read(corpus, other, settings):
    before = resolve(corpus, Packing(**settings))
    (corpus / "linked").symlink_to(other)
    assert resolve(corpus, Packing(**settings)).domains == ("core", "email", "virology")
    assert [result.label or result.ok for result in check(corpus)] == ["email", "core"]
    (corpus / "linked").unlink()
    assert resolve(corpus, Packing(**settings)).data_id == before.data_id


def test_loops_of_links_end_and_no_file_is_read_twice(corpus, other, settings):
    """By its own path if that is found; a second link to a folder or file adds nothing."""
    before = resolve(corpus, Packing(**settings)).data_id
    (corpus / "again").symlink_to(corpus)
    (corpus / "a.jsonl").symlink_to("part.jsonl")
    assert resolve(corpus, Packing(**settings)).data_id == before
    assert [unit.paths[0].name for unit in find_units(corpus)] == ["part.jsonl"]
    for name in ("one", "two"):
        (corpus / name).symlink_to(other)
    (other / "up").symlink_to("..")  # leads to everything once more
    assert names(corpus, "**") == ["one/deep/mails.jsonl", "part.jsonl"]
    assert len(resolve(corpus, Packing(**settings)).units) == 2


def test_a_list_of_records_is_told_to_be_a_line_each(tmp_path):
    place = tmp_path / "records.json"
    place.write_text(json.dumps([{"text": "a", "label": "core"}]))
    with pytest.raises(InvalidField, match="text and label a line"):
        find_units(place)


def test_patterns_enter_linked_folders(tmp_path, other, settings):
    (tmp_path / "text" / "src").mkdir(parents=True)
    (tmp_path / "text" / "a.c").write_text("int x;" * 20)
    (tmp_path / "text" / "prose").symlink_to(other)
    (tmp_path / "text" / ".hidden").symlink_to(other)
    (tmp_path / "text" / "src" / "loop").symlink_to(tmp_path / "text")
    assert names(tmp_path / "text", "**/*.jsonl", "*/*/*.jsonl", "prose/d?ep/mails.jsonl") == [
        "prose/deep/mails.jsonl"
    ]
    assert names(tmp_path / "text", "**") == ["a.c", "prose/deep/mails.jsonl"]
    assert names(tmp_path / "text", "./src/../*.c", "nothing/*.c") == []
    (tmp_path / "text" / "b.c").symlink_to("a.c")
    spec = tmp_path / "text" / "globs.json"
    spec.write_text(json.dumps({"globs": {"core": ["a.c"], "code": ["b.c"]}}))
    with refused("globs[core]", str(tmp_path / "text" / "a.c")):
        resolve(spec, Packing(**settings))


@pytest.mark.parametrize("name", ["virology.jsonl", "virology"])
def test_a_link_whose_target_is_gone_is_named(corpus, settings, name):
    (corpus / name).symlink_to("gone")
    (corpus / f".#{name}").symlink_to("somebody@somewhere")  # as an editor's lock
    with refused("corpus", str(corpus / name)):
        resolve(corpus, Packing(**settings))
    (corpus / name).unlink()
    (corpus / name).symlink_to(name)
    with refused("corpus", str(corpus / name)):
        check(corpus)


def test_pipes_sockets_and_devices_are_named_and_not_opened(tmp_path, corpus, settings):
    os.mkfifo(corpus / "a.jsonl")
    with refused("corpus", str(corpus / "a.jsonl")):
        resolve(corpus, Packing(**settings))
    (corpus / "a.jsonl").rename(corpus / "a.log")
    assert resolve(corpus, Packing(**settings)).domains == ("core", "virology")
    os.mkfifo(tmp_path / "globs.json")
    os.mkfifo(tmp_path / "recipe.toml")
    (tmp_path / "zero.jsonl").symlink_to("/dev/zero")
    for name in ("globs.json", "recipe.toml", "zero.jsonl"):
        with refused("corpus", str(tmp_path / name)):
            resolve(tmp_path / name, Packing(**settings))
    with refused("corpus", "/dev/zero"):
        resolve("/dev/zero", Packing(**settings))
    for field in ("tokenizer", "instructions"):
        with refused(field, str(tmp_path / "globs.json")):
            resolve(corpus, Packing(**settings, **{field: str(tmp_path / "globs.json")}))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(corpus / "b.jsonl"))  # an absolute path may be too long
        with refused("corpus", str(corpus / "b.jsonl")):
            resolve(corpus, Packing(**settings))


def refuse(monkeypatch, function: str, place) -> None:
    """Has a function of `os` fail for this path, as it does for a user without the right."""
    real = getattr(os, function)

    def denied(path, *arguments, **options):
        if os.fspath(path) == str(place):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, function, denied)


@pytest.mark.parametrize(
    "look", [check, lambda corpus: resolve(corpus, Packing(seq_len=16, vocab_size=300))]
)
def test_a_folder_without_a_right_is_named(corpus, other, monkeypatch, look):
    other.rename(corpus / "sub")
    for function, place in (
        ("scandir", corpus / "sub"),
        ("stat", corpus / "sub" / "deep" / "mails.jsonl"),
    ):
        with monkeypatch.context() as patch:
            refuse(patch, function, place)
            with refused("corpus", str(place)):
                look(corpus)


def test_a_file_that_goes_away_or_cannot_be_read_is_named(
    tmp_path, corpus, other, settings, monkeypatch
):
    units = find_units(corpus)
    recipe = resolve(corpus, Packing(**settings))
    (corpus / "part.jsonl").rename(tmp_path / "elsewhere")
    for work in (lambda: scan_units(units, tmp_path), lambda: prepare(recipe, tmp_path / "data")):
        with pytest.raises(ValueError, match=r"part\.jsonl: "):
            work()
    (corpus / "part.jsonl").mkdir()  # stands for an error of the disk: it can be opened by nobody
    with pytest.raises(ValueError, match=r"part\.jsonl: "):
        scan_units(units, None)


def test_names_of_any_bytes(tmp_path, records, settings, jsonl):
    """Not UTF-8, in capitals, with an empty file, and with what a Mac and an archive leave
    behind."""
    folder = tmp_path / os.fsdecode(b"caf\xe9 [a]{b}*")
    jsonl(folder / os.fsdecode(b"\xff.JSONL"), records)
    for name in ("._a.jsonl", ".DS_Store", "__MACOSX/._a.jsonl", "notes.txt", "empty.jsonl"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("" if name == "empty.jsonl" else "no record")
    assert resolve(folder, Packing(**settings), cache_dir=tmp_path / "cache").domains == (
        "core",
        "virology",
    )
    assert [(result.ok, result.found[:6]) for result in check(folder)] == [
        (True, "no rec"),
        (True, "core n"),
    ]
    only = tmp_path / "only"
    only.mkdir()
    (only / "a.jsonl").write_text("\n\n")
    assert [result.ok for result in check(only)] == [False]


def test_a_label_whose_files_hold_no_text_is_named(tmp_path, settings):
    for name, text in (("a.txt", "words " * 30), ("b.txt", "more words " * 30), ("a.c", " \n")):
        (tmp_path / name).write_text(text)
    (tmp_path / "globs.json").write_text(
        json.dumps({"globs": {"core": ["*.txt"], "code": ["*.c"]}})
    )
    with refused("label", "code"):
        resolve(tmp_path / "globs.json", Packing(**settings))
    assert [(result.label, result.ok) for result in check(tmp_path / "globs.json")] == [
        ("code", False),
        ("core", True),
    ]


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 120\n".format("0" * 64)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet", "a.txt"])
def test_a_pointer_of_git_lfs_is_named_as_one(tmp_path, records, settings, jsonl, name):
    jsonl(tmp_path / "text" / "whole.jsonl", records)
    pointer = tmp_path / "text" / name
    pointer.write_text(POINTER)
    corpus = tmp_path / "text"
    if name == "a.txt":
        corpus = tmp_path / "globs.json"
        corpus.write_text(json.dumps({"globs": {"core": ["text/*.jsonl"], "aux": ["text/*.txt"]}}))
    with refused("corpus", str(pointer)):
        resolve(corpus, Packing(**settings))
    (found,) = (result.found for result in check(corpus) if not result.ok)
    assert "git lfs pull" in found
    with refused("tokenizer", str(pointer)):
        load_tokenizer(pointer)


def test_a_pointer_in_the_place_of_a_dataset_s_file_is_named_too(tmp_path):
    (tmp_path / "a.jsonl").write_text(POINTER)
    (found,) = check(f"hf://json?label=label&labels=core,aux&files={tmp_path}/a.jsonl")
    assert not found.ok
    assert "git lfs pull" in found.found


def test_folders_that_other_programs_hide_are_left_out_and_named(corpus, other, settings):
    """As by Spark, pandas and Delta. Files whose names begin so are read."""
    before = resolve(corpus, Packing(**settings)).data_id
    for name in ("_delta_log", ".cache", "deep/_temporary"):
        (corpus / name).mkdir(parents=True)
        (corpus / name / "a.jsonl").write_text("no record")
    (corpus / "_linked").symlink_to(other)
    with pytest.warns(RuntimeWarning, match="_delta_log") as caught:
        assert resolve(corpus, Packing(**settings)).data_id == before
    (text,) = (str(warning.message) for warning in caught)
    for name in ("_delta_log", ".cache", "deep/_temporary", "_linked"):
        assert str(corpus / name) in text
    with pytest.warns(RuntimeWarning):
        assert [result.ok for result in check(corpus)] == [True]
    # A folder that is named itself, or in a pattern, is read.
    assert names(corpus, "_linked/deep/*.jsonl", "**/a.jsonl") == [
        "_delta_log/a.jsonl",
        "_linked/deep/mails.jsonl",
        "deep/_temporary/a.jsonl",
    ]
    (other.parent / "_other").symlink_to(other)
    (corpus / "part.jsonl").rename(other / "_part.jsonl")
    assert len(find_units(other.parent / "_other")) == 2


def test_an_error_names_the_folders_that_were_left_out(corpus):
    (corpus / "_x").mkdir()
    (corpus / "part.jsonl").rename(corpus / "_x" / "part.jsonl")
    with pytest.raises(InvalidField) as caught:
        find_units(corpus)
    assert str(corpus / "_x") in caught.value.expected


@pytest.mark.parametrize(
    "name",
    ["test-00000-of-00001.parquet", "validation/0000.jsonl", "mails_test.jsonl", "Dev.jsonl.gz"],
)
def test_files_of_several_splits_are_pointed_out(corpus, settings, jsonl, labelled, name):
    (corpus / "part.jsonl").rename(corpus / "train-00000-of-00001.jsonl")
    (corpus / "latest.jsonl").write_text("")
    with warnings.catch_warnings(action="error"):
        find_units(corpus)
    (corpus / name).parent.mkdir(exist_ok=True)
    (corpus / name).write_text("")
    with pytest.warns(RuntimeWarning, match="train"):
        find_units(corpus)
