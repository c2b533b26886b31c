"""Packing: what the sequences hold, where documents go, and that it is all or nothing."""

import dataclasses
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from tokenizers import Tokenizer

from gram_platform.config.identity import hash_file
from gram_platform.config.routing import domain_permutation
from gram_platform.corpora import (
    CorruptCorpus,
    PackedCorpus,
    Packing,
    pack,
    prepare,
    resolve,
    sources,
)
from gram_platform.corpora import packed as packed_module
from gram_platform.corpora.packed import sequence_path, token_dtype
from gram_platform.corpora.records import ChangedText
from gram_platform.corpora.tokenizer import END_OF_TEXT, end_of_text_id, load_tokenizer
from tests.refused import refused
from tests.tiny import documents_in


def texts(packed: PackedCorpus, split: str, domain: str) -> list[str]:
    """The documents of a split, decoded; the last may be cut."""
    tokenizer = Tokenizer.from_file(str(packed.tokenizer_path))
    rows = packed.sequences(split, domain)
    stream = np.concatenate([rows[0, :1], rows[:, 1:].reshape(-1)]).tolist()
    end, found = end_of_text_id(tokenizer), [[]]
    for token in stream:
        found.append([]) if token == end else found[-1].append(token)
    return [tokenizer.decode(tokens) for tokens in found if tokens]


def test_sequences_hold_the_documents_and_nothing_else(tmp_path, corpus, records, settings):
    packed = prepare(resolve(corpus, Packing(**settings)), tmp_path / "data")
    known = {
        domain: [r["text"] for r in records if r["label"] == domain] for domain in packed.domains
    }
    for domain in packed.domains:
        found = {split: texts(packed, split, domain) for split in ("train", "validation")}
        for split, documents in found.items():
            rows = packed.sequences(split, domain)
            assert rows.shape == (packed.num_sequences(split, domain), packed.seq_len + 1)
            # Each row starts with the last token of the one before.
            assert (rows[1:, 0] == rows[:-1, -1]).all()
            assert rows.dtype == np.dtype("<u2")
            assert set(documents[:-1]) <= set(known[domain])
            assert any(text.startswith(documents[-1].rstrip("\ufffd")) for text in known[domain])
            assert documents_in(packed, split, domain) - len(documents) in (0, 1)
        assert not set(found["train"][:-1]) & set(found["validation"])
        assert sum(documents_in(packed, s, domain) for s in found) == len(known[domain])


def test_preparing_again_is_a_no_op(tmp_path, corpus, settings):
    recipe, root = resolve(corpus, Packing(**settings)), tmp_path / "data"
    packed = prepare(recipe, root)
    times = {p: p.stat().st_mtime_ns for p in packed.path.rglob("*")}
    again = prepare(recipe, root, progress=lambda *a: pytest.fail("it read something"))
    assert again.manifest == packed.manifest
    assert {p: p.stat().st_mtime_ns for p in packed.path.rglob("*")} == times
    assert sorted(p.name for p in root.iterdir()) == [recipe.data_id]


