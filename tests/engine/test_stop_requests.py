"""Ranks that get a stop request while they train leave after the same step, and continue."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch.distributed as dist

from gram_platform.engine import ranks
from gram_platform.engine.ranks import LEFT, LONG_WORK_TIMEOUT_S, train_rank
from gram_platform.methods import plan
from gram_platform.store import Store
from tests.engine.test_ranks import create, elsewhere, train
from tests.ranks import run_ranks


@pytest.fixture
def run(setting):
    """GRAM in float32."""
    run = plan("gram", setting).runs["all"]
    return dataclasses.replace(run, precision="float32", batch_size=4, micro_batch=2)


@pytest.mark.slow  # one rank: tests/engine/test_faults.py
def test_ranks_asked_to_stop_leave_together_and_continue_to_the_same_bytes(execution, run, tmp_path):
    seldom = dataclasses.replace(execution, checkpoint_every_s=1e9)
    half = run.num_steps // 2
    run_ranks(2, train_until_stopped, run, seldom, tmp_path)
    ends = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert ends[0] == ends[1]
    directory = Store(execution.storage).run(run.run_id)
    committed = directory.committed_step()
    assert half < committed < run.num_steps
    assert ends[0]["end"] == [LEFT, f"left after step {committed}"]
    assert directory.status() == "interrupted"
    straight = elsewhere(seldom, tmp_path, "straight")
    create(straight, run)
    for each in (straight, seldom):
        run_ranks(2, train, run, each)
    results = [Store(each.storage).run(run.run_id).folder.read("result.json") for each in (straight, seldom)]
    assert results[0] == results[1]
    assert [record["step"] for record in directory.records()] == list(range(1, run.num_steps + 1))


def train_until_stopped(rank, num_ranks, run, execution, folder: Path):
    """Rank 0 alone is asked to stop, from the half on."""
    ranks.REPORT_EVERY_S = 0.0

    def tell(progress) -> bool:
        return rank == 0 and progress["step"] >= run.num_steps // 2

    if rank == 0:
        create(execution, run)
    timeouts_s, new_group = [], dist.new_group

    def noted(timeout, **how):
        timeouts_s.append(timeout.total_seconds())
        return new_group(timeout=timeout, **how)

    dist.new_group = noted
    end = train_rank(run, execution, tell)
    assert timeouts_s == [LONG_WORK_TIMEOUT_S] * 2, "ranks wait as long for one that writes as for one that loads"
    (folder / f"{rank}.json").write_text(json.dumps({"end": [end.reason, end.message]}))
