"""Runs of several ranks through checkpoints: continued on other numbers of ranks, and killed at
random steps.
"""

import dataclasses
import errno
import os
import pickle
import random
import shutil
import time

import pytest
import torch
from torch.distributed import distributed_c10d

from gram_platform.config import RoutingConfig, View, layout
from gram_platform.config.training import merge_config
from gram_platform.engine import ranks
from gram_platform.engine.node import execute_run, new_learner, starting_point
from gram_platform.engine.ranks import train_rank
from gram_platform.methods import plan
from gram_platform.store import Store, attempts
from gram_platform.store.checkpoints import list_checkpoints
from gram_platform.store.tensors import DiskTensors
from gram_platform.store.views import open_view
from gram_platform.train.sharding import ShardedLearner
from tests.engine.conftest import elsewhere
from tests.planner.conftest import as_rank  # noqa: F401  a fixture
from tests.ranks import Ranks, run_ranks
from tests.tiny import merged_weights, weights_of

# Sums in another order, in float32, through ten steps and AdamW's division by small moments.
TOLERANCE = 1e-4


def train(rank, num_ranks, run, execution):
    # Every step is reported, so that what a kill loses can be counted.
    attempts.HEARTBEAT_INTERVAL_S = 0.001
    assert train_rank(run, execution) is None


def train_to_shards(rank, num_ranks, run, execution):
    """As a large model's: its final weights are written by all ranks."""
    ranks.LARGE_WEIGHTS_BYTES = 0
    train(rank, num_ranks, run, execution)


def on_two_machines(rank, num_ranks, worker, *args):
    """Four ranks as two machines, each with a copy of the weights."""
    os.environ["LOCAL_WORLD_SIZE"] = "2"
    layout.num_shards = lambda num_ranks, device: 2
    worker(rank, num_ranks, *args)


def train_after_a_failed_read(rank, num_ranks, run, execution):
    """The last rank cannot read the first checkpoint that is tried."""
    read, errors = (
        ranks.read_checkpoint,
        iter([OSError(errno.EIO, "Input/output error")] * (rank == num_ranks - 1)),
    )

    def reading(*args):
        for error in errors:
            raise error
        return read(*args)

    ranks.read_checkpoint = reading
    train(rank, num_ranks, run, execution)


def train_to_a_checkpoint(rank, num_ranks, run, execution, first_step=0):
    """Ends without a result as soon as one more checkpoint exists, of this step or a later one."""

    class Stopped(Exception):
        pass

    def stop_after_commit(self, step):
        commit(self, step)
        if step >= first_step:
            self.background.wait()
            raise Stopped

    commit = ranks.ShardedExecution.commit
    ranks.ShardedExecution.commit = stop_after_commit
    try:
        train_rank(run, execution)
    except Stopped:
        return
    raise AssertionError("the run ended before its checkpoint")


def copied(execution, tmp_path, name):
    """All that the storage has, in another one."""
    shutil.copytree(execution.storage, tmp_path / name, symlinks=True)
    return dataclasses.replace(execution, storage=str(tmp_path / name))


@pytest.fixture
def run(setting):
    """GRAM in float32: windows of two micro-batches, each with its own route; more than forty
    steps.
    """
    run = plan("gram", setting).runs["all"]
    return dataclasses.replace(run, precision="float32", batch_size=4, micro_batch=2)


def create(execution, run):
    directory = execution.store().run(run.run_id)
    directory.ensure_config(run)
    return directory


def num_shards(directory) -> list[int]:
    """Of every checkpoint that exists, oldest first."""
    counts = []
    for step, attempt_id in list_checkpoints(directory.attempts):
        files = directory.attempts.child(attempt_id, "checkpoints", f"{step:09d}").list()
        counts.append(sum(name.endswith(".safetensors") for name in files))
    return counts


