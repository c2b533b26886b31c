"""How many ranks a cluster holds: as it is, and as large as its autoscaler may make it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import ray

from gram_platform.engine.execution import Resources
from gram_platform.planner import ranks_at_once


@dataclass(frozen=True)
class Capacity:
    """Ranks that there is room for now, and at most."""

    present: int
    most: int

    def at_once(self, widest: int) -> int:
        """Ranks to hand to Ray when the widest node in flight or at hand has `widest`."""
        return ranks_at_once(self.present, self.most, widest)


def capacity(resources: Resources) -> Capacity:
    """Of the cluster that Ray is connected to."""
    present = ray.cluster_resources()
    grown = dict(present)
    for name, amount in largest_cluster().items():
        grown[name] = max(grown.get(name, 0), amount)
    return Capacity(slots(resources, present), slots(resources, grown))


def slots(resources: Resources, total: Mapping[str, float]) -> int:
    """Ranks that fit into `total`."""
    found = total.get("CPU", 0) / resources.cpus_per_rank
    if resources.gpus_per_rank:
        found = min(found, total.get("GPU", 0) / resources.gpus_per_rank)
    return math.floor(found)


def largest_cluster() -> dict[str, float]:
    """What the autoscaler reports that it may grow to; {} on a cluster of fixed size."""
    from ray._private.state import state  # Ray's libraries ask here; there is no public way

    return (state.get_max_resources_from_cluster_config() or {}) if ray.is_initialized() else {}
