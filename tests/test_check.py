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
from gram_platform.corpora import prepare, resolve
from gram_platform.release.export import RECORD
from gram_platform.store import Store
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
        resolve("stories-smoke", seq_len=32, vocab_size=320, sample_bytes=50_000), store.data_root
    )
    for run in (DONE, DROPPED):
        train(str(root), run)
    train(str(root), HALF, last=4)
    store.run(DROPPED.run_id).drop_weights()
    place = store.evaluation(EVALUATION.eval_id)
    place.ensure_config(EVALUATION)
    place.complete({"losses": {"core": 2.5}}, {"elapsed_s": 1.0}, {"means": torch.ones(2)})
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
    assert checked(whole, capsys) == (0, ["6 places read, 0 problems"])


@pytest.mark.parametrize(
    ("pattern", "place"),
    [
        ("data/*/train/core.bin", "data "),
        (f"runs/{DONE.run_id}/attempts/*/weights.safetensors", f"run {DONE.run_id}"),
        (f"runs/{DONE.run_id}/attempts/*/segments/*", f"run {DONE.run_id}"),
        (f"runs/{DONE.run_id}/result.json", f"run {DONE.run_id}"),
        (f"runs/{HALF.run_id}/attempts/*/checkpoints/*/tensors.safetensors", f"run {HALF.run_id}"),
        ("evaluations/*/tensors-*.safetensors", f"evaluation {EVALUATION.eval_id}"),
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
