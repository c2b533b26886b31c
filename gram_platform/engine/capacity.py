"""Counts the ranks that a cluster holds now, and that it may hold after its autoscaler has grown it."""

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

MONITOR_KEY = "__autoscaling_status"  # under it the monitor on Ray's head stores its report; `ray status` shows it
MONITOR_TIMEOUT_S = 10.0  # it reports every five seconds


@dataclass(frozen=True)
class Capacity:
    """Ranks that fit on the cluster now, and at most."""

    present: int
    most: int

    def at_once(self, widest: int) -> int:
        """Counts ranks to submit to Ray, when the widest node that runs or is ready has `widest`."""
        return ranks_at_once(self.present, self.most, widest)


def capacity(resources: Resources) -> Capacity:
    """Counts the ranks of the cluster that Ray is connected to."""
    present = ray.cluster_resources()
    grown = dict(present)
    for name, amount in largest_cluster().items():
        grown[name] = max(grown.get(name, 0), amount)
    return Capacity(slots(resources, present), slots(resources, grown))


def slots(resources: Resources, total: Mapping[str, float]) -> int:
    """Counts the ranks that fit into the resources `total`."""
    found = total.get("CPU", 0) / resources.cpus_per_rank
    if resources.gpus_per_rank:
        found = min(found, total.get("GPU", 0) / resources.gpus_per_rank)
    return math.floor(found)


def largest_cluster() -> dict[str, float]:
    """Reads the resources that the autoscaler may grow to; {} on a cluster of fixed size, and where it is unknown.

    Ray's autoscalers (of `ray up` and of KubeRay) do not report it; a vendor's may.
    """
    from ray._private.state import state  # as Ray's libraries do; there is no public function

    return (state.get_max_resources_from_cluster_config() or {}) if ray.is_initialized() else {}


def has_fixed_size() -> bool:
    """Tells whether the cluster has no autoscaler; False also when Ray's monitor reports nothing for some seconds.

    Without an autoscaler the monitor names each machine's type `node_<id>`; with one, as the autoscaler's config does.
    """
    deadline = time.monotonic() + MONITOR_TIMEOUT_S
    while not (types := _machine_types()) and time.monotonic() < deadline:
        time.sleep(0.5)
    return bool(types) and types <= {f"node_{node['NodeID']}" for node in ray.nodes()}


def _machine_types() -> set[str]:
    report = json.loads(_internal_kv_get(MONITOR_KEY) or "{}").get("autoscaler_report") or {}
    return set(report.get("active_nodes") or ())


def widest_missing(nodes: Iterable[Node], execution: Execution) -> int:
    """Counts the ranks of the widest node without a result; 0 when every node has one."""
    store, widest = execution.store(), 0
    for node in nodes:
        ranks = execution.of_node(node.config, node.names).num_ranks
        if ranks > widest:
            widest = widest if store.node(node.kind, node.id).result() else ranks
    return widest


def require_room(widest: int, resources: Resources, say: Callable[[str], None]) -> None:
    """Raises ValueError naming the flag when the cluster can never hold `widest` ranks, which would wait for ever.

    Only on a cluster of fixed size is that certain. Autoscalers rarely report their limit: then `say` gets a warning.
    """
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    room = max(sum(slots(resources, machine) for machine in machines), slots(resources, largest_cluster()))
    if room >= widest:
        return
    error = _shortage(widest, resources, machines, room)
    if has_fixed_size():
        raise error
    say(f"waiting for machines that the cluster may yet start: {error}")


def _shortage(widest: int, resources: Resources, machines: Sequence[Mapping[str, float]], room: int) -> ValueError:
    """Makes the error that says what the cluster lacks: GPUs, CPUs for one rank's threads, or room for all ranks."""
    threads = round(resources.cpus_per_rank)
    if room:
        return invalid("num_workers", widest, f"at most {room}, the ranks of {threads} CPUs that fit on this cluster")
    of_device = [machine for machine in machines if machine.get("GPU", 0) >= resources.gpus_per_rank]
    if not of_device:
        return invalid("device", "cuda", "cpu, because no machine of this cluster has a GPU")
    most = max(math.floor(machine.get("CPU", 0)) for machine in of_device)
    return invalid("threads", threads, f"at most {most}, the CPUs of the largest machine of this cluster")
