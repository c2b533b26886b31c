"""Local files: formats, identity, globs, and errors that name file and line."""

import codecs
import dataclasses
import gzip
import json
import os
import shutil

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from gram_platform.corpora import Packing, prepare, resolve
from gram_platform.corpora.records import Unit, read_unit
from gram_platform.corpora.sources import find_units
from tests.refused import refused


def write(path, records, kind):
    """The records in one of the formats; returns the folder."""
    path.mkdir()
    lines = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records).encode()
    if "parquet" in kind:
        pyarrow.parquet.write_table(
            pyarrow.Table.from_pylist(records), path / "a.parquet", row_group_size=50
        )
        lines = (path / "a.parquet").read_bytes()
        (path / "a.parquet").unlink()
    pack = {"gz": gzip.compress, "zst": zstandard.compress}.get(kind.split(".")[-1], bytes)
    (path / f"a.{kind}").write_bytes(pack(lines))
    return path


@pytest.mark.parametrize("kind", ["jsonl.gz", "jsonl.zst", "parquet", "parquet.gz", "parquet.zst"])
def test_every_format_holds_the_same_corpus(tmp_path, records, settings, corpus, kind):
    """Equal records are one corpus, however they are packed: the same data_id, text for text."""
    folder = write(tmp_path / "other", records, kind)
    assert resolve(folder, Packing(**settings)) == resolve(corpus, Packing(**settings))
    assert list(read_unit(find_units(folder)[0])) == [(r["label"], r["text"]) for r in records]


def test_identity_ignores_places_and_times(tmp_path, records, settings, corpus):
    before = resolve(corpus, Packing(**settings))
    moved = shutil.copytree(corpus, tmp_path / "moved" / "deep", dirs_exist_ok=True)
    (moved / "part.jsonl").rename(moved / "renamed.jsonl")
    os.utime(moved / "renamed.jsonl", (1, 1))
    assert resolve(moved, Packing(**settings)).data_id == before.data_id
    assert resolve(moved / "renamed.jsonl", Packing(**settings)).data_id == before.data_id


def test_identity_follows_contents_and_settings(tmp_path, records, settings, corpus, jsonl):
    before = resolve(corpus, Packing(**settings)).data_id
    changed = [dict(r) for r in records]
    changed[3]["text"] += "!"
    relabelled = [dict(r) for r in records]
    relabelled[3]["label"] = "core"
    for name, other in (("text", changed), ("label", relabelled), ("fewer", records[:-1])):
        assert (
            resolve(jsonl(tmp_path / f"{name}.jsonl", other), Packing(**settings)).data_id != before
        ), name
    for field, value in {
        "seq_len": 17,
        "vocab_size": 301,
        "sample_bytes": 99_999,
    }.items():
        assert resolve(corpus, Packing(**{**settings, field: value})).data_id != before, field
    for field, value in {"split_seed": 1, "validation_fraction": 0.1}.items():
        recipe = resolve(corpus, Packing(**settings))
        assert dataclasses.replace(recipe, **{field: value}).data_id != before, field
    with refused("label", "core"):
        resolve(corpus, Packing(**{**settings, "core_label": "virology"}))


def test_a_cache_that_cannot_be_written(tmp_path, settings, corpus):
    """A dry run too keeps what it has read of local files in the storage."""
    (tmp_path / "file").write_text("")
    with refused("storage", str(tmp_path / "file" / "data")):
        resolve(corpus, Packing(**settings), cache_dir=tmp_path / "file" / "data")


def test_a_scan_is_kept_by_path_size_and_time(tmp_path, settings, corpus):
    calls = []
    packing, cache = Packing(**settings), tmp_path / "cache"
    first = resolve(corpus, packing, cache)
    file = corpus / "part.jsonl"
    stat = file.stat()
    file.write_bytes(b"x" * stat.st_size)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    # It is not read again.
    assert resolve(corpus, packing, cache, lambda *a: calls.append(a)) == first
    assert calls[-1] == ("reading", stat.st_size, stat.st_size)
    os.utime(file, (1, 1))
    with pytest.raises(ValueError, match=r"part\.jsonl:1: "):
        resolve(corpus, packing, cache)