def test_equal_recipes_pack_to_equal_bytes(tmp_path, corpus, settings):
    recipe = resolve(corpus, Packing(**settings))
    code = (
        "import sys; from gram_platform.corpora import Packing, prepare, resolve;"
        f"r = resolve(sys.argv[1], Packing(**{settings!r}));"
        "print(prepare(r, sys.argv[2]).fingerprint)"
    )
    other = subprocess.run(
        [sys.executable, "-c", code, str(corpus), str(tmp_path / "other")],
        env={**os.environ, "PYTHONHASHSEED": "5", "RAYON_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert prepare(recipe, tmp_path / "data").fingerprint == other.stdout.strip()


def test_the_tokenizer_is_saved_and_given_ones_are_used(tmp_path, corpus, settings):
    packed = prepare(resolve(corpus, Packing(**settings)), tmp_path / "data")
    assert packed.manifest["tokenizer_sha256"] == hash_file(packed.tokenizer_path)
    given = resolve(
        corpus, Packing(**{**settings, "vocab_size": 70_000}, tokenizer=str(packed.tokenizer_path))
    )
    assert given.tokenizer.source == packed.manifest["tokenizer_sha256"]
    other = prepare(given, tmp_path / "data")
    assert other.train("core").dtype == np.dtype("<u4")
    assert [token_dtype(size).itemsize for size in (65_535, 65_536)] == [2, 4]
    np.testing.assert_array_equal(other.train("core"), packed.train("core"))
    with refused("vocab_size", 260):
        resolve(
            corpus, Packing(**{**settings, "vocab_size": 260}, tokenizer=str(packed.tokenizer_path))
        )
    with refused("tokenizer", "nowhere"):
        resolve(corpus, Packing(**settings, tokenizer="nowhere"))
    endless = json.loads(packed.tokenizer_path.read_text().replace(END_OF_TEXT, "<|other|>"))
    (tmp_path / "endless.json").write_text(json.dumps(endless))
    with refused("tokenizer"):
        resolve(corpus, Packing(**settings, tokenizer=str(tmp_path / "endless.json")))


def test_a_tokenizer_of_the_hub_is_checked_before_anything_is_read(
    tmp_path, corpus, settings, monkeypatch
):
    packed = prepare(resolve(corpus, Packing(**settings)), tmp_path / "data")
    monkeypatch.setattr(pack, "hub_tokenizer", lambda source: load_tokenizer(packed.tokenizer_path))
    recipe = resolve(
        corpus, Packing(**{**settings, "vocab_size": 260}, tokenizer="owner/name@main")
    )
    with refused("vocab_size", 260):
        prepare(recipe, tmp_path / "data", progress=lambda *a: pytest.fail("it read something"))


def test_text_cannot_spell_the_end_of_text(tmp_path, records, settings, jsonl):
    for record in records:
        record["text"] += " <|endoftext|> and on"
    packed = prepare(
        resolve(jsonl(tmp_path / "a.jsonl", records), Packing(**settings)), tmp_path / "data"
    )
    assert all("<|endoftext|> and on" in text for text in texts(packed, "train", "core")[:-1])


def test_duplicates_land_on_one_side_and_are_counted(tmp_path, records, settings, jsonl):
    """Repeats, texts under two labels and texts that differ in case and blanks only, with unequal
    held-out shares."""
    small = [r for r in records if r["label"] == "virology"][:12]
    large = [r for r in records if r["label"] == "core"]
    again = [{"text": "  " + r["text"].upper().replace(" ", "  "), "label": "core"} for r in small]
    path = jsonl(tmp_path / "a.jsonl", large + small + again + small[:3])
    recipe = resolve(path, Packing(**{**settings, "validation_sequences": 20}))
    assert recipe.validation_share("virology") > recipe.validation_share("core")
    packed = prepare(recipe, tmp_path / "data")
    assert packed.manifest["duplicates_across_splits"] == 0
    assert packed.manifest["duplicates"] == {
        "documents": len(large) + 27,
        "repeated_documents": 15,
        "texts_in_several_domains": 12,
        "texts_in_both_splits": 0,
    }


def test_a_domain_needs_sequences_in_both_splits(tmp_path, records, settings, jsonl):
    short = [{"text": f"too short {index}", "label": "tiny"} for index in range(2)]
    path = jsonl(tmp_path / "a.jsonl", [*records, *short])
    with refused("label 'tiny'"):
        prepare(resolve(path, Packing(**settings)), tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


def test_files_that_changed_since_the_recipe(tmp_path, corpus, settings):
    recipe = resolve(corpus, Packing(**settings))
    with (corpus / "part.jsonl").open("a") as handle:
        handle.write('{"text": "one more", "label": "core"}\n')
    with pytest.raises(ChangedText) as caught:
        prepare(recipe, tmp_path / "data")
    assert caught.value.paths == (corpus / "part.jsonl",)


def test_damage_is_found_and_repaired(tmp_path, corpus, settings):
    recipe = resolve(corpus, Packing(**settings))
    packed = prepare(recipe, tmp_path / "data")
    file, before = packed.path / "train" / "core.bin", packed.fingerprint
    raw = file.read_bytes()
    file.write_bytes(bytes([raw[0] ^ 1]) + raw[1:])
    with pytest.raises(CorruptCorpus):
        PackedCorpus.open(packed.path)
    for damage in (
        lambda: file.write_bytes(raw[:-2]),
        file.unlink,
        (packed.path / "manifest.json").unlink,
    ):
        damage()
        with pytest.raises(CorruptCorpus):
            PackedCorpus.open(packed.path)
        again = prepare(recipe, tmp_path / "data")
        again.verify()
        assert again.fingerprint == before


def test_a_manifest_that_changed_is_compared_again(tmp_path, corpus, settings):
    packed = prepare(resolve(corpus, Packing(**settings)), tmp_path / "data")
    manifest = packed.path / "manifest.json"
    fields, other = json.loads(manifest.read_text()), "0" * 64
    for change in (
        {"files": {**fields["files"], "train/core.bin": other}},
        {"files": {}},
        {"fingerprint": other[:16]},
        {"layout": 2},
    ):
        manifest.write_text(json.dumps({**fields, **change}))
        with pytest.raises(CorruptCorpus):
            PackedCorpus.open(packed.path)


def test_contents_are_compared_once_a_machine_and_again_after_a_change(
    tmp_path, corpus, settings, monkeypatch
):
    """Also after one that keeps size and time, as of a sequence that was put into another domain's
    file."""
    packed = prepare(resolve(corpus, Packing(**settings)), tmp_path / "data")
    read, hashed = packed_module.hash_file, []
    monkeypatch.setattr(
        packed_module, "hash_file", lambda path: (hashed.append(path.name), read(path))[1]
    )
    PackedCorpus.open(packed.path)
    assert hashed == []
    file = packed.path / "train" / "core.bin"
    before = file.stat()
    with file.open("r+b") as handle:
        handle.write((packed.path / "validation" / "core.bin").read_bytes()[:40])
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(CorruptCorpus):
        PackedCorpus.open(packed.path)
    monkeypatch.setenv("GRAM_CACHE", str(tmp_path / "another machine"))
    assert (
        prepare(resolve(corpus, Packing(**settings)), tmp_path / "data").fingerprint
        == packed.fingerprint
    )
    assert hashed.count("tokenizer.json") >= 1


def test_killed_half_way_and_prepared_again(tmp_path, settings, jsonl, labelled, monkeypatch):
    """kill -9 while parts are being packed: nothing under the corpus' name, and the next attempt
    lacks one part alone.

    A part that is half written is written again.
    """
    monkeypatch.setattr(sources, "PIECE_BYTES", 200_000)
    code = (
        "import sys; from gram_platform.corpora import Packing, prepare, resolve, sources;"
        " sources.PIECE_BYTES = 200_000;"
        f"prepare(resolve(sys.argv[1], Packing(**{settings!r})), sys.argv[2],"
        " lambda *a: print(*a, flush=True))"
    )
    root, path = tmp_path / "data", jsonl(tmp_path / "large.jsonl", labelled(num=4000))
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path), str(root)], stdout=subprocess.PIPE, text=True
    )
    for line in process.stdout:
        if line.startswith("packing, part 3 of"):
            process.send_signal(signal.SIGKILL)
            break
    process.wait()
    process.stdout.close()
    recipe, said = resolve(path, Packing(**settings)), []
    parts, staging = sorted((p for p in root.iterdir()), reverse=True)
    assert parts.name == f".parts-{recipe.data_id}"
    assert staging.name.startswith(f".{recipe.data_id}.")
    num_done = len(list(parts.glob("packing-*")))
    assert num_done >= 3
    for half in parts.glob(".packing-*"):
        (half / "counts.json").write_text("[")
    prepare(recipe, root, lambda *report: said.append(report[0])).verify()
    numbers = [line.split(",")[1] for line in said if line.startswith("packing")]
    total = len(numbers) + num_done
    assert numbers == [f" part {number} of {total}" for number in range(num_done + 1, total + 1)]
    # Keys and the sample had been written.
    assert not [line for line in said if not line.startswith("packing")]
    assert [p.name for p in root.iterdir()] == [recipe.data_id]


