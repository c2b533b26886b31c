"""Packed data in an object store: every machine gets it once, whole, and the very same."""

import errno
import json
import os
import pickle
import shutil
import threading
import warnings

import fsspec
import numpy as np
import pytest

from gram_platform.corpora import Packing, prepare, resolve
from gram_platform.engine.execution import Execution
from gram_platform.store import Store, files, remote_folder
from gram_platform.store.data import open_corpus, provide_corpus
from gram_platform.store.folders import RemoteFolder
from tests.refused import refused
from tests.store.training import in_process, run_config, train
from tests.tiny import weights_of


@pytest.fixture(scope="module")
def recipe():
    return resolve("stories-smoke", Packing(seq_len=32, vocab_size=320, sample_bytes=50_000))


@pytest.fixture(scope="module")
def packed(recipe, tmp_path_factory):
    return prepare(recipe, tmp_path_factory.mktemp("packed"))


@pytest.fixture
def provided(place, recipe, packed):
    """The store after a driver has uploaded the data."""
    store = Store(place.url).open_for_writing()
    shutil.copytree(packed.path, store.data_root / recipe.data_id)  # packed once for all tests
    provide_corpus(recipe, store)
    return place


def assert_same(corpus, other) -> None:
    corpus.verify()
    assert corpus.manifest == other.manifest
    assert corpus.domains == other.domains
    for domain in corpus.domains:
        assert np.array_equal(corpus.train(domain), other.train(domain))


def test_two_machines_fetch_what_the_driver_uploaded(provided, recipe, packed):
    num_files = len(packed.manifest["files"])
    assert len(provided.calls("put_file")) == num_files
    assert provided.fetched() == []  # the driver has it
    for number, machine in enumerate(("first", "second"), start=1):
        provided.move_to(machine)
        for _ in range(2):
            corpus = Execution(provided.url).corpus(recipe.data_id)
            assert corpus.path.is_relative_to(provided.root / machine)
            assert_same(corpus, packed)
        assert len(provided.fetched()) == number * num_files


def test_a_second_driver_neither_packs_nor_uploads(provided, recipe, packed, monkeypatch):
    provided.move_to("another driver")
    monkeypatch.setattr(
        "gram_platform.corpora.pack.prepare", lambda *_: pytest.fail("packed again")
    )
    assert_same(provide_corpus(recipe, Store(provided.url).open_for_writing()), packed)
    assert len(provided.calls("put_file")) == len(packed.manifest["files"])


