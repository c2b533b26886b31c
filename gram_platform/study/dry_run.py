"""What a study would do: nodes, compute, memory, disk, hours and cost, and what is done already."""

from collections import defaultdict

from gram_platform.config import RunConfig
from gram_platform.flops import total_parameters
from gram_platform.methods.budgets import plan_compute_units
from gram_platform.planner import GIB, MACHINES, Machine, fewest_ranks, needs, run_flops
from gram_platform.store import Store
from gram_platform.study.build import Graph

HEADER = ("method", "size", "runs", "done", "params", "tokens", "compute", "FLOPs", "ranks", "GiB/rank", "disk GiB")
UTILISATION = 0.4  # of the machine's dense rate [ours]


def describe(graph: Graph) -> str:
    """The dry run's text: one line for each method and size, the totals, and what sharing saves."""
    store, machine = Store(graph.flags.storage), MACHINES[graph.flags.machine]
    runs = {node.id: node for node in graph.nodes if node.kind == "run"}
    done = {run_id for run_id in runs if store.run(run_id).result() is not None}
    groups: dict[tuple[str, str], list[RunConfig]] = defaultdict(list)
    for node in runs.values():
        tags = dict(node.tags)
        groups[tags["method"] + (" attacks" if "elicited" in tags else ""), tags["size"]].append(node.config)
    rows = [_row(key, configs, done, machine, graph.flags.num_workers) for key, configs in groups.items()]
    evaluations = [node for node in graph.nodes if node.kind == "evaluation"]
    evaluated = sum(store.evaluation(node.id).result() is not None for node in evaluations)
    shared = sum(node.kind == "run" for node in graph.entries) - len(runs)
    lines = [
        f"study {graph.study.name}, preset {graph.flags.preset}",
        f"corpus {graph.flags.corpus} (data {graph.recipe.data_id})",
        f"storage {graph.flags.storage}",
        "",
        *_aligned([(*HEADER, f"{machine.name} hours", "cost $"), *rows]),
        "",
        _totals([node.config for node in runs.values()], done, machine),
        f"evaluations: {len(evaluations)}, {evaluated} done; runs shared between methods: {shared}",
        f"hours at {UTILISATION:.0%} of {machine.flops_per_second:.3g} FLOP/s; compute is tokens x active parameters;",
        "tokens, compute, FLOPs and hours are of all runs of a line, parameters and memory of its largest;",
        "memory is an estimate without activation checkpointing; disk is weights and one checkpoint of a run",
    ]
    return "\n".join(lines)


def _row(key: tuple[str, str], configs: list[RunConfig], done: set[str], machine: Machine, num_workers: int) -> tuple:
    config = max(configs, key=lambda c: total_parameters(c.model))
    ranks = num_workers if num_workers > 1 else fewest_ranks(config, machine)
    need = needs(config, ranks or config.micro_batch, machine, UTILISATION)
    hours = sum(needs(c, 1, machine, UTILISATION).gpu_hours for c in configs)
    return (
        *key,
        str(len(configs)),
        str(sum(c.run_id in done for c in configs)),
        f"{total_parameters(config.model):,}",
        f"{sum(c.num_tokens for c in configs):,}",
        f"{sum(plan_compute_units(c) for c in configs):.3g}",
        f"{sum(run_flops(c) for c in configs):.3g}",
        str(ranks) if ranks else f">{config.micro_batch}",
        f"{need.memory / GIB:.2f}",
        f"{(need.checkpoint + 4 * total_parameters(config.model)) / GIB:.2f}",
        f"{hours:,.2f}",
        f"{hours * machine.dollars_per_hour:,.2f}",
    )


def _totals(configs: list[RunConfig], done: set[str], machine: Machine) -> str:
    hours = {c.run_id: needs(c, 1, machine, UTILISATION).gpu_hours for c in configs}
    left = sum(h for run_id, h in hours.items() if run_id not in done)
    disk = sum(4 * total_parameters(c.model) for c in configs) / GIB
    total = f"{len(configs)} runs, {len(done)} done; {sum(hours.values()):,.2f} {machine.name} hours in all, "
    return f"{total}{left:,.2f} left (${left * machine.dollars_per_hour:,.2f}); {disk:,.2f} GiB of weights"


def _aligned(rows: list[tuple]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    left = 2  # text columns
    pad = lambda index, cell: cell.ljust(widths[index]) if index < left else cell.rjust(widths[index])  # noqa: E731
    return ["  ".join(pad(i, cell) for i, cell in enumerate(row)) for row in rows]
