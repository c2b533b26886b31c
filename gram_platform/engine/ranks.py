"""Trains one rank of a multi-rank run."""

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from gram_platform.config import RunConfig, State
from gram_platform.config.flops import total_parameters
from gram_platform.engine.execution import Execution, owner
from gram_platform.engine.life import DIVERGENCE
from gram_platform.engine.node import RunExecution, new_learner, starting_point
from gram_platform.engine.process import (
    OutOfMemory,
    StopRequest,
    is_out_of_memory,
    memory_advice,
    set_up_torch,
    stop_on_signal,
)
from gram_platform.model.cpu import keep_freed_memory
from gram_platform.model.pieces import Piece
from gram_platform.store import CorruptFile, Folder, LeaseHeld
from gram_platform.store.attempts import Attempt
from gram_platform.store.checkpoints import SHARDS
from gram_platform.store.shards import Resumed, checkpoint_folder, read_checkpoint, write_shard
from gram_platform.store.tensors import hash_named
from gram_platform.train.data import start_thread
from gram_platform.train.loop import StepRecord, TrainingDiverged
from gram_platform.train.sharding import ShardedLearner

LEASE_MARGIN_S = 5.0
LARGE_WEIGHTS_BYTES = 4 * 2**30
LONG_WORK_TIMEOUT_S = 2 * 3600.0
LEFT = "left"
REPORT_EVERY_S = 5.0
# Reports progress; returns whether a rank's machine will be preempted.
Report = Callable[[Mapping[str, Any]], bool]


@dataclass(frozen=True)
class RanksStopped:
    """Why all ranks stopped without a result.

    `reason` is `State.DIVERGED`, or LEFT if the ranks were asked to stop.
    """

    reason: str
    message: str


class _StopOfAllRanks(Exception):
    """Raised on all ranks after a commit, to stop training."""


def train_rank(
    run: RunConfig, execution: Execution, report: Report | None = None
) -> RanksStopped | None:
    """Trains this rank's part of a run in an initialised process group.

    Returns None if the run is complete, otherwise why the ranks stopped. A thread calls `report`
    every `REPORT_EVERY_S`, equally often on all ranks. While some ranks load or save, the other
    ranks wait for them for at most `LONG_WORK_TIMEOUT_S`. In a training step, ranks wait for each
    other for at most the process group's time-out. Raises OutOfMemory, with advice, if memory runs
    out.
    """
    set_up_torch(execution)
    patient = _patient_group()
    attempt = _start_attempt(run, execution) if dist.get_rank() == 0 else None
    try:
        with stop_on_signal() as stop_request, keep_freed_memory():
            has_result = attempt and execution.store().current_result(attempt.run) is not None
            is_complete = _from_all_ranks(has_result, patient)[0]
            reports = Reports(report, stop_request)
            stopped = None if is_complete else _train(run, execution, attempt, reports, patient)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(memory_advice(error, execution.placement.fewest)) from error
    finally:
        if attempt is not None:
            attempt.release()
    # Gloo can abort if a rank leaves before the others.
    dist.barrier(patient)
    return stopped


def _patient_group() -> dist.ProcessGroup:
    return dist.new_group(timeout=timedelta(seconds=LONG_WORK_TIMEOUT_S), backend="gloo")


def _train(
    run: RunConfig,
    execution: Execution,
    attempt: Attempt | None,
    reports: "Reports",
    patient: dist.ProcessGroup,
) -> RanksStopped | None:
    try:
        corpus = execution.corpus_of(run)
        with starting_point(run, execution) as start:
            dist.barrier(patient)
            if attempt is not None:
                execution.store().set_outdated_aside(attempt.run)
            rank = ShardedExecution(run, corpus, attempt, execution, start, reports, patient)
        rank.finish()
    except TrainingDiverged as error:
        # Every rank raises it.
        if attempt is not None:
            attempt.fail(str(error), DIVERGENCE)
        return RanksStopped(State.DIVERGED, str(error))
    except _StopOfAllRanks as error:
        return RanksStopped(LEFT, str(error))
    return None


