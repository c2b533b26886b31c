"""A run on several ranks, under Ray Train: its workers share one attempt, kept by rank 0."""

import os
import time
from collections.abc import Mapping

import ray.train
import torch
import torch.distributed as dist
from ray.train.torch import TorchConfig, TorchTrainer

from gram_platform.config import RunConfig, run_from_plain
from gram_platform.engine.execution import Execution, Resources, owner
from gram_platform.engine.node import RunExecution, starting_point
from gram_platform.engine.summary import record_interval
from gram_platform.identity import to_plain
from gram_platform.store import LeaseHeld
from gram_platform.store.attempts import Attempt
from gram_platform.train.loop import TrainingDiverged
from gram_platform.train.sharding import ShardedLearner

WORKER_START_TIMEOUT_S = "1800"  # an autoscaling cluster needs minutes for a node; Ray's default is one
LEASE_MARGIN_S = 5.0
MAX_WORKER_FAILURES = 3  # restarts of the worker group, each continuing from the last checkpoint


def execute_sharded_run(run: RunConfig, tags: Mapping[str, str], execution: Execution, resources: Resources) -> dict:
    """The run's result, trained on `execution.num_ranks` Ray Train workers if it is not there yet."""
    directory = execution.store().run(run.run_id)
    directory.ensure_config(run)
    directory.add_tags(tags)
    if (result := directory.result()) is not None:
        return result
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", WORKER_START_TIMEOUT_S)
    per_worker = {"CPU": resources.cpus_per_rank}
    if resources.gpus_per_rank:
        per_worker["GPU"] = resources.gpus_per_rank
    trainer = TorchTrainer(
        _train_worker,
        train_loop_config={"run": to_plain(run), "execution": execution},
        torch_config=TorchConfig(backend="nccl" if execution.device == "cuda" else "gloo"),
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
    outcome = trainer.fit().return_value
    if outcome is not None:
        raise TrainingDiverged(outcome)
    return directory.result()


def _train_worker(config: Mapping) -> str | None:
    """One rank; returns the message of a diverged run, which every rank sees alike."""
    execution: Execution = config["execution"]
    run = run_from_plain(config["run"])
    torch.set_num_threads(execution.num_threads)
    attempt = None
    if dist.get_rank() == 0:
        attempt = _start_attempt(run, execution)
    try:
        corpus = execution.corpus(run.data.data_id)
        _ShardedExecution(run, corpus, attempt, execution).finish()
        message = None
    except TrainingDiverged as error:  # on every rank alike
        message = str(error)
        if attempt is not None:
            attempt.fail(message, {"kind": "diverged"})
    finally:
        if attempt is not None:
            attempt.release()
    dist.barrier()  # gloo can abort when one rank leaves before the others
    return message


def _start_attempt(run: RunConfig, execution: Execution) -> Attempt:
    """Rank 0's attempt. That of a worker lost with its machine holds the lease for a while, which is waited for."""
    directory = execution.store().run(run.run_id)
    deadline = time.monotonic() + execution.lease_s + LEASE_MARGIN_S
    while True:
        try:
            return directory.start_attempt(owner(), execution.lease_s)
        except LeaseHeld:
            if time.monotonic() > deadline:
                raise
            time.sleep(1.0)


class _ShardedExecution(RunExecution):
    """Rank 0 keeps the attempt; every decision about it is rank 0's, told to the others."""

    def __init__(self, run, corpus, attempt, execution):
        learner = ShardedLearner(run, execution.device, starting_point(run, execution))
        ranks = {"rank": dist.get_rank(), "num_ranks": dist.get_world_size()}
        super().__init__(run, corpus, attempt, execution, learner=learner, **ranks)

    def _load_checkpoint(self):
        """Rank 0 reads and verifies; the others get the tensors from it."""
        return _from_rank_0(self.attempt.resume() if self.attempt else None)

    def _should_commit(self, step: int) -> bool:
        if step % record_interval(self.run):
            return False
        return _from_rank_0(super()._should_commit(step))

    def _write_checkpoint(self, step: int, tensors: dict, state: dict) -> None:
        if self.attempt:
            super()._write_checkpoint(step, tensors, state)

    def _write_result(self, fields: dict, weights: dict) -> dict | None:
        return super()._write_result(fields, weights) if self.attempt else None


def _from_rank_0(value):
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]
