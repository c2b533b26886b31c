"""Which errors are a device's, what a probe finds, and what a driver makes of both."""

import os
import pickle
import subprocess
import sys
from dataclasses import replace
from unittest import mock

import pytest
import torch
from ray.exceptions import RayTaskError, WorkerCrashedError

from gram_platform.config.endings import Stopped, Unavailable
from gram_platform.engine import capacity, devices, slots
from gram_platform.engine import ray_executor as ray_executor_module
from gram_platform.engine.capacity import MAX_REPLACEMENTS, Cordon
from gram_platform.engine.cluster import ClusterLost
from gram_platform.engine.devices import (
    DeviceError,
    ProbeReport,
    is_device_error,
    probe_afresh,
    probe_after_error,
    probe_here,
)
from gram_platform.engine.dispatch import _probe_rank, _raise_permanent
from gram_platform.engine.execution import Resources
from gram_platform.engine.executor import WARNED
from gram_platform.engine.life import MAX_CRASHES
from gram_platform.engine.node import RunExecution, execute_run
from gram_platform.engine.process import (
    CUBLAS_VARIABLE,
    CUBLAS_WORKSPACE,
    OutOfMemory,
    is_out_of_memory,
    set_up_torch,
)
from gram_platform.methods.nodes import Node, method_nodes
from gram_platform.store import LeaseHeld, Store
from gram_platform.store.files import StorageAway
from gram_platform.train.loop import TrainingDiverged
from tests.engine.conftest import on_ranks
from tests.executed import happened, ray_executor, run_in_process

ILLEGAL = "CUDA error: an illegal memory access was encountered\nCompile with `TORCH_USE_CUDA_DSA`"
OF_DEVICES = (
    torch.AcceleratorError(ILLEGAL),
    RuntimeError(ILLEGAL),
    RuntimeError("CUDA error: uncorrectable ECC error encountered"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(...)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    RuntimeError("cuDNN Frontend error: No valid execution plans built"),
    RuntimeError("CUDA driver error: invalid context"),
    RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
    RuntimeError(
        "NCCL error in: ProcessGroupNCCL.cpp:1, unhandled cuda error (run with NCCL_DEBUG=INFO for"
        " details)"
    ),
    RuntimeError("Found no NVIDIA driver on your system."),
    RuntimeError("No CUDA GPUs are available"),
    RuntimeError(
        "Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility was attempted"
    ),
    AssertionError("Torch not compiled with CUDA enabled"),
)
OF_MEMORY = (
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    torch.AcceleratorError("CUDA error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    OutOfMemory("out of memory (...). The planner counts 3 GiB"),
)


def report(failure: str = "", machine: str = "m1", device: str = "cuda 0") -> ProbeReport:
    return ProbeReport(machine, "host", "10.0.0.1", device, failure)


def test_errors_of_devices_and_of_memory_are_distinguished():
    assert [is_device_error(error) for error in OF_DEVICES] == [True] * len(OF_DEVICES)
    assert not any(map(is_out_of_memory, OF_DEVICES))
    assert [is_out_of_memory(error) for error in OF_MEMORY] == [True] * len(OF_MEMORY)
    assert not any(map(is_device_error, OF_MEMORY))
    for error in (
        ValueError("steps"),
        RuntimeError("size mismatch"),
        TrainingDiverged("NaN"),
        KeyError("CUDA error"),
    ):
        assert not is_device_error(error)
    consequence = OSError("the checkpoint cannot be written")
    consequence.__context__ = RuntimeError(ILLEGAL)
    assert is_device_error(consequence)


def test_a_probe_uses_the_device(execution):
    assert probe_here(execution).failure == ""
    absent = probe_here(replace(execution, device="cuda:9"))
    assert absent.failure
    assert probe_afresh("no-such-device").failure


def test_a_process_outlives_a_probe_that_aborts(execution, tmp_path, monkeypatch):
    aborts = tmp_path / "python"
    aborts.write_text("#!/bin/sh\nkill -ABRT $$\n")
    aborts.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(aborts))
    assert probe_here(replace(execution, device="cuda")).failure


def test_a_probe_that_no_signal_ends_is_not_waited_for(monkeypatch):
    probes, kill = [], subprocess.Popen.kill
    monkeypatch.setattr(devices, "PRODUCT_S", 0.05)
    monkeypatch.setattr(subprocess.Popen, "kill", lambda probe: probes.append(probe))
    assert probe_afresh("cpu").failure
    (probe,) = probes
    try:
        assert probe.poll() is None
    finally:
        kill(probe)
        probe.communicate()


@pytest.mark.parametrize("probe", [probe_here, _probe_rank])
def test_a_probe_is_no_product_before_a_deterministic_process_is_set_up(
    execution, monkeypatch, probe
):
    """On a GPU torch reads the variable once, at the first product: without it each later one would
    be refused.
    """
    monkeypatch.setenv(CUBLAS_VARIABLE, "")
    monkeypatch.setattr(
        devices, "_multiply", lambda device: seen.append(os.environ[CUBLAS_VARIABLE])
    )
    seen: list[str] = []
    try:
        probe(replace(execution, deterministic=True))
    finally:
        set_up_torch(execution)
    assert seen == [CUBLAS_WORKSPACE]


def test_an_error_of_a_device_reaches_the_driver_with_a_probe():
    with pytest.raises(DeviceError) as caught, probe_after_error("cpu"):
        raise RuntimeError(ILLEGAL)
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.probe.device, error.probe.failure) == ("cpu", "")
    # Any other error passes as it is.
    with pytest.raises(KeyError), probe_after_error("cpu"):
        raise KeyError("steps")


