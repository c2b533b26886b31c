"""Training sequences that are fetched from an object store as a run reads them: the right ones,
once."""

import dataclasses
import errno
import hashlib
import json
import os
import shutil
import threading

import numpy as np
import pytest

from gram_platform.config import DataConfig, DomainBudget, EvalPoints, ModelConfig
from gram_platform.config.routing import Schedule
from gram_platform.corpora import Packing, prepare, resolve
from gram_platform.corpora.packed import corpus_fingerprint
from gram_platform.engine.execution import Execution
from gram_platform.engine.node import execute_run, schedule_reader
from gram_platform.store import Store, files
from gram_platform.store.data import FetchedRows, open_corpus, provide_corpus
from gram_platform.store.folders import RemoteFolder
from tests.refused import refused
from tests.store.training import in_process, run_config

BLOCK_BYTES = 3_000  # some 45 rows of 66 bytes


def recipe():
    own = resolve("stories-smoke", Packing(seq_len=32, vocab_size=320, sample_bytes=50_000))
    return dataclasses.replace(own, permuted=True)


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gram_platform.corpora.pack.HASHED_BYTES", BLOCK_BYTES)
        return prepare(recipe(), tmp_path_factory.mktemp("permuted"))


@pytest.fixture
def stored(place, packed):
    """The store after a driver has uploaded the corpus, seen by a worker."""
    store = Store(place.url).open_for_writing()
    shutil.copytree(packed.path, store.data_root / packed.data_id)
    provide_corpus(recipe(), store)
    place.move_to("worker")
    return place


def file_of(place, packed, domain="core"):
    """The domain's training file in the storage."""
    return place.folder / "data" / packed.data_id / packed.manifest["files"][f"train/{domain}.bin"]


def times_fetched(place, packed, domain="core") -> int:
    return place.fetched().count(packed.manifest["files"][f"train/{domain}.bin"])


def num_blocks(packed, domain="core") -> int:
    return len(packed.manifest["blocks"]["files"][f"train/{domain}.bin"])


def wait_for_what_is_fetched_ahead() -> None:
    for thread in threading.enumerate():
        if thread.name == "fetch ahead":
            thread.join()


def read_all(url: str, data_id: str) -> None:
    corpus = open_corpus(Store(url), data_id)
    for domain in corpus.domains:
        corpus.train(domain)[:]


def a_run(packed):
    """A run of 20 or more sequences of each domain."""
    budgets = (
        DomainBudget(domain, 20 + number, 40) for number, domain in enumerate(packed.domains)
    )
    model, points = ModelConfig(1, 16, 2, 1, 64, 320, 32), EvalPoints(1, 2, packed.domains)
    data = DataConfig(packed.data_id, tuple(budgets))
    return dataclasses.replace(run_config(), model=model, data=data, eval_points=points)


def test_rows_are_fetched_when_they_are_read(stored, packed):
    corpus = open_corpus(Store(stored.url), packed.data_id)
    rows, expected = corpus.train("core"), packed.train("core")
    assert (len(rows), corpus.fingerprint) == (len(expected), packed.fingerprint)
    assert np.array_equal(corpus.validation("core"), packed.validation("core"))
    assert times_fetched(stored, packed) == 0
    for wanted, number in (
        (slice(0, 10), 1),
        (np.array([3, 7]), 1),
        (np.array([45]), 2),
        (np.array([300, 8]), 3),
    ):
        assert np.array_equal(rows[wanted], expected[wanted])
        assert times_fetched(stored, packed) == number
    assert np.array_equal(rows[:], expected[:])
    assert times_fetched(stored, packed) == num_blocks(packed)
    assert len(rows[:0]) == len(rows[np.array([], dtype=np.int64)]) == 0


def test_blocks_that_are_smaller_than_a_row(place, tmp_path, monkeypatch):
    monkeypatch.setattr("gram_platform.corpora.pack.HASHED_BYTES", 25)
    monkeypatch.setattr("gram_platform.corpora.pack.PIECE_BLOCKS", 1 << 20)
    small = prepare(recipe(), tmp_path / "packed")
    store = Store(place.url).open_for_writing()
    shutil.copytree(small.path, store.data_root / small.data_id)
    provide_corpus(recipe(), store)
    place.move_to("worker")
    rows, expected = open_corpus(Store(place.url), small.data_id).train("core"), small.train("core")
    for wanted in (np.array([0]), np.array([17, 5]), slice(len(expected) - 2, len(expected))):
        assert np.array_equal(rows[wanted], expected[wanted])