def _start_attempt(run: RunConfig, execution: Execution) -> Attempt:
    directory = execution.store().run(run.run_id)
    deadline = time.monotonic() + execution.lease_s + LEASE_MARGIN_S
    while True:
        try:
            return directory.start_attempt(owner(), execution.lease_s)
        except LeaseHeld:
            if time.monotonic() > deadline:
                raise
            time.sleep(1.0)


class Reports(StopRequest):
    """Reports this rank's progress in a thread, because a report waits for other ranks and Ray.

    All ranks must report equally often. So they vote on when to report, and start no report while
    any rank's last report is still running.
    """

    def __init__(self, report: Report | None, stop_request: StopRequest):
        super().__init__(asks_ray=False)
        self._report, self._of_process = report, stop_request
        self._next = time.monotonic() + REPORT_EVERY_S
        # Stays True after an error, which thus stops all ranks' reports but not training.
        self.is_busy = False

    @property
    def received(self) -> bool:
        return self._received or self._of_process.received

    @property
    def is_due(self) -> bool:
        return self._report is not None and time.monotonic() >= self._next

    def start(self, progress: Mapping[str, float]) -> None:
        self._next, self.is_busy = time.monotonic() + REPORT_EVERY_S, True
        start_thread("reports", self._run, progress)

    def _run(self, progress: Mapping[str, float]) -> None:
        if self._report(progress):
            self.receive()
        self.is_busy = False


class VotingLearner(ShardedLearner):
    """Sends the ranks' votes together with a step's losses, in the same collective operation.

    Each rank votes on actions such as a checkpoint or a stop. If at least one rank votes for an
    action, all ranks take the action after the same step.
    """

    # Returns this rank's votes. It is set before the first step.
    votes: Callable[[], Sequence[bool]]
    decisions: tuple[bool, ...] = ()

    def mean_over_ranks(self, values: torch.Tensor) -> torch.Tensor:
        votes = torch.tensor(self.votes(), dtype=values.dtype)
        means = super().mean_over_ranks(torch.cat([values.flatten(), votes.to(values.device)]))
        self.decisions = tuple((means[values.numel() :] > 0).tolist())
        return means[: values.numel()].view(values.shape)


