"""The processes that execute nodes of one rank: reused, shared, killed and missed."""

import contextlib
import dataclasses
import os
import signal
import time

import pytest

from gram_platform.engine import capacity
from gram_platform.engine.capacity import Admission
from gram_platform.engine.execution import ALL_ON_ONE_RANK, Resources
from gram_platform.methods.nodes import Node, method_nodes
from tests.engine.conftest import baselines
from tests.engine.test_drained import in_own_process
from tests.executed import run_graph

pytestmark = pytest.mark.ray


def processes(execution, nodes) -> dict[str, int]:
    """The process that trained each run."""
    return {
        node.id: execution.store().run(node.id).progress()["pid"] for node in nodes if node.is_run
    }


def test_one_process_executes_one_node_after_another(ray_cluster, execution, setting):
    nodes = baselines(setting, 3)
    progress = run_graph(nodes, execution, Resources(max_gpus=1), ALL_ON_ONE_RANK)
    assert progress.done == {node.id for node in nodes}
    assert len(set(processes(execution, nodes).values())) == 1


def share_a_pretended_gpu(execution, nodes) -> None:
    import ray

    ray.init(
        address="local",
        num_cpus=4,
        num_gpus=1,
        include_dashboard=False,
        object_store_memory=100 * 2**20,
    )
    most = [0]

    def on_change(progress, node):
        most[0] = max(most[0], len(progress.running))

    shared = Resources(gpus_per_rank=1.0, gpus_per_run=0.5)
    progress = run_graph(nodes, execution, shared, ALL_ON_ONE_RANK, on_change, poll_s=0.05)
    assert progress.done == {node.id for node in nodes}
    assert most == [2], "two runs share the GPU, and no more"
    assert len(set(processes(execution, nodes).values())) == 2


@pytest.mark.slow
def test_two_runs_share_a_gpu(execution, setting):
    in_own_process(share_a_pretended_gpu, execution, baselines(setting, 4))


def test_a_run_that_hangs_is_started_again(ray_cluster, execution, run):
    """Its process is stopped: no error, no end, and no step."""
    node, hung = (
        Node(run, (("method", "gram"), ("size", "tiny"), ("seed", "0"), ("profile", "all"))),
        [],
    )
    directory = execution.store().run(node.id)

    def stop_it_once(progress, ended):
        beat = directory.progress()
        if not hung and beat and beat["step"] > 0 and directory.result() is None:
            hung.append(beat["pid"])
            os.kill(beat["pid"], signal.SIGSTOP)

    impatient = dataclasses.replace(execution, stall_timeout_s=12.0, lease_s=2.0)
    try:
        started = time.monotonic()
        progress = run_graph(
            [node], impatient, Resources(), ALL_ON_ONE_RANK, stop_it_once, poll_s=0.01
        )
        assert time.monotonic() - started >= 12.0
    finally:
        for pid in hung:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert progress.done == {node.id}
    assert hung != [directory.progress()["pid"]]


@pytest.mark.slow
def test_an_evaluation_that_hangs_is_started_again(ray_cluster, execution, setting):
    """The process that has trained the run is stopped before it can measure."""
    nodes, hung = method_nodes("baseline", setting)[:2], []
    assert [node.is_run for node in nodes] == [True, False]

    def stop_it_once(progress, ended):
        if ended is not None and ended.is_run:
            hung.append(execution.store().run(ended.id).progress()["pid"])
            os.kill(hung[0], signal.SIGSTOP)

    impatient = dataclasses.replace(execution, stall_timeout_s=12.0)
    try:
        progress = run_graph(
            nodes, impatient, Resources(max_gpus=1), ALL_ON_ONE_RANK, stop_it_once, poll_s=0.01
        )
    finally:
        for pid in hung:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert progress.done == {node.id for node in nodes}
    assert len(hung) == 1


def test_a_machine_is_reserved_for_ranks_that_wait_long(monkeypatch):
    """Other work would else keep a part of every machine for ever."""
    pair, four = ({k: {"CPU": 1.0, "GPU": 1.0} for k in range(number)} for number in (2, 4))
    groups = {
        "a": {"state": "CREATED", "strategy": "STRICT_PACK", "bundles": pair},
        "b": {"state": "PENDING", "strategy": "PACK", "bundles": pair},
    }
    gpus, now = {"x": 4.0, "y": 4.0, "small": 1.0}, [1000.0]
    machines = lambda: [
        {"NodeID": name, "Alive": True, "Resources": {"GPU": n}} for name, n in gpus.items()
    ]
    monkeypatch.setattr(capacity, "placement_group_table", lambda: groups)
    monkeypatch.setattr(capacity, "machine_types", lambda: {f"node_{name}" for name in gpus})
    monkeypatch.setattr(capacity.ray, "nodes", machines)
    monkeypatch.setattr(capacity.time, "monotonic", lambda: now[0])
    admission, busy = (
        Admission(Resources(gpus_per_rank=1.0, gpus_per_run=1.0)),
        {"x": 3, "y": 1, "small": 0},
    )

    def reserved_after(seconds: float) -> str:
        now[0] += seconds
        return admission.machine_to_reserve(lambda: busy)

    assert reserved_after(capacity.PATIENCE_S) == ""
    groups["c"] = {"state": "PENDING", "strategy": "STRICT_PACK", "bundles": four}
    assert reserved_after(10.0) == ""
    assert reserved_after(capacity.PATIENCE_S) == "y"  # where the least is lost, and the ranks fit
    busy["y"] = 4
    assert reserved_after(10.0) == "y"  # it stays with one machine
    del busy["y"]
    # Also when that has no process left, until the ranks are placed.
    assert reserved_after(10.0) == "y"
    del gpus["y"]
    assert reserved_after(10.0) == "x"  # it has died
    groups["c"]["state"] = "CREATED"
    assert reserved_after(10.0) == ""
