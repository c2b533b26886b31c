"""Checks FSDP2 ranks on this machine against one process: losses, a checkpoint, and another number
of ranks after it.

Ranks have a GPU each and talk by NCCL, or share the CPU and talk by gloo. One rank is enough to run
the collectives, streams and staging of a single GPU. Needs only torch and numpy.
"""

import datetime
import itertools
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.gpu import single_gpu_workload
from benchmarks.processes import WorkerProcess
from benchmarks.results import Aim, BenchmarkResult
from benchmarks.workloads import GRAM, Workload, compared_runs, random_tokens
from gram_platform.config import RunConfig
from gram_platform.config.identity import invalid, require_int
from gram_platform.config.routing import Schedule
from gram_platform.model.pieces import Piece
from gram_platform.train.data import ScheduleReader
from gram_platform.train.learner import Learner
from gram_platform.train.loop import training_steps
from gram_platform.train.sharding import ShardedLearner

NUM_STEPS, SAVED_AFTER = 6, 3
# Sequences of a micro-batch: one process and a rank share a GPU's memory.
NUM_SEQUENCES = 8
# The limit of a collective: a rank that waits for ever is an error.
TIMEOUT = datetime.timedelta(minutes=2)
# Bounds of a loss in nats [ours]. float32: sums in another order, and on a GPU other kernels for
# half a batch. bfloat16: halves of a micro-batch round apart. A rank that read another's sequences
# would be near this bound, so that float32 is always compared too.
LOSS_BOUNDS = {
    ("float32", "cpu"): 1e-5,
    ("float32", "cuda"): 1e-4,
    ("bfloat16", "cpu"): 2e-2,
    ("bfloat16", "cuda"): 5e-2,
}
ALONE, RANKS = "one process", "ranks"
Losses = dict[str, list[float]]


def check(device: str, names: Sequence[str], num_ranks: int) -> Iterator[BenchmarkResult]:
    """Returns the rows of every size; ValueError, at once, for ranks that this machine or a size
    cannot have."""
    kind = torch.device(device).type
    require_int("ranks", num_ranks, 1)
    if kind == "cuda" and num_ranks > torch.cuda.device_count():
        raise invalid("ranks", num_ranks, f"at most {torch.cuda.device_count()}, a GPU each")
    workloads = [each for name in names for each in _workloads(name, kind)]
    for workload in workloads:
        if workload.size.micro_batch % num_ranks:
            expected = (
                f"a divisor of the {workload.size.micro_batch} sequences of {workload.size.name}"
            )
            raise invalid("ranks", num_ranks, expected)
    return (row for workload in workloads for row in compare(workload, num_ranks))


def _workloads(name: str, device: str) -> list[Workload]:
    """Returns a size with a few sequences a micro-batch in float32, and in its own precision."""
    workload = single_gpu_workload(name, device, 1, compiled=False)
    sequences = min(NUM_SEQUENCES, workload.size.micro_batch)
    size = replace(workload.size, batch_size=sequences, micro_batch=sequences)
    precisions = dict.fromkeys(("float32", size.precision))
    return [replace(workload, size=replace(size, precision=precision)) for precision in precisions]


def compare(workload: Workload, num_ranks: int) -> list[BenchmarkResult]:
    """Trains `NUM_STEPS` steps in one process and on ranks; each again from either's checkpoint in
    the middle."""
    run = compared_runs(workload)[GRAM]
    with tempfile.TemporaryDirectory(prefix="gram-ranks-") as folder:
        groups = {
            ALONE: _group(run, workload.device, 0, folder),
            RANKS: _group(run, workload.device, num_ranks, folder),
        }
        try:
            # Both have saved when this ends.
            first = {name: _together(group) for name, group in groups.items()}
            again = {name: _together(group) for name, group in groups.items()}
        finally:
            for worker in itertools.chain(*groups.values()):
                worker.end()
    return rows(workload, num_ranks, {name: first[name] | again[name] for name in groups})


