"""What ranks decide together: to wait for one another's data, to commit, to leave."""

import dataclasses
import datetime
import json
import os
import signal
import time

import pytest
import torch.distributed as dist

from gram_platform.engine import node
from gram_platform.engine.execution import Execution
from gram_platform.engine.ranks import LEFT, train_rank
from gram_platform.methods import plan
from gram_platform.store import Store, attempts
from gram_platform.store.checkpoints import list_checkpoints
from tests.engine.conftest import elsewhere
from tests.engine.test_ranks import create, train, train_to_a_checkpoint
from tests.ranks import Ranks, run_ranks

LIMIT_S = 5.0  # of a collective; a busy machine needs some of it


@pytest.mark.parametrize("waits", ["corpus", "complete"])
@pytest.mark.slow  # tests/engine/test_ranks.py is the quick relative
def test_ranks_wait_for_one_ranks_long_work(execution, setting, waits):
    """Rank 0 or 1 takes longer over its data or the result than a collective may."""
    run = plan("baseline", setting).runs["all"]
    seldom = dataclasses.replace(execution, checkpoint_every_s=1e9)
    create(seldom, run)
    run_ranks(2, train_with_a_slow_rank, run, seldom, waits)
    assert Store(execution.storage).run(run.run_id).status() == "complete"


def train_with_a_slow_rank(rank, num_ranks, run, execution, waits):
    set_limit(LIMIT_S)
    slow_rank, owner = {"corpus": (1, Execution), "complete": (0, attempts.Attempt)}[waits]
    work = getattr(owner, waits)

    def slowly(*args, **parts):
        time.sleep(1.5 * LIMIT_S)
        return work(*args, **parts)

    if rank == slow_rank:
        setattr(owner, waits, slowly)
    assert train_rank(run, execution) is None


def set_limit(seconds):
    """Of the default group's collectives, as the flag sets it where Ray Train makes the group."""
    store = dist.PrefixStore("again", dist.distributed_c10d._get_default_store())
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    limit = datetime.timedelta(seconds=seconds)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks, timeout=limit)


def test_checkpoints_follow_the_clock(execution, run):
    """Not the intervals of the metrics: here one record has all steps."""
    directory = create(execution, run)
    run_ranks(2, train_to_a_fifth_step, run, execution)
    assert [step for step, _ in list_checkpoints(directory.attempts)] == [4, 5]


def train_to_a_fifth_step(rank, num_ranks, run, execution):
    """One record of metrics has all steps, and each step has a checkpoint."""
    node.NUM_TRAIN_RECORDS = 1
    train_to_a_checkpoint(rank, num_ranks, run, execution, 5)


@pytest.mark.slow
@pytest.mark.parametrize("asked", [0, 1])
def test_a_stop_request_to_one_rank_is_one_to_all(execution, run, tmp_path, asked):
    seldom = dataclasses.replace(execution, checkpoint_every_s=1e9)
    straight = elsewhere(seldom, tmp_path, "straight")
    create(straight, run)
    run_ranks(2, train, run, straight)
    directory = create(execution, run)
    with Ranks(2, train_until_stopped, run, seldom, str(tmp_path)) as started:
        while (directory.progress() or {"step": 0})["step"] < 3:
            assert started.at_work
            time.sleep(0.005)
        os.kill(started.processes[asked].pid, signal.SIGTERM)
        started.join()
    committed = directory.read_committed_step()
    assert committed >= 3
    said = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert said == [[LEFT, f"left after step {committed}"]] * 2
    assert directory.status() == "interrupted"
    run_ranks(2, train, run, seldom)
    results = [
        Store(e.storage).run(run.run_id).folder.read("result.json") for e in (straight, execution)
    ]
    assert results[0] == results[1]
    assert [r["step"] for r in directory.records()] == list(range(1, run.num_steps + 1))


def train_until_stopped(rank, num_ranks, run, execution, folder):
    attempts.HEARTBEAT_INTERVAL_S = 0.001
    ended = train_rank(run, execution)
    with open(f"{folder}/{rank}.json", "w") as file:
        json.dump([ended.reason, ended.message], file)