def test_the_first_rows_are_fetched_ahead(stored, packed):
    domain = packed.domains[1]
    corpus = open_corpus(Store(stored.url), packed.data_id, {"core": 46, domain: 1})
    wait_for_what_is_fetched_ahead()
    assert (times_fetched(stored, packed), times_fetched(stored, packed, domain)) == (2, 1)
    assert np.array_equal(corpus.train("core")[:46], packed.train("core")[:46])
    assert times_fetched(stored, packed) == 2
    open_corpus(Store(stored.url), packed.data_id, {"core": 10**9})
    wait_for_what_is_fetched_ahead()
    # Those of before are not fetched again.
    assert times_fetched(stored, packed) == num_blocks(packed)


def test_processes_of_one_machine_fetch_each_block_once(stored, packed):
    processes = [in_process(read_all, stored.url, packed.data_id) for _ in range(4)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert [times_fetched(stored, packed, d) for d in packed.domains] == [
        num_blocks(packed, d) for d in packed.domains
    ]


def test_a_damaged_block_is_fetched_again(stored, packed):
    """Also one that a killed process has written half of; the others are kept."""
    corpus = open_corpus(Store(stored.url), packed.data_id)
    corpus.train("core")[:]
    path = corpus.path / "train" / "core.bin"
    path.write_bytes(bytes(10) + path.read_bytes()[10:])
    assert np.array_equal(
        open_corpus(Store(stored.url), packed.data_id).train("core")[:], packed.train("core")
    )
    assert times_fetched(stored, packed) == num_blocks(packed) + 1
    path.write_bytes(path.read_bytes()[:BLOCK_BYTES])
    assert np.array_equal(
        open_corpus(Store(stored.url), packed.data_id).train("core")[:], packed.train("core")
    )


def test_damaged_validation_data_are_fetched_again(stored, packed):
    corpus = open_corpus(Store(stored.url), packed.data_id)
    (corpus.path / "validation" / "core.bin").write_bytes(b"?")
    again = open_corpus(Store(stored.url), packed.data_id)
    assert np.array_equal(again.validation("core"), packed.validation("core"))
    # Who reads meanwhile is not disturbed.
    assert np.array_equal(corpus.train("core")[:5], packed.train("core")[:5])


def test_a_damaged_storage_is_refused(stored, packed):
    file = file_of(stored, packed)
    file.write_bytes(bytes(10) + file.read_bytes()[10:])
    corpus = open_corpus(Store(stored.url), packed.data_id, {"core": 10})
    wait_for_what_is_fetched_ahead()
    assert np.array_equal(corpus.train("core")[50:60], packed.train("core")[50:60])
    with refused("storage"):
        corpus.train("core")[:1]
    manifest = file.parent / "manifest.json"
    manifest.write_text(
        json.dumps(packed.manifest | {"blocks": {"num_bytes": BLOCK_BYTES, "files": {}}})
    )
    with refused("storage"):
        open_corpus(Store(stored.url), packed.data_id)


def test_two_corpora_of_one_data_id_do_not_share_blocks(stored, packed):
    """As when a storage was emptied and filled anew: each manifest gets its own content, whichever
    came first."""
    file, texts = file_of(stored, packed), [json.dumps(packed.manifest)]
    content = bytes(10) + file.read_bytes()[10:]
    digest = hashlib.sha256(content).hexdigest()
    other = file.with_name(digest)
    other.write_bytes(content)
    manifest = json.loads(texts[0])
    manifest["blocks"]["files"]["train/core.bin"] = [
        hashlib.sha256(content[start : start + BLOCK_BYTES]).hexdigest()
        for start in range(0, len(content), BLOCK_BYTES)
    ]
    manifest["files"]["train/core.bin"] = digest
    texts.append(json.dumps(manifest | {"fingerprint": corpus_fingerprint(manifest["files"])}))
    for text, expected in zip([*texts, *texts], 2 * (file.read_bytes(), content), strict=True):
        (file.parent / "manifest.json").write_text(text)
        assert open_corpus(Store(stored.url), packed.data_id).train("core")[:].tobytes() == expected


def test_a_manifest_with_fewer_rows_cuts_no_file_that_a_process_has_mapped(stored, packed):
    """A process that reads beyond the end of a mapped file is killed (SIGBUS), in whatever run it
    is."""
    rows = open_corpus(Store(stored.url), packed.data_id).train("core")
    size, manifest = rows.path.stat().st_size, json.loads(json.dumps(packed.manifest))
    manifest["domains"]["core"]["train"]["num_sequences"] = 40
    blocks = manifest["blocks"]["files"]
    blocks["train/core.bin"] = blocks["train/core.bin"][: -(-40 * 66 // BLOCK_BYTES)]
    (file_of(stored, packed).parent / "manifest.json").write_text(json.dumps(manifest))
    with refused("storage"):
        open_corpus(Store(stored.url), packed.data_id)
    other = file_of(stored, packed)
    # The stored file is cut too: there is another copy on this machine then, not a shorter one.
    other.write_bytes(other.read_bytes()[:2640])
    open_corpus(Store(stored.url), packed.data_id)
    assert rows.path.stat().st_size == size
    FetchedRows(
        rows.path,
        (40, 33),
        np.dtype("<u2"),
        BLOCK_BYTES,
        blocks["train/core.bin"],
        lambda start, stop: b"",
    )
    assert rows.path.stat().st_size == size


def test_a_full_disk_says_what_to_do(stored, packed, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    rows = open_corpus(Store(stored.url), packed.data_id).train("core")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with refused("storage", str(rows.path.parent)):
            rows[:1]
    assert np.array_equal(rows[:1], packed.train("core")[:1])


def test_writes_that_are_cut_short_are_continued(stored, packed, monkeypatch):
    pwrite = os.pwrite
    monkeypatch.setattr(
        os, "pwrite", lambda descriptor, data, start: pwrite(descriptor, data[:1_000], start)
    )
    assert np.array_equal(
        open_corpus(Store(stored.url), packed.data_id).train("core")[:], packed.train("core")
    )


def test_a_reader_does_not_wait_for_what_is_fetched_ahead(stored, packed, monkeypatch):
    """Nor do errors there end it: it fetches what it needs itself."""
    read, go_on = RemoteFolder.read_range, threading.Event()

    def slow(self, name, start, end):
        if threading.current_thread().name == "fetch ahead":
            go_on.wait(60)
            raise PermissionError(errno.EACCES, "the credentials ran out")
        return read(self, name, start, end)

    monkeypatch.setattr(RemoteFolder, "read_range", slow)
    rows = open_corpus(Store(stored.url), packed.data_id, {"core": 10**9}).train("core")
    last = len(rows) - 1
    assert np.array_equal(rows[np.array([last])], packed.train("core")[[last]])
    go_on.set()
    wait_for_what_is_fetched_ahead()
    assert np.array_equal(rows[:], packed.train("core"))


def test_a_run_begins_before_its_data_are_here(stored, packed, monkeypatch):
    """Its first micro-batch waits for a block that holds its rows, and no other; a store that
    throttles delays it."""
    monkeypatch.setattr("gram_platform.store.data.fetch_ahead", lambda *_: None)
    monkeypatch.setattr(files, "_last_warned", -files.SILENCE_S)
    run = a_run(packed)
    reader, plan = schedule_reader(run, Execution(stored.url).corpus_of(run)), Schedule(run)
    stored.fail(2)
    with pytest.warns(RuntimeWarning, match="the storage fails"):
        reader.tokens(plan[0])
    fetched = {domain: times_fetched(stored, packed, domain) for domain in packed.domains}
    # Two of three calls failed.
    assert fetched == {domain: 3 * (domain == plan[0].domain) for domain in packed.domains}


def test_a_run_has_the_result_of_one_whose_machine_has_all_data(stored, packed, tmp_path):
    run = a_run(packed)
    local = Store(str(tmp_path / "local")).open_for_writing(min_free_bytes=0)
    shutil.copytree(packed.path, local.data_root / packed.data_id)
    expected = execute_run(run, {}, Execution(str(tmp_path / "local")))
    Store(stored.url).open_for_writing()
    assert execute_run(run, {}, Execution(stored.url)) == expected
