"""Corpora by file and by URL: the same classes and ids as the catalog's, and errors with file, line
and field."""

import json
import os
from urllib.parse import quote

import pytest

from gram_platform.config.identity import InvalidField, to_plain
from gram_platform.config.written import assignments
from gram_platform.corpora import Packing, catalog, check, prepare, resolve
from gram_platform.corpora.recipe_file import read_description, recipe_text
from gram_platform.corpora.resolution import grows_with_size
from tests.corpora.conftest import make_records, write_jsonl
from tests.refused import refused

SHAPE = {"seq_len": 16, "vocab_size": 300, "validation_sequences": 4, "sample_bytes": 100_000}


def write(folder, text: str) -> str:
    path = folder / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", sorted(catalog.HUB))
def test_a_recipe_with_a_catalog_entrys_values_has_its_data(name, tmp_path):
    entry = catalog.HUB[name]
    plain = {**to_plain(entry), "rows": [to_plain(row) for row in entry.rows]}
    path = write(tmp_path, "\n".join(assignments(plain)))
    assert read_description(path) == entry
    shape = {"seq_len": 1024, "vocab_size": 50_304}
    assert resolve(path, Packing(**shape)).data_id == resolve(name, Packing(**shape)).data_id
    assert (
        resolve(path, Packing(**shape, core_tokens=10**7)).data_id
        == resolve(name, Packing(**shape, core_tokens=10**7)).data_id
    )
    assert grows_with_size(path)


def test_globs_of_local_text_are_those_of_the_json_file(tmp_path):
    for label in ("prose", "code"):
        (tmp_path / "text" / label).mkdir(parents=True)
        for number in range(12):
            (tmp_path / "text" / label / f"{number}.txt").write_text(f"{label} {number} " * 50)
    globs = {"prose": ["prose/*.txt"], "code": ["code/*.txt"]}
    as_json = tmp_path / "globs.json"
    as_json.write_text(json.dumps({"globs": globs, "root": "text"}))
    text = (
        'root = "text"\ncore_labels = ["prose"]\n[globs]\nprose = ["prose/*.txt"]\ncode ='
        ' ["code/*.txt"]\n'
    )
    path = write(tmp_path, text)
    own = resolve(path, Packing(**SHAPE))
    assert own == resolve(as_json, Packing(core_label="prose", **SHAPE))
    assert own.domains == ("core", "code")
    assert resolve(path, Packing(core_label="code", **SHAPE)).domains == (
        "core",
        "prose",
    )  # a flag wins
    assert not grows_with_size(path)
    assert [result.ok for result in check(path)] == [True, True]
    (tmp_path / "text" / "code" / "0.txt").write_text("another text " * 50)
    assert resolve(path, Packing(**SHAPE)).data_id != own.data_id


def test_records_beside_globs(tmp_path):
    write_jsonl(tmp_path / "records" / "all.jsonl", make_records())
    (tmp_path / "a.txt").write_text("one more text " * 50)
    (tmp_path / "b.txt").write_text("and another one " * 50)
    recipe = resolve(
        write(tmp_path, 'records = ["records"]\n[globs]\nextra = ["*.txt"]\n'), Packing(**SHAPE)
    )
    assert recipe.domains == ("core", "extra", "virology")
    alone = resolve(write(tmp_path, 'records = ["records/all.jsonl"]\n'), Packing(**SHAPE))
    assert alone == resolve(tmp_path / "records", Packing(**SHAPE))


LABELS = 'core_labels = ["prose"]\n[globs]\nprose = ["prose*.txt"]\n"co/de" = ["code*.txt"]\n'


@pytest.mark.parametrize(
    ("changed", "line", "field"),
    [
        (("prose", "prosa"), 1, "core_labels"),
        (('["prose"]', '["prose", "co/de"]'), 1, "core_labels"),
        (("", ""), 4, "label"),
        (("[globs]", 'tokenizer = "nothing.json"\n[globs]'), 2, "tokenizer"),
    ],
)
def test_errors_about_labels_and_tokenizer_name_file_line_and_field(changed, line, field, tmp_path):
    for number, label in enumerate(("prose", "code") * 2):
        (tmp_path / f"{label}{number}.txt").write_text(f"{label} {number} " * 50)
    path = write(tmp_path, LABELS.replace(*changed, 1))
    with pytest.raises(InvalidField) as caught:
        resolve(path, Packing(**SHAPE))
    assert (caught.value.place, caught.value.field) == (f"{path}, line {line}", field)


def test_an_error_of_a_flag_beside_a_recipe_is_the_flags(tmp_path):
    (tmp_path / "prose.txt").write_text("prose " * 50)
    (tmp_path / "code.txt").write_text("code " * 50)
    with refused("core_label", "prosa"):
        resolve(write(tmp_path, LABELS), Packing(core_label="prosa", **SHAPE))


@pytest.fixture
def dataset(tmp_path):
    """A file that stands for a dataset of the hub: `datasets` streams both alike."""
    records = [{"story": one["text"], "topic": one["label"]} for one in make_records()]
    return write_jsonl(tmp_path / "here" / "stories.jsonl", records)


ROW = """
core_labels = ["core"]
core_tokens = 2_000
[[rows]]
dataset = "json"
files = ["{files}"]
text_fields = ["story"]
label_field = "topic"
labels = ["core", "virology"]
"""


