"""Ray's head dies under a run: the process that trains goes on to the result."""

import dataclasses
import time

import psutil
import pytest

from gram_platform.store import Store
from tests.engine.test_drained import execute_slowly, in_own_process
from tests.engine.test_node import result_bytes, strip_clock

pytestmark = pytest.mark.ray

HEAD_AWAY_S = 40.0  # less than the minute after which Ray ends its processes


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_run_does_not_need_the_head(execution, run, undisturbed):
    straight, records = undisturbed
    in_own_process(lose_the_head, run, dataclasses.replace(execution, checkpoint_every_s=0.2))
    assert result_bytes(execution, run.run_id) == result_bytes(straight, run.run_id)
    assert strip_clock(Store(execution.storage).run(run.run_id).records()) == strip_clock(records)


def lose_the_head(run, execution) -> None:
    """The run asks Ray twice a second whether its machine is drained, and gets no answer."""
    import ray

    directory = Store(execution.storage).run(run.run_id)
    ray.init(address="local", num_cpus=1, include_dashboard=False, object_store_memory=100 * 2**20)
    try:
        task = ray.remote(num_cpus=1, max_retries=0)(execute_slowly).remote(run, execution, 0.05)
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
