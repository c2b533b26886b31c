"""A study's nodes as tasks, replications with their intervals, the best checkpoint interval, and a text for people."""

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gram_platform.config import RunConfig
from gram_platform.identity import invalid, require_int
from gram_platform.nodes import Node
from gram_platform.planner import AUTO, Machine, Ranks, evaluation_flops, needs
from gram_platform.simulate.cluster import DoesNotFinish, Outcome, SimulatedCluster, Task
from gram_platform.simulate.events import Simulation

INTERVALS_S = (60.0, 120.0, 300.0, 600.0, 900.0, 1200.0, 1800.0, 3600.0, 7200.0, 14400.0)
NUM_REPLICATIONS = 20


@dataclass(frozen=True)
class Estimate:
    """Over replications: the mean, and the values between which 90% of them lie (one replication: itself)."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:,.2f} [{self.low:,.2f}, {self.high:,.2f}]"


def estimate(values: Sequence[float]) -> Estimate:
    """The mean, and the 5th and 95th percentile with linear interpolation."""
    if len(values) == 1:
        return Estimate(values[0], values[0], values[0])
    cuts = statistics.quantiles(values, n=20, method="inclusive")
    return Estimate(statistics.fmean(values), cuts[0], cuts[-1])


def simulate(
    tasks: Sequence[Task],
    cluster: SimulatedCluster,
    done: Collection[str] = (),
    num_replications: int = NUM_REPLICATIONS,
) -> list[Outcome]:
    """Independent replications; ValueError for a task that asks for more ranks than the cluster can have.

    DoesNotFinish where machines live too short for a task to save anything, as `Simulation.run`.
    """
    require_int("num_replications", num_replications, 1)
    most = cluster.num_machines * cluster.slots_per_machine
    for task in tasks:
        if task.ranks > most:
            raise invalid("task.ranks", task.ranks, f"at most the cluster's {most} slots")
    missing = sorted({i for task in tasks for i in task.needs} - {task.id for task in tasks} - set(done))
    if missing:
        raise invalid("tasks", missing[:4], "tasks whose needs are among them or done")
    return [Simulation(tasks, cluster, done, number).run() for number in range(num_replications)]


def best_interval(
    tasks: Sequence[Task],
    cluster: SimulatedCluster,
    done: Collection[str] = (),
    intervals_s: Iterable[float] = INTERVALS_S,
    num_replications: int = NUM_REPLICATIONS,
) -> tuple[float, dict[float, float]]:
    """(seconds between checkpoints with the lowest mean cost, mean cost of each), on equal lives of machines.

    An interval with which the study does not finish costs infinity; DoesNotFinish when that is every one.
    """
    costs = {}
    for interval_s in intervals_s:
        try:
            outcomes = simulate(tasks, replace(cluster, checkpoint_every_s=interval_s), done, num_replications)
        except DoesNotFinish as error:
            costs[interval_s], why = math.inf, error
        else:
            costs[interval_s] = statistics.fmean(outcome.cost for outcome in outcomes)
    if all(math.isinf(cost) for cost in costs.values()):
        raise DoesNotFinish(f"with any of these intervals, {why}")
    return min(costs, key=costs.__getitem__), costs


# ------------------------------------------------------------------------------------------- tasks of a study


def planned(nodes: Sequence[Node], machine: Machine, utilisation: float, ranks: Ranks | None = None) -> list[Task]:
    """Tasks from FLOPs: a run has its number of `ranks`, by default the fewest that fit the machine.

    ValueError for a run that fits no number of ranks. An evaluation has one rank.
    """
    ranks = ranks or Ranks(AUTO, machine=machine)
    runs = {node.id: node.config for node in nodes if node.kind == "run"}
    rate = machine.flops_per_second * utilisation

    def seconds(node: Node, ranks: int) -> float:
        if node.kind == "run":
            return needs(node.config, ranks, machine, utilisation).gpu_hours * 3600 / ranks
        return evaluation_flops(node.config, runs[node.config.view.run_id].model) / rate

    return [_task(node, seconds, _ranks(node, ranks)) for node in nodes]


def calibrated(nodes: Sequence[Node], seconds: Mapping[str, float]) -> list[Task]:
    """Tasks of one rank from the times of a storage: `seconds` is the `elapsed_s` of nodes by id.

    A node without a time gets its FLOPs over the rate of the timed ones of its kind; ValueError if none of it is timed.
    """
    runs = {node.id: node.config for node in nodes if node.kind == "run"}
    flops = {node.id: _flops(node, runs) for node in nodes}
    rates = {}
    for kind in sorted({node.kind for node in nodes if node.id not in seconds}):
        timed = [node.id for node in nodes if node.kind == kind and node.id in seconds]
        if not timed:
            raise invalid("seconds", sorted(seconds)[:4], f"the time of at least one {kind}")
        rates[kind] = sum(flops[i] for i in timed) / sum(seconds[i] for i in timed)
    times = {node.id: seconds.get(node.id) or flops[node.id] / rates[node.kind] for node in nodes}
    return [_task(node, lambda node, _: times[node.id], 1) for node in nodes]


def _flops(node: Node, runs: Mapping[str, RunConfig]) -> float:
    if node.kind == "evaluation":
        return evaluation_flops(node.config, runs[node.config.view.run_id].model)
    need = needs(node.config, 1, Machine("unit", 1.0, 1.0, 0.0), 1.0)
    return need.flops + need.evaluation_flops


def _ranks(node: Node, ranks: Ranks) -> int:
    return 1 if node.kind == "evaluation" else ranks.of(node.config, dict(node.tags)["size"])


def _task(node: Node, seconds: Callable[[Node, int], float], ranks: int) -> Task:
    if node.kind == "evaluation":
        return Task(node.id, node.needs, seconds(node, 1), is_first=True)
    need = needs(node.config, 1, Machine("unit", 1.0, 1.0, 0.0), 1.0)
    work_s = seconds(node, ranks)
    step_s = work_s / node.config.num_steps
    return Task(node.id, node.needs, work_s, ranks, need.checkpoint, need.result, step_s)


# ------------------------------------------------------------------------------------------------------ text


def describe_simulation(
    nodes: Sequence[Node],
    done: Collection[str],
    cluster: SimulatedCluster,
    machine: Machine,
    utilisation: float = 0.4,
    ranks: Ranks | None = None,
    num_replications: int = NUM_REPLICATIONS,
) -> str:
    """What is left of a study on a cluster: hours, cost, where the time goes, and the best checkpoint interval.

    Where machines live too short for it, that it does not finish.
    """
    tasks = planned(nodes, machine, utilisation, ranks)
    if all(task.id in done for task in tasks):
        return "simulation: nothing is left to do"
    machines = f"{cluster.num_machines} machines at most of {cluster.slots_per_machine} x {machine.name}"
    rate = f"{cluster.interruptions_per_hour:g} interruptions a machine and hour"
    try:
        lines = _outcome_lines(simulate(tasks, cluster, done, num_replications))
    except DoesNotFinish as error:
        lines = [f"does not finish: {error}"]
    try:
        lines.append(_interval_line(*best_interval(tasks, cluster, done, num_replications=num_replications)))
    except DoesNotFinish:
        lines.append("it does not finish with checkpoints at any other interval either")
    return "\n".join([f"simulated on {machines}, {rate}, checkpoints every {cluster.checkpoint_every_s:g} s;", *lines])


def _outcome_lines(outcomes: Sequence[Outcome]) -> list[str]:
    total = lambda name: estimate([getattr(outcome, name) for outcome in outcomes])  # noqa: E731
    shares = {
        part: 100 * total(f"{part}_hours").mean / total("paid_hours").mean
        for part in ("useful", "retrained", "overhead", "idle")
    }
    waste = ", ".join(f"{part} {share:.1f}%" for part, share in shares.items())
    return [
        f"{len(outcomes)} replications: mean [90% of them]",
        f"makespan       {total('makespan_hours')} hours",
        f"cost           ${total('cost')}",
        f"slot-hours     {total('paid_hours')}: {waste}",
        f"interruptions  {total('num_interruptions')} of machines at work, {total('most_interruptions')} of one node",
    ]


def _interval_line(best_s: float, costs: Mapping[float, float]) -> str:
    intervals = [
        f"{interval_s:g} s " + ("does not finish" if math.isinf(cost) else f"${cost:,.0f}")
        for interval_s, cost in costs.items()
    ]
    return f"checkpoints every {best_s:g} s cost least: {', '.join(intervals)}"
