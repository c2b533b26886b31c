"""Two ranks of FSDP2 on CPU cores of their own, against one process on one core."""

import socket
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist

from benchmarks.contestants import DENSE, Scene, random_tokens, runs
from benchmarks.elsewhere import Elsewhere, together
from benchmarks.measurement import Aim, Measurement, Settings
from benchmarks.precision import stories_26m
from benchmarks.timing import interleaved
from gram_platform.config.routing import Plan
from gram_platform.engine.process import freed_memory_kept
from gram_platform.train.data import PlanReader
from gram_platform.train.learner import Learner
from gram_platform.train.loop import StepRecord, training_steps
from gram_platform.train.sharding import ShardedLearner

NUM_RANKS = 2


def measure(settings: Settings) -> list[Measurement]:
    """The 26M stories model; the quick form has two of a step's eight micro-batches, so it reduces more often."""
    size = stories_26m()
    full = size.batch_size // size.micro_batch
    return compare(Scene(size, full, 3) if settings.full else Scene(size, 2, 2), with_apart=settings.full)


def compare(scene: Scene, with_apart: bool) -> list[Measurement]:
    """Tokens a second of the ranks, against one process on one core times their number.

    `with_apart`: also against as many processes that work at the same time and need not talk, which tells what the
    machine leaves of two busy cores from what talking costs.
    """
    one, many = Group(1, scene), Group(NUM_RANKS, scene)
    apart = [Group(1, scene) for _ in range(NUM_RANKS)] if with_apart else []
    steps = {"one": one.step, "many": many.step} | ({"apart": lambda: together(apart)} if apart else {})
    try:
        seconds = interleaved(steps, scene.num_rounds)
    finally:
        for group in (one, many, *apart):
            group.end()
    ranks = _rates(scene, seconds["many"])
    whole = _rates(scene, seconds["one"], NUM_RANKS)
    name, unit, details = f"two ranks {scene.size.name}", "tokens/s", {"tokens a step": scene.tokens_per_step}
    aim = Aim("at least", 0.8)
    measured = [Measurement(name, unit, ranks, whole, "twice one process on one core", aim, details)]
    if with_apart:
        silent = _rates(scene, seconds["apart"], NUM_RANKS)
        against = "two processes at the same time that do not talk"
        measured.append(Measurement(f"{name}, talking", unit, ranks, silent, against, details=details))
    return measured


def _rates(scene: Scene, seconds: Sequence[float], times: int = 1) -> tuple[float, ...]:
    return tuple(times * scene.tokens_per_step / spent for spent in seconds)


class Group:
    """Processes of one thread each that train together, one step at a time."""

    def __init__(self, num_ranks: int, scene: Scene):
        port = _free_port()
        self._ranks = [Elsewhere(_losses, scene, rank, num_ranks, port) for rank in range(num_ranks)]

    def step(self) -> list[float]:
        """One optimizer step; the first loss as every rank has it."""
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


def _losses(scene: Scene, rank: int, num_ranks: int, port: int) -> Iterator[float]:
    """The first loss of every step of one rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=num_ranks)
    with freed_memory_kept():
        for record in _steps(scene, rank, num_ranks):
            yield record.losses[0]


def _steps(scene: Scene, rank: int, num_ranks: int) -> Iterator[StepRecord]:
    run = runs(scene)[DENSE]
    plan = Plan(run)
    learner = Learner(run) if num_ranks == 1 else ShardedLearner(run)
    return training_steps(learner, plan, PlanReader(run, random_tokens(run)), 0, rank, num_ranks)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
