"""A run of two to three ranks: when its machine is killed it goes on with two, when one comes with
three.
"""

import contextlib
import dataclasses
import os
import signal
import time

import pytest

from gram_platform.engine import capacity, dispatch, node, ranks
from gram_platform.engine.execution import Resources
from gram_platform.engine.node import execute_run
from gram_platform.engine.ranks import RanksStopped
from gram_platform.methods import plan
from gram_platform.methods.nodes import Node
from gram_platform.planner.ranks import Ranks
from gram_platform.store import Store
from gram_platform.studies.workplace import placement_of
from tests.engine.conftest import elsewhere, longer, slow_steps
from tests.engine.test_drained import Machines, in_own_process
from tests.engine.test_ranks import TOLERANCE, num_shards

STEP_S = 0.1
DEADLINE_S = 300.0


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_goes_on_with_fewer_ranks_and_then_with_more(execution, setting, tmp_path):
    """Every step is trained once in the history, and the losses are one process's up to
    rounding."""
    run = longer(plan("gram", setting).runs["all"], 3)
    run = dataclasses.replace(run, batch_size=6, micro_batch=6)
    placement = placement_of(Node.of(run, {"size": "tiny"}), Ranks(2, most=(("", 3),)), "cpu")
    often = dataclasses.replace(execution, placement=placement, checkpoint_every_s=0.5)
    in_own_process(lose_and_gain_a_machine, run, often)
    found = Store(execution.storage).run(run.run_id)
    assert [record["step"] for record in found.records()] == list(range(1, run.num_steps + 1))
    assert found.timing()["num_ranks"] == 3
    alone = execute_run(
        run,
        {},
        elsewhere(dataclasses.replace(execution, checkpoint_every_s=1e9), tmp_path, "alone"),
    )
    assert found.result()["plan_sha256"] == alone["plan_sha256"]
    assert found.result()["final"] == pytest.approx(alone["final"], abs=10 * TOLERANCE)


def lose_and_gain_a_machine(run, execution) -> None:
    import ray

    assert [division.num_ranks for division in execution.placement.divisions] == [3, 2]
    directory = Store(execution.storage).run(run.run_id)
    with Machines() as machines:
        _, _, third = machines.add(), machines.add(), machines.add()
        task = ray.remote(num_cpus=0, max_retries=0)(execute_there).remote(run, execution)
        wait_for_checkpoint(directory, task, 3)
        machines.cluster.remove_node(third, allow_graceful=False)
        wait_for_checkpoint(directory, task, 2)
        machines.add()
        os.kill(directory.progress()["pid"], signal.SIGKILL)
        wait_for_checkpoint(directory, task, 3)
        ray.get(task, timeout=DEADLINE_S)


def wait_for_checkpoint(directory, task, num_ranks: int) -> None:
    """Waits until the newest checkpoint has so many shards."""
    import ray

    deadline = time.monotonic() + DEADLINE_S
    while True:
        with contextlib.suppress(IndexError):
            if num_shards(directory)[-1] == num_ranks:
                return
        assert not ray.wait([task], timeout=0.1)[0], "ended too early"
        assert time.monotonic() < deadline, f"no checkpoint of {num_ranks} ranks"


def execute_there(run, execution) -> dict:
    capacity.WAIT_FOR_MORE_S = capacity.WAIT_FOR_MACHINES_S = 5.0
    dispatch._train_worker = train_slowly
    return dispatch.execute_sharded_run(run, {}, execution, Resources())


def train_slowly(config) -> RanksStopped | None:
    node.NUM_TRAIN_RECORDS = 10_000  # one for each step
    node.training_steps = slow_steps(STEP_S)
    return ranks.train_rank(
        dispatch.run_from_plain(config["run"]), config["execution"], dispatch.report_to_ray_train
    )
