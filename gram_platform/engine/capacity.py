"""Decides how much work a cluster is asked to hold at once, now and after its autoscaler has grown it."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import ray
from ray.util import placement_group_table

from gram_platform.config.flops import GIB
from gram_platform.config.identity import invalid
from gram_platform.engine.execution import Placement, Resources
from gram_platform.engine.ray_private import largest_cluster, machine_types
from gram_platform.methods.nodes import Node
from gram_platform.store import Store

REPORT_TIMEOUT_S = 10.0  # autoscalers report every five seconds
# On the driver's machine: of the driver, and of a run of several ranks (a gang: all start or none), which keeps there
# the process that waits for it and Ray Train's controller and actors, 1.1 GB of own memory measured
DRIVER_BYTES, GANG_BYTES = 2 * GIB, 5 * GIB // 4
MOST_UNREPORTED = 256  # processes asked for at once where an autoscaler does not report its maximum
ASK_EVERY_S = 2.0  # for the cluster's resources: Ray Tune wants to know many times a second
LOOK_FOR_GROUPS_S = 5.0
STRICT_PACK = "STRICT_PACK"  # Ray's placement strategy: all on one machine
ROUNDING = 1e-9  # of sums of shares of a GPU
PATIENCE_S, PATIENCE_FOR_GROWTH_S = 60.0, 900.0  # with ranks that wait for a machine
WAIT_FOR_MORE_S, WAIT_FOR_MACHINES_S = 10.0, 300.0  # with ranks for which fewer would do [ours]


class Admission:
    """Tells how much may be asked of the cluster that Ray is connected to, and which machine ranks wait for."""

    def __init__(self, resources: Resources):
        self.resources = resources
        self._present: Mapping[str, float] = {}  # resources
        self._can_grow, self._most_gangs = False, 1
        self._ask_again = 0.0
        self._since: dict[str, float] = {}  # by placement group, when it was first seen waiting
        self._next_look, self._cleared = 0.0, ""

    def room(self, num_ranks: Iterable[int] = (), may_wait: bool = True) -> "Room":
        """Returns the room beside nodes of so many ranks that are asked for already.

        That is what the cluster has if its size is fixed; if it can grow, the maximum that it reports, else no limit:
        Ray queues what has no room yet, which shows its autoscaler the demand. `--max-gpus` is a limit on both.
        `may_wait=False`: only what the cluster has now.
        """
        resources = self.resources
        if time.monotonic() >= self._ask_again:
            self._present, self._can_grow = usable_resources(resources), not has_fixed_size()
            self._most_gangs = most_gangs()
            self._ask_again = time.monotonic() + ASK_EVERY_S
        free = {name: self._present.get(name, 0.0) for name in ("CPU", "GPU")}
        if may_wait and self._can_grow:
            largest = largest_cluster()
            free = {name: max(amount, largest.get(name, 0.0 if largest else math.inf)) for name, amount in free.items()}
        most = MOST_UNREPORTED if math.inf in free.values() else math.inf
        if resources.max_gpus:
            name, of_rank = ("GPU", 1.0) if resources.gpus_per_rank else ("CPU", resources.cpus_per_rank)
            free[name] = min(free[name], resources.max_gpus * of_rank)
        room = Room(resources, free, most, self._most_gangs)
        for ranks in num_ranks:
            room.subtract(ranks)
        return room

    def machine_to_clear(self, busy: Mapping[str, int]) -> str:
        """Returns the machine that should take no more tasks until ranks that wait long are placed; "" if none do.

        Ranks of one run want one machine; without this they would wait while other work keeps a part of every machine.
        `busy`: the number of tasks on every machine that has processes of this driver.
        """
        if not self.resources.gpus_per_rank or time.monotonic() < self._next_look:
            return self._cleared
        now = time.monotonic()
        self._next_look = now + LOOK_FOR_GROUPS_S
        groups = {i: g for i, g in placement_group_table().items() if g["strategy"] == STRICT_PACK}
        waiting = [i for i, group in groups.items() if group["state"] == "PENDING"]
        self._since = {group: self._since.get(group, now) for group in waiting}
        patience_s = PATIENCE_S if has_fixed_size() else PATIENCE_FOR_GROWTH_S
        overdue = [group for group, since in self._since.items() if now - since >= patience_s]
        gpus = {node["NodeID"]: node["Resources"].get("GPU", 0.0) for node in ray.nodes() if node["Alive"]}
        if not overdue:
            self._cleared = ""
        elif self._cleared not in gpus:  # none yet, or it has died
            asked = sum(bundle.get("GPU", 0.0) for bundle in groups[overdue[0]]["bundles"].values())
            large_enough = [machine for machine in busy if gpus.get(machine, 0.0) >= asked]
            self._cleared = min(large_enough, key=busy.get, default="")
        return self._cleared


class Room:
    """The CPUs and GPUs that are free to be asked for, and how many processes and gangs more there may be."""

    def __init__(self, resources: Resources, free: dict[str, float], num_processes: float, num_gangs: int):
        self.resources, self.free, self.num_processes, self.num_gangs = resources, free, num_processes, num_gangs
        self.is_untouched = True

    def take(self, num_ranks: int) -> bool:
        """Takes the room of a node if it is there. The first node is always taken: Ray tells what it waits for."""
        asked = self.resources.asked(num_ranks).items()
        has_room = (
            self.num_processes >= num_ranks
            and (num_ranks == 1 or self.num_gangs > 0)
            and all(self.free[name] >= amount - ROUNDING for name, amount in asked)
        )
        if not (has_room or self.is_untouched):
            return False
        self.subtract(num_ranks)
        return True

    def subtract(self, num_ranks: int) -> None:
        self.is_untouched = False
        self.num_processes -= num_ranks
        self.num_gangs -= num_ranks > 1
        for name, amount in self.resources.asked(num_ranks).items():
            self.free[name] -= amount


def most_gangs() -> int:
    """Counts the runs of several ranks that the memory of this machine, the driver's, holds at once; at least one."""
    here = ray.get_runtime_context().get_node_id()
    memory = sum(node["Resources"].get("memory", 0.0) for node in ray.nodes() if node["NodeID"] == here)
    return max(1, int((memory - DRIVER_BYTES) // GANG_BYTES))


def placement_strategy(resources: Resources, num_ranks: int) -> str:
    """Returns Ray's strategy for a run's ranks: one machine if its GPUs suffice, else as few machines as possible."""
    if not resources.gpus_per_rank:
        return "PACK"
    of_machine = resources.gpus_per_machine
    if has_fixed_size():
        of_machine = max((machine.get("GPU", 0.0) for machine in usable_machines(resources)), default=0.0)
    return STRICT_PACK if num_ranks * resources.gpus_per_rank <= of_machine else "PACK"


def wait_for_more_s() -> float:
    """Returns how long a run waits for a place for more ranks than it needs: machines take minutes to start."""
    return WAIT_FOR_MORE_S if has_fixed_size() else WAIT_FOR_MACHINES_S


def usable_machines(resources: Resources) -> list[Mapping[str, float]]:
    """Returns the resources of each machine that is alive and not cordoned."""
    return [n["Resources"] for n in ray.nodes() if n["Alive"] and n["NodeID"] not in resources.cordoned]


def usable_resources(resources: Resources) -> Mapping[str, float]:
    """Sums the resources of the machines that are alive and not cordoned."""
    if not resources.cordoned:
        return ray.cluster_resources()
    total: Counter[str] = Counter()
    for machine in usable_machines(resources):
        total.update(machine)
    return total


def slots(resources: Resources, total: Mapping[str, float]) -> int:
    """Counts the ranks that fit into the resources `total`."""
    amounts = resources.of_rank.items()
    return math.floor(min(total.get(name, 0.0) / amount for name, amount in amounts))


def has_fixed_size() -> bool:
    """Tells whether the cluster has no autoscaler; also where one has not reported yet. Asks without waiting."""
    return machine_types() <= {f"node_{node['NodeID']}" for node in ray.nodes()}


def await_report() -> None:
    """Waits until an autoscaler has reported, or has had the time."""
    deadline = time.monotonic() + REPORT_TIMEOUT_S
    while not machine_types() and time.monotonic() < deadline:
        time.sleep(0.5)


def widest_missing(nodes: Iterable[Node], placements: Mapping[str, Placement], store: Store) -> int:
    """Counts the ranks of the widest node without a result; 0 when every node has one."""
    widest = 0
    for node in nodes:
        ranks = placements[node.id].fewest.num_ranks
        if ranks > widest:
            widest = widest if store.node(node.kind, node.id).result() else ranks
    return widest


def require_room(widest: int, resources: Resources, say: Callable[[str], None]) -> None:
    """Raises ValueError naming the flag when the cluster can never hold `widest` ranks, which would wait for ever.

    Only on a cluster of fixed size is that certain; an autoscaler that has just started gets the time to report.
    Autoscalers rarely report their limit: then `say` gets a warning.
    """
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    room = max(sum(slots(resources, machine) for machine in machines), slots(resources, largest_cluster()))
    if room >= widest:
        return
    error = _shortage(widest, resources, machines, room)
    await_report()
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