@pytest.mark.parametrize(
    "line",
    [
        b'{"text": "a", "label"',
        b'{"id": ' + b"1" * 5000 + b', "text": "a", "label": "core"}',
        b'{"text": "a\xff", "label": "core"}',
        b'{"text": "a"}',
        b'{"text": "a", "label": "  "}',
        b'{"text": "a", "label": 7}',
        b'{"text": "\\ud800", "label": "core"}',
    ],
)
def test_bad_lines_are_named(tmp_path, settings, line):
    good = b'{"text": "fine", "label": "core"}\n'
    (tmp_path / "bad.jsonl").write_bytes(good + b"\n" + line + b"\n" + good)
    with pytest.raises(ValueError, match=r"bad\.jsonl:3: "):
        resolve(tmp_path, Packing(**settings))


def test_a_record_too_large_is_named_before_it_fills_the_memory(tmp_path, settings, monkeypatch):
    """A few kilobytes of gzip can hold a line of gigabytes."""
    monkeypatch.setattr("gram_platform.corpora.records.MAX_RECORD_BYTES", 1000)
    good = b'{"text": "fine", "label": "core"}\n'
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(good + b'{"text": "' + b"x" * 10_000))
    with pytest.raises(ValueError, match=r"a\.jsonl\.gz:2: "):
        resolve(tmp_path, Packing(**settings))


