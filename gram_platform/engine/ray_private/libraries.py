"""Reaches what Ray Train and Ray Tune keep private."""

import pickle
from collections.abc import Callable
from typing import Any

import ray.train
from ray.air.execution._internal import actor_manager
from ray.exceptions import OutOfMemoryError, RayActorError
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy


class PlacementGroupTrainer(TorchTrainer):
    """Ray Train's trainer that asks the autoscaler for a run's ranks once, by their placement group.

    Ray Train sends a second request beside it, for each rank alone: machines of one GPU come, which no rank may use.
    """

    def _initialize_and_run_controller(self, **arguments) -> ray.train.Result:
        policy = {"scaling_policy": _PlacementGroupAlone(self.scaling_config)}
        return super()._initialize_and_run_controller(**arguments | policy)


class _PlacementGroupAlone(FixedScalingPolicy):
    def after_controller_start(self, train_run_context) -> None:
        """Sends no request."""

    def _maybe_send_resource_request(self) -> None:
        """Sends no request again."""


def on_every_rank(worker_group: Any, function: Callable, *arguments: object) -> list[Any]:
    """Calls the function in every process of Ray Train's group, outside the training thread; returns their values."""
    return worker_group.execute(function, *arguments)


def error_of_trial(trial: Any) -> Exception:
    """Reads the error with which a trial's process ended, from the folder of this driver's Ray."""
    with open(trial.pickled_error_file, "rb") as file:
        return pickle.load(file)


def treat_memory_kill_as_crash() -> None:
    """Makes Ray Tune restart a trial whose process Ray's memory monitor has killed, as after any other crash.

    Ray raises another class of error then. Ray Tune does not know it, and would end the search.
    """
    actor_manager.RayActorError = (RayActorError, OutOfMemoryError)
