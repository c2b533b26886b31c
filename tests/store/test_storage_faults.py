"""What the simulation found, one by one: lost syncs, failing mounts, stale names, files removed
under their writer."""

import errno
import os
import random
import shutil
import time
import warnings
from collections.abc import Callable

import pytest
import torch

from gram_platform.store import Store, files, leases, shards
from gram_platform.store.folders import LocalFolder
from gram_platform.store.leases import LeaseLost
from tests.store.simulated_system import installed
from tests.store.simulated_world import ROOT, World
from tests.store.training import final_fields, record, run_config, train, weights_after
from tests.tiny import weights_of

RUN = run_config(6)
WEIGHTS = {"weights": torch.ones(2)}


def live(world: World, *works: tuple[int, Callable[[], None]]) -> None:
    """Lets each work run to its end, one after another, as a process of the machine with this
    number."""
    with installed(world):
        for number, work in works:
            world.start("process", world.machines[number], work)
            world.run()
    assert not world.failure


@pytest.fixture
def directory(tmp_path):
    return Store(tmp_path).open_for_writing().run(RUN.run_id)


@pytest.mark.parametrize("seed", range(40))
def test_a_result_that_survives_a_power_failure_has_its_weights_and_history(seed):
    world = World(seed, {}, num_machines=1)

    def check() -> None:
        directory = Store(ROOT).run(RUN.run_id)
        assert directory.status() == "complete"
        assert torch.equal(weights_of(directory)["weights"], weights_after(RUN.num_steps))
        assert [r["step"] for r in directory.records()] == list(range(1, RUN.num_steps + 1))

    live(world, (0, lambda: train(ROOT, RUN)), (0, world.disk.lose_unsynced), (0, check))


def test_a_new_name_is_found_by_a_client_that_remembers_that_it_was_absent():
    """NFS clients remember absent names for up to a minute, also those of folders."""
    world = World(0, {}, num_machines=2)
    world.disk.remembers_absent = True
    world.disk.rng = random.Random(0)
    found = []

    def look() -> None:
        directory = Store(ROOT).run(RUN.run_id)
        found.append((directory.status(), directory.last_step(), directory.tags()))

    def add_tags() -> None:
        Store(ROOT).open_for_writing(min_free_bytes=0).run(RUN.run_id).add_tags({"name": "x"})

    live(
        world, (1, look), (0, lambda: train(ROOT, RUN, last=4)), (1, look), (0, add_tags), (1, look)
    )
    live(world, (0, lambda: train(ROOT, RUN)), (1, look))
    named = {"name": "x"}
    assert found == [
        ("absent", -1, {}),
        ("interrupted", 4, {}),
        ("interrupted", 4, named),
        ("complete", 6, named),
    ]
    assert world.disk.absent, "a client remembers something"


def failing(function: Callable, number: int) -> Callable:
    """The function, which fails with EIO at its first calls of this number."""
    calls = iter(range(number))

    def called(*args, **kwargs):
        if next(calls, None) is not None:
            raise OSError(errno.EIO, "Input/output error")
        return function(*args, **kwargs)

    return called


