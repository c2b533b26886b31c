"""How many nodes or trials a cluster holds: as it is, and as large as its autoscaler may make it."""

import math
from collections.abc import Mapping

import ray

from gram_platform.engine.execution import Execution, Resources


def nodes_at_once(execution: Execution, resources: Resources) -> int:
    """Nodes to hand to Ray: more than the cluster holds now, so that an autoscaler sees the demand.

    Nodes of one rank wait in Ray's queue without harm: as many again are handed over. A run of several ranks gives up
    when its workers do not come, so only what the cluster may grow to is, and no more than twice what it holds.
    """
    present = slots(execution, resources, ray.cluster_resources())
    return 2 * present if execution.num_ranks == 1 else min(2 * present, nodes_at_most(execution, resources))


def nodes_at_most(execution: Execution, resources: Resources) -> int:
    """Nodes that the cluster can hold when an autoscaler has made it as large as it may be."""
    total = dict(ray.cluster_resources())
    for name, amount in largest_cluster().items():
        total[name] = max(total.get(name, 0), amount)
    return slots(execution, resources, total)


def slots(execution: Execution, resources: Resources, total: Mapping[str, float]) -> int:
    """Nodes that fit into `total`, at least one."""
    found = total.get("CPU", 0) / (resources.cpus_per_rank * execution.num_ranks)
    if resources.gpus_per_rank:
        found = min(found, total.get("GPU", 0) / (resources.gpus_per_rank * execution.num_ranks))
    return max(1, math.floor(found))


def largest_cluster() -> dict[str, float]:
    """What the autoscaler reports that it may grow to; {} on a cluster of fixed size."""
    from ray._private.state import state  # Ray's libraries ask here; there is no public way

    return (state.get_max_resources_from_cluster_config() or {}) if ray.is_initialized() else {}