class ShardedExecution(RunExecution):
    """Executes a run on one rank. If one rank is asked to stop, all ranks stop.

    Rank 0 holds the attempt, and decides by its clock when all ranks checkpoint and report.
    """

    def __init__(self, run, corpus, attempt, execution, start, reports, patient):
        assert run.micro_batch % dist.get_world_size() == 0, "ranks split every micro-batch evenly"
        learner = new_learner(VotingLearner, run, execution, start)
        learner.votes = self._votes
        super().__init__(run, corpus, attempt, execution, learner, reports)
        self.attempts = execution.store().run(run.run_id).attempts
        self.reports, self.patient = reports, patient
        self.folder = self.attempts.child(
            self._from_rank_0(attempt.attempt_id if attempt else None)
        )
        # The group of the background threads, which communicate at the same time as steps.
        self.writers = _patient_group()

    def _load_checkpoint(self) -> Resumed | None:
        if self.attempt:
            resumed = self.attempt.resume(
                lambda _, *position: self._read_together(self._from_rank_0(position))
            )
            # The None tells the other ranks that there is no checkpoint.
            return resumed or self._from_rank_0(None)
        while (position := self._from_rank_0(None)) is not None:
            with contextlib.suppress(CorruptFile, OSError):
                return self._read_together(position)
        return None

    def _read_together(self, position: tuple[int, str]) -> Resumed:
        """Reads this rank's part of the checkpoint at `position`, a pair (step, attempt_id).

        If any rank fails, all ranks raise the same error: CorruptFile if every failed rank found a
        damaged or missing file, otherwise OSError.
        """
        resumed, error = None, None
        try:
            at = self.attempts, *position
            resumed = self._check_start(read_checkpoint(*at, self.learner.rows_of))
        except (CorruptFile, OSError) as reason:
            error = reason
        is_damaged = isinstance(error, CorruptFile | FileNotFoundError)
        reasons = _from_all_ranks(error and (str(error), is_damaged), self.patient)
        if errors := _rank_errors(reason and reason[0] for reason in reasons):
            kind = CorruptFile if all(reason[1] for reason in reasons if reason) else OSError
            raise kind("; ".join(errors)) from error
        return resumed

    def _votes(self) -> tuple[bool, bool, bool, bool]:
        is_first = self.learner.rank == 0
        return (
            is_first and self._is_due(),
            self.stop_request.received,
            is_first and self.reports.is_due,
            self.reports.is_busy,
        )

    def _steps(self, first_step: int) -> Iterator[StepRecord]:
        for record in super()._steps(first_step):
            *_, is_due, is_busy = self.learner.decisions
            if is_due and not is_busy:
                progress = {
                    "step": record.step,
                    "num_steps": self.run.num_steps,
                    "loss": float(np.mean(record.losses)),
                }
                self.reports.start(progress | {"tokens_per_second": self.summary.tokens_per_second})
            yield record

    def _should_commit(self, step: int) -> bool:
        is_due, is_requested, *_ = self.learner.decisions
        return (is_due or is_requested) and step < self.run.num_steps

    def _stop_if_requested(self) -> None:
        if self.learner.decisions[1]:
            self.background.wait()
            raise _StopOfAllRanks(f"left after step {self.step}")

    def _write_checkpoint(
        self, step: int, pieces: dict[str, Piece], state: dict, records: list[dict]
    ) -> None:
        files = self._write_shards(checkpoint_folder(self.folder, step), pieces)
        if self.attempt:
            self.attempt.commit_shards(step, files, state, records)

    def _write_shards(self, folder: Folder, pieces: dict[str, Piece]) -> dict[str, str]:
        """Writes this rank's shard; returns the SHA-256 hashes of all ranks' files by file name.

        If any rank fails, all ranks raise OSError.
        """
        files, error = {}, None
        try:
            ranks = (self.learner.rank, self.learner.num_ranks)
            files = write_shard(folder, pieces, *ranks) if self.learner.has_first_copy else {}
        except OSError as reason:
            error = reason
        parts = _from_all_ranks((files, error and str(error)), self.writers)
        if errors := _rank_errors(text for _, text in parts):
            raise OSError("; ".join(errors)) from error
        return {name: digest for files, _ in parts for name, digest in files.items()}

    def _write_result(self, fields: dict, measured: dict) -> dict | None:
        attempt = self.attempt
        if 4 * total_parameters(self.run.model) < LARGE_WEIGHTS_BYTES:
            weights = self.learner.weights()
            return attempt and attempt.complete(fields, weights, self.records, measured)
        files = self._write_shards(self.folder.child(SHARDS), self.learner.weight_pieces())
        digest = hash_named(self.learner.each_weight())
        return attempt and attempt.complete_shards(fields, files, digest, self.records, measured)

    def _from_rank_0(self, value):
        return _from_all_ranks(value, self.patient)[0]


def _from_all_ranks(value, group: dist.ProcessGroup) -> list:
    """Sends `value` to all ranks; returns the values of all ranks, in rank order.

    Sends JSON, because pickle, which torch's `all_gather_object` uses, can execute received code.
    """
    encoded = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(encoded)]), group)
    longest = int(max(sizes))
    padded = [torch.empty(longest, dtype=torch.uint8) for _ in sizes]
    dist.all_gather(padded, torch.nn.functional.pad(encoded, (0, longest - len(encoded))), group)
    return [
        json.loads(text[: int(size)].numpy().tobytes())
        for text, size in zip(padded, sizes, strict=True)
    ]


def _rank_errors(errors: Iterable[str | None]) -> list[str]:
    return [f"rank {rank}: {error}" for rank, error in enumerate(errors) if error]
