"""Decides how much work to submit to a Ray cluster at once, and which machines to use.

If a probe of a machine's device fails, a driver cordons the machine and gives it no more work. A
later driver can use the machine again, for example after a repair.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import ray
from ray.util import placement_group_table

from gram_platform.config.endings import SUBMIT_AGAIN
from gram_platform.config.flops import GIB
from gram_platform.config.identity import invalid
from gram_platform.engine.cluster import ClusterLost
from gram_platform.engine.devices import ProbeReport
from gram_platform.engine.execution import Placement, Resources
from gram_platform.engine.ray_private import largest_cluster, machine_types
from gram_platform.methods.nodes import Node
from gram_platform.store import Store

# Autoscalers report every five seconds.
REPORT_TIMEOUT_S = 10.0
# Memory on the driver's machine for the driver, and for each gang (multi-rank run). A gang's
# waiting process and Ray Train's actors use .86 GB (measured).
DRIVER_BYTES, GANG_BYTES = 2 * GIB, 7 * GIB // 8
# The most ranks that wait for machines if the autoscaler does not report its maximum.
MOST_WAITING = 256
# How long the cluster's resources are cached. Ray Tune requests them many times a second.
ASK_EVERY_S = 2.0
LOOK_FOR_GROUPS_S = 5.0
STRICT_PACK = "STRICT_PACK"
# The rounding error allowed in sums of shares of a GPU.
ROUNDING = 1e-9
# How long ranks wait before a machine is reserved for them, on fixed and on growing clusters.
PATIENCE_S, PATIENCE_FOR_GROWTH_S = 60.0, 900.0
# How long a run waits for extra ranks when fewer would be enough [ours].
WAIT_FOR_MORE_S, WAIT_FOR_MACHINES_S = 10.0, 300.0


class Admission:
    """Limits what a driver requests from Ray, and reserves machines for runs that wait too long."""

    def __init__(self, resources: Resources):
        self.resources = resources
        # The number of requested nodes that have not ended, by their ranks.
        self.in_flight: Counter[int] = Counter()
        self._present: Mapping[str, float] = {}
        self._largest: Mapping[str, float] = {}
        self._can_grow, self._most_gangs = False, 1
        self._ask_again = 0.0
        self._since: dict[str, float] = {}
        self._next_look, self._reserved_machine = 0.0, ""

    def free_resources(self, may_wait: bool = True) -> "FreeResources":
        """Returns the resources that can be requested in addition to those of nodes in flight.

        On a cluster of fixed size, or with `may_wait=False`, all requests together must fit on the
        present machines. Otherwise, the limit is the maximum that the autoscaler reports. Without
        such a report, the limit is the present machines plus `MOST_WAITING` ranks. Ray queues a
        request that does not fit yet, so that the autoscaler starts machines.
        """
        resources = self.resources
        if time.monotonic() >= self._ask_again:
            self._present, self._can_grow = usable_resources(resources), not has_fixed_size()
            self._most_gangs, self._largest = most_gangs(), largest_cluster()
            self._ask_again = time.monotonic() + ASK_EVERY_S
        free = {name: self._present.get(name, 0.0) for name in ("CPU", "GPU")}
        if may_wait and self._can_grow:
            largest = self._largest or {
                name: free[name] + MOST_WAITING * amount
                for name, amount in resources.of_rank.items()
            }
            free = {name: max(amount, largest.get(name, 0.0)) for name, amount in free.items()}
        if resources.max_gpus:
            name, of_rank = (
                ("GPU", 1.0) if resources.gpus_per_rank else ("CPU", resources.cpus_per_rank)
            )
            free[name] = min(free[name], resources.max_gpus * of_rank)
        unclaimed = FreeResources(resources, free, self._most_gangs)
        for ranks, number in (+self.in_flight).items():
            unclaimed.subtract(ranks, number)
        return unclaimed

    def machine_to_reserve(self, count_busy: Callable[[], Mapping[str, int]]) -> str:
        """Returns the id of the machine to reserve for a multi-rank run, or "" to reserve none.

        If some GPUs of every machine were always busy, a run whose ranks must share one machine
        would wait forever. So after a time, a machine is reserved for such a run. `count_busy`
        returns the number of busy slots by machine id.
        """
        if not self.resources.gpus_per_rank or time.monotonic() < self._next_look:
            return self._reserved_machine
        now = time.monotonic()
        self._next_look = now + LOOK_FOR_GROUPS_S
        groups = {i: g for i, g in placement_group_table().items() if g["strategy"] == STRICT_PACK}
        waiting = [i for i, group in groups.items() if group["state"] == "PENDING"]
        self._since = {group: self._since.get(group, now) for group in waiting}
        patience_s = PATIENCE_S if has_fixed_size() else PATIENCE_FOR_GROWTH_S
        overdue = [group for group, since in self._since.items() if now - since >= patience_s]
        gpus = {
            node["NodeID"]: node["Resources"].get("GPU", 0.0)
            for node in ray.nodes()
            if node["Alive"]
        }
        if not overdue:
            self._reserved_machine = ""
        elif self._reserved_machine not in gpus:
            # No machine is reserved yet, or the reserved one has died.
            bundles = groups[overdue[0]]["bundles"].values()
            num_gpus = sum(bundle.get("GPU", 0.0) for bundle in bundles)
            busy = count_busy()
            large_enough = [machine for machine in busy if gpus.get(machine, 0.0) >= num_gpus]
            self._reserved_machine = min(large_enough, key=busy.get, default="")
        return self._reserved_machine


class FreeResources:
    """The numbers of CPUs, GPUs and multi-rank runs that can still be requested from Ray."""

    def __init__(self, resources: Resources, free: dict[str, float], num_gangs: int):
        self.resources, self.free, self.num_gangs = resources, free, num_gangs
        self.is_untouched = True

    def take(self, num_ranks: int) -> bool:
        """Subtracts a node's resources from the free resources, and returns True.

        If too few resources are free, returns False instead. Exception: while no node is in flight,
        returns True, so that the node is submitted and Ray reports which resources are missing.
        """
        request = self.resources.compute_request(num_ranks).items()
        fits = (num_ranks == 1 or self.num_gangs > 0) and all(
            self.free[name] >= amount - ROUNDING for name, amount in request
        )
        if not (fits or self.is_untouched):
            return False
        self.subtract(num_ranks)
        return True

    def subtract(self, num_ranks: int, num_nodes: int = 1) -> None:
        self.is_untouched = False
        self.num_gangs -= num_nodes * (num_ranks > 1)
        for name, amount in self.resources.compute_request(num_ranks).items():
            self.free[name] -= num_nodes * amount


def most_gangs() -> int:
    """Returns how many multi-rank runs can be in progress at once (at least 1).

    Each run has a waiting process on the driver's machine. This machine's memory is the limit.
    """
    here = ray.get_runtime_context().get_node_id()
    memory = sum(
        node["Resources"].get("memory", 0.0) for node in ray.nodes() if node["NodeID"] == here
    )
    return max(1, int((memory - DRIVER_BYTES) // GANG_BYTES))


def placement_strategy(resources: Resources, num_ranks: int) -> str:
    """Returns STRICT_PACK for a run whose GPUs fit on one machine, and PACK for any other run."""
    if not resources.gpus_per_rank:
        return "PACK"
    of_machine = resources.gpus_per_machine
    if has_fixed_size():
        of_machine = max(
            (machine.get("GPU", 0.0) for machine in usable_machines(resources)), default=0.0
        )
    return STRICT_PACK if num_ranks * resources.gpus_per_rank <= of_machine else "PACK"


def wait_for_more_s() -> float:
    return WAIT_FOR_MORE_S if has_fixed_size() else WAIT_FOR_MACHINES_S


def usable_machines(resources: Resources) -> list[Mapping[str, float]]:
    """Returns the resources of each machine that is alive and not cordoned."""
    return [
        n["Resources"] for n in ray.nodes() if n["Alive"] and n["NodeID"] not in resources.cordoned
    ]


def usable_resources(resources: Resources) -> Mapping[str, float]:
    total: Counter[str] = Counter()
    for machine in usable_machines(resources):
        total.update(machine)
    return total


def count_slots(resources: Resources, total: Mapping[str, float]) -> int:
    """Returns the number of ranks that the resources in `total` can hold."""
    amounts = resources.of_rank.items()
    return math.floor(min(total.get(name, 0.0) / amount for name, amount in amounts))


def has_fixed_size() -> bool:
    """Returns True if no autoscaler has reported to Ray. Never blocks."""
    return machine_types() <= {f"node_{node['NodeID']}" for node in ray.nodes()}


def await_report() -> None:
    deadline = time.monotonic() + REPORT_TIMEOUT_S
    while not machine_types() and time.monotonic() < deadline:
        time.sleep(0.5)


def widest_missing(nodes: Iterable[Node], placements: Mapping[str, Placement], store: Store) -> int:
    """Returns the most ranks that a node without a result needs, or 0 if all nodes have results."""
    widest = 0
    for node in nodes:
        ranks = placements[node.id].fewest.num_ranks
        if ranks > widest and not store.current_result(store.node(node.kind, node.id)):
            widest = ranks
    return widest


def require_capacity(widest: int, resources: Resources, say: Callable[[str], None]) -> None:
    """Raises ValueError if the cluster can never hold `widest` ranks.

    The message names the flag to change. If the cluster has an autoscaler, passes the message to
    `say` and raises nothing, because autoscalers rarely report the largest cluster they allow.
    """
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    capacity = max(
        sum(count_slots(resources, machine) for machine in machines),
        count_slots(resources, largest_cluster()),
    )
    if capacity >= widest:
        return
    threads = round(resources.cpus_per_rank)
    of_device = [m for m in machines if m.get("GPU", 0) >= resources.gpus_per_rank]
    if capacity:
        expected = f"at most {capacity}, the ranks of {threads} CPUs that fit here"
        error = invalid("num_workers", widest, expected)
    elif not of_device:
        error = invalid("device", "cuda", "cpu, because no machine of this cluster has a GPU")
    else:
        most = max(math.floor(machine.get("CPU", 0)) for machine in of_device)
        expected = f"at most {most}, the CPUs of the largest machine of this cluster"
        error = invalid("threads", threads, expected)
    await_report()
    if has_fixed_size():
        raise error
    say(f"waiting for machines that the cluster may yet start: {error}")


MAX_REPLACEMENTS = 3


class Cordon:
    """The machines that a driver no longer uses, because a probe of their device failed.

    Their ids are in `resources.cordoned`. `on_cordon` is called with each machine's failed probe.
    """

    def __init__(
        self, resources: Resources, on_cordon: Callable[[ProbeReport], None] = lambda report: None
    ):
        self.resources, self._on_cordon = resources, on_cordon
        self.reports: dict[str, ProbeReport] = {}
        self._passed: set[str] = set()
        # When the last machine was cordoned, by the monotonic clock.
        self.changed = 0.0
        # The number of machines that failed since the last new machine passed.
        self._failures_in_a_row = 0
        self._is_fixed: bool | None = None

    def note(self, report: ProbeReport) -> bool:
        """Cordons the probed machine if the probe failed; returns True if the probe succeeded."""
        if not report.failure:
            if report.machine not in self._passed:
                self._failures_in_a_row = 0
            self._passed.add(report.machine)
        elif report.machine not in self.reports:
            self.reports[report.machine] = report
            self.changed = time.monotonic()
            self._failures_in_a_row += 1
            self.resources = replace(self.resources, cordoned=tuple(self.reports))
            self._on_cordon(report)
        return not report.failure

    @property
    def may_grow(self) -> bool:
        """Returns True if the driver may request more machines.

        Returns False after `MAX_REPLACEMENTS` + 1 machines in a row have failed their probes.
        """
        return self._failures_in_a_row <= MAX_REPLACEMENTS

    def require_machines(self, num_ranks: int = 1) -> None:
        """Raises ClusterLost, with all failed probes, if `lacks_capacity(num_ranks)` is true."""
        if self.lacks_capacity(num_ranks):
            failures = "\n".join(f"  {report}" for report in self.reports.values())
            needs = f"capacity for {num_ranks} ranks on devices that work"
            needs = "a device that works" if num_ranks == 1 else needs
            text = f"this cluster has no machine with {needs}:\n{failures}\n{SUBMIT_AGAIN}"
            raise ClusterLost(text)

    def lacks_capacity(self, num_ranks: int) -> bool:
        """Returns True if machines are cordoned and the others cannot hold `num_ranks` ranks.

        Returns False if more machines may still start. Nodes then wait without a time limit.
        """
        if not self.reports:
            return False
        machines = usable_machines(self.resources)
        if sum(count_slots(self.resources, machine) for machine in machines) >= num_ranks:
            return False
        if self._is_fixed is None:
            self._is_fixed = has_fixed_size()
        return self._is_fixed or not self.may_grow
