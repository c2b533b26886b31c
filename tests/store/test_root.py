"""Opening a storage, ids that stay inside it, tags and evaluations, and object stores."""

import json
import os
import re
import tempfile

import fsspec
import pytest

from gram_platform.cli.flags import open_existing
from gram_platform.config import Evaluation, View
from gram_platform.config.identity import InvalidField
from gram_platform.store import CorruptFile, RunDirectory, Store
from gram_platform.store.folders import RemoteFolder
from gram_platform.store.root import storage_place
from tests.refused import refused
from tests.store.training import START, final_fields, in_process, record, run_config, train
from tests.tiny import weights_of

RUN = run_config(8)


@pytest.mark.parametrize("root", ["/proc/gram", "/dev/null/gram", "/dev/null"])
def test_storage_that_cannot_be_written_is_named(root):
    with refused("storage", root):
        Store(root).open_for_writing()


def test_read_only_directory_is_named():
    def open_it(folder):
        if os.geteuid() == 0:
            os.setuid(65534)  # root may write everywhere
        with refused("storage", folder):
            Store(folder).open_for_writing()
        with refused("storage", f"{folder}/closed/x"):
            storage_place(f"{folder}/closed/x")

    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(f"{folder}/closed", 0o000)
        os.chmod(folder, 0o555)
        process = in_process(open_it, folder)
        process.join()
    assert process.exitcode == 0


def test_full_storage_is_named(tmp_path):
    with refused("storage", str(tmp_path)):
        Store(tmp_path).open_for_writing(min_free_bytes=10**18)


def test_unknown_protocol_is_named():
    with refused("storage", "nowhere://x"):
        Store("nowhere://x")


@pytest.mark.parametrize("changed", ["layout", "recipe_version"])
def test_a_storage_of_another_version_is_refused_with_what_was_found(tmp_path, changed):
    Store(tmp_path).open_for_writing()
    path = tmp_path / "store.json"
    known = json.loads(path.read_text())
    path.write_text(json.dumps(known | {changed: 73}))
    for open_it in (Store(tmp_path).open_for_writing, lambda: open_existing(str(tmp_path))):
        with pytest.raises(InvalidField) as refused:
            open_it()
        assert (refused.value.field, refused.value.value) == ("storage", str(tmp_path))
        assert {"73", str(known[changed])} <= set(re.findall(r"\d+", refused.value.expected))


def test_nothing_is_written_before_opening_for_writing(tmp_path):
    run = Store(tmp_path).run(RUN.run_id)
    for change in (
        lambda: run.ensure_config(RUN),
        lambda: run.add_tags({"a": "b"}),
        lambda: run.start_attempt("x"),
    ):
        with refused("storage"):
            change()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["..", "../x", "a/b", "", ".hidden", "a\0", "/etc", "a" * 201, "-x", "x\n", 3]
)
def test_names_never_leave_the_storage(tmp_path, name):
    store = Store(tmp_path).open_for_writing()
    for find in (store.run, store.evaluation, store.study_dir):
        with refused("folder", name):
            find(name)


