"""Modes of files, missing permissions, two users of one storage, and errors that keep their
numbers."""

import contextlib
import errno
import os
import shutil
import signal
import sqlite3
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch

import gram_platform.cli.check
import gram_platform.cli.storage
import gram_platform.store.shards  # noqa: F401 (another user may not be able to import it)
from gram_platform.cli import main
from gram_platform.config import Evaluation, View
from gram_platform.config.crash_safe import create_database, missing_right
from gram_platform.config.endings import FAILED, exit_codes
from gram_platform.store import Store, files, tensors
from gram_platform.store.folders import LocalFolder
from gram_platform.store.tensors import (
    FILE_DTYPES,
    DiskTensors,
    hash_tensors,
    open_tensors,
    save_tensors,
)
from tests.store.training import (
    GROUP,
    act_as,
    in_process,
    require_success,
    run_config,
    train,
    weights_after,
)
from tests.tiny import weights_of

DONE, HALF, TENSORS = run_config(6), run_config(8, seed=1), {"a": torch.arange(6.0)}
EVALUATION = Evaluation(View.of(DONE.run_id), "d" * 12, ("core",), 4)
FIRST, SECOND = 2001, 2002
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")


# ----------------------------------------------------------------------------------- one writer


def test_tensors_have_the_bytes_of_the_librarys_own_writer(tmp_path):
    kinds = [(kind, shape) for kind in FILE_DTYPES for shape in ((), (0,), (3,), (2, 0, 4), (5, 7))]
    values = {
        f'{number % 7}é"\x1f{kind}{shape}': torch.full(shape, number).to(getattr(torch, kind))
        for number, (kind, shape) in enumerate(kinds)
    }
    values["slice"] = torch.arange(12.0).reshape(3, 4)[:, 1:3]
    safetensors.torch.save_file(
        {name: value.contiguous() for name, value in values.items()}, tmp_path / "library"
    )
    save_tensors(tmp_path / "ours", values)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "library").read_bytes()
    with open_tensors(tmp_path / "ours") as file:
        found = DiskTensors.of_files([file])
        assert found.sha256() == hash_tensors(values)
        assert all(torch.equal(found[name], value) for name, value in values.items())


def test_a_hash_tells_names_dtypes_and_shapes_of_equal_bytes():
    two = torch.zeros(2, 3)
    kinds = [{"a": two}, {"a": two.T}, {"a": two.reshape(6)}, {"a": two[None]}, {"b": two}]
    kinds += [{"a": two.to(torch.int32)}, {"a": two[:1], "b": two[1:]}]
    assert len({hash_tensors(kind) for kind in kinds}) == len(kinds)


def test_a_tensor_is_hashed_in_blocks_of_rows(tmp_path, monkeypatch):
    values = {"wide": torch.arange(60.0).reshape(4, 15), "long": torch.arange(23)}
    save_tensors(tmp_path / "file", values)
    monkeypatch.setattr(tensors, "BLOCK_SIZE", 7)
    with open_tensors(tmp_path / "file") as file:
        assert DiskTensors.of_files([file]).sha256() == hash_tensors(values)


@pytest.mark.parametrize("umask", [0o002, 0o027])
def test_every_file_follows_the_umask(tmp_path, umask):
    def work() -> None:
        os.umask(umask)
        fill(tmp_path)

        def make(path: Path) -> None:
            with contextlib.closing(sqlite3.connect(path)) as connection:
                connection.execute("CREATE TABLE t (x)")

        create_database(tmp_path / "x.db", make)
        with contextlib.closing(sqlite3.connect(tmp_path / "x.db")) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("INSERT INTO t VALUES (1)")
            files = [path for path in tmp_path.rglob("*") if path.is_file()]
            assert {path.name for path in files} >= {"weights.safetensors", "x.db", "x.db-wal"}
            assert {path.stat().st_mode & 0o777 for path in files} == {0o666 & ~umask}

    require_success(work)


# -------------------------------------------------------------------------- errors of the system


def test_a_full_disk_keeps_its_error_number():
    with pytest.raises(OSError) as raised:
        save_tensors("/dev/full", {"a": torch.ones(10**6)})
    assert raised.value.errno == errno.ENOSPC


def test_a_limit_of_a_files_size_keeps_its_error_number(tmp_path):
    resource = pytest.importorskip("resource")

    def work() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        with pytest.raises(OSError) as raised:
            save_tensors(tmp_path / "x", {"a": torch.ones(10**6)})
        assert raised.value.errno == errno.EFBIG

    require_success(work)


class Failing:
    """A file whose method fails as often as there are numbers of errors."""

    def __init__(self, file, method: str, numbers: list[int]) -> None:
        self.file, self.method, self.numbers = file, method, numbers

    def __getattr__(self, name: str):
        if name == self.method and self.numbers:
            raise OSError(self.numbers.pop(), "the mount fails")
        return getattr(self.file, name)

    def __enter__(self) -> "Failing":
        return self

    def __exit__(self, *_) -> None:
        self.file.close()


