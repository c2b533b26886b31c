"""Says what Ray reserves for a trial of a search, and how many ranks of trials may run at once."""

import math
from collections.abc import Callable

from ray import tune

from gram_platform.engine.capacity import capacity, has_fixed_size
from gram_platform.engine.execution import Execution, Resources
from gram_platform.engine.trials import Point, Problem
from gram_platform.planner import GIB, MACHINES, needs

PROCESS_BYTES = GIB  # of a worker before it holds a model: Python, torch, Ray, the page cache's mapping
MEMORY_STEP = GIB // 4  # requests are rounded up to it, so that trials of similar sizes reuse processes


def placement(problem: Problem, point: Point, execution: Execution, resources: Resources) -> tune.PlacementGroupFactory:
    """Reserves one rank's CPUs and GPUs for a trial; without GPUs also the memory of the trial's largest run.

    A sharded trial only waits for Ray Train's workers, which have separate reservations.
    """
    if trial_ranks(problem, execution, point) > 1:
        return tune.PlacementGroupFactory([{"memory": MEMORY_STEP}])
    bundle = {"CPU": resources.cpus_per_rank, "memory": trial_memory(problem, point)}
    if resources.gpus_per_rank:
        bundle = {"CPU": resources.cpus_per_rank, "GPU": resources.gpus_per_rank}
    return tune.PlacementGroupFactory([bundle])


def most_ranks(max_concurrent: int, resources: Resources) -> Callable[[], float]:
    """Makes a function that returns how many ranks may run at once.

    A trial is proposed only when it can start: then Optuna knows all earlier results, and pauses and limits apply.
    Exception: a cluster that can still grow gets up to `max_concurrent` trials, and starts machines for them.
    """
    if max_concurrent and not has_fixed_size():
        return lambda: math.inf
    return lambda: capacity(resources).most


def trial_ranks(problem: Problem, execution: Execution, point: Point) -> int:
    """Counts the ranks of a trial's widest node; the nodes run one after another."""
    ranks = (execution.of_node(node.config, dict(node.tags)).num_ranks for node in problem.nodes(point))
    return max(ranks, default=1)


def trial_memory(problem: Problem, point: Point) -> int:
    """Estimates the bytes of a one-process trial on a CPU: the largest run and the process."""
    runs = [node.config for node in problem.nodes(point) if node.kind == "run"]
    largest = max((needs(run, 1, MACHINES["cpu"]).memory.total for run in runs), default=0)
    return math.ceil((largest + PROCESS_BYTES) / MEMORY_STEP) * MEMORY_STEP