# Bytes of a block, blocks of a piece: many rows to a piece, pieces that cut rows, one piece.
PIECES = [(1_000, 3), (501, 1), (1 << 21, 128)]


@pytest.mark.parametrize(("block_bytes", "num_blocks"), PIECES)
def test_permuted_rows_are_the_same_rows_in_the_order_of_the_permutation(
    tmp_path, corpus, settings, monkeypatch, block_bytes, num_blocks
):
    monkeypatch.setattr(pack, "HASHED_BYTES", block_bytes)
    monkeypatch.setattr(pack, "PIECE_BLOCKS", num_blocks)
    recipe = resolve(corpus, Packing(**settings))
    recipes = [recipe, replace(recipe, permuted=True)]
    assert "permuted" not in recipes[0].plain()
    assert recipes[0].data_id != recipes[1].data_id
    packed, permuted = (prepare(recipe, tmp_path / "data") for recipe in recipes)
    assert (packed.is_permuted, permuted.is_permuted) == (False, True)
    for domain in packed.domains:
        np.testing.assert_array_equal(permuted.validation(domain), packed.validation(domain))
        size = packed.num_sequences("train", domain)
        order = domain_permutation(permuted.data_id, domain, size)(np.arange(size))
        np.testing.assert_array_equal(permuted.train(domain), packed.train(domain)[order])
        assert not np.array_equal(permuted.train(domain), packed.train(domain))
        path = sequence_path("train", domain)
        raw = (permuted.path / path).read_bytes()
        blocks = [raw[at : at + block_bytes] for at in range(0, len(raw), block_bytes)]
        digests = [hashlib.sha256(block).hexdigest() for block in blocks]
        assert permuted.manifest["blocks"]["files"][path] == digests