@pytest.mark.parametrize("method", ["open", "write", "readinto", "read"])
def test_tensors_outlive_a_mount_that_fails_for_a_while(tmp_path, monkeypatch, method):
    numbers = [errno.EIO, errno.ESTALE]

    def opened(*args, **kwargs):
        if method == "open" and numbers:
            raise OSError(numbers.pop(), "the mount fails")
        return Failing(open(*args, **kwargs), method, numbers)

    monkeypatch.setattr(files, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(tensors, "open", opened, raising=False)
    with warnings.catch_warnings(action="ignore"):
        train(str(tmp_path), DONE)
        (weights,) = weights_of(Store(tmp_path).run(DONE.run_id)).values()
    assert numbers == []
    assert torch.equal(weights, weights_after(6))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_tensors_that_a_disk_does_not_take_end_the_command_at_once(tmp_path, monkeypatch, number):
    numbers = [number]

    def opened(*args, **kwargs):
        return Failing(open(*args, **kwargs), "write", numbers)

    monkeypatch.setattr(tensors, "open", opened, raising=False)
    with pytest.raises(SystemExit) as ended, exit_codes():
        train(str(tmp_path), DONE)
    assert ended.value.code == FAILED
    # A second attempt would have succeeded.
    assert numbers == []


@pytest.mark.parametrize("error", [OSError, FileNotFoundError])
def test_an_error_of_the_library_is_retried(tmp_path, monkeypatch, error):
    """Its own opening of a file calls every error "No such file"."""
    train(str(tmp_path), DONE)
    failures, check = [error("Stale file handle (os error 116)")], tensors.safe_open

    def checked(*args):
        if failures:
            raise failures.pop()
        return check(*args)

    monkeypatch.setattr(files, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(tensors, "safe_open", checked)
    monkeypatch.setattr(files, "_last_warned", -files.SILENCE_S)
    with pytest.warns(RuntimeWarning, match="os error 116"):
        weights_of(Store(tmp_path).run(DONE.run_id))
    assert not list(tmp_path.rglob("*corrupt*"))


def test_nothing_is_left_of_a_writer_of_weights_that_was_killed(tmp_path):
    def write() -> None:
        directory = Store(tmp_path).open_for_writing(0).run(DONE.run_id)
        directory.ensure_config(DONE)
        written = tensors._write

        def killed(path, header, values) -> None:
            written(path, header, values)
            os.kill(os.getpid(), signal.SIGKILL)

        tensors._write = killed
        directory.start_attempt("a test").complete({}, TENSORS)

    process = in_process(write)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    (attempt,) = tmp_path.glob("runs/*/attempts/*")
    # The name that safetensors gave, before there was one writer.
    (attempt / ".tmpQ3xyZ1").write_bytes(b"half")
    assert len(list(attempt.glob(".tmp*"))) == 2
    train(str(tmp_path), DONE)
    Store(tmp_path).open_for_writing().run(DONE.run_id).remove_remains()
    assert not list(tmp_path.rglob(".*tmp*"))


# --------------------------------------------------------------------------- missing permissions


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder for a storage that every user can enter, and the group write."""
    folder = Path(tempfile.mkdtemp(prefix="gram-rights-", dir="/tmp"))
    folder.chmod(0o755)
    storage = folder / "storage"
    storage.mkdir()
    if os.geteuid() == 0:
        os.chown(storage, FIRST, GROUP)
    storage.chmod(0o2775)
    yield storage
    for path in folder.rglob("*"):
        path.chmod(0o700)
    shutil.rmtree(folder)


def fill(storage: Path) -> None:
    """Writes a run, the half of another one, and an evaluation."""
    train(str(storage), DONE)
    train(str(storage), HALF, last=2)
    directory = Store(storage).open_for_writing().evaluation(EVALUATION.eval_id)
    directory.ensure_config(EVALUATION)
    directory.complete({"losses": {"core": 1.5}}, tensors=TENSORS)


def names_in(storage: Path) -> set[str]:
    return {str(path) for path in storage.rglob("*") if not path.name.endswith(".lock")}


READERS: dict[str, Callable[[Store], object]] = {
    f"runs/{DONE.run_id}/attempts/*/weights.safetensors": lambda s: weights_of(s.run(DONE.run_id)),
    f"runs/{DONE.run_id}/attempts/*/complete.json": lambda s: weights_of(s.run(DONE.run_id)),
    f"runs/{DONE.run_id}/result.json": lambda s: weights_of(s.run(DONE.run_id)),
    f"runs/{DONE.run_id}/config.json": lambda s: s.run(DONE.run_id).ensure_config(DONE),
    f"runs/{HALF.run_id}/attempts/*/checkpoints/*/tensors.safetensors": lambda s: (
        s.run(HALF.run_id).start_attempt("another").resume()
    ),
    "evaluations/*/tensors-*.safetensors": lambda s: s.evaluation(EVALUATION.eval_id).tensors(),
    "evaluations/*/result.json": lambda s: s.evaluation(EVALUATION.eval_id).result(),
}


@pytest.mark.parametrize("pattern", READERS)
def test_a_file_that_may_not_be_read_is_not_damaged(place, pattern):
    require_success(lambda: (act_as(FIRST), fill(place)))
    (path,) = place.glob(pattern)
    path.chmod(0o000)
    before = names_in(place)

    def read() -> None:
        act_as(SECOND)
        with pytest.raises(PermissionError) as raised:
            READERS[pattern](Store(place).open_for_writing())
        assert raised.value.errno == errno.EACCES
        assert str(path) in missing_right(raised.value.filename)

    require_success(read)
    assert not [name for name in names_in(place) if "corrupt" in name]
    assert before <= names_in(place)


@pytest.mark.parametrize("name", ["weights.safetensors", "result.json"])
def test_check_says_what_may_not_be_read_and_reads_the_rest(place, name, capfd):
    require_success(lambda: (act_as(FIRST), fill(place)))
    (path,) = place.glob(f"runs/{DONE.run_id}/**/{name}")
    path.chmod(0o000)

    def check() -> None:
        act_as(SECOND)
        main(["check", "--storage", str(place)])

    process = in_process(check)
    process.join()
    said = capfd.readouterr().out
    assert process.exitcode == 2, said
    assert str(path) in said
    assert "2 places read, 0 problems" in said


@pytest.mark.parametrize("command", ["status", "gc"])
def test_commands_end_with_2_and_name_what_may_not_be_read(place, command, capfd):
    require_success(lambda: (act_as(FIRST), fill(place)))
    path = place / "runs" / DONE.run_id / "result.json"
    path.chmod(0o000)

    def run() -> None:
        act_as(SECOND)
        main([command, "--storage", str(place)])

    process = in_process(run)
    process.join()
    said = capfd.readouterr().err
    assert process.exitcode == 2, said
    assert str(path) in said
    assert "Traceback" not in said


@pytest.mark.parametrize("closed", [DONE, HALF])
def test_gc_goes_on_after_what_it_may_not_remove_and_names_it(place, closed, capfd):
    require_success(lambda: (act_as(FIRST), fill(place)))
    halves, folders = {}, {}
    for run in (DONE, HALF):
        (attempt,) = place.glob(f"runs/{run.run_id}/attempts/*")
        half, folder = attempt / ".weights.safetensors.1-ab.tmp", attempt / "checkpoints/000000005"
        folder.mkdir(parents=True)
        for path in (half, folder / "state.json"):
            path.write_text("half")
        halves[run], folders[run] = half, folder
        if os.geteuid() == 0:
            for path in (half, folder, folder.parent):
                os.chown(path, FIRST, GROUP)
        folder.parent.chmod(0o2775)
        folder.chmod(0o2775)
    barred = [halves[closed], folders[closed]]
    for path in barred:
        path.parent.chmod(0o555)

    def collect() -> None:
        act_as(SECOND)
        main(["gc", "--storage", str(place)])

    process = in_process(collect)
    process.join()
    said = capfd.readouterr().err
    assert process.exitcode == 2, said
    assert "Traceback" not in said
    (gone,) = {DONE, HALF} - {closed}
    assert not halves[gone].exists()
    assert not folders[gone].exists()
    for path in barred:
        assert path.exists()
        (line,) = [line for line in said.splitlines() if str(path) in line]
        assert f"{path.parent}: no permission to write" in line
    # A run goes on beside them.
    require_success(lambda: (act_as(SECOND), train(str(place), HALF)))


@NEEDS_ROOT
def test_one_user_goes_on_with_a_run_of_another(place):
    def begin() -> None:
        act_as(FIRST)
        train(str(place), DONE, last=3)

    def finish() -> None:
        act_as(SECOND, 0o022)
        train(str(place), DONE)

    def read() -> None:
        act_as(FIRST)
        (weights,) = weights_of(Store(place).open_for_writing().run(DONE.run_id)).values()
        assert torch.equal(weights, weights_after(6))

    require_success(begin)
    require_success(finish)
    require_success(read)
    assert {path.stat().st_uid for path in place.rglob("*.json")} == {FIRST, SECOND}


@NEEDS_ROOT
def test_a_folder_that_the_group_may_not_write_is_named(place):
    require_success(lambda: (act_as(FIRST, 0o022), fill(place)))

    def write() -> None:
        act_as(SECOND, 0o022)
        for folder in ("runs", f"runs/{HALF.run_id}", "studies/scaling/history"):
            nearest = place if folder.startswith("studies") else place / folder
            child = Store(place).open_for_writing()._folder.child(*folder.split("/"))
            if nearest == place:
                child.require_rights()
                continue
            with pytest.raises(PermissionError) as raised:
                child.require_rights()
            assert raised.value.filename == str(nearest)

    require_success(write)


def test_missing_right_names_the_nearest_folder_that_exists(place):
    closed = place / "closed"
    closed.mkdir()
    (closed / "file").write_text("x")
    assert missing_right(closed / "file") == missing_right(closed / "absent" / "x") == ""
    closed.chmod(0o500)

    def ask() -> None:
        act_as(SECOND)
        assert str(closed) in missing_right(closed / "absent" / "x")
        with pytest.raises(PermissionError):
            LocalFolder(str(closed), writable=True).write("x", b"")

    require_success(ask)
