"""Executes one node: in this process, or on Ray Train workers."""

import math
import os
import time
from collections.abc import Mapping

import ray.train
from ray.exceptions import OutOfMemoryError
from ray.train.torch import TorchConfig, TorchTrainer

from gram_platform.config import AnyEvaluation, RunConfig, run_from_plain
from gram_platform.config.identity import to_plain
from gram_platform.engine.evaluation import execute_evaluation
from gram_platform.engine.execution import Execution, Resources
from gram_platform.engine.life import MAX_CRASHES, Crashes
from gram_platform.engine.node import execute_run
from gram_platform.engine.process import OutOfMemory, listen, memory_advice
from gram_platform.engine.ranks import DIVERGED, Ended, train_rank
from gram_platform.store import LeaseHeld, RunDirectory
from gram_platform.train.loop import TrainingDiverged

WORKER_START_TIMEOUT_S = "1800"  # an autoscaling cluster needs minutes for a node; Ray's default is one


def execute_sharded_run(run: RunConfig, tags: Mapping[str, str], execution: Execution, resources: Resources) -> dict:
    """The run's result, trained on `execution.num_ranks` Ray Train workers if it is not there yet.

    Ranks that were told to end, or died, are started again and continue; after `MAX_CRASHES` deaths without a new
    checkpoint Ray Train's error is raised. Raises at once what no restart changes: TrainingDiverged, OutOfMemory with
    advice and ValueError of any rank (recorded as the run's failure), and LeaseHeld.
    """
    directory = execution.store().run(run.run_id)
    directory.ensure_config(run)
    directory.add_tags(tags)
    crashes = Crashes()
    while (result := directory.result()) is None:
        try:
            ended = _trainer(run, execution, resources).fit().return_value
        except ray.train.TrainingFailedError as error:
            failures = _failures(error)
            _raise_what_stays(failures, directory)
            crashes = crashes.another(directory.committed_step())
            if crashes.number < MAX_CRASHES:
                continue
            killed = (f for f in failures if isinstance(f, OutOfMemoryError))  # by Ray's memory monitor
            _raise_what_stays([OutOfMemory(memory_advice(f, run, execution)) for f in killed], directory)
            raise
        if ended is not None and ended.reason == DIVERGED:
            raise TrainingDiverged(ended.message)
    return result


def _failures(error: ray.train.TrainingFailedError) -> list[Exception]:
    """What each rank that failed raised, or what Ray says about its process."""
    failures = getattr(error, "worker_failures", {})  # absent where the group did not start
    return [getattr(failure, "health_check_failure", failure) for failure in failures.values()]


def _raise_what_stays(failures: list[Exception], directory: RunDirectory) -> None:
    """Raises a rank's failure that would come again; what other ranks then say is its consequence."""
    for kind in (LeaseHeld, OutOfMemory, ValueError):
        for failure in failures:
            if not isinstance(failure, kind):
                continue
            attempt_ids = directory.attempts.list()
            if attempt_ids and kind is not LeaseHeld:
                details = {"kind": "memory" if kind is OutOfMemory else "error"}
                directory.record_failure(attempt_ids[-1], str(failure), details)
            raise failure


def _trainer(run: RunConfig, execution: Execution, resources: Resources) -> TorchTrainer:
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", WORKER_START_TIMEOUT_S)
    os.environ["RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S"] = str(execution.collective_timeout_s)
    backend = "nccl" if execution.device == "cuda" else "gloo"
    per_worker = {"CPU": resources.cpus_per_rank}
    if resources.gpus_per_rank:
        per_worker["GPU"] = resources.gpus_per_rank
    return TorchTrainer(
        _train_worker,
        train_loop_config={"run": to_plain(run), "execution": execution},
        torch_config=_ListeningConfig(backend, timeout_s=math.ceil(execution.collective_timeout_s)),
        scaling_config=ray.train.ScalingConfig(
            num_workers=execution.num_ranks,
            use_gpu=bool(resources.gpus_per_rank),
            resources_per_worker=per_worker,
        ),
        run_config=ray.train.RunConfig(
            # the name holds the run id and the hour of this try: Ray Train would resume an equal name silently
            name=f"{run.run_id}-{time.time_ns()}",
            storage_path=f"{execution.storage}/ray_train",
            # started again by us, who can tell what stays from what passes, and see whether there is progress
            failure_config=ray.train.FailureConfig(max_failures=0, controller_failure_limit=0),
        ),
    )


class _ListeningBackend(TorchConfig().backend_cls):
    """Ray Train's, whose workers note a SIGTERM: they train in a thread, and only a main thread can listen."""

    def on_training_start(self, worker_group, backend_config) -> None:
        super().on_training_start(worker_group, backend_config)
        worker_group.execute(listen)


class _ListeningConfig(TorchConfig):
    @property
    def backend_cls(self) -> type:
        return _ListeningBackend


def _train_worker(config: Mapping) -> Ended | None:
    return train_rank(run_from_plain(config["run"]), config["execution"])


def execute_node(
    config: RunConfig | AnyEvaluation, tags: Mapping[str, str], execution: Execution, resources: Resources
) -> dict:
    """The node's result: an evaluation or a run in this process, a run of several ranks on Ray Train's workers.

    Raises LeaseHeld before any worker is asked for while another process works on the run.
    """
    execution = execution.of_node(config, tags)
    if not isinstance(config, RunConfig):
        return execute_evaluation(config, tags, execution)
    if execution.num_ranks == 1:
        return execute_run(config, tags, execution)
    execution.store().run(config.run_id).require_free()

    return execute_sharded_run(config, tags, execution, resources)
