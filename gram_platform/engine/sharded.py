"""A run on several ranks, under Ray Train, which starts its ranks again when one dies."""

import math
import os
import time
from collections.abc import Mapping

import ray.train
from ray.train.torch import TorchConfig, TorchTrainer

from gram_platform.config import RunConfig, run_from_plain
from gram_platform.engine.execution import Execution, Resources
from gram_platform.engine.ranks import train_rank
from gram_platform.identity import to_plain
from gram_platform.train.loop import TrainingDiverged

WORKER_START_TIMEOUT_S = "1800"  # an autoscaling cluster needs minutes for a node; Ray's default is one
MAX_WORKER_FAILURES = 3  # restarts of the worker group by Ray Train, each continuing from the last checkpoint


def execute_sharded_run(run: RunConfig, tags: Mapping[str, str], execution: Execution, resources: Resources) -> dict:
    """The run's result, trained on `execution.num_ranks` Ray Train workers if it is not there yet.

    As long as workers that die leave newer checkpoints than those before them, they are started again; otherwise Ray
    Train's error is raised after `MAX_WORKER_FAILURES` restarts.
    """
    directory = execution.store().run(run.run_id)
    directory.ensure_config(run)
    directory.add_tags(tags)
    while (result := directory.result()) is None:
        step = directory.last_step()
        try:
            outcome = _trainer(run, execution, resources).fit().return_value
        except ray.train.TrainingFailedError:
            if directory.last_step() == step:
                raise
            continue
        if outcome is not None:
            raise TrainingDiverged(outcome)
    return result


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
        torch_config=TorchConfig(backend, timeout_s=math.ceil(execution.collective_timeout_s)),
        scaling_config=ray.train.ScalingConfig(
            num_workers=execution.num_ranks,
            use_gpu=bool(resources.gpus_per_rank),
            resources_per_worker=per_worker,
        ),
        run_config=ray.train.RunConfig(
            # the name holds the run id and the hour of this try: Ray Train would resume an equal name silently
            name=f"{run.run_id}-{time.time_ns()}",
            storage_path=f"{execution.storage}/ray_train",
            failure_config=ray.train.FailureConfig(MAX_WORKER_FAILURES, controller_failure_limit=MAX_WORKER_FAILURES),
        ),
    )


def _train_worker(config: Mapping) -> str | None:
    return train_rank(run_from_plain(config["run"]), config["execution"])
