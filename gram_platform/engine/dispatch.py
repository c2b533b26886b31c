"""Executes a multi-rank run on Ray Train workers."""

import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import ray.train
import torch
from ray.exceptions import OutOfMemoryError
from ray.train.torch import TorchConfig, TorchTrainer, get_device

from gram_platform.config import RunConfig, State, run_from_plain
from gram_platform.config.identity import to_plain
from gram_platform.engine.capacity import placement_strategy, wait_for_more_s
from gram_platform.engine.devices import DeviceError, ProbeReport, probe_after_error, probe_here
from gram_platform.engine.execution import Execution, Placement, Resources, results_place
from gram_platform.engine.life import AGAIN, CRASHED, CrashPolicy
from gram_platform.engine.process import OutOfMemory, memory_advice, note_sigterm
from gram_platform.engine.ray_private import adapt
from gram_platform.methods.nodes import tags_to_add
from gram_platform.store import LeaseHeld, RunDirectory
from gram_platform.train.loop import TrainingDiverged

# Ranks wait for machines without a limit, as slots do; Ray's default is one minute.
NO_LIMIT_S = 1e7


def execute_sharded_run(
    run: RunConfig, tags: Mapping[str, str], execution: Execution, resources: Resources
) -> dict:
    """Trains a run on Ray Train workers unless it has a result; returns the result.

    First requests the most ranks that the placement allows. If the cluster has no room for them,
    requests fewer, so that a run continues after machines are lost. If the ranks stop on SIGTERM or
    before a preemption, starts them again. After a crash, `CrashPolicy` decides whether to restart
    the run or raise Ray Train's error.

    LeaseHeld, and a DeviceError whose probe failed, are raised without a restart. If a rank raises
    TrainingDiverged, OutOfMemory (with advice) or ValueError, this error is recorded as the run's
    failure and raised.
    """
    store = execution.store()
    directory = store.run(run.run_id)
    directory.ensure_config(run)
    directory.add_tags(tags_to_add(directory.tags(), tags))
    *wider, fewest = execution.placement.divisions
    policy, left = CrashPolicy(), list(wider)
    while (result := store.current_result(directory)) is None:
        division = left.pop(0) if left else fewest
        is_elastic = division.num_ranks > fewest.num_ranks
        group = execution.with_placement(Placement((division,)))
        place_within_s = wait_for_more_s() if is_elastic else NO_LIMIT_S
        try:
            stopped = _trainer(run, group, resources, place_within_s).fit().return_value
        except ray.train.TrainingFailedError as error:
            failures = _failures(error)
            _raise_for_device([*failures, getattr(error, "controller_failure", None)])
            # The controller failed because the cluster had no room for so many ranks.
            if is_elastic and isinstance(error, ray.train.ControllerError):
                continue
            left = list(wider)
            _raise_permanent(failures, directory)
            step = directory.read_committed_step()
            if policy.after(run.run_id, CRASHED, "", step).action == AGAIN:
                continue
            # Ray's memory monitor killed the ranks with this error.
            killed = (f for f in failures if isinstance(f, OutOfMemoryError))
            _raise_permanent([OutOfMemory(memory_advice(f, division)) for f in killed], directory)
            raise
        left = list(wider)
        if stopped is not None and stopped.reason == State.DIVERGED:
            raise TrainingDiverged(stopped.message)
    return result


def _failures(error: ray.train.TrainingFailedError) -> list[Exception]:
    # The attribute is missing if the group of workers did not start.
    failures = getattr(error, "worker_failures", {}).values()
    return [getattr(failure, "health_check_failure", failure) for failure in failures]


def _raise_for_device(failures: list[Exception | None]) -> None:
    for failure in failures:
        if isinstance(failure, DeviceError) and failure.probe.failure:
            raise failure