@pytest.mark.parametrize(
    ("error", "in_process"),
    [
        (RuntimeError(ILLEGAL), Stopped),
        (StorageAway("the storage has failed for 300 s"), StorageAway),
    ],
)
def test_what_another_process_may_not_meet_is_not_recorded_as_a_failure(
    run, execution, monkeypatch, error, in_process
):
    def fail(self):
        raise error

    monkeypatch.setattr(RunExecution, "finish", fail)
    with pytest.raises(type(error)):
        execute_run(run, {}, execution)
    directory = Store(execution.storage).run(run.run_id)
    assert directory.failure() is None
    assert directory.status() == "interrupted"
    with pytest.raises(in_process):
        run_in_process([Node(run, ())], execution)
    assert directory.failure() is None


# ----------------------------------------------------------------------------------------- a driver


def study_of(execution, nodes, placements=None):
    return ray_executor(nodes, execution, placements=placements or {})


def study_of_one(execution, setting):
    node = method_nodes("baseline", setting)[0]
    return study_of(execution, [node]), node


def ends_with(monkeypatch, error: Exception) -> None:
    """Lets Ray's tasks end with an error."""
    raised = (
        RayTaskError("execute", "", error) if not isinstance(error, WorkerCrashedError) else error
    )
    for module in (ray_executor_module, slots):
        monkeypatch.setattr(module.ray, "get", mock.MagicMock(side_effect=raised))


def test_crashes_count_on_machines_that_pass_the_probe(setting, execution, monkeypatch):
    study, node = study_of_one(execution, setting)
    ends_with(monkeypatch, DeviceError(ILLEGAL, report("illegal memory access", "broken")))
    assert not any(study._settle(node, None, (node,), None) for _ in range(3 * MAX_CRASHES))
    assert study.cordon.resources.cordoned == ("broken",)
    ends_with(monkeypatch, DeviceError(ILLEGAL, report()))
    assert [study._settle(node, None, (node,), None) for _ in range(MAX_CRASHES)] == [False] * 3 + [
        True
    ]
    assert node.id in study.progress.failed
    assert len(happened(study, WARNED)) == 3 * MAX_CRASHES + 3


def test_a_service_that_is_away_does_not_fail_a_node_at_once(setting, execution, monkeypatch):
    study, node = study_of_one(execution, setting)
    ends_with(monkeypatch, Unavailable("the hub has the status 503"))
    assert [study._settle(node, None, (node,), report()) for _ in range(MAX_CRASHES)] == [
        False
    ] * 3 + [True]
    # Raises not.
    _raise_permanent(
        [Unavailable("the hub has the status 503")], Store(execution.storage).run(node.id)
    )


def test_crashes_on_a_machine_that_then_fails_the_probe_do_not_count(
    setting, execution, monkeypatch
):
    study, node = study_of_one(execution, setting)
    ends_with(monkeypatch, WorkerCrashedError())
    for _ in range(MAX_CRASHES - 1):
        assert not study._settle(node, None, (node,), report(machine="broken"))
    study.cordon.note(report("no driver", "broken"))
    has_failed = [
        study._settle(node, None, (node,), report(machine="good")) for _ in range(MAX_CRASHES)
    ]
    assert has_failed == [False] * 3 + [True]


def test_a_lack_of_memory_is_tried_again_once_elsewhere(setting, execution, monkeypatch):
    study, node = study_of_one(execution, setting)
    lack = OutOfMemory("out of memory (...). The planner counts 3 GiB")
    ends_with(monkeypatch, lack)
    assert not study._settle(node, None, (node,), report(device="cuda 3"))
    assert study.lacked_memory == {node.id: report(device="cuda 3")}
    assert study._settle(node, None, (node,), report(device="cuda 4"))
    assert study.progress.failed[node.id] == str(lack)


def test_a_task_waits_for_a_slot_on_another_device(setting, execution):
    pool, same, other = (
        slots.SlotPool(execution, Cordon(Resources())),
        mock.MagicMock(),
        mock.MagicMock(),
    )
    task, avoided = (method_nodes("baseline", setting)[0],), report()
    pool.probes = {same: report(), other: report(device="cuda 1")}
    pool.idle = {same: 0.0}
    assert pool.submit(task, avoided=avoided) is None  # the other one is busy
    pool.idle[other] = 0.0
    reference = pool.submit(task, avoided=avoided)
    assert pool.busy == {reference: other}
    del pool.probes[other]
    assert pool.submit(task, avoided=avoided) is not None, "there is no other device"


