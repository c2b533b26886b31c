"""The hub's table, and streaming through `datasets` on local files: filters, labels, resuming."""

import dataclasses
import itertools
import json
import re
import shutil

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from gram_platform.corpora import Packing, catalog, check, hub, prepare, resolve
from gram_platform.corpora import recipe as recipe_module
from gram_platform.corpora.recipe import HubRow, HubSource, part_bytes, whole_parts
from gram_platform.corpora.records import ChangedText, read_unit
from tests.refused import refused

BIG = 10**9


def local_row(path, **changes) -> HubRow:
    row = HubRow(
        "json", "local", ("text",), 1.0, False, label_field="label", labels=("core", "virology")
    )
    return dataclasses.replace(row, files=(str(path),), **changes)


def fetched(row: HubRow, folder, num_bytes=BIG) -> list[tuple[str, str]]:
    units, _ = hub.fetch(HubSource((row,), (num_bytes,)), folder, lambda *a: None)
    return [record for unit in units for record in read_unit(unit)]


def small_parts(monkeypatch, num_bytes=2_000) -> None:
    monkeypatch.setattr(recipe_module, "FIRST_PART_BYTES", num_bytes)
    monkeypatch.setattr(recipe_module, "PART_BYTES", num_bytes)


@pytest.mark.parametrize("name", sorted(catalog.HUB))
def test_the_table_is_well_formed(name):
    entry = catalog.HUB[name]
    shares = {label: 0.0 for row in entry.rows for label in row.all_labels}
    for row in entry.rows:
        for label in row.all_labels:
            shares[label] += 0.0 if row.held_out else row.share / len(row.all_labels)
    # The paper, app:realistic: 1% of core's tokens, spread evenly.
    if name in ("dual-use", "dual-use-sources"):
        assert shares["core"] == pytest.approx(0.991)
        assert {share for label, share in shares.items() if label != "core"} == {0.0025}
    labels = {label for row in entry.rows for label in row.all_labels}
    assert set(entry.core_labels) <= labels
    for row in entry.rows:
        assert list(row.labels) == sorted(set(row.labels))


def test_recipes_exist_before_any_data_does():
    dual = resolve("dual-use", Packing(seq_len=1024, vocab_size=50_304))
    assert dual.domains == ("core", "cybersecurity", "lisp", "nuclear", "virology")
    assert dual.estimate_sequences("train", "core") * 1024 > 16.1e9
    assert resolve("dual-use-papers", Packing(seq_len=8, vocab_size=9)).domains == (
        "core",
        "cybersecurity",
        "nuclear",
        "virology",
    )
    simple = resolve("simple-stories", Packing(seq_len=256, vocab_size=4096))
    assert simple.domains == (  # app:stories: the first four by name
        "core",
        "a deadline or time limit",
        "alien encounters",
        "bygone eras",
        "cultural traditions",
    )
    assert len(simple.domain_of) == 48
    assert simple.tokenizer.source == "SimpleStories/SimpleStories-1.25M@main"
    assert (
        len(
            {
                dual.data_id,
                simple.data_id,
                resolve("dual-use", Packing(seq_len=512, vocab_size=50_304)).data_id,
            }
        )
        == 3
    )


def test_bytes_follow_from_the_tokens():
    """Each domain gets the text of its tokens and of its validation.

    More tokens ask for more of the same rows.
    """
    asked = {"seq_len": 1024, "vocab_size": 50_304, "validation_sequences": 512, "aux_share": 0.01}
    sizes = [
        resolve("dual-use", Packing(core_tokens=n, **asked))
        for n in (960_000_000, 16_100_000_000, 99_400_000_000)
    ]
    for recipe, core_tokens in zip(sizes, (0.96e9, 16.1e9, 99.4e9), strict=True):
        tokens = {d: 1024 * recipe.estimate_sequences("train", d) for d in recipe.domains}
        assert 1.07 < tokens["core"] / core_tokens < 1.15
        assert all(1.1 < tokens[d] / (0.0025 * core_tokens) < 2 for d in recipe.domains[1:])
        assert all(recipe.estimate_sequences("validation", d) >= 512 for d in recipe.domains)
        by_row = dict(zip(recipe.source.rows, recipe.source.num_bytes, strict=True))
        in_core = {r: n / r.bytes_per_token for r, n in by_row.items() if r.label == "core"}
        shares = [n / sum(in_core.values()) for n in in_core.values()]
        assert shares == pytest.approx([0.84, 0.15, 0.01], rel=0.11)
    assert len({recipe.data_id for recipe in sizes}) == 3
    near = resolve("dual-use", Packing(core_tokens=960_000_001, **asked))
    assert near.data_id == sizes[0].data_id


