"""Measures training tokens per second of the product's loop, against Hugging Face, matrix products, and no modules."""

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from benchmarks.matmuls import MatmulRate
from benchmarks.peers import PEERS, peer_steps, why_no_peer
from benchmarks.processes import WorkerProcess
from benchmarks.results import Aim, BenchmarkResult, BenchmarkSettings
from benchmarks.step_shares import OVERHEADS, Stopwatch, watched_steps
from benchmarks.timing import clock_of, interleaved
from benchmarks.workloads import DENSE, GRAM, GRAM_FROZEN, Workload, compared_runs, loop_arguments, stories_26m
from gram_platform.config.flops import hardware_flops
from gram_platform.model import cpu
from gram_platform.train.learner import DTYPES
from gram_platform.train.loop import StepRecord, training_steps

MATMULS = "matmuls"


def measure(settings: BenchmarkSettings) -> list[BenchmarkResult]:
    """Trains the 26M stories model on all cores; the quick form has one of a step's eight micro-batches."""
    size = stories_26m()
    num_micro_batches, num_rounds = (size.batch_size // size.micro_batch, 5) if settings.full else (1, 3)
    workload = Workload(size, num_micro_batches, num_rounds)
    reason = why_no_peer()
    if reason:
        print(reason, file=sys.stderr)
    with logging(workload, settings.storage) as log, cpu.freed_memory_kept():
        return compare(workload, log, with_peer=not reason)


@contextlib.contextmanager
def logging(workload: Workload, storage: str) -> Iterator[Callable[[StepRecord], object]]:
    """Yields a run's logging of a step: it updates the summary and sends a heartbeat."""
    from gram_platform.engine.node import MetricsSummary  # `compare` must work with torch and numpy alone
    from gram_platform.store import Store

    run = compared_runs(workload)[DENSE]
    summary, directory = MetricsSummary(run), Store(storage).open_for_writing().run(run.run_id)
    directory.ensure_config(run)
    with directory.start_attempt("benchmark") as attempt:

        def log(record: StepRecord) -> None:
            summary.add(record)
            attempt.heartbeat(record.step, run.num_steps, summary.tokens_per_second)

        yield log


def compare(workload: Workload, log: Callable[[StepRecord], object], with_peer: bool) -> list[BenchmarkResult]:
    """Interleaves the steps of all models; `log` gets the dense model's records.

    Peers run in their own processes, without our memory allocator settings.
    """
    stopwatch, configs = Stopwatch(), compared_runs(workload)
    matmuls = MatmulRate(
        workload.size.dense(), workload.size.micro_batch, workload.device, DTYPES[workload.size.precision]
    )
    steps: dict[str, Iterator] = {DENSE: watched_steps(*loop_arguments(configs[DENSE], workload), log, stopwatch)}
    steps |= {name: training_steps(*loop_arguments(configs[name], workload)) for name in (GRAM, GRAM_FROZEN)}
    peers = {
        precision: WorkerProcess(_peer_steps, workload, precision)
        for precision in PEERS[workload.size.precision]
        if with_peer
    }
    if workload.device == "cpu" and cpu.has_fast_code():
        peers[cpu.PLAIN] = WorkerProcess(_plain_steps, workload)
    actions = {name: functools.partial(next, each) for name, each in (steps | peers).items()} | {MATMULS: matmuls}
    try:
        seconds = interleaved(actions, workload.num_rounds, clock_of(workload.device))
    finally:
        for peer in peers.values():
            peer.end()
    measured = [_against_matmuls(workload, seconds[DENSE], matmuls)]
    if with_peer:
        measured = [*_against_peers(workload, seconds), *measured]
    if cpu.PLAIN in peers:
        against = "plain torch for the kernels and the memory"
        plain = _against_dense(workload, seconds | {GRAM: seconds[DENSE], DENSE: seconds[cpu.PLAIN]}, GRAM, 1.0)
        measured.append(replace(plain, name=f"CPU code {workload.size.name}", against=against))
    measured += [_against_dense(workload, seconds, GRAM, 0.97), _against_dense(workload, seconds, GRAM_FROZEN, 1.0)]
    return [*measured, _step_overheads(workload, seconds[DENSE], stopwatch)]


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


def _against_peers(workload: Workload, seconds: Mapping[str, tuple[float, ...]]) -> list[BenchmarkResult]:
    """Compares with the peer of the same precision (the aim): for bfloat16, float32 weights under autocast.

    Weights of 16 bits alone, which lose small updates, are reported too.
    """
    same, *_ = peers = PEERS[workload.size.precision]
    return [
        BenchmarkResult(
            name=f"training {workload.size.name}" + ("" if precision == same else f", against {precision}"),
            unit="tokens/s",
            values=_rates(workload, seconds[DENSE]),
            references=_rates(workload, seconds[precision]),
            against=f"Hugging Face StarCoder2, {precision}",
            aim=Aim("at least", 1.25) if precision == same else None,
        )
        for precision in peers
    ]


def _against_matmuls(workload: Workload, seconds: tuple[float, ...], matmuls: MatmulRate) -> BenchmarkResult:
    flops = hardware_flops(workload.size.dense(), workload.num_micro_batches * workload.size.micro_batch)
    by_product = {f"{name}, GFLOP/s": rate / 1e9 for name, rate in matmuls.by_product.items()}
    return BenchmarkResult(
        name=f"FLOPs {workload.size.name}",
        unit="GFLOP/s",
        values=tuple(flops / spent / 1e9 for spent in seconds),
        references=tuple(rate / 1e9 for rate in matmuls.rates[1:]),  # the first is from the warm-up
        against=f"the model's own matrix products in {workload.size.precision}",
        aim=Aim("at least", 0.6),
        details={**by_product, **matmuls.attention()},
    )


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


def _step_overheads(workload: Workload, seconds: tuple[float, ...], stopwatch: Stopwatch) -> BenchmarkResult:
    shares = stopwatch.shares(sum(seconds), workload.factor)
    return BenchmarkResult(
        name=f"step overheads {workload.size.name}",
        unit="of a step",
        values=(sum(shares[part] for part in OVERHEADS),),
        references=(),
        against=f"{workload.size.batch_size * workload.size.seq_len} tokens a step",
        aim=Aim("at most", 0.08, "value"),
        details={**shares, "measured at tokens a step": workload.tokens_per_step},
    )
