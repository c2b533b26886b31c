"""Measures two FSDP2 ranks on separate CPU cores against one process on one core."""

import socket
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist

from benchmarks.processes import WorkerProcess, step_together
from benchmarks.results import Aim, BenchmarkResult, BenchmarkSettings
from benchmarks.timing import interleaved
from benchmarks.workloads import DENSE, Workload, compared_runs, random_tokens, stories_26m
from gram_platform.config.routing import Plan
from gram_platform.model.cpu import freed_memory_kept
from gram_platform.train.data import PlanReader
from gram_platform.train.learner import Learner
from gram_platform.train.loop import StepRecord, training_steps
from gram_platform.train.sharding import ShardedLearner

NUM_RANKS = 2


def measure(settings: BenchmarkSettings) -> list[BenchmarkResult]:
    """Trains the 26M stories model; the quick form has two of a step's eight micro-batches, so reduces more often."""
    size = stories_26m()
    full = size.batch_size // size.micro_batch
    return compare(Workload(size, full, 3) if settings.full else Workload(size, 2, 2), with_apart=settings.full)


def compare(workload: Workload, with_apart: bool) -> list[BenchmarkResult]:
    """Measures the ranks' tokens per second against one process on one core, times the number of ranks.

    `with_apart`: also against as many simultaneous processes that do not communicate, which separates the cost of
    communication from the machine's slowdown with two busy cores.
    """
    one, many = Group(1, workload), Group(NUM_RANKS, workload)
    apart = [Group(1, workload) for _ in range(NUM_RANKS)] if with_apart else []
    steps = {"one": one.step, "many": many.step} | ({"apart": lambda: step_together(apart)} if apart else {})
    try:
        seconds = interleaved(steps, workload.num_rounds)
    finally:
        for group in (one, many, *apart):
            group.end()
    ranks = _rates(workload, seconds["many"])
    whole = _rates(workload, seconds["one"], NUM_RANKS)
    name, unit, details = f"two ranks {workload.size.name}", "tokens/s", {"tokens a step": workload.tokens_per_step}
    aim = Aim("at least", 0.8)
    measured = [BenchmarkResult(name, unit, ranks, whole, "twice one process on one core", aim, details)]
    if with_apart:
        silent = _rates(workload, seconds["apart"], NUM_RANKS)
        against = "two processes at the same time that do not talk"
        measured.append(BenchmarkResult(f"{name}, talking", unit, ranks, silent, against, details=details))
    return measured


def _rates(workload: Workload, seconds: Sequence[float], times: int = 1) -> tuple[float, ...]:
    return tuple(times * workload.tokens_per_step / spent for spent in seconds)


class Group:
    """Runs single-threaded processes that train together, one step at a time."""

    def __init__(self, num_ranks: int, workload: Workload):
        port = free_port()
        self._ranks = [WorkerProcess(_losses, workload, rank, num_ranks, port) for rank in range(num_ranks)]

    def step(self) -> list[float]:
        """Runs one optimizer step; returns its first loss on every rank."""
        self.begin()
        return self.finish()

    def begin(self) -> None:
        for rank in self._ranks:
            rank.begin()

    def finish(self) -> list[float]:
        return [rank.finish() for rank in self._ranks]

    def end(self) -> None:
        for rank in self._ranks:
            rank.end()


def _losses(workload: Workload, rank: int, num_ranks: int, port: int) -> Iterator[float]:
    """Yields the first loss of every step on one rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=num_ranks)
    with freed_memory_kept():
        for record in _steps(workload, num_ranks):
            yield record.losses[0]


def _steps(workload: Workload, num_ranks: int) -> Iterator[StepRecord]:
    run = compared_runs(workload)[DENSE]
    plan = Plan(run)
    learner = Learner(run) if num_ranks == 1 else ShardedLearner(run)
    return training_steps(learner, plan, PlanReader(run, random_tokens(run)))


def free_port() -> int:
    """Returns a port of this machine that no process listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
