"""What Ray knows of its machines: one that is drained is left with a checkpoint, a head that is away stops nothing."""

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


def in_a_process_of_its_own(scenario, run, execution) -> None:
    """`scenario(run, execution)` with a Ray of its own, of which nothing is left."""
    process = multiprocessing.get_context("spawn").Process(target=_play, args=(scenario, run, execution))
    process.start()
    process.join()
    assert process.exitcode == 0


def _play(scenario, run, execution) -> None:
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    try:
        scenario(run, execution)
    finally:
        for child in psutil.Process().children(recursive=True):
            child.kill()


def execute_slowly(run, execution, step_s: float = 0.05) -> None:
    """The run in a process of Ray, which it asks five times a second."""
    summary.NUM_TRAIN_RECORDS, notice.POLL_S = 4, 0.2

    def slowly(*args):
        for record in training_steps(*args):
            time.sleep(step_s)
            yield record

    node.training_steps = slowly
    execute_run(run, {}, execution)


def lose_the_head(run, execution) -> None:
    """The run must end while the head is away; Ray waits a minute for it before it ends its processes."""
    import ray

    ray.init(address="local", num_cpus=1, include_dashboard=False, object_store_memory=100 * 2**20)
    directory = Store(execution.storage).run(run.run_id)
    task = ray.remote(num_cpus=1, max_retries=0)(execute_slowly).remote(run, execution)
    while directory.committed_step() < 5:
        assert not ray.wait([task], timeout=0.05)[0], "ended before its head"
    ray._private.worker._global_node.kill_gcs_server()
    deadline = time.monotonic() + 30
    while directory.result() is None:
        assert time.monotonic() < deadline, f"step {directory.committed_step()} of {run.num_steps}"
        time.sleep(0.05)


def drain_the_machine(run, execution) -> None:
    """One of two machines will be taken away; the run commits, leaves it, and goes on on the other."""
    import ray
    from ray._private.state import state
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 100 * 2**20}
    cluster = Cluster(initialize_head=True, connect=True, head_node_args=head)
    spot = cluster.add_node(num_cpus=1, object_store_memory=100 * 2**20)
    directory = Store(execution.storage).run(run.run_id)
    slowly = ray.remote(num_cpus=1, max_retries=0)(execute_slowly)
    task = slowly.remote(run, execution)
    while (directory.progress() or {"step": 0})["step"] < 5:
        assert not ray.wait([task], timeout=0.1)[0], "ended before it was drained"
    gcs = ray._private.worker.global_worker.gcs_client
    preempted = ray.core.generated.autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    accepted, why = gcs.drain_node(spot.node_id, preempted, "taken away", int(1000 * time.time()) + 60_000)
    assert accepted, why
    assert spot.node_id in state.get_draining_nodes()
    with pytest.raises(ray.exceptions.WorkerCrashedError):
        ray.get(task, timeout=60)
    assert directory.committed_step() >= 5
    assert directory.status() == "interrupted"
    cluster.add_node(num_cpus=1, object_store_memory=100 * 2**20)
    ray.get(slowly.remote(run, execution, 0.0), timeout=60)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("scenario", "checkpoint_every_s"),
    [(lose_the_head, 0.2), pytest.param(drain_the_machine, 1e9, marks=pytest.mark.slow)],
)
def test_the_run_ends_as_if_nothing_had_happened(execution, run, undisturbed, scenario, checkpoint_every_s):
    straight, records = undisturbed
    in_a_process_of_its_own(scenario, run, dataclasses.replace(execution, checkpoint_every_s=checkpoint_every_s))
    assert result_bytes(execution, run.run_id) == result_bytes(straight, run.run_id)
    assert strip_clock(Store(execution.storage).run(run.run_id).records()) == strip_clock(records)