def test_home_is_expanded_and_relative_roots_are_made_absolute(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert (
        Store("~/gram").root
        == Store("gram").root
        == Store(f"file://{tmp_path}/gram").root
        == str(tmp_path / "gram")
    )
    assert Store("gram").data_root == tmp_path / "gram" / "data"


def test_config_must_be_the_directorys(tmp_path):
    store = Store(tmp_path).open_for_writing()
    with refused("run_id", RUN.run_id):
        store.run(RUN.run_id).config()
    store.run(RUN.run_id).ensure_config(RUN)
    store.run(RUN.run_id).ensure_config(RUN)
    assert store.run(RUN.run_id).config()["batch_size"] == RUN.batch_size
    with refused("run_id", RUN.run_id):
        store.run("0" * 12).ensure_config(RUN)
    path = tmp_path / "runs" / RUN.run_id / "config.json"
    whole = path.read_text()
    path.write_text("{")
    with pytest.raises(CorruptFile):
        store.run(RUN.run_id).config()
    for damaged in ("{", "[1]", "{}", whole.replace('"seed":0', '"seed":1')):
        path.write_text(damaged)
        with pytest.warns(RuntimeWarning, match="config.json"):
            store.run(RUN.run_id).ensure_config(RUN)
        assert path.read_text() == whole


def test_tags_of_many_writers_are_merged(tmp_path):
    store = Store(tmp_path).open_for_writing()

    def add(number):
        for k in range(5):
            store.run(RUN.run_id).add_tags({f"tag{number}-{k}": "x", "shared": "y"})

    for process in [in_process(add, number) for number in range(4)]:
        process.join()
    assert len(store.run(RUN.run_id).tags()) == 21
    with refused("tags", {"seed": 0}):
        store.run(RUN.run_id).add_tags({"seed": 0})


def test_evaluation_is_written_once(tmp_path):
    evaluation = Evaluation(
        View.of(RUN.run_id, {"virology": 1.0}), "d" * 12, ("core", "virology"), 4
    )
    directory = Store(tmp_path).open_for_writing().evaluation(evaluation.eval_id)
    directory.ensure_config(evaluation)
    assert (directory.status(), directory.result(), directory.timing()) == ("absent", None, {})
    first = directory.complete({"losses": {"core": 2.5}}, {"elapsed_s": 1.0})
    assert directory.complete({"losses": {"core": 2.5}}, {"elapsed_s": 2.0}) == first
    assert (directory.status(), directory.timing()["elapsed_s"]) == ("complete", 1.0)
    with pytest.warns(RuntimeWarning, match=evaluation.eval_id):
        assert directory.complete({"losses": {"core": 2.0}}) == first
    (tmp_path / "evaluations" / evaluation.eval_id / "result.json").write_text("?")
    with pytest.warns(RuntimeWarning, match="result.json"):
        assert directory.status() == "absent"
    assert directory.complete({"losses": {"core": 2.5}}) == first


def test_object_store_gives_the_same_results(tmp_path):
    train(str(tmp_path), RUN)
    root = "memory://bucket/gram"
    train(root, RUN, last=3)
    train(root, RUN, last=6)
    assert train(root, RUN) == Store(tmp_path).run(RUN.run_id).result()
    remote = Store(root)
    assert not remote.is_local
    assert remote.list_runs() == [RUN.run_id]
    assert [r["step"] for r in remote.run(RUN.run_id).records()] == list(range(1, 9))
    assert len(weights_of(remote.run(RUN.run_id))) == 1
    filesystem = fsspec.filesystem("memory")
    filesystem.pipe_file(f"/bucket/gram/runs/{RUN.run_id}/result.json", b"{")
    with pytest.warns(RuntimeWarning, match="result.json"):
        assert train(root, RUN) == Store(tmp_path).run(RUN.run_id).result()


def test_file_system_behind_fsspec_has_directories_and_survives_corruption(tmp_path):
    """The code for object stores on real files: directories are made, a corrupted checkpoint is set
    aside."""
    folder = RemoteFolder(str(tmp_path / "remote"), True, fsspec.filesystem("file"))
    directory = RunDirectory(folder.child("runs", RUN.run_id), RUN.run_id)
    directory.ensure_config(RUN)
    with directory.start_attempt("one") as attempt:
        attempt.commit(2, {"weights": START}, {"position": 2}, [record(1), record(2)])
        attempt.commit(4, {"weights": START + 1}, {"position": 4}, [record(3), record(4)])
    (newest,) = (tmp_path / "remote").glob(
        "runs/*/attempts/*/checkpoints/000000004/tensors.safetensors"
    )
    newest.write_bytes(b"?")
    with directory.start_attempt("two") as attempt:
        with pytest.warns(RuntimeWarning, match="000000004"):
            assert attempt.resume().step == 2
        result = attempt.complete(
            final_fields(RUN), {"weights": START}, [record(step) for step in range(3, 9)]
        )
    assert directory.publish(directory.folder.read("result.json")) == result == directory.result()
    assert [r["step"] for r in directory.records()] == list(range(1, 9))
    assert weights_of(directory)["weights"].equal(START)
    assert not list((tmp_path / "remote").glob("runs/*/attempts/*/checkpoints/0*4"))
