"""The hub's table, and streaming through `datasets` on local files: filters, labels, resuming."""

import dataclasses
import re

import pytest

from gram_platform.corpora import catalog, check, hub, prepare, resolve
from gram_platform.corpora.recipe import HubRow, HubSource
from gram_platform.corpora.records import read_unit

BIG = 10**9


def local_row(path, **changes) -> HubRow:
    row = HubRow("json", "local", ("text",), 1.0, False, label_field="label", labels=("core", "virology"))
    return dataclasses.replace(row, files=(str(path),), **changes)


def fetched(row: HubRow, folder, num_bytes=BIG) -> list[tuple[str, str]]:
    units = hub.fetch(HubSource((row,), (num_bytes,)), folder, lambda *a: None)
    return [record for unit in units for record in read_unit(unit)]


@pytest.mark.parametrize("name", sorted(catalog.HUB))
def test_the_table_is_well_formed(name):
    entry = catalog.HUB[name]
    assert sum(row.share for row in entry.rows) == pytest.approx(1.0, abs=0.002)
    labels = {label for row in entry.rows for label in row.all_labels}
    assert set(entry.core_labels) <= labels
    for row in entry.rows:
        assert re.fullmatch(r"[0-9a-f]{40}|main|live", row.revision)
        assert len(set(row.labels)) == len(row.labels)
        assert list(row.labels) == sorted(row.labels)


def test_recipes_exist_before_any_data_does():
    dual = resolve("dual-use", seq_len=1024, vocab_size=50_304)
    assert dual.domains == ("core", "cybersecurity", "lisp", "nuclear", "virology")
    assert dual.expected_sequences("train", "core") * 1024 > 16.1e9
    simple = resolve("simple-stories", seq_len=256, vocab_size=4096)
    assert simple.domains == ("core", "alien encounters", "bygone eras", "cultural traditions", "dinosaurs")
    assert len({dual.data_id, simple.data_id, resolve("dual-use", seq_len=512, vocab_size=50_304).data_id}) == 3


def test_a_mark_or_a_note_changes_no_id():
    row = catalog.HUB["simple-stories"].rows[0]
    marked = dataclasses.replace(row, verified=True, note="seen")
    assert marked.identity == row.identity
    assert hub.row_id(marked, 5) == hub.row_id(row, 5) != hub.row_id(dataclasses.replace(row, revision="main"), 5)


def test_a_row_is_streamed_with_its_filters(tmp_path, records, jsonl):
    for number, record in enumerate(records):
        record["meta"] = {"tags": ["cs.CR", "math"] if number % 4 == 0 else ["math"]}
    path = jsonl(tmp_path / "a.jsonl", records)
    row = local_row(path, keep=(("meta.tags", r"\bcs\.CR\b"),), drop=(("text", r"number 0:"),))
    kept = [r for n, r in enumerate(records) if n % 4 == 0 and "number 0:" not in r["text"]]
    assert fetched(row, tmp_path / "hub") == [(r["label"], r["text"]) for r in kept]


def test_fields_are_joined_and_unknown_ones_named(tmp_path, jsonl):
    path = jsonl(tmp_path / "a.jsonl", [{"title": "T", "body": "B", "label": "core"}, {"title": "U", "label": "core"}])
    assert fetched(local_row(path, text_fields=("title", "body")), tmp_path / "a") == [
        ("core", "T\n\nB"),
        ("core", "U"),
    ]
    with pytest.raises(ValueError, match=r"field='abstract'.*one of body, label, title"):
        fetched(local_row(path, text_fields=("abstract",)), tmp_path / "b")
    with pytest.raises(ValueError, match=r"label='core'.*add it there"):
        fetched(local_row(path, text_fields=("title",), labels=("other",)), tmp_path / "c")


@pytest.mark.parametrize("stop_after", [1, 3])
def test_a_broken_fetch_goes_on_where_it_stopped(tmp_path, records, jsonl, monkeypatch, stop_after):
    """Interrupted after some parts and in the middle of one: the same parts in the end, and nothing read twice."""
    monkeypatch.setattr(hub, "PART_BYTES", 2_000)
    row = local_row(jsonl(tmp_path / "a.jsonl", records))
    whole = fetched(row, tmp_path / "whole")
    assert len(list((tmp_path / "whole").rglob("part-*"))) > 5

    class Break(Exception):
        pass

    def broken(what, done, total, count=[0]):  # noqa: B006 - one counter for the calls of this test
        count[0] += 1
        if count[0] == stop_after:
            raise Break

    with pytest.raises(Break):
        hub.fetch(HubSource((row,), (BIG,)), tmp_path / "hub", broken)
    folder = tmp_path / "hub" / hub.row_id(row, BIG)
    done = {p: p.stat().st_mtime_ns for p in folder.glob("part-*")}
    assert len(done) == stop_after
    (folder / ".part-00009.jsonl.zst.1").write_bytes(b"half")
    assert fetched(row, tmp_path / "hub") == whole == [(r["label"], r["text"]) for r in records]
    assert all(p.stat().st_mtime_ns == at for p, at in done.items())


def test_a_row_stops_at_its_bytes(tmp_path, records, jsonl):
    found = fetched(local_row(jsonl(tmp_path / "a.jsonl", records)), tmp_path / "hub", num_bytes=3_000)
    sizes = [len(text.encode()) for _, text in found]
    assert sum(sizes) >= 3_000 > sum(sizes[:-1])


def test_a_hub_corpus_is_packed(tmp_path, records, jsonl, settings, monkeypatch):
    row = local_row(jsonl(tmp_path / "a.jsonl", records))
    entry = catalog.HubEntry((row,), 24_000, ("core",))
    monkeypatch.setitem(catalog.HUB, "here", entry)
    recipe = resolve("here", **settings)
    packed = prepare(recipe, tmp_path / "data")
    assert packed.domains == ("core", "virology")
    assert packed.manifest["duplicates"]["documents"] <= len(records)
    assert [r.ok for r in check("here")] == [True]

    entry = catalog.HubEntry((dataclasses.replace(row, labels=("core",)),), 24_000, ("core",))
    monkeypatch.setitem(catalog.HUB, "here", entry)
    assert "['virology']" in check("here")[0].found


def test_check_says_what_is_wrong_with_every_row(monkeypatch):
    """A hub that does not answer: one clear result a row, at once, and no exception."""
    monkeypatch.setattr("datasets.config.HF_ENDPOINT", "https://127.0.0.1:9")
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    results = check("simple-stories")
    assert [(r.ok, r.verified) for r in results] == [(False, False)]
    assert "SimpleStories/SimpleStories" in results[0].found
    assert "127.0.0.1 does not answer" in results[0].found


def test_check_of_local_and_generated_corpora(corpus, tmp_path):
    assert [(r.ok, r.label) for r in check(corpus)] == [(True, "core")]
    assert [r.ok for r in check("stories")] == [True]
    (corpus / "part.jsonl").write_text("{}\n")
    assert [(r.ok, "part.jsonl:1: label is missing" in r.found) for r in check(corpus)] == [(False, True)]
    with pytest.raises(ValueError, match="corpus='missing'"):
        check("missing")


def test_bad_rows(tmp_path):
    with pytest.raises(ValueError, match=r"label=''.*label_field is not"):
        HubRow("d", "main", ("text",), 1.0, False)
    with pytest.raises(ValueError, match="regular expression"):
        HubRow("d", "main", ("text",), 1.0, False, label="core", keep=(("lang", "("),))
