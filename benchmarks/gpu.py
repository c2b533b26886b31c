"""Measures training on a GPU against its dense rate and a compiled peer, merged passes, and runs
that share a GPU.

Needs only torch and numpy; without transformers it skips the peer and says so on stderr.
"""

import functools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from benchmarks.peers import AUTOCAST, COPY, peer_steps, why_no_peer
from benchmarks.processes import WorkerProcess, step_together
from benchmarks.results import Aim, BenchmarkResult
from benchmarks.timing import clock_of, interleaved
from benchmarks.workloads import DENSE, Workload, compared_runs, loop_arguments, mixed_run
from gram_platform.config.flops import hardware_flops, total_parameters
from gram_platform.config.ladder import PAPER_SIZES, SMOKE_SIZES, STORIES_SIZES, Size
from gram_platform.planner import (
    BORROWED,
    COMPILED_PARAMETERS,
    MACHINES,
    PUBLISHED_RATES,
    choose_num_merged,
)
from gram_platform.train.loop import StepRecord, training_steps

PAPER = {name: PAPER_SIZES[name] for name in ("50M", "100M", "800M")}
SIZES: dict[str, Size] = {**STORIES_SIZES, **PAPER, **SMOKE_SIZES}
DEFAULT_SIZES = ("26M", "100M", "800M")
# Sequences of one GPU's micro-batch: one rank's part of the size's micro-batch.
SEQUENCES = {"26M": 16, "100M": 32, "800M": 32}
NUM_MICRO_BATCHES = 2
# Of a window, for the passes that a study makes of it.
MOST_MICRO_BATCHES = 8
# Shares of the dense peak.
AIMS = {"800M": Aim("at least", 0.45)}
# The small runs on one GPU, and the steps of each.
NUM_SHARING, STEPS_SHARING = 4, 20


def measure(
    device: str, names: Sequence[str], num_rounds: int, compiled: bool = True
) -> Iterator[BenchmarkResult]:
    """Measures every size in the passes of studies, with peers in the same, then the small runs.

    `compiled`: ours and the peers are compiled where that is faster, from COMPILED_PARAMETERS on.
    """
    if reason := why_no_peer():
        print(reason, file=sys.stderr)
    for name in names:
        eager = as_studies_merge(single_gpu_workload(name, device, num_rounds, compiled=False))
        is_faster = compiled and total_parameters(eager.size.dense()) >= COMPILED_PARAMETERS
        yield from _size(replace(eager, compiled=is_faster), with_peer=not reason)
        if eager.num_merged > 1:
            yield merging(eager)
        yield routing(eager)
        if compiled:
            yield compiling(eager)
    yield sharing(Workload(SMOKE_SIZES["small"], 1, num_rounds, device))


def single_gpu_workload(name: str, device: str, num_rounds: int, compiled: bool) -> Workload:
    """Returns a size's workload with one rank's part of its micro-batch."""
    size = SIZES[name]
    sequences = min(SEQUENCES.get(name, size.micro_batch), size.micro_batch)
    return Workload(
        replace(size, batch_size=sequences, micro_batch=sequences),
        NUM_MICRO_BATCHES,
        num_rounds,
        device,
        compiled,
    )


def machine_name(device: str) -> str:
    """Names a device as the planner's table does; by its own name where the table lacks it."""
    found = (
        "cpu" if torch.device(device).type == "cpu" else torch.cuda.get_device_name(device).lower()
    )
    return next((name for name in MACHINES if name in found), found)


def dense_flops_per_second(machine: str) -> float:
    """Returns the dense rate of a machine in the planner's table: of all threads on a CPU; 0 if it
    is not there."""
    if machine not in MACHINES:
        return 0.0
    return MACHINES[machine].flops_per_second * (torch.get_num_threads() if machine == "cpu" else 1)


def as_studies_merge(workload: Workload) -> Workload:
    """Returns the workload with as many micro-batches in a pass as a study puts there on this GPU
    (else an H100)."""
    run = compared_runs(replace(workload, num_micro_batches=MOST_MICRO_BATCHES))[DENSE]
    machine = (
        machine_name(workload.device) if torch.device(workload.device).type == "cuda" else BORROWED
    )
    number = choose_num_merged(run, 1, MACHINES.get(machine, MACHINES[BORROWED]))
    return replace(
        workload, num_micro_batches=max(number, workload.num_micro_batches), num_merged=number
    )


def utilisation(workload: Workload) -> BenchmarkResult:
    """Measures the training rate against the machine's dense rate, without a peer."""
    return _size(workload, with_peer=False)[0]


def _size(workload: Workload, with_peer: bool) -> list[BenchmarkResult]:
    run = compared_runs(workload)[DENSE]
    steps: dict[str, Iterator] = {"ours": training_steps(*loop_arguments(run, workload))}
    for precision in (AUTOCAST, COPY) if with_peer else ():
        _, plan, reader = loop_arguments(run, workload)
        steps[precision] = peer_steps(
            run,
            plan,
            reader,
            precision,
            workload.device,
            workload.compiled,
            workload.num_merged,
        )
    actions = {name: functools.partial(next, each) for name, each in steps.items()}
    seconds = interleaved(actions, workload.num_rounds, clock_of(workload.device))
    rates = {
        name: tuple(workload.tokens_per_step / s for s in spent) for name, spent in seconds.items()
    }
    flops = hardware_flops(run.model, workload.num_micro_batches * workload.size.micro_batch)
    machine = machine_name(workload.device)
    dense = dense_flops_per_second(machine)
    measured = BenchmarkResult(
        name=f"FLOPs {workload.size.name} on {workload.device}",
        unit="GFLOP/s",
        values=tuple(flops / spent / 1e9 for spent in seconds["ours"]),
        references=(dense / 1e9,) * len(seconds["ours"]) if dense else (),
        against=(
            f"the dense rate of {machine} in the planner's table"
            if dense
            else f"{machine} is in no table"
        ),
        aim=AIMS.get(workload.size.name) if dense else None,
        details={
            "tokens/s": rates["ours"],
            "the authors' tokens/s": PUBLISHED_RATES.get(workload.size.name, ())[:2],
            "compiled": workload.compiled,
        },
    )
    return [measured, *(_peer(workload, rates) for _ in range(with_peer))]


