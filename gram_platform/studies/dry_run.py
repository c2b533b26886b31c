"""Describes a study without starting it: nodes, compute, memory by part, disk, hours, cost, and nodes done."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from gram_platform.config import RunConfig
from gram_platform.config.flops import total_parameters
from gram_platform.methods.budgets import plan_compute_units
from gram_platform.methods.nodes import Node
from gram_platform.planner import (
    AUTO,
    GIB,
    MACHINES,
    USABLE_MEMORY,
    Machine,
    Needs,
    Ranks,
    evaluation_flops,
    fewest_ranks,
    needs,
)
from gram_platform.planner.simulation import SimulatedCluster, describe_simulation
from gram_platform.store import Store
from gram_platform.store.attempts import NUM_CHECKPOINTS_KEPT
from gram_platform.studies.build import Graph
from gram_platform.studies.flags import CommonFlags, ranks_of, simulated_cluster, split_list
from gram_platform.studies.supply import supply_lines

UTILISATION = 0.4  # of the machine's dense rate [ours]
RUN_HEADER = ("method", "size", "runs", "done", "params", "tokens", "compute", "FLOPs")
MEMORY_PARTS = ("weights", "copies", "gathered", "gradients", "optimizer", "activations", "logits")
MEMORY_HEADER = ("method", "size", "ranks", "sequences", "passes", *MEMORY_PARTS, "peak", "recomputing", "disk")
TEXT_COLUMNS = 2


def describe(graph: Graph) -> str:
    """Returns the dry run's text: bytes to fetch and shortages; compute, hours and cost; memory; totals and savings."""
    store, machine = Store(graph.flags.storage), MACHINES[graph.flags.machine]
    runs = {node.id: node for node in graph.nodes if node.is_run}
    done = {run_id for run_id in runs if store.run(run_id).result() is not None}
    groups: dict[tuple[str, str], list[RunConfig]] = defaultdict(list)
    for node in runs.values():
        groups[node.method + (" attacks" if node.is_attack else ""), node.size].append(node.config)
    evaluations = [node for node in graph.nodes if not node.is_run]
    evaluated = {node.id for node in evaluations if store.evaluation(node.id).result() is not None}
    lines = [
        f"study {graph.study.name}, preset {graph.flags.preset}",
        f"corpus {graph.flags.corpus} (data {', '.join(graph.data_ids)})",
        f"storage {graph.flags.storage}",
        *supply_lines(graph.nodes, graph.preset, graph.recipes),
        "",
        *_aligned([(*RUN_HEADER, f"{machine.name} hours", "cost $"), *_run_rows(groups, done, machine)]),
        "",
        f"memory of one {machine.name} in GiB, for the largest run of a line:",
        *_aligned([MEMORY_HEADER, *_memory_rows(groups, machine, planned_ranks(graph.flags))]),
        "",
        *_size_totals(groups, machine),
        *_totals(runs.values(), done, machine),
        f"evaluations: {len(evaluations)}, {len(evaluated)} done; "
        f"{_hours(_evaluation_flops(evaluations, runs), machine):,.2f} {machine.name} hours in all",
        _savings(graph, machine),
        *_legend(machine),
    ]
    return "\n".join(lines)


def described(graph: Graph) -> str:
    """Returns the dry run's text, with the simulation if the flags ask for it."""
    text = describe(graph)
    if not graph.flags.simulate:
        return text
    return f"{text}\n\n{describe_on(graph, simulated_cluster(graph.flags.cluster))}"


def describe_on(graph: Graph, cluster: SimulatedCluster) -> str:
    """Returns the simulation of a study's missing nodes, with --num-workers ranks a run, by default the fewest.

    ValueError for a run that fits neither the machine nor the cluster.
    """
    store = Store(graph.flags.storage)
    done = {node.id for node in graph.nodes if store.node(node.kind, node.id).result() is not None}
    machine, ranks = MACHINES[graph.flags.machine], planned_ranks(graph.flags)
    return describe_simulation(graph.nodes, done, cluster, machine, UTILISATION, ranks)


def planned_ranks(flags: CommonFlags) -> Ranks:
    """Returns --num-workers; without it, the planner chooses."""
    ranks = ranks_of(flags)
    return ranks if split_list(flags.num_workers) else replace(ranks, number=AUTO)


def _run_rows(groups: dict[tuple[str, str], list[RunConfig]], done: set[str], machine: Machine) -> Iterable[tuple]:
    for key, configs in groups.items():
        wanted = [needs(c, 1, machine, UTILISATION) for c in configs]
        hours = sum(need.gpu_hours for need in wanted)
        yield (
            *key,
            str(len(configs)),
            str(sum(c.run_id in done for c in configs)),
            f"{max(total_parameters(c.model) for c in configs):,}",
            f"{sum(c.num_tokens for c in configs):,}",
            f"{sum(plan_compute_units(c) for c in configs):.3g}",
            f"{sum(need.flops for need in wanted):.3g}",
            f"{hours:,.2f}",
            f"{hours * machine.dollars_per_hour:,.2f}",
        )