def test_a_checkpoint_of_four_ranks_continues_on_two_and_on_one(execution, run, tmp_path):
    """To its end on each; and once more over a checkpoint of two on the way."""
    run = dataclasses.replace(run, batch_size=8, micro_batch=4)
    alone = elsewhere(execution, tmp_path, "alone")
    expected = execute_run(run, {}, alone)
    directory = create(execution, run)
    run_ranks(4, train_to_a_checkpoint, run, execution)
    assert num_shards(directory) == [4]
    on_one, on_two = (copied(execution, tmp_path, name) for name in ("on-one", "on-two"))
    execute_run(run, {}, on_one)
    run_ranks(2, train, run, on_two)
    run_ranks(2, train_to_a_checkpoint, run, execution)
    assert num_shards(directory) == [4, 2]
    execute_run(run, {}, execution)
    reference = weights_of(Store(alone.storage).run(run.run_id))
    for continued in (on_one, on_two, execution):
        found = Store(continued.storage).run(run.run_id)
        assert found.result()["final"] == pytest.approx(expected["final"], abs=TOLERANCE)
        weights = weights_of(found)
        assert (
            max((weights[n] - reference[n]).abs().max().item() for n in reference) < 10 * TOLERANCE
        )
        assert [r["step"] for r in found.records()] == list(range(1, run.num_steps + 1))


@pytest.mark.slow
def test_machines_with_a_copy_each_write_one(execution, run, tmp_path):
    """Of checkpoints and of final weights; they continue their own, and end as one process does."""
    run = dataclasses.replace(run, batch_size=8, micro_batch=4)
    alone = elsewhere(execution, tmp_path, "alone")
    expected = execute_run(run, {}, alone)
    directory = create(execution, run)
    run_ranks(4, on_two_machines, train_to_a_checkpoint, run, execution)
    assert num_shards(directory) == [2]
    run_ranks(4, on_two_machines, train_to_shards, run, execution)
    assert len(list(tmp_path.glob("storage/runs/*/attempts/*/weights/*.safetensors"))) == 2
    weights, reference = weights_of(directory), weights_of(Store(alone.storage).run(run.run_id))
    assert directory.result()["final"] == pytest.approx(expected["final"], abs=TOLERANCE)
    assert max((weights[n] - reference[n]).abs().max().item() for n in reference) < 10 * TOLERANCE


def test_ranks_agree_on_an_older_checkpoint_when_one_cannot_read_the_newest(
    execution, run, tmp_path
):
    directory = create(execution, run)
    run_ranks(2, train_to_a_checkpoint, run, execution)
    run_ranks(2, train_to_a_checkpoint, run, execution)
    assert len(list_checkpoints(directory.attempts)) == 2
    run_ranks(2, train_after_a_failed_read, run, execution)
    assert [r["step"] for r in directory.records()] == list(range(1, run.num_steps + 1))
    assert not list(tmp_path.rglob("*.corrupt-*")), "nothing is damaged"


@pytest.mark.parametrize(
    "num_kills", [1, pytest.param(10, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])]
)
def test_killed_ranks_end_with_the_same_bytes(execution, run, tmp_path, num_kills):
    """kill -9 of a random rank: bit for bit, and at most what one checkpoint interval holds is
    trained again.

    Checkpoints are wanted after every step here, and the one of step s is written while s + 1 is
    trained. How the final weights are written changes nothing either.
    """
    straight = elsewhere(execution, tmp_path, "straight")
    create(straight, run)
    run_ranks(2, train, run, straight)
    dice, directory = random.Random(num_kills), create(execution, run)
    lost = [kill_once(directory, run, execution, dice, left) for left in range(num_kills, 0, -1)]
    run_ranks(2, train_to_shards, run, execution)
    results = [
        Store(e.storage).run(run.run_id).folder.read("result.json") for e in (straight, execution)
    ]
    assert results[0] == results[1]
    assert (
        weights_of(directory).keys() == weights_of(Store(straight.storage).run(run.run_id)).keys()
    )
    assert len(list(tmp_path.glob("storage/runs/*/attempts/*/weights/*.safetensors"))) == 2
    assert max(lost) <= 2, lost
    assert [r["step"] for r in directory.records()] == list(range(1, run.num_steps + 1))
    assert len(directory.attempts.list()) == num_kills + 1


