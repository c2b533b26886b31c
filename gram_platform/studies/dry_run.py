"""Describes a study's nodes, compute, memory, disk space, hours and cost before it starts."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from gram_platform.analysis.columns import align_columns
from gram_platform.config import RunConfig
from gram_platform.config.flops import BYTES, GIB, total_parameters
from gram_platform.config.layout import model_kernel
from gram_platform.engine.life import find_done_ids
from gram_platform.methods.budgets import plan_compute_units
from gram_platform.methods.nodes import BASELINE
from gram_platform.planner import (
    PUBLISHED_RATES,
    USABLE_MEMORY,
    Machine,
    Needs,
    needs,
    utilisation_of,
)
from gram_platform.planner.ranks import MOST_HOURS, Ranks, fewest_ranks
from gram_platform.store import Store
from gram_platform.store.checkpoints import NUM_CHECKPOINTS_KEPT
from gram_platform.studies.definition import OURS
from gram_platform.studies.packing import supply_lines
from gram_platform.studies.plan import (
    CPU,
    Plan,
    StudyPlan,
    amount,
    plan_hours,
    predict,
    work_left,
)
from gram_platform.studies.workplace import (
    device_rule,
    find_device,
    find_ended,
    is_compiled,
    with_ranks,
)

SIZE_HEADER = ("size", "parameters", "peak rate", "batch (sequences)", "sequence (tokens)")
RUN_HEADER = ("method", "size", "runs", "done", "params", "tokens", "compute", "FLOPs")
MEMORY_PARTS = ("weights", "copies", "gathered", "gradients", "optimizer", "activations", "logits")
MEMORY_HEADER = ("method", "size", "attention", "ranks", "sequences", "passes", *MEMORY_PARTS)
MEMORY_HEADER += ("peak", "recomputing", "disk")
# Below this many bytes, the parts of memory are not listed.
LITTLE_MEMORY = GIB // 10
# The configs of runs by method and size.
Groups = Mapping[tuple[str, str], Sequence[RunConfig]]


def describe(plan: Plan) -> str:
    """Describes each study, and predicts the total time. Raises the errors of `with_ranks`."""
    store = Store(plan.storage)
    ended = find_ended(plan, store)
    devices = [plan.device or find_device(part, store, ended) for part in plan.studies]
    parts = [part.on(device) for part, device in zip(plan.studies, devices, strict=True)]
    plan, num_slots = with_ranks(replace(plan, studies=tuple(parts)), store, is_dry=True)
    texts = [_describe(plan, *pair, ended) for pair in zip(plan.studies, devices, strict=True)]
    return "\n\n".join([*texts, *_summaries(plan, num_slots, ended)])


def _summaries(plan: Plan, num_slots: int, ended: Collection[str]) -> Iterable[str]:
    for ranks, work in plan.works():
        forecast, machine = work.forecast(num_slots, done=ended), ranks.machine
        left = [node for node in work.nodes if node.id not in ended]
        if not left:
            continue
        is_free = machine.device == CPU
        slots = "CPUs" if is_free else f"{machine.name} GPUs"
        on = f"{num_slots} {slots}" if num_slots else f"as many {slots} as it can use"
        if num_slots and not is_free:
            on += f" ({forecast.idle:.0%} of their time idle)"
        runs = [node.config for node in left if isinstance(node.config, RunConfig)]
        mega = max(1.0, sum(4 * total_parameters(run.model) for run in runs) / 1e6)
        size = f"{mega:,.0f} MB" if mega < 1e3 else f"{mega / 1e3:,.0f} GB"
        used = plan_hours(work.nodes, machine, {node.id for node in left})
        dollars = (num_slots * forecast.hours or used) * machine.dollars_per_hour
        yield (
            f"{len(left)} runs and evaluations, about {_long(forecast.hours)} on {on}, {size} of"
            f" weights, {'free' if is_free else f'${dollars:,.0f}'}"
        )


def _long(hours: float) -> str:
    if hours >= 2:
        return f"{hours:{'.3g' if hours < 100 else ',.0f'}} hours"
    minutes = max(1, round(60 * hours))
    return f"{minutes} minute{'s' * (minutes > 1)}"


def _describe(plan: Plan, part: StudyPlan, device: str, ended: Collection[str]) -> str:
    store, machine = Store(plan.storage), part.machine
    runs = {node.id: node for node in part.nodes if node.is_run}
    all_done = find_done_ids(part.nodes, store)
    done = all_done & set(runs)
    groups = defaultdict(list)
    for node in runs.values():
        groups[node.method + (" attacks" if node.is_attack else ""), node.size].append(node.config)
    needed = {run_id: needs(node.config, 1, machine) for run_id, node in runs.items()}
    hours = plan_hours(part.nodes, machine)
    run_header = (*RUN_HEADER, f"{machine.name} hours", "cost $")
    lines = [
        f"study {part.study.name}, preset {part.preset_name}",
        *(f"changed: {change}" for change in part.changes),
        f"corpus {part.choice.corpus} (data {part.data_id})",
        f"storage {plan.storage}",
        f"device {device_rule(plan, part, device)}",
        *supply_lines(part),
        *(f"law {part.sources['law']}, against its evidence: {doubt}" for doubt in part.law_doubts),
        "",
        align_columns([SIZE_HEADER, *_size_rows(part)], 1),
        "",
        align_columns([run_header, *_run_rows(groups, needed, done, machine)], 2),
        "",
        *_memory_lines(groups, part.ranks),
        *_compile_line(plan.compiled, part),
        "",
        (
            f"{len(runs)} runs, {len(done)} done; {len(part.nodes) - len(runs)} evaluations,"
            f" {len(all_done - done)} done; {amount(hours)} {machine.name} hours in all"
        ),
        predict(work_left((part,), ended)),
        *_legend(machine, [node.config for node in runs.values()]),
        *(_rate_lines(part, groups, needed) if part.preset.family != OURS else ()),
    ]
    return "\n".join(lines)


def _size_rows(part: StudyPlan) -> Iterable[tuple]:
    for name in part.choice.sizes:
        size = part.preset.sizes[name]
        runs = [
            n.config for n in part.nodes if n.is_run and n.size == name and n.method == BASELINE
        ]
        rates = {run.optimizer.peak_lr for run in runs} or {size.peak_lr}
        batches = {run.batch_size for run in runs} or {size.batch_size}
        ends = _ends(rates, ".3g"), _ends(batches, ",d")
        yield name, f"{total_parameters(size.dense()):,}", *ends, str(size.seq_len)


def _ends(values: set, form: str) -> str:
    return " to ".join(format(value, form) for value in sorted({min(values), max(values)}))


def _run_rows(
    groups: Groups, needed: Mapping[str, Needs], done: set[str], machine: Machine
) -> Iterable[tuple]:
    for key, configs in groups.items():
        needs_of_runs = [needed[c.run_id] for c in configs]
        hours = sum(need.gpu_hours for need in needs_of_runs)
        yield (
            *key,
            str(len(configs)),
            str(sum(c.run_id in done for c in configs)),
            f"{max(total_parameters(c.model) for c in configs):,}",
            f"{sum(c.num_tokens for c in configs):,}",
            f"{sum(plan_compute_units(c) for c in configs):.3g}",
            f"{sum(need.flops for need in needs_of_runs):.3g}",
            amount(hours),
            f"{hours * machine.dollars_per_hour:,.2f}",
        )


def _memory_lines(groups: Groups, ranks: Ranks) -> list[str]:
    machine = ranks.machine
    largest = {
        key: max(runs, key=lambda run: total_parameters(run.model)) for key, runs in groups.items()
    }
    most = max(needs(run, 1, machine).passes.memory.total for run in largest.values())
    if most < LITTLE_MEMORY:
        return [f"memory: at most {most / 2**20:.0f} MiB of a {machine.name} for a run"]
    return [
        f"memory of one {machine.name} in GiB, for the largest run of a line:",
        align_columns([MEMORY_HEADER, *_memory_rows(largest, ranks)], 2),
        (
            "ranks: --num-workers, or the number with which the study ends first, with a peak"
            f" within {USABLE_MEMORY:.0%} of {machine.memory_bytes / GIB:.0f} GiB and at most"
            f" {MOST_HOURS:g} times the fewest hours"
        ),
        "sequences: the most in a pass of a rank; passes: in an optimizer step",
        "peak: the most at once; recomputing: ranks needed with activation checkpointing",
        f"disk: the most while training ({NUM_CHECKPOINTS_KEPT} checkpoints and one being written)",
    ]


def _compile_line(compiled: bool | None, part: StudyPlan) -> Iterable[str]:
    sizes = Counter(
        node.size
        for node in part.nodes
        if node.is_run and is_compiled(node, part.ranks, part.machine.device, compiled)
    )
    if sizes:
        counts = ", ".join(f"{number} of {size}" for size, number in sizes.items())
        yield f"compiled runs: {counts}; --no-compile compiles none"


def _memory_rows(largest: Mapping[tuple[str, str], RunConfig], planned: Ranks) -> Iterable[tuple]:
    machine = planned.machine
    for key, run in largest.items():
        checkpointed = fewest_ranks(run, machine, checkpointing=True)
        ranks = planned.of(run, key[1])
        need = needs(run, ranks, machine)
        passes, memory = need.passes, need.passes.memory
        parts = {part: getattr(memory, part) for part in MEMORY_PARTS}
        parts["gradients"] += memory.reduction
        num_sequences = run.micro_batch // ranks // passes.num_passes
        yield (
            *key,
            model_kernel(machine.device, BYTES[run.precision], run.model),
            str(ranks),
            str(num_sequences * passes.num_merged),
            str(-(-run.micro_batches_per_step // passes.num_merged) * passes.num_passes),
            *(f"{value / GIB:.2f}" for value in (*parts.values(), memory.total)),
            str(checkpointed or f">{run.micro_batch}"),
            f"{need.disk_bytes(NUM_CHECKPOINTS_KEPT) / GIB:.2f}",
        )


def _legend(machine: Machine, runs: Sequence[RunConfig]) -> list[str]:
    rows = {utilisation_of(machine.name, total_parameters(run.model)): None for run in runs}
    return [
        (
            f"hours assume the nearest size's share of {machine.flops_per_second / 1e12:g} TFLOP/s"
            " and include evaluations while training:"
        ),
        *(f"  {row.text}" for row in rows),
        (
            "compute is tokens x active parameters; tokens, compute, FLOPs and hours are sums over"
            " the runs of a line"
        ),
    ]


def _rate_lines(part: StudyPlan, groups: Groups, needed: Mapping[str, Needs]) -> list[str]:
    rows = []
    for size in (size for size in part.choice.sizes if size in PUBLISHED_RATES):
        low, high, gram = PUBLISHED_RATES[size]
        row = [size, _ends({low, high}, ","), f"{gram:,}"]
        for runs in (groups.get((method, size), []) for method in (BASELINE, "gram")):
            hours = sum(needed[run.run_id].gpu_hours for run in runs)
            tokens = sum(run.num_tokens for run in runs)
            row.append(f"{tokens / hours / 3600:,.0f}" if runs else "-")
        rows.append(row)
    head = ("size", "dense, authors", "GRAM, authors", "dense, here", "GRAM, here")
    title = "tokens a second and GPU: medians in the authors' logs, and by the hours above"
    return ["", title, align_columns([head, *rows], 1)] if rows else []