def rows(workload: Workload, num_ranks: int, losses: Mapping[str, Losses]) -> list[BenchmarkResult]:
    """Compares the losses of every form with those of one process or of the ranks; a resumed form
    has the last ones."""
    alone, ranks = losses[ALONE], losses[RANKS]
    name = (
        f"{num_ranks} rank{'s' * (num_ranks > 1)} {workload.size.name}, {workload.size.precision}"
        f" on {workload.device}"
    )
    bound = LOSS_BOUNDS[workload.size.precision, workload.device]
    same = 0.0 if workload.device == "cpu" else bound
    found = (
        (name, ranks["whole"], alone["whole"], "one process", bound),
        (
            f"{name}, activation checkpointing",
            ranks["recomputed"],
            ranks["whole"],
            "the same ranks without",
            same,
        ),
        (
            f"{name}, resumed",
            ranks["own"],
            ranks["whole"],
            "the same ranks without an interruption",
            same,
        ),
        (f"{name}, resumed from one process", ranks["other"], alone["whole"], "one process", bound),
        (f"one process resumed from {name}", alone["other"], alone["whole"], "one process", bound),
    )
    return [
        BenchmarkResult(
            name=title,
            unit="nats",
            values=(
                max(abs(a - b) for a, b in zip(values, expected[-len(values) :], strict=True)),
            ),
            references=(),
            against=against,
            aim=Aim("at most", limit, "value"),
            details={"losses": values},
        )
        for title, values, expected, against, limit in found
    ]


def _group(run: RunConfig, device: str, num_ranks: int, folder: str) -> list[WorkerProcess]:
    """Starts the processes of `num_ranks` ranks, or one process without ranks for 0."""
    port, numbers = free_port(), range(max(1, num_ranks))
    return [WorkerProcess(_losses, run, device, rank, num_ranks, port, folder) for rank in numbers]


def free_port() -> int:
    """Returns a port of this machine that no process listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _together(workers: Sequence[WorkerProcess]) -> Losses:
    """Advances all ranks of a group; returns the losses of the first, which all have. SystemExit if
    one has ended."""
    for worker in workers:
        worker.begin()
    try:
        losses = [worker.finish() for worker in workers]
    except EOFError:
        raise SystemExit("error: a rank has ended, with the error above") from None
    return losses[0]


def _losses(
    run: RunConfig, device: str, rank: int, num_ranks: int, port: int, folder: str
) -> Iterator[Losses]:
    """Yields the losses of whole runs, of which the first is saved on the way; then those of
    resumed runs."""
    torch.set_num_threads(1)
    kind: type[Learner] = Learner
    if device == "cuda":
        torch.cuda.set_device(rank)
    if num_ranks:
        kind, backend = ShardedLearner, "nccl" if device == "cuda" else "gloo"
        address = f"tcp://127.0.0.1:{port}"
        dist.init_process_group(
            backend, init_method=address, rank=rank, world_size=num_ranks, timeout=TIMEOUT
        )
    learner = kind(run, device)
    losses = _train(learner, 0, SAVED_AFTER)
    pieces = learner.pieces()
    learner.staging.wait()
    saved = {name: (piece.rows, piece.first_row, piece.shape) for name, piece in pieces.items()}
    torch.save(saved, Path(folder) / f"{min(1, num_ranks)}-{rank}.pt")
    losses += _train(learner, SAVED_AFTER, NUM_STEPS)
    recomputed = _train(kind(run, device, activation_checkpointing=True), 0, NUM_STEPS)
    yield {"whole": losses, "recomputed": recomputed}
    resumed: Losses = {}
    for name, group in (("own", min(1, num_ranks)), ("other", 1 - min(1, num_ranks))):
        learner = kind(run, device)
        learner.load_state(_saved(Path(folder), group))
        resumed[name] = _train(learner, SAVED_AFTER, NUM_STEPS)
    yield resumed


def _train(learner: Learner, first: int, stop: int) -> list[float]:
    """Trains steps [first, stop); returns the losses of their micro-batches."""
    reader = ScheduleReader(learner.config, random_tokens(learner.config))
    steps = training_steps(learner, Schedule(learner.config), reader, first)
    return [loss for record in itertools.islice(steps, stop - first) for loss in record.losses]


def _saved(folder: Path, group: int) -> dict[str, Piece]:
    """Joins what the ranks of a group have saved into whole tensors; copies of equal rows count
    once."""
    parts: dict[str, dict[int, Any]] = {}
    for path in sorted(folder.glob(f"{group}-*.pt")):
        for name, (rows, first, shape) in torch.load(path).items():
            parts.setdefault(name, {})[first] = rows, shape
    joined = {}
    for name, by_first in parts.items():
        ordered = [by_first[first] for first in sorted(by_first)]
        shape = ordered[0][1]
        rows = ordered[0][0] if not shape else torch.cat([rows for rows, _ in ordered])
        joined[name] = Piece(rows, 0, shape)
    return joined
