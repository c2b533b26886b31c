"""Ray's head dies under a run: the process that trains goes on to the result."""

import dataclasses
import multiprocessing
import os
import time
from pathlib import Path

import psutil
import pytest

from gram_platform.engine import node, notice, summary
from gram_platform.engine.node import execute_run
from gram_platform.store import Store
from gram_platform.train.loop import training_steps
from tests.engine.test_node import result_bytes, strip_clock

pytestmark = pytest.mark.ray

HEAD_AWAY_S = 40.0  # less than the minute after which Ray ends its processes


@pytest.mark.timeout(180)
def test_a_run_does_not_need_the_head(execution, run, undisturbed):
    straight, records = undisturbed
    process = multiprocessing.get_context("spawn").Process(target=lose_the_head, args=(run, execution))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert result_bytes(execution, run.run_id) == result_bytes(straight, run.run_id)
    assert strip_clock(Store(execution.storage).run(run.run_id).records()) == strip_clock(records)


def lose_the_head(run, execution) -> None:
    """In a process with a Ray of its own, which ends it."""
    import ray

    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    directory = Store(execution.storage).run(run.run_id)
    often = dataclasses.replace(execution, checkpoint_every_s=0.2)
    ray.init(address="local", num_cpus=1, include_dashboard=False, object_store_memory=100 * 2**20)
    try:
        task = ray.remote(num_cpus=1, max_retries=0)(execute_slowly).remote(run, often)
        while directory.committed_step() < 5:
            assert not ray.wait([task], timeout=0.05)[0], "ended before its head"
        ray._private.worker._global_node.kill_gcs_server()
        deadline = time.monotonic() + HEAD_AWAY_S
        while directory.result() is None:
            assert time.monotonic() < deadline, f"step {directory.committed_step()} of {run.num_steps}"
            time.sleep(0.05)
    finally:
        for child in psutil.Process().children(recursive=True):
            child.kill()


def execute_slowly(run, execution) -> None:
    """Three seconds, in which Ray is asked five times a second whether the machine is drained."""
    summary.NUM_TRAIN_RECORDS, notice.POLL_S = 4, 0.2

    def slowly(*args):
        for record in training_steps(*args):
            time.sleep(0.05)
            yield record

    node.training_steps = slowly
    execute_run(run, {}, execution)