def kill_once(directory, run, execution, dice, kills_left) -> int:
    """Starts two ranks, kills one at a random step; how many steps must be trained again."""
    before = max(directory.last_step(), 0)
    # what is trained until the kill is seen comes on top.
    share = (run.num_steps - before) // (kills_left + 1)
    target = before + dice.randint(1, max(1, share // 2))
    tried = len(directory.attempts.list())
    with Ranks(2, train, run, execution) as started:
        while started.at_work and (
            len(directory.attempts.list()) == tried or trained(directory) < target
        ):
            time.sleep(0.002)
        assert started.at_work, "the ranks ended before they were killed"
        started.kill(dice.randrange(2))
        others = started.processes
    assert all(process.exitcode for process in others)
    return trained(directory) - max(directory.last_step(), 0)


def trained(directory) -> int:
    return (directory.progress() or {}).get("step", 0)


def test_ranks_train_no_run_that_is_complete(execution, run):
    """As after they waited for the lease of another driver's ranks."""
    directory = create(execution, run)
    run_ranks(2, train, run, execution)
    run_ranks(2, train, run, execution)
    _, second = directory.attempts.list()
    assert directory.attempts.child(second).list() == ["lease.json"]
    assert directory.status() == "complete"


def test_ranks_exchange_no_pickles(execution, run):
    """Whoever reaches a rank's port could run code in it: torch's store and gloo know no token."""
    create(execution, run)
    run_ranks(2, train_without_pickles, run, execution)
    assert Store(execution.storage).run(run.run_id).status() == "complete"


def train_without_pickles(rank, num_ranks, run, execution):
    def refuse(*_):
        raise AssertionError("a pickle")

    distributed_c10d._pickler = distributed_c10d._unpickler = refuse
    pickle.loads = pickle.load = refuse
    train_to_shards(rank, num_ranks, run, execution)
    with pytest.raises(AssertionError):
        distributed_c10d.all_gather_object([None] * num_ranks, rank)  # so they would be seen


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_values_of_every_rank_arrive_in_order(num_ranks):
    run_ranks(num_ranks, exchange)


def exchange(rank, num_ranks):
    values = [None, "", "ä\ud800" * 1000, {"1": [True, -1.5]}, 2**70]
    group = distributed_c10d.group.WORLD
    for first in range(len(values)):
        mine = values[(first + rank) % len(values)]
        expected = [values[(first + other) % len(values)] for other in range(num_ranks)]
        assert ranks._from_all_ranks(mine, group) == expected


def test_an_error_while_a_shard_is_written_ends_the_run_on_every_rank(execution, run):
    create(execution, run)
    run_ranks(2, train_on_a_full_disk, run, execution)
    assert num_shards(Store(execution.storage).run(run.run_id)) == []


def train_on_a_full_disk(rank, num_ranks, run, execution):
    """Rank 1's writes fail; every rank must learn of it."""

    def full(*_):
        raise OSError(28, "no space")

    if rank == 1:
        ranks.write_shard = full
    with pytest.raises(OSError):
        train_rank(run, execution)


@pytest.mark.parametrize(
    "is_large",
    [pytest.param(False, id="one file", marks=pytest.mark.slow), pytest.param(True, id="shards")],
)
def test_a_rank_reads_its_own_rows_of_a_start(execution, run, monkeypatch, as_rank, is_large):  # noqa: F811
    """Merged with a module, from one file and from two ranks' shards; no rank reads, or holds, much
    more.
    """
    create(execution, run)
    run_ranks(2, train_to_shards if is_large else train, run, execution)
    view = View.of(run.run_id, {run.model.module_domains[0]: 0.5})
    with open_view(Store(execution.storage), view) as (config, weights):
        expected = merged_weights(config, weights, dict(view.weights))
    dense = merge_config(config, dict(view.weights))
    attack = dataclasses.replace(run, model=dense, start=view, routing=RoutingConfig())
    num_read, read = [], DiskTensors.rows

    def counted(tensors, *asked):
        rows = read(tensors, *asked)
        num_read.append(rows.numel())
        return rows

    monkeypatch.setattr(DiskTensors, "rows", counted)
    for rank in range(3):
        as_rank(rank, 3)
        with starting_point(attack, execution) as start:
            num_read.clear()  # the files are verified
            learner = new_learner(ShardedLearner, attack, execution, start)
        whole = sum(tensor.numel() for tensor in expected.values())
        assert sum(num_read) < 0.4 * whole
        assert max(num_read) < 0.4 * max(tensor.numel() for tensor in expected.values())
        for name, piece in learner.weight_pieces().items():
            assert torch.equal(
                piece.rows, expected[name][piece.first_row : piece.first_row + len(piece.rows)]
            ), name
