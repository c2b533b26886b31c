"""Two ranks of FSDP2 on CPU cores of their own, against one process on one core."""

import functools
import multiprocessing
import socket
from collections.abc import Iterator
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist

from gram_platform.benchmarks.contestants import DENSE, Scene, random_tokens, runs
from gram_platform.benchmarks.measurement import Aim, Measurement, Settings
from gram_platform.benchmarks.timing import interleaved
from gram_platform.ladder import STORIES_SIZES
from gram_platform.routing import Plan
from gram_platform.train.data import PlanReader
from gram_platform.train.learner import Learner
from gram_platform.train.loop import StepRecord, training_steps
from gram_platform.train.sharding import ShardedLearner

NUM_RANKS = 2


def measure(settings: Settings) -> list[Measurement]:
    """The 26M stories model; the quick form has two of a step's eight micro-batches, so it reduces more often."""
    size = STORIES_SIZES["26M"]
    full = size.batch_size // size.micro_batch
    return [compare(Scene(size, full if settings.full else 2, 3))]


def compare(scene: Scene) -> Measurement:
    """`values`: tokens a second of the ranks; `references`: of as many processes of one core that need not talk."""
    one, many = Group(1, scene), Group(NUM_RANKS, scene)
    try:
        seconds = interleaved({"one": one.step, "many": many.step}, scene.num_rounds)
    finally:
        one.end()
        many.end()
    return Measurement(
        name=f"two ranks {scene.size.name}",
        unit="tokens/s",
        values=tuple(scene.tokens_per_step / spent for spent in seconds["many"]),
        references=tuple(NUM_RANKS * scene.tokens_per_step / spent for spent in seconds["one"]),
        against="twice one process on one core",
        aim=Aim("at least", 0.8),
        details={"tokens a step": scene.tokens_per_step},
    )


class Group:
    """Processes of one thread each that train together, one step at a time; those that wait use no processor."""

    def __init__(self, num_ranks: int, scene: Scene):
        context, port = multiprocessing.get_context("spawn"), _free_port()
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(num_ranks):
            ours, theirs = context.Pipe()
            arguments = (rank, num_ranks, port, scene, theirs)
            self._processes.append(context.Process(target=_serve, args=arguments, daemon=True))
            self._processes[-1].start()
            theirs.close()
            self._pipes.append(ours)

    def step(self) -> list[float]:
        """One optimizer step; the first loss as every rank has it."""
        for pipe in self._pipes:
            pipe.send("step")
        return [pipe.recv() for pipe in self._pipes]

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


def _serve(rank: int, num_ranks: int, port: int, scene: Scene, pipe: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=num_ranks)
    steps = _steps(scene, rank, num_ranks)
    for _ in iter(functools.partial(pipe.recv), None):
        pipe.send(next(steps).losses[0])


def _steps(scene: Scene, rank: int, num_ranks: int) -> Iterator[StepRecord]:
    run = runs(scene)[DENSE]
    plan = Plan(run)
    learner = Learner(run) if num_ranks == 1 else ShardedLearner(run)
    return training_steps(learner, plan, PlanReader(run, plan, random_tokens(run)), 0, rank, num_ranks)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
