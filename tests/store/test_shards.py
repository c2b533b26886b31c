"""Checkpoints in shards: written by some ranks, read by others; what is missing, altered or not
finished."""

import json
from collections.abc import Sequence

import pytest
import torch

from gram_platform.model.pieces import Piece, rank_rows
from gram_platform.store import Store
from gram_platform.store.checkpoints import (
    SHARDS,
    WEIGHTS,
    has_weights,
    list_checkpoints,
    step_name,
)
from gram_platform.store.files import CorruptFile
from gram_platform.store.shards import checkpoint_folder, read_checkpoint, write_shard
from gram_platform.store.tensors import hash_tensors
from tests.refused import refused
from tests.store.training import final_fields, record, run_config
from tests.tiny import weights_of

RUN = run_config(8)
STEP = 3


def tensors() -> dict[str, torch.Tensor]:
    """Every shape that a checkpoint has: more rows than ranks, fewer, none, a scalar, and something
    every rank has."""
    generator = torch.Generator().manual_seed(0)
    return {
        "model.matrix": torch.randn(11, 3, generator=generator),
        "model.vector": torch.randn(2, generator=generator).bfloat16(),
        "model.empty": torch.zeros(0, 4),
        "optim.matrix.step": torch.tensor(7.0),
        "random.torch": torch.arange(20, dtype=torch.uint8),
    }


def rows_of(rank: int, num_ranks: int):
    def rows(name, shape):
        if not shape:
            return 0, 1
        return (0, shape[0]) if name == "random.torch" else rank_rows(shape[0], rank, num_ranks)

    return rows


def held(rank: int, num_ranks: int) -> dict[str, Piece]:
    """What a rank holds of `tensors`."""
    pieces = {}
    for name, tensor in tensors().items():
        first, stop = rows_of(rank, num_ranks)(name, tuple(tensor.shape))
        pieces[name] = Piece(
            tensor[first:stop] if tensor.dim() else tensor, first, tuple(tensor.shape)
        )
    return pieces


def write(attempt, num_ranks: int, step: int = STEP) -> None:
    folder = checkpoint_folder(attempt.run.attempts.child(attempt.attempt_id), step)
    files = {}
    for rank in range(num_ranks):
        files |= write_shard(folder, held(rank, num_ranks), rank, num_ranks)
    attempt.commit_shards(
        step, files, {"position": step}, [record(s) for s in range(step - 1, step + 1)]
    )


@pytest.fixture(params=["local", "memory"])
def directory(request, tmp_path):
    root = str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}"
    return Store(root).open_for_writing().run(RUN.run_id)


@pytest.mark.parametrize("num_writers", [1, 2, 3, 4])
@pytest.mark.parametrize("num_readers", [1, 2, 4])
def test_any_number_of_ranks_reads_what_any_number_wrote(directory, num_writers, num_readers):
    with directory.start_attempt("a") as attempt:
        write(attempt, num_writers)
    ((step, attempt_id),) = list_checkpoints(directory.attempts)
    for rank in range(num_readers):
        resumed = read_checkpoint(directory.attempts, step, attempt_id, rows_of(rank, num_readers))
        expected = held(rank, num_readers)
        assert resumed.state == {"position": STEP}
        assert resumed.pieces.keys() == expected.keys()
        for name, piece in expected.items():
            got = resumed.pieces[name]
            assert (got.first_row, got.shape, got.rows.dtype) == (
                piece.first_row,
                piece.shape,
                piece.rows.dtype,
            ), name
            assert torch.equal(got.rows, piece.rows), name


def test_as_many_ranks_read_their_own_shards_alone(tmp_path):
    """Also what every shard has, as the optimizers' steps: a rank need not open another's file for
    it."""
    directory = Store(tmp_path).open_for_writing().run(RUN.run_id)
    with directory.start_attempt("a") as attempt:
        write(attempt, 3)
    position = list_checkpoints(directory.attempts)[0]
    folder = directory.attempts.child(attempt.attempt_id, "checkpoints", step_name(STEP))
    for rank in range(3):
        if rank != 1:
            folder.write(f"tensors-{rank:05d}.safetensors", b"spoilt")
    read_checkpoint(directory.attempts, *position, rows_of(1, 3))
    with pytest.raises(CorruptFile):
        read_checkpoint(directory.attempts, *position, rows_of(0, 3))


