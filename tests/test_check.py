"""`gram check` reads every hash of a storage and of exports, names what is lost, and changes
nothing."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from gram_platform.cli import main
from gram_platform.config import Evaluation, View
from gram_platform.config.identity import hash_file
from gram_platform.corpora import Packing, prepare, resolve
from gram_platform.release.export import RECORD
from gram_platform.store import Store
from gram_platform.store.directories import SOURCE_HASHES
from gram_platform.store.files import seal
from gram_platform.store.root import BEST
from tests.store.training import run_config, train

DONE, HALF, DROPPED = run_config(8), run_config(8, seed=1), run_config(8, seed=2)
EVALUATION = Evaluation(View.of(DONE.run_id), "d" * 12, ("core",), 4)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """Packed data, a run that ended, one that did not, one without its weights, an evaluation, and
    an export."""
    root = tmp_path_factory.mktemp("whole") / "storage"
    store = Store(root).open_for_writing()
    prepare(
        resolve("stories-smoke", Packing(seq_len=32, vocab_size=320, sample_bytes=50_000)),
        store.data_root,
    )
    for run in (DONE, DROPPED):
        train(str(root), run)
    train(str(root), HALF, last=4)
    store.run(DROPPED.run_id).drop_weights()
    place = store.evaluation(EVALUATION.eval_id)
    place.ensure_config(EVALUATION)
    fields = {"losses": {"core": 2.5}, SOURCE_HASHES: store.source_weights(EVALUATION.view)}
    place.complete(fields, {"elapsed_s": 1.0}, {"means": torch.ones(2)})
    store.run(DONE.run_id).add_tags({"method": "gram"})
    store.study_dir("scaling").write_whole({"table.csv": b"core\n2.5\n"})
    store.search_dir("s" * 12).write_sealed(BEST, {"peak_lr": 2.5})
    export = root.parent / "export"
    export.mkdir()
    (export / "model.safetensors").write_bytes(bytes(100))
    files = {"model.safetensors": hash_file(export / "model.safetensors")}
    (export / RECORD).write_text(json.dumps({"files": files}))
    return root.parent


def checked(folder: Path, capsys) -> tuple[int, list[str]]:
    code = 0
    try:
        main(["check", "--storage", str(folder / "storage"), "--exports", str(folder / "export")])
    except SystemExit as ended:
        code = ended.code
    return code, capsys.readouterr().out.splitlines()


def test_a_whole_storage_has_no_problems(whole, capsys):
    assert checked(whole, capsys) == (0, ["8 places read, 0 problems"])


@pytest.mark.parametrize(
    ("pattern", "place"),
    [
        ("data/*/train/core.bin", "data "),
        (f"runs/{DONE.run_id}/attempts/*/weights.safetensors", f"run {DONE.run_id}"),
        (f"runs/{DONE.run_id}/attempts/*/segments/*", f"run {DONE.run_id}"),
        (f"runs/{DONE.run_id}/result.json", f"run {DONE.run_id}"),
        (f"runs/{HALF.run_id}/attempts/*/checkpoints/*/tensors.safetensors", f"run {HALF.run_id}"),
        (f"runs/{DONE.run_id}/config.json", f"run {DONE.run_id}"),
        ("evaluations/*/tensors-*.safetensors", f"evaluation {EVALUATION.eval_id}"),
        ("evaluations/*/config.json", f"evaluation {EVALUATION.eval_id}"),
        ("studies/scaling/table.csv", "study scaling"),
        ("../export/model.safetensors", "export "),
    ],
)
@pytest.mark.parametrize("is_removed", [False, True])
def test_every_kind_of_damage_is_named_and_nothing_is_changed(
    whole, tmp_path, capsys, pattern, place, is_removed
):
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    target = sorted((tmp_path / "storage").glob(pattern))[0]
    raw = target.read_bytes()
    if is_removed:
        target.unlink()
    else:
        target.write_bytes(raw[:-2] + bytes([raw[-2] ^ 1]) + raw[-1:])
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    code, lines = checked(tmp_path, capsys)
    # A run without a result is one that goes on.
    is_lost = not (is_removed and target.name == "result.json")
    assert code == is_lost
    assert all(line.startswith(place) for line in lines[:-1])
    assert len(lines) > is_lost
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize(
    "pattern",
    [f"runs/{DONE.run_id}/tags.json", "evaluations/*/timing.json", "searches/*/best.json"],
)
def test_a_changed_number_that_a_writer_makes_again_is_named(whole, tmp_path, capsys, pattern):
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    (target,) = (tmp_path / "storage").glob(pattern)
    raw = target.read_bytes()
    for old, new in ((b"gram", b"grbm"), (b"2.5", b"2.7"), (b"1.0", b"1.4")):
        target.write_bytes(target.read_bytes().replace(old, new))
    assert target.read_bytes() != raw
    code, lines = checked(tmp_path, capsys)
    assert code == 1
    assert str(target) in lines[0]


def test_an_evaluation_of_other_weights_is_named_and_one_of_unknown_weights_counted(
    whole, tmp_path, capsys
):
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    (path,) = (tmp_path / "storage").glob("evaluations/*/result.json")
    result = json.loads(path.read_bytes())
    del result["sha256"]
    path.write_bytes(seal(result | {SOURCE_HASHES: {DONE.run_id: "0" * 64}}))
    code, lines = checked(tmp_path, capsys)
    assert (code, len(lines)) == (1, 2)
    assert lines[0].startswith(f"evaluation {EVALUATION.eval_id}: ")
    assert DONE.run_id in lines[0]
    del result[SOURCE_HASHES]
    path.write_bytes(seal(result))
    code, lines = checked(tmp_path, capsys)
    assert (code, len(lines)) == (0, 2)
    assert lines[0].startswith("source unknown: 1 ")


def test_a_page_that_is_being_written_is_no_damage(whole, tmp_path, capsys):
    """A submission that was killed has removed the hashes first."""
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    folder = Store(tmp_path / "storage").open_for_writing().study_dir("scaling")

    def killed():
        yield "table.csv", b"core\n2.4\n"
        raise KeyboardInterrupt

    class Files(dict):
        def items(self):
            return killed()

    with pytest.raises(KeyboardInterrupt):
        folder.write_whole(Files())
    assert checked(tmp_path, capsys)[0] == 0