def _peer(workload: Workload, rates: dict[str, tuple[float, ...]]) -> BenchmarkResult:
    fastest = max(
        (AUTOCAST, COPY), key=lambda precision: sorted(rates[precision])[len(rates[precision]) // 2]
    )
    form = "compiled" if workload.compiled else "eager"
    return BenchmarkResult(
        name=f"training {workload.size.name} on {workload.device}",
        unit="tokens/s",
        values=rates["ours"],
        references=rates[fastest],
        against=f"Hugging Face StarCoder2, {form}, {fastest}",
        aim=Aim("at least", 1.2),
    )


def routing(workload: Workload) -> BenchmarkResult:
    """Measures GRAM's steps, of micro-batches of several routes, against the dense model's."""
    runs = {"gram": mixed_run(workload), "dense": compared_runs(workload)[DENSE]}
    steps = {name: training_steps(*loop_arguments(run, workload)) for name, run in runs.items()}
    actions = {name: functools.partial(next, each) for name, each in steps.items()}
    seconds = interleaved(actions, workload.num_rounds, clock_of(workload.device))
    rates = {
        name: tuple(workload.tokens_per_step / s for s in spent) for name, spent in seconds.items()
    }
    return BenchmarkResult(
        name=f"GRAM {workload.size.name} on {workload.device}",
        unit="tokens/s",
        values=rates["gram"],
        references=rates["dense"],
        against="the dense model in as many passes",
        aim=Aim("at least", 0.9),
    )


def merging(workload: Workload) -> BenchmarkResult:
    """Measures steps whose micro-batches run in one pass, against a pass each."""
    merged = f"{workload.num_merged} micro-batches of {workload.size.name}"
    name = f"{merged} in a pass on {workload.device}"
    return _against(name, workload, "a pass each", replace(workload, num_merged=1))


def compiling(workload: Workload) -> BenchmarkResult:
    """Measures steps with compiled blocks and a fused loss against eager steps of the same
    passes."""
    name = f"compiled {workload.size.name} on {workload.device}"
    return _against(name, replace(workload, compiled=True), "the same passes, eager", workload)


def _against(name: str, workload: Workload, against: str, reference: Workload) -> BenchmarkResult:
    """Compares two forms of the dense model's steps, in turn: their speed, and their losses of all
    steps."""
    run, clock = compared_runs(workload)[DENSE], clock_of(workload.device)
    forms = {"new": workload, "reference": reference}
    steps = {form: training_steps(*loop_arguments(run, how)) for form, how in forms.items()}
    losses: dict[str, list[float]] = {form: [] for form in forms}

    def train(form: str) -> None:
        losses[form] += next(steps[form]).losses

    seconds = interleaved(
        {form: functools.partial(train, form) for form in forms}, workload.num_rounds, clock
    )
    rates = {
        form: tuple(workload.tokens_per_step / s for s in spent) for form, spent in seconds.items()
    }
    apart = max(abs(new - old) for new, old in zip(losses["new"], losses["reference"], strict=True))
    return BenchmarkResult(
        name=name,
        unit="tokens/s",
        values=rates["new"],
        references=rates["reference"],
        against=f"{against}; losses at most {apart:.1e} nats apart",
        aim=None,
        details={"losses apart, nats": apart},
    )


def sharing(workload: Workload, num_runs: int = NUM_SHARING) -> BenchmarkResult:
    """Measures steps per second of small runs in separate processes on one device, against running
    in turn."""
    workers = [WorkerProcess(_batches_of_steps, workload) for _ in range(num_runs)]
    try:
        seconds = interleaved(
            {
                "together": functools.partial(step_together, workers),
                "in turn": functools.partial(_in_turn, workers),
            },
            workload.num_rounds,
        )
    finally:
        for worker in workers:
            worker.end()
    num_steps = num_runs * STEPS_SHARING
    return BenchmarkResult(
        name=f"{num_runs} small runs on one {workload.device}",
        unit="steps/s",
        values=tuple(num_steps / spent for spent in seconds["together"]),
        references=tuple(num_steps / spent for spent in seconds["in turn"]),
        against="one after another",
        aim=Aim("at least", 1.5),
    )


def _in_turn(workers: Sequence[WorkerProcess]) -> None:
    for worker in workers:
        next(worker)


def _batches_of_steps(workload: Workload) -> Iterator[float]:
    """Trains a run, `STEPS_SHARING` steps at a time."""
    torch.set_num_threads(1)
    steps = training_steps(*loop_arguments(compared_runs(workload)[DENSE], workload))
    clock = clock_of(workload.device)
    while True:
        records: list[StepRecord] = [next(steps) for _ in range(STEPS_SHARING)]
        # The clock waits for the device.
        clock()
        yield records[-1].losses[0]