def test_a_text_too_large_is_named_in_every_format(tmp_path, monkeypatch):
    monkeypatch.setattr("gram_platform.corpora.records.MAX_RECORD_BYTES", 1000)
    table = pyarrow.table({"text": ["fine", "ä" * 501], "label": ["core", "core"]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "b.txt").write_text("x" * 1001)
    for unit, place in (
        (Unit((tmp_path / "a.parquet",)), "a.parquet:2"),
        (Unit((tmp_path / "b.txt",), "core"), "b.txt"),
    ):
        with pytest.raises(ValueError, match=f"{place}: "):
            list(read_unit(unit))


def test_zstd_of_several_frames(tmp_path):
    text = "".join(
        json.dumps({"text": "x" * 10_000 + str(n), "label": "core"}) + "\n" for n in range(60)
    ).encode()
    half = len(text) // 2
    (tmp_path / "a.jsonl.zst").write_bytes(
        zstandard.compress(text[:half]) + zstandard.compress(text[half:])
    )
    assert [t[10_000:] for _, t in read_unit(find_units(tmp_path)[0])] == [
        str(n) for n in range(60)
    ]


def test_zstd_with_a_large_window(tmp_path):
    """What `zstd --long=30` writes: a window of 1 GB (2**(10 + 20)) in the header.

    Here one plain block follows.
    """
    line = b'{"text": "t", "label": "core"}\n'
    frame = (
        (0xFD2FB528).to_bytes(4, "little")
        + bytes([0, 20 << 3])
        + (len(line) << 3 | 1).to_bytes(3, "little")
        + line
    )
    (tmp_path / "a.jsonl.zst").write_bytes(frame)
    assert list(read_unit(find_units(tmp_path)[0])) == [("core", "t")]


@pytest.mark.parametrize("kind", ["jsonl.gz", "jsonl.zst", "parquet", "parquet.gz", "parquet.zst"])
def test_broken_compression_and_parquet_are_named(tmp_path, records, settings, kind):
    file = write(tmp_path / kind, records, kind) / f"a.{kind}"
    raw = file.read_bytes()
    for broken in (raw[:-30], b"junk" + raw[4:-30]):
        file.write_bytes(broken)
        with pytest.raises(ValueError, match=f"a.{kind}"):
            resolve(file.parent, Packing(**settings))


def test_parquet_names_wrong_columns_and_rows(tmp_path, settings):
    pyarrow.parquet.write_table(
        pyarrow.table({"text": ["a"], "topic": ["b"]}), tmp_path / "a.parquet"
    )
    with pytest.raises(ValueError, match=r"a\.parquet: "):
        resolve(tmp_path, Packing(**settings))
    twice = pyarrow.table([["a"], ["b"], ["core"]], names=["text", "text", "label"])
    pyarrow.parquet.write_table(twice, tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a\.parquet: "):
        resolve(tmp_path, Packing(**settings))
    pyarrow.parquet.write_table(
        pyarrow.table({"text": ["a", "b"], "label": ["core", None]}), tmp_path / "a.parquet"
    )
    with pytest.raises(ValueError, match=r"a\.parquet:2: "):
        resolve(tmp_path, Packing(**settings))


def test_core_label_must_be_there(settings, corpus):
    with refused("core_label", "nope"):
        resolve(corpus, Packing(**{**settings, "core_label": "nope"}))
    with refused("core_label", "core, virology"):
        resolve(corpus, Packing(**{**settings, "core_label": "core,virology"}))


def test_a_core_label_with_commas(tmp_path, records, settings, jsonl):
    for record in records:
        record["label"] = {"core": "code, any"}.get(record["label"], record["label"])
    jsonl(tmp_path / "a.jsonl", records)
    named = [
        resolve(tmp_path, Packing(**{**settings, "core_label": label}))
        for label in ("code, any", ("code, any",))
    ]
    assert [recipe.domain_of for recipe in named] == [
        {"code, any": "core", "virology": "virology"}
    ] * 2
    with refused("core_label", "any, code"):
        resolve(tmp_path, Packing(**{**settings, "core_label": "code, any, virology"}))


def test_labels_are_pooled_into_core(tmp_path, records, settings, jsonl):
    for number, record in enumerate(records):
        record["label"] = ("prose", "papers", "nuclear")[number % 3]
    jsonl(tmp_path / "a.jsonl", records)
    with refused("core_label", None):
        resolve(tmp_path, Packing(**{**settings, "core_label": None}))
    recipe = resolve(tmp_path, Packing(**{**settings, "core_label": "prose, papers"}))
    assert recipe.domains == ("core", "nuclear")
    assert recipe.domain_of == {"papers": "core", "prose": "core", "nuclear": "nuclear"}


@pytest.mark.parametrize("label", ["cs.CR", "a\x00b", "病" * 39, "unlabelled"])
def test_label_names_that_cannot_be_domains(tmp_path, records, settings, jsonl, label):
    renamed = [
        {**record, "label": label} if record["label"] == "virology" else record
        for record in records
    ]
    with refused("label"):
        resolve(jsonl(tmp_path / "a.jsonl", renamed), Packing(**settings))


@pytest.mark.parametrize(
    ("label", "named"),
    [
        ("viro\u200blogy", "viro\u200blogy"),
        ("Virology", "virology"),
        ("COR\u0112", None),
        ("Core", "Core"),
    ],
)
def test_labels_that_cannot_be_told_apart(tmp_path, records, settings, jsonl, label, named):
    texts = [{"text": f"{record['text']} again", "label": label} for record in records]
    path = jsonl(tmp_path / "a.jsonl", records + texts)
    if named is None:
        assert label in resolve(path, Packing(**settings)).domains
        return
    with refused("label", named):
        resolve(path, Packing(**settings))


def test_a_label_that_looks_like_one_of_core_is_refused(tmp_path, records, settings, jsonl):
    """Its text would train core, which no profile removes; two labels of core may look alike."""
    others = [{"text": f"{record['text']} again", "label": "K\u0131rmizi"} for record in records]
    kelvin = [
        {"text": f"{record['text']} more", "label": "\u212a\u0131rmizi"} for record in records
    ]
    path = jsonl(tmp_path / "a.jsonl", records + others + kelvin)
    with refused("label", "K\u0131rmizi"):
        resolve(path, Packing(**{**settings, "core_label": ("core", "\u212a\u0131rmizi")}))
    both = {**settings, "core_label": ("core", "\u212a\u0131rmizi", "K\u0131rmizi")}
    assert resolve(path, Packing(**both)).domains == ("core", "virology")


@pytest.mark.parametrize("label", ["病" * 38, "c#"])
def test_label_names_that_can(tmp_path, records, settings, jsonl, label):
    renamed = [
        {**record, "label": label} if record["label"] == "virology" else record
        for record in records
    ]
    packed = prepare(
        resolve(jsonl(tmp_path / "a.jsonl", renamed), Packing(**settings)), tmp_path / "data"
    )
    assert packed.domains == ("core", label)


def test_a_domain_of_one_document(tmp_path, records, settings, jsonl):
    path = jsonl(tmp_path / "a.jsonl", [*records, {"text": "long enough " * 500, "label": "one"}])
    with refused("label", "one"):
        resolve(path, Packing(**settings))


def test_globs(tmp_path, settings):
    src = tmp_path / "project" / "src"
    (src / "deep").mkdir(parents=True)
    (src / "a.py").write_text("def a():\n    return 1\n" * 40)
    (src / "deep" / "b.py").write_text("def b():\n    return 2\n" * 40)
    (src / "deep" / "__init__.py").write_text("")
    (src / ".hidden.py").write_text("secret = 1\n")
    (tmp_path / "project" / "notes.txt").write_text("plain words\n" * 40)
    (tmp_path / "project" / "more.txt").write_text("other words\n" * 40)
    spec = tmp_path / "project" / "corpus.json"
    spec.write_text(json.dumps({"globs": {"internal_code": ["src/**/*.py"], "core": ["*.txt"]}}))
    recipe = resolve(spec, Packing(**settings))
    for path in (
        spec,
        src / "a.py",
        tmp_path / "project" / "notes.txt",
        src / "deep" / "__init__.py",
    ):
        path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    assert resolve(spec, Packing(**settings)) == recipe  # a byte order mark is no text
    assert recipe.domains == ("core", "internal_code")
    assert {d.name: d.num_documents for d in recipe.domains_from} == {"core": 2, "internal_code": 2}

    spec.write_text(json.dumps({"globs": {"code": ["src/*.py"], "core": ["*.txt", "src/a.py"]}}))
    with refused("globs[core]", str(src / "a.py")):
        resolve(spec, Packing(**settings))
    spec.write_text(json.dumps({"globs": {"code": ["src/*.rs"], "core": ["*.txt"]}}))
    with refused("globs[code]"):
        resolve(spec, Packing(**settings))
    spec.write_text(json.dumps({"globs": {"code": ["src/*.py"], "core": ["*.txt"]}}))
    (src / "a.py").write_bytes(b"ok\nbad \xff\n")
    with pytest.raises(ValueError, match=r"a\.py:2: "):
        resolve(spec, Packing(**settings))


@pytest.mark.parametrize("pattern", ["x" * 300, "a**", "a\0", "**/" * 3000 + "a.py"])
def test_globs_that_no_file_system_takes_are_named(tmp_path, settings, pattern):
    (tmp_path / "a.txt").write_text("plain words\n")
    (tmp_path / "corpus.json").write_text(
        json.dumps({"globs": {"core": ["*.txt"], "z": [pattern]}})
    )
    with refused("globs[z]"):
        resolve(tmp_path / "corpus.json", Packing(**settings))


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("[" * 100_000, "corpus"),
        ("{}", "corpus"),
        ('{"globs": {"a": ["*"]}, "root": 7}', "corpus"),
        ('{"globs": {"": ["*"]}}', "globs[]"),
    ],
)
def test_a_file_of_globs_in_another_shape_is_named(tmp_path, settings, text, field):
    (tmp_path / "corpus.json").write_text(text)
    with refused(field):
        resolve(tmp_path / "corpus.json", Packing(**settings))


def test_nothing_to_read(tmp_path, settings):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "a.jsonl").write_text("\n")
    with refused("corpus", str(tmp_path / "empty")):
        resolve(tmp_path / "empty", Packing(**settings))
    shutil.rmtree(tmp_path / "empty")
    with refused("corpus", str(tmp_path)):
        resolve(tmp_path, Packing(**settings))
    with refused("corpus", "missing"):
        resolve("missing", Packing(**settings))