def test_joining_goes_on_after_a_kill_and_any_workers_write_the_same_bytes(
    tmp_path, corpus, settings, monkeypatch
):
    monkeypatch.setattr(pack, "HASHED_BYTES", 1_000)
    monkeypatch.setattr(pack, "PIECE_BLOCKS", 1)
    recipe = replace(resolve(corpus, Packing(**settings)), permuted=True)
    arranged, said = [], []

    def backwards(function, tasks):
        for index in reversed(range(len(tasks))):
            yield index, function(tasks[index])

    def killed(function, tasks):
        for index, result in backwards(function, tasks):
            yield index, result
            arranged.extend((tmp_path / "data").glob(".parts-*/arranging-*"))
            if len(arranged) >= 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(recipe, tmp_path / "data", workers=killed)
    found = prepare(recipe, tmp_path / "data", lambda *report: said.append(report[0]), backwards)
    numbers = [int(line.split()[2]) for line in said if line.startswith("arranging")]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert numbers[0] >= 2
    assert not [line for line in said if line.startswith(("packing", "splitting"))]
    expected = prepare(recipe, tmp_path / "undisturbed")
    for file in (file for file in expected.path.rglob("*") if file.is_file()):
        assert (found.path / file.relative_to(expected.path)).read_bytes() == file.read_bytes()


def test_a_damaged_part_is_packed_anew(tmp_path, corpus, settings, monkeypatch):
    """As by a power failure: neither tokens nor keys that differ get into a corpus, and the next
    attempt has none."""
    recipe, root = resolve(corpus, Packing(**settings)), tmp_path / "data"
    expected = prepare(recipe, tmp_path / "whole").fingerprint
    for name in ("keys.bin", "train-core.bin"):

        def stop(*_, name=name):
            (file,) = root.glob(f".parts-*/packing-*/{name}")
            file.write_bytes(file.read_bytes()[:-8] + bytes(8))
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(pack, "count_duplicates", stop)
            with pytest.raises(KeyboardInterrupt):
                prepare(recipe, root)
        with pytest.raises(ValueError, match=name):
            prepare(recipe, root)
        assert list(root.iterdir()) == []
    assert prepare(recipe, root).fingerprint == expected