def test_amounts_are_whole_parts():
    ends, done = [0], 0
    while done < 4 * recipe_module.GROWTH * recipe_module.PART_BYTES:
        done += part_bytes(done)
        ends.append(done)
    for first, last in itertools.pairwise(ends):
        assert {whole_parts(first + 1), whole_parts(last - 0.5), whole_parts(last)} == {last}
    assert max((b - a) / a for a, b in itertools.pairwise(ends[8:])) <= 1 / recipe_module.GROWTH


def test_a_mark_a_note_or_an_estimate_changes_no_row():
    row = catalog.STORIES_ROW
    marked = dataclasses.replace(
        row, verified=True, note="seen", bytes_per_token=1.0, available_tokens=1
    )
    assert marked.identity == row.identity
    assert (
        hub.row_id(marked)
        == hub.row_id(row)
        != hub.row_id(dataclasses.replace(row, revision="main"))
    )


def test_a_row_is_streamed_with_its_filters(tmp_path, records, jsonl):
    for number, record in enumerate(records):
        record["meta"] = {"tags": ["cs.CR", "math"] if number % 4 == 0 else ["math"]}
    path = jsonl(tmp_path / "a.jsonl", records)
    row = local_row(path, keep=(("meta.tags", r"\bcs\.CR\b"),), drop=(("text", r"number 0:"),))
    kept = [r for n, r in enumerate(records) if n % 4 == 0 and "number 0:" not in r["text"]]
    assert fetched(row, tmp_path / "hub") == [(r["label"], r["text"]) for r in kept]


def test_fields_are_joined_and_unknown_ones_named(tmp_path, jsonl):
    found = [
        {"title": "T", "body": "B", "label": "core"},
        {"title": "U", "body": "", "label": "core"},
    ]
    path = jsonl(tmp_path / "a.jsonl", found)
    assert fetched(local_row(path, text_fields=("title", "body")), tmp_path / "a") == [
        ("core", "T\n\nB"),
        ("core", "U"),
    ]
    with refused("json: field", "abstract"):
        fetched(local_row(path, text_fields=("abstract",)), tmp_path / "b")
    with refused("json: label", "core"):
        fetched(local_row(path, text_fields=("title",), labels=("other",)), tmp_path / "c")


def test_records_without_a_field_are_left_out_and_counted(
    tmp_path, jsonl, records, settings, monkeypatch
):
    """Twenty have no `lang`: they are counted, `prepare` says how many, and nothing else is
    lost."""
    found = [record if n % 6 == 1 else {**record, "lang": "en"} for n, record in enumerate(records)]
    row = local_row(jsonl(tmp_path / "a.jsonl", found), keep=(("lang", "en"),))
    small_parts(monkeypatch)
    entry = catalog.HubCorpus((row,), ("core",), core_tokens=3_000, aux_share=1.0)
    monkeypatch.setitem(catalog.CORPORA, "here", entry)
    packed = prepare(resolve("here", Packing(**settings)), tmp_path / "data")
    assert packed.manifest["duplicates"]["documents"] == 100
    (skipped,) = packed.warnings
    assert re.match(r"json train \[label\]: .*\b20 ", skipped)


def test_a_field_that_no_record_has_is_an_error_at_once(tmp_path, jsonl, records, monkeypatch):
    """After the first records, not at the end of the stream."""
    monkeypatch.setattr(hub, "FIRST_RECORDS", 5)
    broken = [*records[:20], {"text": 1}]  # the stream breaks here
    row = local_row(jsonl(tmp_path / "a.jsonl", broken), keep=(("meta.pages", "x"),))
    with refused("json: field", "meta.pages"):
        fetched(row, tmp_path / "hub")