@pytest.mark.filterwarnings("ignore:the storage fails")
def test_a_folder_that_a_failing_mount_hides_is_neither_in_the_way_nor_a_file(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(files, "FIRST_DELAY_S", 0.01)
    folder = LocalFolder(str(tmp_path / "folder"), writable=True)
    folder.child("inner").write("x", b"1")
    for work in (lambda: folder.write("y", b"2"), lambda: folder.remove("inner")):
        with monkeypatch.context() as patch:
            patch.setattr(os, "stat", failing(os.stat, 1))
            work()
    assert folder.list() == ["y"]


def test_a_file_that_was_removed_under_its_writer_is_written_again(tmp_path, monkeypatch):
    """`gram gc` took the writer, which slept for hours, for ended."""
    folder = LocalFolder(str(tmp_path), writable=True)

    def disturbed(function: Callable) -> Callable:
        removals = iter([1])

        def called(path, *args):
            if next(removals, None):
                os.unlink(path)
            return function(path, *args)

        return called

    for name, work in (
        ("replace", lambda: folder.write("a", b"1")),
        (
            "replace",
            lambda: folder.write_with("b", lambda path: tmp_path.joinpath(path).write_bytes(b"1")),
        ),
        ("link", lambda: folder.create("c", b"1")),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, disturbed(getattr(os, name)))
            work()
    assert [folder.read(name) for name in folder.list()] == [b"1"] * 3


def test_a_folder_made_by_a_durable_write_is_in_its_parent_after_a_crash(tmp_path, monkeypatch):
    synced, fsync = [], os.fsync

    def noted(number: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{number}"))
        fsync(number)

    monkeypatch.setattr(os, "fsync", noted)
    LocalFolder(str(tmp_path / "a/b"), writable=True).write("x", b"1")
    assert {str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a/b")} < set(synced)


@pytest.mark.parametrize("num_unreadable", [0, 1, 2])
def test_of_checkpoints_that_cannot_be_read_an_older_one_is_continued(
    tmp_path, directory, monkeypatch, num_unreadable
):
    """EIO of a bad sector or a lost path, which is retried, is no damage: the files stay as they
    are, and nothing starts over."""
    train(str(tmp_path), RUN, last=4)
    bad = {f"/checkpoints/{step:09d}/" for step in (4, 2)[:num_unreadable]}
    hash_file = shards.hash_file

    def read(path: str) -> str:
        if any(part in path for part in bad):
            raise OSError(errno.EIO, "Input/output error", path)
        return hash_file(path)

    monkeypatch.setattr(shards, "hash_file", read)
    monkeypatch.setattr(files, "PATIENCE_S", 0.0)
    with directory.start_attempt("next") as attempt, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if num_unreadable == 2:
            with pytest.raises(OSError) as raised:
                attempt.resume()
            assert raised.value.__cause__.errno == errno.EIO
        else:
            assert attempt.resume().step == (4, 2)[num_unreadable]
    assert len(caught) == num_unreadable
    assert len(list(tmp_path.rglob("checkpoints/*/manifest.json"))) == 2
    monkeypatch.undo()
    assert train(str(tmp_path), RUN)["run_id"] == RUN.run_id
    assert [r["step"] for r in directory.records()] == list(range(1, RUN.num_steps + 1))


# -------------------------------------------------------------------------------- owners that stop


def refuse_leases(monkeypatch) -> None:
    write = LocalFolder.write

    def refuse(folder, name, data, durable=True):
        if name == "lease.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        write(folder, name, data, durable)

    monkeypatch.setattr(LocalFolder, "write", refuse)


def work_on(attempt) -> None:
    for _ in range(1000):
        attempt.heartbeat(2, 6, 1.0)
        time.sleep(0.01)


@pytest.mark.filterwarnings("ignore:run .* its lease cannot be written")
def test_an_owner_that_cannot_renew_its_lease_stops_and_the_run_can_be_continued(
    directory, monkeypatch
):
    monkeypatch.setattr(leases, "SHORTEST_LEASE_S", 0.5)
    directory.ensure_config(RUN)
    with (
        monkeypatch.context() as patch,
        directory.start_attempt("worker", lease_seconds=0.0) as attempt,
    ):
        attempt.commit(2, WEIGHTS, {}, [record(1), record(2)])
        refuse_leases(patch)
        with pytest.raises(LeaseLost):
            work_on(attempt)
    with pytest.raises(LeaseLost):
        attempt.commit(4, WEIGHTS, {}, [record(3), record(4)])
    assert directory.read_committed_step() == 2
    assert directory.failure() is None
    assert directory.status() == "interrupted"
    with directory.start_attempt("next") as following:
        assert following.resume().step == 2
        following.complete(final_fields(RUN), WEIGHTS, [record(step) for step in range(3, 7)])
    assert directory.status() == "complete"


def test_an_owner_whose_files_are_removed_was_taken_over(directory, monkeypatch):
    """Another attempt, which took it for ended, removes its unfinished checkpoint again and
    again."""
    with directory.start_attempt("worker") as attempt:

        def removed(path: str, *_) -> None:
            shutil.rmtree(os.path.dirname(path))
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)

        monkeypatch.setattr(os, "replace", removed)
        with pytest.raises(LeaseLost):
            attempt.commit(2, WEIGHTS, {}, [record(1), record(2)])
        monkeypatch.undo()
    assert directory.failure() is None
