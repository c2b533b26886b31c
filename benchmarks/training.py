"""Measures training tokens per second of the product's loop, against Hugging Face, plain torch, and
no modules."""

import functools
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace

from benchmarks.peers import PEERS, peer_steps, why_no_peer
from benchmarks.processes import WorkerProcess
from benchmarks.results import Aim, BenchmarkResult, BenchmarkSettings
from benchmarks.timing import clock_of, interleaved
from benchmarks.workloads import (
    DENSE,
    GRAM,
    GRAM_FROZEN,
    Workload,
    compared_runs,
    loop_arguments,
    stories_26m,
)
from gram_platform.model import cpu
from gram_platform.train.loop import training_steps


def measure(settings: BenchmarkSettings) -> list[BenchmarkResult]:
    """Trains the 26M stories model on all cores; the quick form has one of a step's eight
    micro-batches."""
    size = stories_26m()
    num_micro_batches, num_rounds = (
        (size.batch_size // size.micro_batch, 5) if settings.full else (1, 3)
    )
    workload = Workload(size, num_micro_batches, num_rounds)
    reason = why_no_peer()
    if reason:
        print(reason, file=sys.stderr)
    with cpu.keep_freed_memory():
        return compare(workload, with_peer=not reason)


def compare(workload: Workload, with_peer: bool) -> list[BenchmarkResult]:
    """Interleaves the steps of all models.

    Peers run in their own processes, without our memory allocator settings.
    """
    steps: dict[str, Iterator] = {
        name: training_steps(*loop_arguments(run, workload))
        for name, run in compared_runs(workload).items()
    }
    peers = {
        precision: WorkerProcess(_peer_steps, workload, precision)
        for precision in PEERS[workload.size.precision]
        if with_peer
    }
    if workload.device == "cpu" and cpu.has_fast_code():
        peers[cpu.PLAIN] = WorkerProcess(_plain_steps, workload)
    actions = {name: functools.partial(next, each) for name, each in (steps | peers).items()}
    try:
        seconds = interleaved(actions, workload.num_rounds, clock_of(workload.device))
    finally:
        for peer in peers.values():
            peer.end()
    measured = _against_peers(workload, seconds) if with_peer else []
    if cpu.PLAIN in peers:
        against = "plain torch for the kernels and the memory"
        plain = _against_dense(
            workload, seconds | {GRAM: seconds[DENSE], DENSE: seconds[cpu.PLAIN]}, GRAM, 1.0
        )
        measured.append(replace(plain, name=f"CPU code {workload.size.name}", against=against))
    return [
        *measured,
        _against_dense(workload, seconds, GRAM, 0.97),
        _against_dense(workload, seconds, GRAM_FROZEN, 1.0),
    ]


def _peer_steps(workload: Workload, precision: str) -> Iterator[float]:
    run = compared_runs(workload)[DENSE]
    _, plan, reader = loop_arguments(run, replace(workload, compiled=False))
    return peer_steps(run, plan, reader, precision, workload.device, workload.compiled)


def _plain_steps(workload: Workload) -> Iterator[float]:
    """Yields losses of the dense model's steps without the code for CPUs."""
    os.environ[cpu.VARIABLE] = cpu.PLAIN
    cpu.has_fast_code.cache_clear()
    for record in training_steps(*loop_arguments(compared_runs(workload)[DENSE], workload)):
        yield record.losses[0]


def _rates(workload: Workload, seconds: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(workload.tokens_per_step / spent for spent in seconds)


def _against_peers(
    workload: Workload, seconds: Mapping[str, tuple[float, ...]]
) -> list[BenchmarkResult]:
    """Compares with the peer of the same precision (the aim): for bfloat16, float32 weights under
    autocast.

    Weights of 16 bits alone, which lose small updates, are reported too.
    """
    same, *_ = peers = PEERS[workload.size.precision]
    return [
        BenchmarkResult(
            name=f"training {workload.size.name}"
            + ("" if precision == same else f", against {precision}"),
            unit="tokens/s",
            values=_rates(workload, seconds[DENSE]),
            references=_rates(workload, seconds[precision]),
            against=f"Hugging Face StarCoder2, {precision}",
            aim=Aim("at least", 1.25) if precision == same else None,
        )
        for precision in peers
    ]


def _against_dense(
    workload: Workload, seconds: Mapping[str, tuple[float, ...]], name: str, bound: float
) -> BenchmarkResult:
    return BenchmarkResult(
        name=f"{name} {workload.size.name}",
        unit="tokens/s",
        values=_rates(workload, seconds[name]),
        references=_rates(workload, seconds[DENSE]),
        against="the dense model in the same loop",
        aim=Aim("at least", bound),
    )