def test_a_test_split_is_validation_alone(tmp_path, jsonl, records, settings, monkeypatch):
    """Its texts are in validation, also where training text repeats one.

    Of the rest only what it lacks is held out.
    """
    path = jsonl(tmp_path / "train.jsonl", records)
    own = [{**record, "text": "held out: " + record["text"]} for record in records] + records[:1]
    row = local_row(path, available_tokens=10**6)
    held_out = local_row(jsonl(tmp_path / "test.jsonl", own), available_tokens=10**6, held_out=True)
    monkeypatch.setitem(
        catalog.CORPORA, "here", catalog.HubCorpus((row, held_out), ("core",), 10**6, 1.0)
    )
    packed = prepare(
        resolve("here", Packing(**{**settings, "sample_bytes": 10**9})), tmp_path / "data"
    )
    counts = packed.manifest["domains"].values()
    num_held_out = sum(1 for r in records if r == records[0])
    assert sum(d["validation"]["num_documents"] for d in counts) == len(own) + num_held_out
    assert sum(d["train"]["num_documents"] for d in counts) == len(records) - num_held_out


@pytest.mark.parametrize("stop_after", [1, 3])
def test_a_broken_fetch_goes_on_where_it_stopped(tmp_path, records, jsonl, monkeypatch, stop_after):
    """Interrupted after some parts and in the middle of one: the same parts in the end, and nothing
    read twice."""
    small_parts(monkeypatch)
    row = local_row(jsonl(tmp_path / "a.jsonl", records))
    whole = fetched(row, tmp_path / "whole")

    class Break(Exception):
        pass

    def broken(what, done, total, count=[0]):  # noqa: B006 - one counter for the calls of this test
        count[0] += 1
        if count[0] == stop_after:
            raise Break

    with pytest.raises(Break):
        hub.fetch(HubSource((row,), (BIG,)), tmp_path / "hub", broken)
    folder = tmp_path / "hub" / hub.row_id(row)
    done = {p: p.stat().st_mtime_ns for p in folder.glob("part-*")}
    assert len(done) == stop_after
    (folder / ".part-00009.jsonl.zst.1").write_bytes(b"half")
    assert fetched(row, tmp_path / "hub") == whole == [(r["label"], r["text"]) for r in records]
    assert all(p.stat().st_mtime_ns == at for p, at in done.items())


def test_corpora_share_what_is_fetched(tmp_path, records, jsonl, monkeypatch):
    """A smaller need reads the first parts, a larger one goes on: the same records whatever was
    asked for before."""
    small_parts(monkeypatch)
    row = local_row(jsonl(tmp_path / "a.jsonl", records))
    fresh = {
        num_bytes: fetched(row, tmp_path / str(num_bytes), num_bytes)
        for num_bytes in (3_000, 9_000)
    }
    assert [fetched(row, tmp_path / "hub", n) for n in (9_000, 3_000, 9_000)] == [
        fresh[n] for n in (9_000, 3_000, 9_000)
    ]
    assert [fetched(row, tmp_path / "up", n) for n in (3_000, 9_000)] == [
        fresh[3_000],
        fresh[9_000],
    ]
    for num_bytes, found in fresh.items():
        assert num_bytes <= sum(len(text.encode()) for _, text in found) < num_bytes + 2 * 2_000
    assert fresh[9_000][: len(fresh[3_000])] == fresh[3_000]


def backwards(function, tasks):
    """Workers that begin with the last task."""
    return ((index, function(tasks[index])) for index in reversed(range(len(tasks))))


def test_shards_are_fetched_side_by_side_and_taken_in_order(tmp_path, jsonl, labelled, monkeypatch):
    """As many as the bytes need, and the same parts whatever was asked for before.

    One that has no record is empty.
    """
    small_parts(monkeypatch)
    shards = [labelled(seed, num) for seed, num in enumerate((9, 1, 30, 4, 12, 20))]
    shards[3] = [{**record, "text": "other"} for record in shards[3]]
    files = tuple(
        str(jsonl(tmp_path / f"{number}.jsonl", shard)) for number, shard in enumerate(shards)
    )
    row = dataclasses.replace(local_row(tmp_path), files=files, keep=(("text", "number"),))
    whole = [(r["label"], r["text"]) for shard in shards for r in shard if "number" in r["text"]]

    def taken(folder, num_bytes: int, workers) -> list[tuple[str, str]]:
        units, _ = hub.fetch(HubSource((row,), (num_bytes,)), folder, lambda *a: None, workers)
        return [record for unit in units for record in read_unit(unit)]

    fresh = {n: taken(tmp_path / str(n), n, hub.in_turn) for n in (1_000, 9_000, 30_000, BIG)}
    assert fresh[BIG] == whole
    for num_bytes, found in fresh.items():
        assert found == whole[: len(found)]
        assert min(num_bytes, sum(len(t.encode()) for _, t in whole)) <= sum(
            len(t.encode()) for _, t in found
        )
        assert (
            len(found) == len(whole) or sum(len(t.encode()) for _, t in found) < num_bytes + 3_000
        )
    assert len({len(found) for found in fresh.values()}) == 4
    for num_bytes in (9_000, BIG, 1_000, 30_000):
        assert taken(tmp_path / "shared", num_bytes, backwards) == fresh[num_bytes]
    times = {p: p.stat().st_mtime_ns for p in (tmp_path / "shared").rglob("*")}
    monkeypatch.setattr(hub, "_open_row", lambda *_: pytest.fail("it reads the hub again"))
    assert taken(tmp_path / "shared", BIG, backwards) == whole
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "shared").rglob("*")} == times