def test_a_dataset_by_recipe_and_by_url_is_fetched_and_packed(dataset, tmp_path):
    path = write(dataset.parent, ROW.format(files=dataset.name))  # relative to the recipe
    url = f"hf://json?label=topic&text=story&core=core&files={dataset}"
    recipe, by_url = (
        resolve(corpus, Packing(core_tokens=2_000, **SHAPE)) for corpus in (path, url)
    )
    assert by_url.source.rows[0].labels == ("core", "virology")  # found in the first records
    assert resolve(f"{url}&labels=core,virology", Packing(core_tokens=2_000, **SHAPE)) == by_url
    assert by_url.data_id == recipe.data_id
    packed = prepare(recipe, tmp_path / "packed", lambda *a: None)
    assert packed.domains == ("core", "virology")
    assert packed.num_sequences("train", "virology") > 50
    assert [(result.ok, result.label) for result in check(path)] == [(True, "core")]
    assert grows_with_size(url)


def test_what_is_stored_with_a_study(dataset):
    path = write(dataset.parent, ROW.format(files=dataset.name))
    stored = json.loads(recipe_text(path))
    assert stored["core_labels"] == ["core"]
    assert stored["rows"][0]["files"] == [str(dataset)]
    assert recipe_text("stories") == recipe_text(str(dataset.parent)) == ""


def test_a_url_names_dataset_revision_and_fields():
    found = read_description(
        "hf://ORG/NAME@abc?label=topic&text=title,story&labels=b,a&core=a&config=en&split=all"
    )
    (row,) = found.rows
    assert (row.dataset, row.revision, row.text_fields) == ("ORG/NAME", "abc", ("title", "story"))
    assert (row.label_field, row.labels, row.config, row.split) == (
        "topic",
        ("b", "a"),
        "en",
        "all",
    )
    assert found.core_labels == ("a",)
    assert read_description("hf://ORG/NAME?label=topic&labels=a,b").rows[0].text_fields == ("text",)


def test_a_url_can_name_any_path_and_value(tmp_path):
    """Percent-encoded.

    A plus is a plus, and neither brackets, nor a number sign, nor a letter of Latin-1 mean more.
    """
    folder = tmp_path / os.fsdecode(b"c++, [a] #1 & 50% ?\xe9*")
    records = [{"a+b": {"text": one["text"]}, "topic": one["label"]} for one in make_records()]
    file = write_jsonl(folder / "n.jsonl", records)
    (tmp_path / "c++").symlink_to(folder)
    encoded = quote(os.fsencode(file))
    found = read_description(
        f"hf://json?label=topic&text=a+b.text&core=core&files={encoded},{tmp_path}/c++/n.jsonl"
    )
    (row,) = found.rows
    assert row.files == (str(file), f"{tmp_path}/c++/n.jsonl")
    assert (row.text_fields, row.labels) == (("a+b.text",), ("core", "virology"))
    found = read_description("hf://ORG/NAME@refs/pr/1?label=a%2Cb&labels=x%26y,%25,c#&core=x%26y")
    assert (found.rows[0].label_field, found.rows[0].labels) == ("a,b", ("x&y", "%", "c#"))
    assert (found.rows[0].revision, found.core_labels) == ("refs/pr/1", ("x&y",))


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000, "a = \0", "a = 2026-02-31"])
def test_a_recipe_that_is_no_toml_is_named(text, tmp_path):
    with pytest.raises(ValueError, match=r"/recipe\.toml: "):
        resolve(write(tmp_path, text), Packing(**SHAPE))


def test_a_line_is_counted_by_its_end_alone(tmp_path):
    path = write(tmp_path, "# one\u2028line\x85\nroot = 3\n")
    with pytest.raises(InvalidField) as caught:
        resolve(path, Packing(**SHAPE))
    assert (caught.value.place, caught.value.field, caught.value.value) == (
        f"{path}, line 2",
        "root",
        3,
    )


@pytest.mark.parametrize(
    ("url", "field"),
    [
        ("hf://ORG/NAME?text=story", "corpus"),
        ("hf://NAME?label=topic", "corpus"),
        ("hf://ORG/NAME?label=topic&lables=a", "corpus: lables"),
        ("hf://json?label=subject&files={file}", "json: field"),
        ("hf://json?label=topic&files={file}&files=other", "corpus: files"),
    ],
)
def test_a_wrong_url(url, field, dataset):
    with refused(field):
        resolve(url.format(file=dataset), Packing(**SHAPE))


WRONG = {  # text: field and line, 0 for the whole file
    'core_labels = ["core"]\n': ("globs, records", 0),
    "rows = []\n": ("rows", 1),
    '[[rows]]\ndataset = "a/b"\nlabel = "x"\ntext_fields = "y"\n': ("rows[0].text_fields", 4),
    '[[rows]]\ndataset = "a/b"\nlabel_field = "x"\n': ("hub row a/b: labels", 1),
    '[[rows]]\ndataset = "a/b"\nlabel = "x"\nshare = 2\n': ("hub row a/b: share", 4),
    'core_labels = ["y"]\n[[rows]]\ndataset = "a/b"\nlabel = "x"\n': ("core_labels", 1),
    '[globs]\ncode = ["*.nothing"]\n': ("globs[code]", 2),
    'records = ["nowhere"]\n': ("records", 1),
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_recipe_names_file_line_and_field(text, tmp_path):
    path, (field, line) = write(tmp_path, text), WRONG[text]
    with pytest.raises(InvalidField) as caught:
        resolve(path, Packing(core_label="x", **SHAPE))
    assert (caught.value.field, caught.value.place) == (
        field,
        f"{path}, line {line}" if line else path,
    )
