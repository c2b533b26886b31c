"""Estimates the rest of a study on a hypothetical cluster: expected makespan, cost and lost work, in closed form.

Tasks start by list scheduling, as the engine starts them: what is ready, evaluations first, then the widest runs, of
equally wide ones that with the longest path behind it. A task takes its expected time: machines are interrupted at a
constant rate (exponential lives), an interruption loses the work since the last checkpoint, and the whole task
continues elsewhere. The expected time of a stretch of s seconds at rate r, with restarts of R seconds that may be
interrupted too, is e^(r R) (e^(r s) - 1) / r, and the best interval between checkpoints that take C seconds is near
sqrt(2 C / r) (Young 1974, Daly 2006). Real studies scatter around an expectation; machines that are being
replaced are not modelled, so the makespan is a lower estimate on spot machines.
"""

import heapq
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from gram_platform.config import RunConfig
from gram_platform.config.identity import invalid, require_int, require_real
from gram_platform.config.plain import from_plain
from gram_platform.config.written import read_value
from gram_platform.methods.nodes import Node, longest_paths
from gram_platform.planner import AUTO, Machine, Ranks, evaluation_flops, needs, used_rate

HOUR_S = 3600.0
# Expected tries of one stretch above which a task counts as never finishing [ours]
MAX_TRIES = 200.0
NO_LONGER = {  # fields of clusters in former versions
    "idle_s": "machines are paid for while they work and start",
    "seed": "the numbers are expectations and not drawn",
}


@dataclass(frozen=True)
class SimulatedCluster:
    """A cluster's parameters; the defaults are round figures for 8-GPU spot machines [ours]."""

    num_machines: int = 8  # at most
    slots_per_machine: int = 8  # ranks at once
    interruptions_per_hour: float = 0.05  # of one machine; 0: on demand
    machine_start_s: float = 300.0  # from asking to usable
    group_start_s: float = 60.0  # of a node's processes, each time it starts or continues
    recovery_s: float = 30.0  # until a lost node is started again: its lease
    storage_bytes_per_s: float = 1e9  # of one node
    checkpoint_every_s: float = 600.0
    dollars_per_machine_hour: float = 24.0

    def __post_init__(self) -> None:
        require_int("cluster.num_machines", self.num_machines, 1)
        require_int("cluster.slots_per_machine", self.slots_per_machine, 1)
        for name in ("interruptions_per_hour", "machine_start_s", "group_start_s", "recovery_s"):
            require_real(f"cluster.{name}", getattr(self, name), 0.0)
        for name in ("storage_bytes_per_s", "checkpoint_every_s"):
            require_real(f"cluster.{name}", getattr(self, name), 0.0, open_low=True)
        require_real("cluster.dollars_per_machine_hour", self.dollars_per_machine_hour, 0.0)

    @property
    def num_slots(self) -> int:
        return self.num_machines * self.slots_per_machine

    def machines_of(self, ranks: int) -> int:
        """The fewest machines that hold so many ranks."""
        return math.ceil(ranks / self.slots_per_machine)


def simulated_cluster(texts: Sequence[str]) -> SimulatedCluster:
    """Returns the cluster with the given fields, `name=value` each; ValueError naming `cluster` or the field."""
    values = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if name in NO_LONGER:
            raise invalid(f"cluster.{name}", value, f"no value: {NO_LONGER[name]}")
        if not separator:
            raise invalid("cluster", text, "name=value, such as num_machines=4")
        values[name] = read_value(value)
    return from_plain(SimulatedCluster, values, ("cluster",))


@dataclass(frozen=True)
class Task:
    """A node for the estimate; `work_s` is wall time with all `ranks`, no checkpoints without `checkpoint_bytes`."""

    id: str
    needs: frozenset[str]
    work_s: float
    ranks: int = 1
    checkpoint_bytes: float = 0.0
    result_bytes: float = 0.0
    grain_s: float = 0.0  # of one step, after which a checkpoint may stand; 0: anywhere
    is_first: bool = False  # evaluations start before runs: they are short and fill the table

    def __post_init__(self) -> None:
        require_real("task.work_s", self.work_s, 0.0)
        require_int("task.ranks", self.ranks, 1)

    def interval_s(self, wanted_s: float) -> float:
        """Work between two checkpoints when one is wanted every `wanted_s`."""
        if not self.checkpoint_bytes:
            return max(self.work_s, 1.0)
        return math.ceil(wanted_s / self.grain_s) * self.grain_s if self.grain_s else wanted_s