def _memory_rows(groups: dict[tuple[str, str], list[RunConfig]], machine: Machine, ranks_of: Ranks) -> Iterable[tuple]:
    for key, configs in groups.items():
        run = max(configs, key=lambda c: total_parameters(c.model))
        fewest, checkpointed = fewest_ranks(run, machine), fewest_ranks(run, machine, checkpointing=True)
        ranks = fewest if ranks_of.wanted(key[1]) == AUTO else ranks_of.of(run, key[1])
        need = needs(run, ranks or run.micro_batch, machine, UTILISATION)
        parts = {part: getattr(need.memory, part) for part in MEMORY_PARTS}
        parts["gradients"] += need.memory.reduction
        yield (
            *key,
            str(ranks) if ranks else f">{run.micro_batch}",
            str(run.micro_batch // (ranks or run.micro_batch)),
            str(run.micro_batches_per_step),
            *(f"{value / GIB:.2f}" for value in parts.values()),
            f"{need.memory.total / GIB:.2f}",
            str(checkpointed) if checkpointed else f">{run.micro_batch}",
            f"{disk_bytes(need) / GIB:.2f}",
        )


def disk_bytes(need: Needs) -> int:
    """Returns the most that a run stores: the kept checkpoints, and one being written or the result."""
    kept = NUM_CHECKPOINTS_KEPT * need.checkpoint
    return kept + max(need.checkpoint, need.result)


def _legend(machine: Machine) -> list[str]:
    return [
        f"hours at {UTILISATION:.0%} of {machine.flops_per_second:.3g} FLOP/s, evaluations while training included;",
        "compute is tokens x active parameters; tokens, compute, FLOPs and hours are of all runs of a line",
        f"ranks: --num-workers, else the fewest whose peak is within {USABLE_MEMORY:.0%} of "
        f"{machine.memory_bytes / GIB:.0f} GiB; sequences: of a micro-batch on each; "
        "passes: micro-batches of an optimizer step",
        "peak: what is alive at once, less than the sum of the parts; recomputing: ranks that would do if every block",
        "kept its input alone and computed the rest again; disk: the most while it trains "
        f"({NUM_CHECKPOINTS_KEPT} checkpoints and one being written)",
    ]


def _hours(flops: float, machine: Machine) -> float:
    return flops / (machine.flops_per_second * UTILISATION) / 3600


def _evaluation_flops(evaluations: Iterable[Node], runs: dict[str, Node]) -> float:
    return sum(evaluation_flops(node.config, runs[node.config.view.run_id].config.model) for node in evaluations)


def _totals(runs: Iterable[Node], done: set[str], machine: Machine) -> list[str]:
    wanted = {node.id: needs(node.config, 1, machine, UTILISATION) for node in runs}
    hours = sum(need.gpu_hours for need in wanted.values())
    left = sum(need.gpu_hours for run_id, need in wanted.items() if run_id not in done)
    disk = sum(need.result for need in wanted.values()) / GIB
    return [
        f"{len(wanted)} runs, {len(done)} done; {hours:,.2f} {machine.name} hours in all, {left:,.2f} left "
        f"(${left * machine.dollars_per_hour:,.2f}); {disk:,.2f} GiB of final weights",
    ]


def _size_totals(groups: dict[tuple[str, str], list[RunConfig]], machine: Machine) -> list[str]:
    """Returns the hours and dollars of every size, over all methods and attacks."""
    hours: dict[str, float] = defaultdict(float)
    for (_, size), configs in groups.items():
        hours[size] += sum(needs(config, 1, machine, UTILISATION).gpu_hours for config in configs)
    price = machine.dollars_per_hour
    return [f"{size}: {total:,.2f} {machine.name} hours, ${total * price:,.2f}" for size, total in hours.items()]


def _savings(graph: Graph, machine: Machine) -> str:
    """Returns the saving by training each run once, not once for each method that needs it."""
    seen: set[str] = set()
    again = [node for node in graph.entries if node.is_run and (node.id in seen or seen.add(node.id))]
    hours = sum(needs(node.config, 1, machine, UTILISATION).gpu_hours for node in again)
    cost = hours * machine.dollars_per_hour
    return f"runs shared between methods: {len(again)}, which saves {hours:,.2f} {machine.name} hours (${cost:,.2f})"


def _aligned(rows: list[tuple]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    pad = lambda index, cell: cell.ljust(widths[index]) if index < TEXT_COLUMNS else cell.rjust(widths[index])  # noqa: E731
    return ["  ".join(pad(i, cell) for i, cell in enumerate(row)) for row in rows]
