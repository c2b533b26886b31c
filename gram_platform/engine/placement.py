"""What Ray reserves for a trial of a search, and how many ranks of trials there may be at once."""

import math
from collections.abc import Callable

from ray import tune

from gram_platform.engine.capacity import capacity, has_fixed_size
from gram_platform.engine.execution import Execution, Resources
from gram_platform.engine.trials import Point, Problem
from gram_platform.planner import GIB, MACHINES, needs

PROCESS_BYTES = GIB  # of a worker before it holds a model: Python, torch, Ray, the page cache's mapping
MEMORY_STEP = GIB // 4  # requests are rounded up to it, so that trials of like sizes share processes


def placement(problem: Problem, point: Point, execution: Execution, resources: Resources) -> tune.PlacementGroupFactory:
    """What Ray reserves for a trial: a rank's CPUs, GPUs and the memory that its largest run needs.

    A sharded trial only waits for Ray Train's workers, which have reservations of their own.
    """
    if trial_ranks(problem, execution, point) > 1:
        return tune.PlacementGroupFactory([{"memory": MEMORY_STEP}])
    bundle = {"CPU": resources.cpus_per_rank, "memory": trial_memory(problem, point)}
    if resources.gpus_per_rank:
        bundle = {"CPU": resources.cpus_per_rank, "GPU": resources.gpus_per_rank}
    return tune.PlacementGroupFactory([bundle])


def most_ranks(max_concurrent: int, resources: Resources) -> Callable[[], float]:
    """Asks how many ranks there may be at once.

    A trial that waits for room is drawn without the results of those before it, and no pause or limit holds it up: so
    none waits but for machines that the cluster may yet start, as many as `max_concurrent` wants of them.
    """
    if max_concurrent and not has_fixed_size():
        return lambda: math.inf
    return lambda: capacity(resources).most


def trial_ranks(problem: Problem, execution: Execution, point: Point) -> int:
    """Of the widest of a trial's nodes, which run one after another."""
    ranks = (execution.of_node(node.config, node.names).num_ranks for node in problem.nodes(point))
    return max(ranks, default=1)


def trial_memory(problem: Problem, point: Point) -> int:
    """Bytes of a one-process trial on a CPU: the largest of its runs and the process itself."""
    runs = [node.config for node in problem.nodes(point) if node.kind == "run"]
    largest = max((needs(run, 1, MACHINES["cpu"]).memory.total for run in runs), default=0)
    return math.ceil((largest + PROCESS_BYTES) / MEMORY_STEP) * MEMORY_STEP