@dataclass(frozen=True)
class Expected:
    """Expectations of a study. Hours are slot-hours but for the makespan; paid = useful + lost + overhead + idle."""

    makespan_hours: float
    cost: float
    paid_hours: float
    useful_hours: float
    lost_hours: float  # trained again, or spent on restarts, because machines were interrupted
    overhead_hours: float  # starting, reading and writing checkpoints

    @property
    def idle_hours(self) -> float:
        return self.paid_hours - self.useful_hours - self.lost_hours - self.overhead_hours


def expected_s(task: Task, cluster: SimulatedCluster) -> float:
    """Expected seconds of a task from its start to its result; infinity where a stretch takes over MAX_TRIES tries."""
    rate = cluster.interruptions_per_hour * cluster.machines_of(task.ranks) / HOUR_S
    interval_s, write_s = task.interval_s(cluster.checkpoint_every_s), _write_s(task, cluster)
    num_stretches = max(1, math.ceil(task.work_s / interval_s))
    stretch_s = task.work_s / num_stretches + write_s
    end_s = cluster.group_start_s + task.result_bytes / cluster.storage_bytes_per_s - write_s  # the last writes none
    if not rate:
        return num_stretches * stretch_s + end_s
    if rate * stretch_s > math.log(MAX_TRIES):
        return math.inf
    restart_s = cluster.recovery_s + cluster.group_start_s + write_s  # a checkpoint is read as fast as written
    return num_stretches * math.exp(rate * restart_s) * math.expm1(rate * stretch_s) / rate + end_s


def best_interval_s(task: Task, cluster: SimulatedCluster) -> float:
    """Seconds between checkpoints that lose least, by Young and Daly; infinity without interruptions."""
    rate = cluster.interruptions_per_hour * cluster.machines_of(task.ranks) / HOUR_S
    return max(math.sqrt(2.0 * _write_s(task, cluster) / rate), task.grain_s) if rate else math.inf


def _write_s(task: Task, cluster: SimulatedCluster) -> float:
    return task.checkpoint_bytes / cluster.storage_bytes_per_s


def simulate(tasks: Sequence[Task], cluster: SimulatedCluster, done: Collection[str] = ()) -> Expected:
    """Schedules the tasks that are not `done`, by list scheduling; infinite hours if one never finishes.

    ValueError for a task that asks for more ranks than the cluster can have, or needs one that is nowhere.
    """
    for task in tasks:
        if task.ranks > cluster.num_slots:
            raise invalid("task.ranks", task.ranks, f"at most the cluster's {cluster.num_slots} slots")
    missing = sorted({i for task in tasks for i in task.needs} - {task.id for task in tasks} - set(done))
    if missing:
        raise invalid("tasks", missing[:4], "tasks whose needs are among them or done")
    left = [task for task in tasks if task.id not in done]
    seconds = {task.id: expected_s(task, cluster) for task in left}
    paths = longest_paths({task.id: task.needs for task in left}, seconds)
    left.sort(key=lambda task: (not task.is_first, -task.ranks, -paths[task.id]))
    makespan_s, machine_s = _scheduled(left, seconds, cluster, set(done))
    slot_hours = lambda of: sum(task.ranks * of(task) for task in left) / HOUR_S  # noqa: E731
    calm = replace(cluster, interruptions_per_hour=0.0)
    useful, calmly = slot_hours(lambda t: t.work_s), slot_hours(lambda t: expected_s(t, calm))
    return Expected(
        makespan_hours=makespan_s / HOUR_S,
        cost=machine_s / HOUR_S * cluster.dollars_per_machine_hour,
        paid_hours=machine_s / HOUR_S * cluster.slots_per_machine,
        useful_hours=useful,
        lost_hours=slot_hours(lambda t: seconds[t.id]) - calmly,
        overhead_hours=calmly - useful,
    )


