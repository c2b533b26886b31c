"""Ray drains a machine that will be taken away: what works there leaves with a checkpoint, and goes
on elsewhere.
"""

import dataclasses
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gram_platform.engine import node, process
from gram_platform.engine.execution import Resources
from gram_platform.engine.node import execute_run
from gram_platform.methods import plan
from gram_platform.store import Store
from tests.engine.conftest import TWO_RANKS, longer, slow_steps
from tests.engine.test_node import result_bytes, strip_clock

pytestmark = pytest.mark.ray
WARNING_S = 60.0  # between the drain and the end of the machine


def in_own_process(work: Callable, *args) -> None:
    """`work(*args)` where no Ray is initialised, as it may be here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))  # for Ray's workers
        process = multiprocessing.get_context("spawn").Process(target=work, args=args)
        process.start()
        process.join()
    assert process.exitcode == 0


class Machines:
    """Pretended machines: a head without CPUs, and what is added."""

    def __enter__(self) -> "Machines":
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(
            initialize_head=True,
            connect=True,
            head_node_args={"num_cpus": 0, "include_dashboard": False},
        )
        return self

    def __exit__(self, *_) -> None:
        import ray

        ray.shutdown()
        self.cluster.shutdown()

    def add(self):
        return self.cluster.add_node(num_cpus=1)

    def drain(self, machine) -> None:
        import ray
        from ray._private.state import state

        reasons = ray.core.generated.autoscaler_pb2.DrainNodeReason
        gcs, deadline_ms = (
            ray._private.worker.global_worker.gcs_client,
            int(1000 * (time.time() + WARNING_S)),
        )
        preempted = reasons.Value("DRAIN_NODE_REASON_PREEMPTION")
        accepted, why = gcs.drain_node(machine.node_id, preempted, "taken away", deadline_ms)
        assert accepted, why
        assert machine.node_id in state.get_draining_nodes()


def wait_for_step(directory, task, step) -> None:
    import ray

    while (directory.progress() or {"step": 0})["step"] < step:
        ready, _ = ray.wait([task], timeout=0.1)
        assert not ready, "ended before it was drained"


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_drained_machine_is_left_with_a_checkpoint(execution, run, undisturbed):
    straight, records = undisturbed
    seldom = dataclasses.replace(execution, checkpoint_every_s=1e9)
    in_own_process(drain_one_process, run, seldom)
    assert result_bytes(execution, run.run_id) == result_bytes(straight, run.run_id)
    assert strip_clock(Store(execution.storage).run(run.run_id).records()) == strip_clock(records)


def drain_one_process(run, execution) -> None:
    """The run commits on the machine that will be taken away, and is finished on another."""
    import ray

    directory = Store(execution.storage).run(run.run_id)
    with Machines() as machines:
        spot = machines.add()
        slow = ray.remote(num_cpus=1, max_retries=0)(execute_slowly)
        task = slow.remote(run, execution)
        wait_for_step(directory, task, 5)
        machines.drain(spot)
        with pytest.raises(ray.exceptions.WorkerCrashedError):
            ray.get(task, timeout=WARNING_S)
        assert directory.read_committed_step() >= 5
        assert directory.status() == "interrupted"
        machines.add()
        ray.get(slow.remote(run, execution, 0.0), timeout=60)


def execute_slowly(run, execution, step_s: float = 0.1) -> None:
    """The run in a process of Ray, which it asks every half second."""
    node.NUM_TRAIN_RECORDS, process.POLL_S = 4, 0.5
    node.training_steps = slow_steps(step_s)
    execute_run(run, {}, execution)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_ranks_leave_together_when_one_of_their_machines_is_drained(execution, setting):
    run = longer(plan("gram", setting).runs["all"], 100)
    in_own_process(
        drain_one_rank,
        run,
        dataclasses.replace(execution, placement=TWO_RANKS, checkpoint_every_s=1e9),
    )


def drain_one_rank(run, execution) -> None:
    """Nothing but the request commits; the second group works on the machine that stays and on a
    new one.
    """
    import ray

    directory = Store(execution.storage).run(run.run_id)
    with Machines() as machines:
        spot, _ = machines.add(), machines.add()
        task = ray.remote(num_cpus=0, max_retries=0)(execute_there).remote(run, execution)
        wait_for_step(directory, task, 5)
        machines.drain(spot)
        machines.add()
        while len(directory.attempts.list()) == 1:
            assert not ray.wait([task], timeout=0.1)[0], "ended instead of starting again"
        left = directory.read_committed_step()
        assert left >= 5
        wait_for_step(directory, task, left + 1)
        assert directory.read_committed_step() == left
        assert len(directory.attempts.list()) == 2


def execute_there(run, execution) -> dict:
    from gram_platform.engine.dispatch import execute_sharded_run

    return execute_sharded_run(run, {}, execution, Resources())