def test_processes_of_one_machine_fetch_once(provided, recipe, packed):
    provided.move_to("worker")
    processes = [in_process(open_corpus, Store(provided.url), recipe.data_id) for _ in range(3)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 3
    assert len(provided.fetched()) == len(packed.manifest["files"])


def test_a_download_that_was_cut_short_is_continued(provided, recipe, packed, monkeypatch):
    """In the middle of a file; only what other connections were reading is read again."""
    read, pieces, failed = RemoteFolder.read_range, [], []

    def failing(self, name, start, end):
        pieces.append((name, start))
        if len(pieces) > 3 and start and not failed:
            failed.append(start)
            raise PermissionError(errno.EACCES, "the credentials ran out")
        return read(self, name, start, end)

    monkeypatch.setattr(remote_folder, "CHUNK_BYTES", 100_000)
    monkeypatch.setattr(RemoteFolder, "read_range", failing)
    provided.move_to("worker")
    with pytest.raises(PermissionError):
        open_corpus(Store(provided.url), recipe.data_id)
    assert failed, "in the middle of a file"
    assert_same(open_corpus(Store(provided.url), recipe.data_id), packed)
    assert len(set(pieces)) < len(pieces) <= len(set(pieces)) + remote_folder.CONNECTIONS
    assert not list((provided.root / "worker").rglob(f".fetch-{recipe.data_id}"))


def test_chunks_of_a_file_are_read_side_by_side(place, tmp_path, monkeypatch):
    read, together = RemoteFolder.read_range, threading.Barrier(4, timeout=20)

    def meeting(self, name, start, end):
        together.wait()
        return read(self, name, start, end)

    monkeypatch.setattr(remote_folder, "CHUNK_BYTES", 1_000)
    monkeypatch.setattr(remote_folder, "CONNECTIONS", 4)
    monkeypatch.setattr(RemoteFolder, "read_range", meeting)
    folder = Store(place.url).open_for_writing().data_dir("0" * 12)
    folder.write("numbers", content := bytes(range(256)) * 60 + b"end of 16 chunks")
    folder.download("numbers", str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == content


def test_an_upload_that_was_cut_short_is_completed(place, recipe, packed, monkeypatch):
    store = Store(place.url).open_for_writing()
    shutil.copytree(packed.path, store.data_root / recipe.data_id)
    upload = type(store.data_dir("x")).upload

    def failing(self, name, path):
        if len(place.calls("put_file")) == 2:
            raise PermissionError(errno.EACCES, "the credentials ran out")
        upload(self, name, path)

    with monkeypatch.context() as patch:
        patch.setattr(type(store.data_dir("x")), "upload", failing)
        with pytest.raises(PermissionError):
            provide_corpus(recipe, store)
    place.move_to("worker")
    with refused("storage", place.url):
        open_corpus(Store(place.url), recipe.data_id)
    place.move_to("driver")
    provide_corpus(recipe, store)
    assert len(place.calls("put_file")) == len(packed.manifest["files"])
    place.move_to("worker")
    assert_same(open_corpus(Store(place.url), recipe.data_id), packed)


def test_a_broken_copy_is_replaced_and_a_broken_store_refused(provided, recipe, packed):
    provided.move_to("worker")
    copy = open_corpus(Store(provided.url), recipe.data_id).path
    (copy / "train/core.bin").write_bytes(b"?")
    assert_same(open_corpus(Store(provided.url), recipe.data_id), packed)
    (copy / "manifest.json").write_text(
        (copy / "manifest.json").read_text().replace(packed.fingerprint, "0" * 16)
    )
    assert_same(open_corpus(Store(provided.url), recipe.data_id), packed)

    digest = packed.manifest["files"]["train/core.bin"]
    stored = provided.folder / "data" / recipe.data_id / digest
    stored.write_bytes(bytes(stored.stat().st_size))
    provided.move_to("another worker")
    with refused("storage"):
        open_corpus(Store(provided.url), recipe.data_id)
    assert not list((provided.root / "another worker").rglob("manifest.json"))


@pytest.mark.parametrize("kind", ["absolute", "above", "domain", "nested"])
def test_a_hostile_manifest_writes_nothing_outside_the_cache(
    provided, recipe, packed, tmp_path, kind
):
    """Whoever can write the bucket must not be able to write another file of a machine that reads
    it."""
    manifest, outside = (
        json.loads(json.dumps(packed.manifest)),
        tmp_path / "elsewhere" / "authorized_keys",
    )
    stored = provided.folder / "data" / recipe.data_id
    (stored / "payload").write_bytes(b"ssh-rsa")
    name = (
        str(outside)
        if kind == "absolute"
        else os.path.relpath(outside, provided.root / "a worker" / "a" / "b")
    )
    if kind in ("absolute", "above"):
        manifest["files"] = {
            f"{'../' * 12}{name}" if kind == "above" else name: "payload"
        } | manifest["files"]
    elif kind == "domain":
        domains = manifest["domains"]
        domains["../../x"] = domains.pop("core")
        manifest["files"] = {
            path.replace("core", "../../x"): digest for path, digest in manifest["files"].items()
        }
    text = json.dumps(manifest) if kind != "nested" else "[" * 100_000
    (stored / "manifest.json").write_text(text)
    provided.move_to("a worker")
    before = sorted(path for path in tmp_path.rglob("*") if provided.folder not in path.parents)
    with pytest.raises(ValueError, match=r"manifest\.json"):
        open_corpus(Store(provided.url), recipe.data_id)
    assert (
        sorted(path for path in tmp_path.rglob("*") if provided.folder not in path.parents)
        == before
    )
    # The hostile manifest counts as absent.
    assert_same(provide_corpus(recipe, Store(provided.url).open_for_writing()), packed)


def test_a_machine_that_does_not_mount_the_storage_says_so(tmp_path, recipe):
    with refused("storage", str(tmp_path)):
        Execution(str(tmp_path)).corpus(recipe.data_id)


# ----------------------------------------------------------------------------------------- retries


def test_a_store_that_throttles_for_a_while(place, monkeypatch):
    """The same result as without, and one warning."""
    run = run_config(8)
    expected = train(str(place.root / "local"), run)
    monkeypatch.setattr(files, "_last_warned", -files.SILENCE_S)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        place.fail(5)
        train(place.url, run, last=4)
        place.fail(5)
        assert train(place.url, run) == expected
    assert (
        sum(
            place.url in str(warning.message) or "request rate" in str(warning.message)
            for warning in caught
        )
        == 1
    )
    assert (place.root / "bucket.failures").read_text() == "0"


def test_patience_ends(place, monkeypatch):
    monkeypatch.setattr(files, "PATIENCE_S", 0.2)
    store = Store(place.url).open_for_writing()
    place.fail(10**6)
    with warnings.catch_warnings(action="ignore"), pytest.raises(files.StorageAway) as found:
        store.run("0" * 12).result()
    assert isinstance(found.value, OSError)
    # As it comes from a worker.
    assert type(pickle.loads(pickle.dumps(found.value))) is files.StorageAway
    assert 2 < 10**6 - int((place.root / "bucket.failures").read_text()) < 30


class Response(Exception):
    """As the drivers of Google and Azure raise them."""

    def __init__(self, status_code):
        self.status_code = status_code


@pytest.mark.parametrize("name", ["EIO", "ESTALE"])
def test_what_is_tried_again(name):
    assert files.is_transient(OSError(getattr(errno, name), os.strerror(getattr(errno, name))))


def test_errors_of_http_clients():
    import aiohttp
    import requests

    assert all(files.is_transient(Response(code)) for code in (429, 500, 503))
    assert not any(files.is_transient(Response(code)) for code in (400, 401, 403, 404, 412))
    assert files.is_transient(aiohttp.ServerDisconnectedError())
    assert files.is_transient(requests.exceptions.ReadTimeout())
    assert files.is_transient(fsspec.exceptions.FSTimeoutError())


@pytest.mark.parametrize("name", ["ENOENT", "EACCES", "ENOSPC"])
def test_what_is_not(name):
    calls = []

    def work():
        calls.append(name)
        raise OSError(getattr(errno, name), os.strerror(getattr(errno, name)))

    with pytest.raises(OSError):
        files.keep_trying(work, "here")
    assert calls == [name]


def test_a_stale_mount_is_not_an_absent_file(tmp_path, monkeypatch):
    """A result that a failing mount cannot show must not look as if the run had none."""
    run = run_config(8)
    train(str(tmp_path), run)
    monkeypatch.setattr(files, "FIRST_DELAY_S", 0.01)
    failures, stat = [errno.ESTALE, errno.EIO], os.stat

    def failing(path, *args, **kwargs):
        if str(path).endswith("weights.safetensors") and failures:
            raise OSError(failures.pop(), "the server is away")
        return stat(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", failing)
    with warnings.catch_warnings(action="ignore"):
        assert len(weights_of(Store(tmp_path).run(run.run_id))) == 1
    assert failures == []


def test_a_part_without_validation_text_comes_back_too(place):
    packing = Packing(seq_len=32, vocab_size=320, sample_bytes=50_000, adjacent=("canal",))
    recipe = resolve("stories-smoke", packing)
    packed = provide_corpus(recipe, Store(place.url).open_for_writing())
    place.move_to("worker")
    fetched = Execution(place.url).corpus(recipe.data_id)
    assert_same(fetched, packed)
    assert np.array_equal(fetched.train("core:core"), packed.train("core:core"))
    assert packed.num_sequences("validation", "core:core") == 0