def _scheduled(
    left: Sequence[Task], seconds: Mapping[str, float], cluster: SimulatedCluster, done: set[str]
) -> tuple[float, float]:
    """(seconds to the last end, machine-seconds paid for: as many machines as hold the ranks at work)."""
    running: list[tuple[float, str, int]] = []  # (end, task id, ranks)
    waiting, now_s, machine_s, peak = list(left), cluster.machine_start_s if left else 0.0, 0.0, 0
    while waiting or running:
        free = cluster.num_slots - sum(ranks for _, _, ranks in running)
        for task in [task for task in waiting if task.needs <= done]:
            if task.ranks > free:
                break  # the engine keeps room for the widest
            heapq.heappush(running, (now_s + seconds[task.id], task.id, task.ranks))
            waiting.remove(task)
            free -= task.ranks
        end_s, ended, _ = heapq.heappop(running)
        machines = cluster.machines_of(cluster.num_slots - free)
        machine_s, peak, now_s = machine_s + machines * (end_s - now_s), max(peak, machines), end_s
        done.add(ended)
        if math.isinf(now_s):
            return math.inf, math.inf
    return now_s, machine_s + peak * cluster.machine_start_s


def planned(
    nodes: Sequence[Node], machine: Machine, utilisation: float | None = None, ranks: Ranks | None = None
) -> list[Task]:
    """Tasks from FLOPs: a run has its number of `ranks`, by default the fewest that fit the machine.

    `utilisation` as `used_rate`. ValueError for a run that fits no number of ranks. An evaluation has one rank.
    """
    ranks = ranks or Ranks(AUTO, machine=machine)
    runs = {node.id: node.config for node in nodes if isinstance(node.config, RunConfig)}
    tasks = []
    for node in nodes:
        config = node.config
        if not isinstance(config, RunConfig):
            model = runs[config.view.run_id].model
            work_s = evaluation_flops(config, model) / used_rate(model, machine, utilisation)
            tasks.append(Task(node.id, node.needs, work_s, is_first=True))
            continue
        number = ranks.of(config, node.size)
        need = needs(config, number, machine, utilisation)
        work_s = need.gpu_hours * HOUR_S / number
        step_s = work_s / config.num_steps
        tasks.append(Task(node.id, node.needs, work_s, number, need.checkpoint, need.result, step_s))
    return tasks


def describe_simulation(
    nodes: list[Node], done: Collection[str], cluster: SimulatedCluster, machine: Machine, ranks: Ranks | None = None
) -> str:
    """Describes the rest of a study on a cluster: expected hours, cost, their parts, the best checkpoint interval."""
    tasks = planned(nodes, machine, ranks=ranks)
    left = [task for task in tasks if task.id not in done]
    if not left:
        return "simulation: nothing is left to do"
    lines = [
        f"expected on at most {cluster.num_machines} machines of {cluster.slots_per_machine} x {machine.name}, "
        f"{cluster.interruptions_per_hour:g} interruptions a machine and hour, checkpoints every "
        f"{cluster.checkpoint_every_s:g} s;"
    ]
    found = simulate(tasks, cluster, done)
    if math.isinf(found.makespan_hours):
        lines.append(f"does not finish: between two checkpoints some node is interrupted over {MAX_TRIES:g} times")
    else:
        parts = {part: getattr(found, f"{part}_hours") for part in ("useful", "lost", "overhead", "idle")}
        shares = ", ".join(f"{part} {100 * hours / found.paid_hours:.1f}%" for part, hours in parts.items())
        lines += [
            f"makespan       {found.makespan_hours:,.2f} hours",
            f"cost           ${found.cost:,.2f}",
            f"slot-hours     {found.paid_hours:,.2f}: {shares}",
        ]
    saving = [best_interval_s(task, cluster) for task in left if task.checkpoint_bytes]
    if saving and cluster.interruptions_per_hour:
        low, high = min(saving), max(saving)
        lines.append(f"checkpoints lose least every {low:,.0f} to {high:,.0f} s, by run (Young and Daly)")
    return "\n".join(lines)