@pytest.mark.parametrize(
    ("error", "is_kept"),
    [
        (LeaseHeld("abc", {"owner": "h:1", "pid": 1, "host": "h"}), True),
        (TrainingDiverged("NaN"), True),
        (ValueError("steps"), True),
        (RuntimeError("a bug"), False),
        (OutOfMemory("out of memory"), False),
        (DeviceError(ILLEGAL, report()), False),
    ],
)
def test_a_slot_ends_after_an_error_that_nobody_foresaw(execution, monkeypatch, error, is_kept):
    pool, slot = slots.SlotPool(execution, Cordon(Resources())), mock.MagicMock()
    pool.probes, pool.busy = {slot: report()}, {"a task": slot}
    ends_with(monkeypatch, error)
    killed = mock.MagicMock()
    monkeypatch.setattr(slots.ray, "kill", killed)
    assert pool.release("a task") == report()
    assert (slot in pool.idle, killed.called) == (is_kept, not is_kept)


def test_a_machine_whose_processes_die_ends_no_driver_while_others_work(execution, monkeypatch):
    study = study_of(execution, [])
    ends_with(monkeypatch, WorkerCrashedError())
    monkeypatch.setattr(slots.ray, "kill", mock.MagicMock())

    def fail_to_start() -> None:
        study.slots.starting["a probe"], study.slots._next_start = mock.MagicMock(), 0.0
        assert study._take_back("a probe") == []

    study.in_flight = {"a task": ()}
    for _ in range(3 * slots.MAX_FAILED_STARTS):
        fail_to_start()
    study.in_flight.clear()
    with pytest.raises(ClusterLost):
        fail_to_start()


# ----------------------------------------------------------------------------------------- a cordon


@pytest.fixture
def cluster(monkeypatch):
    """Machines by id, each of two CPUs; whether their number is fixed."""
    found = mock.MagicMock(machines=["m1"], is_fixed=False)
    nodes = lambda: [
        {"NodeID": i, "Alive": True, "Resources": {"CPU": 2.0}} for i in found.machines
    ]
    monkeypatch.setattr(capacity.ray, "nodes", nodes)
    monkeypatch.setattr(capacity, "has_fixed_size", lambda: found.is_fixed)
    monkeypatch.setattr(capacity, "most_gangs", lambda: 9)
    return found


def test_a_cluster_without_a_machine_that_works_ends_the_driver(cluster):
    cluster.is_fixed, cluster.machines = True, ["m1", "m2"]
    found = Cordon(Resources())
    found.require_machines(99)  # waiting has no limit before a machine is cordoned
    assert not found.note(report("no driver"))
    found.require_machines(2)
    with pytest.raises(ClusterLost):
        found.require_machines(3)
    found.note(report("no driver", "m2"))
    with pytest.raises(ClusterLost):
        found.require_machines()


def test_a_run_too_wide_for_the_machines_left_holds_up_no_other(cluster, setting, execution):
    cluster.is_fixed, cluster.machines = True, ["m1", "m2"]
    wide, narrow = (method_nodes("baseline", replace(setting, seed=seed))[0] for seed in (0, 1))
    study = study_of(execution, [wide, narrow], {wide.id: on_ranks(4)})
    assert study._fitting() == [(wide,)]
    study.cordon.note(report("no driver", "m2"))
    assert study._fitting() == [(narrow,)]
    study.waiting.start((narrow,))
    study.in_flight["a task"] = (narrow,)
    assert study._fitting() == []
    study.in_flight.clear()
    study.waiting.retry(narrow)
    assert study._fitting() == [], "it can start in two seconds"
    study.waiting.delayed.clear()
    with pytest.raises(ClusterLost):
        study._fitting()


def test_a_growing_cluster_is_asked_for_three_others(cluster):
    named = []
    found = Cordon(Resources(), named.append)
    for number in range(MAX_REPLACEMENTS):
        found.note(report("no driver", f"m{number}"))
        cluster.machines = []
        found.require_machines()
        assert found.may_grow
    found.note(report("no driver", "last"))
    assert not found.may_grow
    with pytest.raises(ClusterLost):
        found.require_machines()
    assert [each.machine for each in named] == ["m0", "m1", "m2", "last"]
    found.note(report(machine="good"))
    assert found.may_grow


def test_free_resources_leave_out_cordoned_machines(cluster):
    cluster.machines = ["m1", "m2"]
    admission = capacity.Admission(Resources(cordoned=("m1",)))
    free = admission.free_resources(may_wait=False)
    assert [free.take(1) for _ in range(3)] == [True, True, False]
    assert Resources(cordoned=("m1", "m2")).of_slot["label_selector"] == {
        "ray.io/node-id": "!in(m1,m2)"
    }