@pytest.mark.parametrize("name", ["tensors-00001.safetensors", "layout-00001.json"])
@pytest.mark.parametrize("damage", ["flip", "remove"])
def test_a_spoilt_shard_sets_the_checkpoint_aside(tmp_path, name, damage):
    directory = Store(tmp_path).open_for_writing().run(RUN.run_id)
    with directory.start_attempt("a") as attempt:
        write(attempt, 2)
        write(attempt, 2, step=6)
    path = (
        tmp_path
        / f"runs/{RUN.run_id}/attempts/{attempt.attempt_id}/checkpoints/{step_name(6)}/{name}"
    )
    data = path.read_bytes()
    path.unlink() if damage == "remove" else path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with directory.start_attempt("b") as attempt, pytest.warns(RuntimeWarning, match=step_name(6)):
        assert attempt.resume().step == STEP
    assert (path.parents[1] / f"{step_name(6)}.corrupt-1").is_dir()


def test_shards_without_a_manifest_are_no_checkpoint(directory):
    """As a rank's kill leaves them: the one before stays in force, and the next attempt clears them
    away."""
    with directory.start_attempt("a") as attempt:
        write(attempt, 2)
        folder = directory.attempts.child(attempt.attempt_id)
        write_shard(checkpoint_folder(folder, 6), held(0, 2), 0, 2)
    with directory.start_attempt("b") as attempt:
        assert attempt.resume().step == STEP
    assert folder.child("checkpoints").list() == [step_name(STEP)]


def test_rows_that_no_shard_has_are_named(tmp_path):
    directory = Store(tmp_path).open_for_writing().run(RUN.run_id)
    with directory.start_attempt("a") as attempt:
        folder = checkpoint_folder(directory.attempts.child(attempt.attempt_id), STEP)
        files = write_shard(folder, held(0, 2), 0, 2)
        attempt.commit_shards(STEP, files, {})
    with pytest.raises(CorruptFile, match=r"model\.matrix.*model\.vector"):
        read_checkpoint(directory.attempts, *list_checkpoints(directory.attempts)[0])


def test_a_layout_is_plain_json(tmp_path):
    directory = Store(tmp_path).open_for_writing().run(RUN.run_id)
    with directory.start_attempt("a") as attempt:
        write(attempt, 2)
    path = next(tmp_path.glob("runs/*/attempts/*/checkpoints/*/layout-00001.json"))
    assert json.loads(path.read_text())["model.matrix"] == {
        "first": 6,
        "stop": 11,
        "shape": [11, 3],
        "dtype": "float32",
    }


def finish_in_shards(directory, owner: str = "a", ranks: Sequence[int] = (0, 1)):
    """An attempt that ends with weights of these of two ranks; returns (attempt, result,
    weights)."""
    weights = {n.removeprefix("model."): t for n, t in tensors().items() if n.startswith("model.")}
    with directory.start_attempt(owner, lease_seconds=0.0) as attempt:
        folder, files = directory.attempts.child(attempt.attempt_id, SHARDS), {}
        for rank in ranks:
            pieces = {
                n.removeprefix("model."): p
                for n, p in held(rank, 2).items()
                if n.startswith("model.")
            }
            files |= write_shard(folder, pieces, rank, 2)
        result = attempt.complete_shards(final_fields(RUN), files, hash_tensors(weights))
    return attempt, result, weights


def test_weights_in_shards_are_the_same_result(directory, tmp_path):
    """The result does not say how its weights lie; readers get them whole."""
    attempt, result, weights = finish_in_shards(directory)
    assert not directory.attempts.child(attempt.attempt_id).exists(WEIGHTS)
    other = Store(tmp_path / "other").open_for_writing().run(RUN.run_id)
    with other.start_attempt("b") as attempt:
        assert attempt.complete(final_fields(RUN), weights) == result
    read = weights_of(directory)
    assert read.keys() == weights.keys()
    assert all(torch.equal(read[name], weights[name]) for name in weights)
    finish_in_shards(directory, "second")  # its own are superfluous
    assert [has_weights(directory.attempts.child(i)) for i in directory.attempts.list()] == [
        True,
        False,
    ]
    assert directory.drop_weights() > 0
    with refused("run_id", RUN.run_id):
        weights_of(directory)


def test_spoilt_shards_of_weights_make_the_run_train_again(tmp_path):
    directory = Store(tmp_path).open_for_writing().run(RUN.run_id)
    finish_in_shards(directory, ranks=[0])
    with pytest.warns(RuntimeWarning, match="matrix"), refused("run_id", RUN.run_id):
        weights_of(directory)
    finish_in_shards(directory)
    path = next(tmp_path.glob("runs/*/attempts/*/weights/tensors-00001.safetensors"))
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.warns(RuntimeWarning), refused("run_id", RUN.run_id):
        weights_of(directory)
    assert directory.status() == "interrupted"
    finish_in_shards(directory)
    assert len(weights_of(directory)) == 3
