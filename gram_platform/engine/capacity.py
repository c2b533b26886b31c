"""How many ranks a cluster holds: as it is, and as large as its autoscaler may make it."""

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import ray
from ray.experimental.internal_kv import _internal_kv_get

from gram_platform.config.identity import invalid
from gram_platform.engine.execution import Execution, Resources
from gram_platform.methods.nodes import Node
from gram_platform.planner import ranks_at_once

MONITOR_KEY = "__autoscaling_status"  # of what the monitor on Ray's head reports, and `ray status` shows
MONITOR_TIMEOUT_S = 10.0  # it reports every five seconds


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
    """What the autoscaler reports that it may grow to; {} on a cluster of fixed size, and where it does not say.

    Ray's own autoscalers (of `ray up` and of KubeRay) do not, those of vendors may.
    """
    from ray._private.state import state  # Ray's libraries ask here; there is no public way

    return (state.get_max_resources_from_cluster_config() or {}) if ray.is_initialized() else {}


def has_fixed_size() -> bool:
    """Whether Ray's monitor says that it starts no machines; False also where it says nothing within some seconds.

    Without an autoscaler it calls each machine's type `node_<id>`; with one, types have the names of its config.
    """
    deadline = time.monotonic() + MONITOR_TIMEOUT_S
    while not (types := _machine_types()) and time.monotonic() < deadline:
        time.sleep(0.5)
    return bool(types) and types <= {f"node_{node['NodeID']}" for node in ray.nodes()}


def _machine_types() -> set[str]:
    report = json.loads(_internal_kv_get(MONITOR_KEY) or "{}").get("autoscaler_report") or {}
    return set(report.get("active_nodes") or ())


def widest_missing(nodes: Iterable[Node], execution: Execution) -> int:
    """Ranks of the widest node without a result; 0 when every node has its own."""
    store, widest = execution.store(), 0
    for node in nodes:
        ranks = execution.of_node(node.config, node.names).num_ranks
        if ranks > widest:
            widest = widest if store.node(node.kind, node.id).result() else ranks
    return widest


def require_room(widest: int, resources: Resources, say: Callable[[str], None]) -> None:
    """ValueError naming the flag when the cluster can never hold `widest` ranks: they would wait for ever.

    That is certain on a cluster of fixed size alone. Others rarely report how far they grow: there a line says it.
    """
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    room = max(sum(slots(resources, machine) for machine in machines), slots(resources, largest_cluster()))
    if room >= widest:
        return
    error = _lack(widest, resources, machines, room)
    if has_fixed_size():
        raise error
    say(f"waiting for machines that the cluster may yet start: as far as it tells, {error}")


def _lack(widest: int, resources: Resources, machines: Sequence[Mapping[str, float]], room: int) -> ValueError:
    """What the cluster has too little of: GPUs, CPUs for the threads of one rank, or room for all ranks."""
    threads = round(resources.cpus_per_rank)
    if room:
        return invalid("num_workers", widest, f"at most {room}, the ranks of {threads} CPUs that this cluster holds")
    of_device = [machine for machine in machines if machine.get("GPU", 0) >= resources.gpus_per_rank]
    if not of_device:
        return invalid("device", "cuda", "cpu: no machine of this cluster has a GPU")
    most = max(math.floor(machine.get("CPU", 0)) for machine in of_device)
    return invalid("threads", threads, f"at most {most}, the CPUs of the largest machine of this cluster")
