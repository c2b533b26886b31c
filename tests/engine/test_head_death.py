"""Ray dies under a run: without its head the process that trains goes on to the result; a driver
ends.
"""

import dataclasses
import os
import subprocess
import sys
import time

import psutil
import pytest

from gram_platform.engine.cluster import CLUSTER_LOST, RECONNECT, ClusterLost
from gram_platform.engine.execution import ALL_ON_ONE_RANK, Resources
from gram_platform.store import Store
from tests.engine.conftest import baselines
from tests.engine.test_drained import execute_slowly, in_own_process
from tests.engine.test_node import result_bytes, strip_clock
from tests.executed import run_graph

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
        while directory.read_committed_step() < 5:
            assert not ray.wait([task], timeout=0.05)[0], "ended before its head"
        ray._private.worker._global_node.kill_gcs_server()
        deadline = time.monotonic() + HEAD_AWAY_S
        while directory.result() is None:
            assert time.monotonic() < deadline, (
                f"step {directory.read_committed_step()} of {run.num_steps}"
            )
            time.sleep(0.05)
    finally:
        for child in psutil.Process().children(recursive=True):
            child.kill()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_driver_ends_without_rays_process_on_its_machine(execution, setting):
    """Else it would wait for ever: no task is in flight, and no process starts."""
    in_own_process(lose_this_machine, execution, baselines(setting, 4))


def lose_this_machine(execution, nodes) -> None:
    import ray

    ray.init(address="local", num_cpus=1, include_dashboard=False, object_store_memory=100 * 2**20)
    processes = psutil.Process().children(recursive=True)

    def kill_it_once(progress, ended) -> None:
        for process in processes if ended else ():
            if process.is_running() and process.name() == "raylet":
                process.kill()

    try:
        with pytest.raises(ClusterLost):
            run_graph(nodes, execution, Resources(), ALL_ON_ONE_RANK, kill_it_once, poll_s=0.05)
        assert sum(execution.store().run(node.id).result() is not None for node in nodes) < len(
            nodes
        )
    finally:
        for process in [*processes, *psutil.Process().children(recursive=True)]:
            if process.is_running():
                process.kill()


WAITS = """
import os, psutil, ray
from gram_platform.engine import cluster
cluster.connect()
for process in psutil.Process().children(recursive=True):
    if process.name() == "gcs_server":
        process.kill()
while True:
    ray.nodes()
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_driver_that_waits_for_a_dead_head_ends_with_a_line():
    """Ray would end it without a word."""
    env = os.environ | {"RAY_ADDRESS": "local", RECONNECT: "5"}
    ended = subprocess.run(
        [sys.executable, "-c", WAITS], env=env, capture_output=True, text=True, timeout=100
    )
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == f"error: {CLUSTER_LOST}"