def _raise_permanent(failures: list[Exception], directory: RunDirectory) -> None:
    """Raises one of `failures` if it would occur again after a restart.

    Looks for LeaseHeld first, then OutOfMemory, then ValueError, because an error of one kind may
    have caused the errors of the later kinds. Records OutOfMemory and ValueError as the run's
    failure.
    """
    for kind in (LeaseHeld, OutOfMemory, ValueError):
        for failure in failures:
            if not isinstance(failure, kind):
                continue
            attempt_ids = directory.attempts.list()
            if attempt_ids and kind is not LeaseHeld:
                details = {"kind": "memory" if kind is OutOfMemory else "error"}
                directory.record_failure(attempt_ids[-1], str(failure), details)
            raise failure


def _trainer(
    run: RunConfig, execution: Execution, resources: Resources, place_within_s: float
) -> TorchTrainer:
    os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = str(place_within_s)
    os.environ["RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S"] = str(execution.collective_timeout_s)
    backend = "nccl" if execution.device == "cuda" else "gloo"
    path, filesystem = results_place(execution.storage, "ray_train")
    trainer = TorchTrainer(
        _train_worker,
        train_loop_config={"run": to_plain(run), "execution": execution},
        torch_config=_RankConfig(
            backend, timeout_s=math.ceil(execution.collective_timeout_s), execution=execution
        ),
        scaling_config=ray.train.ScalingConfig(
            num_workers=execution.num_ranks,
            use_gpu=bool(resources.gpus_per_rank),
            resources_per_worker=resources.of_rank,
            placement_strategy=placement_strategy(resources, execution.num_ranks),
            label_selector=resources.label_selector or None,
        ),
        run_config=ray.train.RunConfig(
            # The time makes the name unique, because Ray Train would resume a run of this name.
            name=f"{run.run_id}-{time.time_ns()}",
            storage_path=path,
            storage_filesystem=filesystem,
            # The caller restarts the run, because it knows permanent errors and the progress.
            failure_config=ray.train.FailureConfig(max_failures=0, controller_failure_limit=0),
        ),
    )
    return adapt(trainer)


class _RankBackend(TorchConfig().backend_cls):
    """Ray Train's torch backend, extended to probe each rank's device and to handle SIGTERM.

    Python handles signals only in the main thread, but ranks train in a second thread. So the main
    thread calls `note_sigterm` before the training starts.
    """

    def on_start(self, worker_group, backend_config) -> None:
        for report in worker_group.execute(_probe_rank, backend_config.execution):
            if report.failure:
                raise DeviceError(report.failure, report)
        super().on_start(worker_group, backend_config)

    def on_training_start(self, worker_group, backend_config) -> None:
        super().on_training_start(worker_group, backend_config)
        worker_group.execute(note_sigterm)


@dataclass
class _RankConfig(TorchConfig):
    execution: Execution | None = None

    @property
    def backend_cls(self) -> type:
        return _RankBackend


def _probe_rank(execution: Execution) -> ProbeReport:
    return probe_here(replace(execution, device=_device_of_rank(execution)))


def _device_of_rank(execution: Execution) -> str:
    """Returns this rank's device.

    If torch sees no GPU in a GPU run, returns `cuda`, so that the probe of this device fails. Ray
    Train's own function would return `cpu`, on which the probe would succeed.
    """
    is_numbered = execution.device == "cuda" and torch.cuda.is_available()
    return str(get_device()) if is_numbered else execution.device


def _train_worker(config: Mapping) -> Any:
    # Only a rank needs FSDP, which takes 42 MiB.
    from gram_platform.engine.ranks import train_rank

    execution = config["execution"]
    with probe_after_error(_device_of_rank(execution)):
        return train_rank(run_from_plain(config["run"]), execution, report_to_ray_train)


def report_to_ray_train(progress: Mapping[str, Any]) -> bool:
    """Reports this rank's progress; returns True if a preemption is announced.

    Waits until all other ranks report too.
    """
    ray.train.report(dict(progress))
    return ray.train.get_preemption_info() is not None