def test_another_container_with_this_host_name_keeps_its_half_packed_corpus(tmp_path, monkeypatch):
    """Its pid may mean nothing here, or another process."""
    with monkeypatch.context() as there:
        there.setattr(
            packed_module, "this_place", lambda: f"{socket.gethostname()} pid:[1]", raising=False
        )
        there.setattr(os, "getpid", lambda: 2**22 + 1)  # no process of ours has this one
        theirs = packed_module.new_staging(tmp_path, "abc")
    ours = packed_module.new_staging(tmp_path, "abc")
    assert set(tmp_path.iterdir()) == {theirs, ours}
    with monkeypatch.context() as patch:
        patch.setattr(packed_module, "STALE_S", -60.0)
        last = packed_module.new_staging(tmp_path, "abc")
    assert set(tmp_path.iterdir()) == {ours, last}


def test_two_at_once_both_end_well(tmp_path, corpus, settings):
    recipe = resolve(corpus, Packing(**settings))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: prepare(recipe, tmp_path / "data").fingerprint, range(4)))
    assert len(set(found)) == 1
    assert [p.name for p in (tmp_path / "data").iterdir()] == [recipe.data_id]


def test_a_root_that_cannot_be_written(tmp_path, corpus, settings):
    (tmp_path / "file").write_text("")
    with refused("storage", str(tmp_path / "file" / "data")):
        prepare(resolve(corpus, Packing(**settings)), tmp_path / "file" / "data")


def test_a_disk_that_fills_up(tmp_path, corpus, settings):
    """A limit on file size stands for a full disk: the error names the storage, and nothing is left
    behind."""
    code = (
        "import resource, signal, sys; from gram_platform.corpora import Packing, prepare,"
        " resolve;signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        " resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000));prepare(resolve(sys.argv[1],"
        f" Packing(**{settings!r})), sys.argv[2])"
    )
    arguments = [sys.executable, "-c", code, str(corpus), str(tmp_path / "data")]
    ended = subprocess.run(arguments, capture_output=True, text=True)
    assert "InvalidField: storage=" in ended.stderr
    assert list((tmp_path / "data").iterdir()) == []


def test_few_documents_are_split_too(tmp_path, settings, jsonl):
    """Ten long documents a label: a plain 5% would often hold out none."""
    words = "one two three four five six seven eight nine ten"
    for seed in range(3):
        records = [
            {"text": f"{label} {index} {words} " * 200, "label": label}
            for label in ("core", "code")
            for index in range(10)
        ]
        recipe = resolve(jsonl(tmp_path / "a.jsonl", records), Packing(**settings))
        recipe = dataclasses.replace(recipe, split_seed=seed)
        packed = prepare(recipe, tmp_path / "data")
        assert (
            min(documents_in(packed, s, d) for s in ("train", "validation") for d in packed.domains)
            > 0
        )


def test_the_manifest_says_what_was_made(tmp_path, settings):
    recipe = resolve("stories-smoke", Packing(seq_len=32, vocab_size=512, sample_bytes=100_000))
    packed = prepare(recipe, tmp_path)
    manifest = json.loads((packed.path / "manifest.json").read_text())
    assert manifest["data_id"] == recipe.data_id == packed.path.name
    assert manifest["recipe"] == recipe.plain()
    assert packed.domains == recipe.domains == ("core", "airport", "attic", "bakery", "beach")
    for domain in packed.domains:
        for split in ("train", "validation"):
            assert (
                0.5
                < packed.num_sequences(split, domain) / recipe.estimate_sequences(split, domain)
                < 2
            )
        assert packed.num_sequences("validation", domain) >= recipe.validation_sequences


def test_opening_needs_numpy_alone():
    banned = {"tokenizers", "datasets", "pyarrow", "zstandard", "torch"}
    code = (
        f"import sys; from gram_platform.corpora import PackedCorpus; assert not {banned} &"
        " set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