def test_check_names_a_label_that_a_row_lacks(tmp_path, records, jsonl, monkeypatch):
    row = local_row(jsonl(tmp_path / "a.jsonl", records))
    for labels, is_right in ((row.labels, True), (("core",), False)):
        entry = catalog.HubCorpus((dataclasses.replace(row, labels=labels),), ("core",))
        monkeypatch.setitem(catalog.CORPORA, "here", entry)
        (result,) = check("here")
        assert (result.ok, "['virology']" in result.found) == (is_right, not is_right)


def test_check_of_local_and_generated_corpora(corpus, tmp_path):
    assert [(r.ok, r.label, r.mark) for r in check(corpus)] == [(True, "core", "")]
    assert [r.ok for r in check("stories")] == [True]
    (corpus / "part.jsonl").write_text("{}\n")
    assert [(r.ok, "part.jsonl:1: " in r.found) for r in check(corpus)] == [(False, True)]
    with refused("corpus", "missing"):
        check("missing")


def test_a_pattern_that_is_none():
    with refused("hub row d: pattern of lang", "("):
        HubRow("d", "main", ("text",), 1.0, False, label="core", keep=(("lang", "("),))


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_a_field_that_has_the_whole_name_is_used_else_dots_descend(tmp_path, kind):
    """As `pandas.json_normalize` writes names, beside records that are nested, to any depth."""
    names = {"meta.label": "x", "body.text": "flat"}
    records = {"flat": names, "nested": {"meta": {"label": "x"}, "body": {"text": "nested"}}}
    records |= {"half": {"meta": {"label": "x"}, "body.text": "half", "body": {"text": "another"}}}
    for name, record in records.items():
        path = tmp_path / f"{name}.{kind}"
        if kind == "json":
            path.write_text(json.dumps(record) + "\n")
        else:
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist([record]), path)
        row = HubRow(
            kind,
            "main",
            ("body.text",),
            label_field="meta.label",
            labels=("x",),
            files=(str(path),),
        )
        assert hub.first_record(row) == ("x", name)
        assert hub.read_labels(dataclasses.replace(row, labels=("",))) == ("x",)
    deep = {"a.b": {"c": 0, "d.e": None}, "a": {"b": {"c": 1, "d": {"e": []}}}}
    names = ("a.b.c", "a.b.d.e", "a.b.x", "a.b.c.d", "a")
    assert [hub._value(deep, name) for name in names] == [0, [], None, None, deep["a"]]


ANOTHER = zstandard.compress(b'{"text": "a", "label": "core"}')


@pytest.mark.parametrize("damage", [lambda raw: raw[:-9], lambda raw: ANOTHER])
def test_fetched_text_that_was_damaged_is_fetched_again(
    tmp_path, records, jsonl, settings, monkeypatch, damage
):
    entry = catalog.HubCorpus(
        (local_row(jsonl(tmp_path / "a.jsonl", records)),), ("core",), 2_000, 1.0
    )
    monkeypatch.setitem(catalog.CORPORA, "here", entry)
    recipe, root = resolve("here", Packing(**settings)), tmp_path / "data"
    first = prepare(recipe, root)
    shutil.rmtree(first.path)
    (part,) = (root / "hub").rglob("part-00000.jsonl.zst")
    part.write_bytes(damage(part.read_bytes()))
    with pytest.raises(ChangedText):
        prepare(recipe, root)
    assert prepare(recipe, root).fingerprint == first.fingerprint
