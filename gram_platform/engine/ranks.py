"""One rank of a run on several: rank 0 keeps the run's attempt, every rank reads and writes its own shard."""

import contextlib
import time
from collections.abc import Iterable

import torch
import torch.distributed as dist

from gram_platform.checkpoint import hash_named
from gram_platform.config import RunConfig
from gram_platform.engine.execution import Execution, owner
from gram_platform.engine.node import RunExecution, new_learner
from gram_platform.engine.summary import record_interval
from gram_platform.flops import total_parameters
from gram_platform.store import CorruptFile, Folder, LeaseHeld
from gram_platform.store.attempts import Attempt
from gram_platform.store.tensors import Resumed, checkpoint_folder, read_checkpoint, write_shard
from gram_platform.store.weights import SHARDS
from gram_platform.train.loop import TrainingDiverged
from gram_platform.train.pieces import Piece
from gram_platform.train.sharding import ShardedLearner

LEASE_MARGIN_S = 5.0
LARGE_WEIGHTS_BYTES = 4 * 2**30  # from here on final weights are written in shards


def train_rank(run: RunConfig, execution: Execution) -> str | None:
    """This rank's part of a run, in an initialised process group.

    Returns the message of a diverged run, alike on all ranks.
    """
    torch.set_num_threads(execution.num_threads)
    attempt = None
    if dist.get_rank() == 0:
        attempt = _start_attempt(run, execution)
    try:
        corpus = execution.corpus(run.data.data_id)
        ShardedExecution(run, corpus, attempt, execution).finish()
        message = None
    except TrainingDiverged as error:  # on every rank alike
        message = str(error)
        if attempt is not None:
            attempt.fail(message, {"kind": "diverged"})
    finally:
        if attempt is not None:
            attempt.release()
    dist.barrier()  # gloo can abort when one rank leaves before the others
    return message


def _start_attempt(run: RunConfig, execution: Execution) -> Attempt:
    """Rank 0's attempt. That of a worker lost with its machine holds the lease for a while, which is waited for."""
    directory = execution.store().run(run.run_id)
    deadline = time.monotonic() + execution.lease_s + LEASE_MARGIN_S
    while True:
        try:
            return directory.start_attempt(owner(), execution.lease_s)
        except LeaseHeld:
            if time.monotonic() > deadline:
                raise
            time.sleep(1.0)


class ShardedExecution(RunExecution):
    """Rank 0 keeps the attempt; every decision about it is rank 0's, told to the others."""

    def __init__(self, run, corpus, attempt, execution):
        learner = new_learner(ShardedLearner, run, execution)
        ranks = {"rank": dist.get_rank(), "num_ranks": dist.get_world_size()}
        super().__init__(run, corpus, attempt, execution, learner=learner, **ranks)
        self.attempts = execution.store().run(run.run_id).attempts
        self.folder = self.attempts.child(_from_rank_0(attempt.attempt_id if attempt else None))
        self.writers = dist.new_group(backend="gloo")  # the background's own: it works while the steps communicate

    def _load_checkpoint(self) -> Resumed | None:
        """The newest checkpoint that is whole for every rank, each reading its own rows; rank 0 says which is tried."""
        if self.attempt:
            resumed = self.attempt.resume(lambda _, *position: self._read_together(_from_rank_0(position)))
            return resumed or _from_rank_0(None)
        while (position := _from_rank_0(None)) is not None:
            with contextlib.suppress(CorruptFile):
                return self._read_together(position)
        return None

    def _read_together(self, position: tuple[int, str]) -> Resumed:
        """Raises CorruptFile on all ranks when one of them cannot read its part."""
        resumed, error = None, None
        try:
            resumed = read_checkpoint(self.attempts, *position, self.learner.rows_of)
        except (CorruptFile, FileNotFoundError) as reason:
            error = reason
        if errors := _texts(_from_all_ranks(error and str(error))):
            raise CorruptFile("; ".join(errors)) from error
        return resumed

    def _should_commit(self, step: int) -> bool:
        if step % record_interval(self.run):
            return False
        return _from_rank_0(super()._should_commit(step))

    def _write_checkpoint(self, step: int, pieces: dict[str, Piece], state: dict, records: list[dict]) -> None:
        """Every rank writes its shard; when all have, rank 0 makes the checkpoint exist."""
        files = self._write_shards(checkpoint_folder(self.folder, step), pieces)
        if self.attempt:
            self.attempt.commit_shards(step, files, state, records)

    def _write_shards(self, folder: Folder, pieces: dict[str, Piece]) -> dict[str, str]:
        """The files of all ranks with their SHA-256. OSError on every rank when one cannot write."""
        files, error = {}, None
        try:
            files = write_shard(folder, pieces, self.rank, self.num_ranks)
        except OSError as reason:
            error = reason
        parts = _from_all_ranks((files, error and str(error)), self.writers)
        if errors := _texts(text for _, text in parts):
            raise OSError("; ".join(errors)) from error
        return {name: digest for files, _ in parts for name, digest in files.items()}

    def _write_result(self, fields: dict, seconds: dict[str, float]) -> dict | None:
        """Small weights become one file of rank 0's; of large ones every rank writes its shard."""
        if self.num_weights_bytes < LARGE_WEIGHTS_BYTES:
            weights = self.learner.weights()
            return self.attempt.complete(fields, weights, self.records, seconds) if self.attempt else None
        files = self._write_shards(self.folder.child(SHARDS), self.learner.weight_pieces())
        weights_sha256 = hash_named(self.learner.each_weight())
        if self.attempt:
            return self.attempt.complete_shards(fields, files, weights_sha256, self.records, seconds)
        return None

    @property
    def num_weights_bytes(self) -> int:
        return 4 * total_parameters(self.run.model)


def _from_rank_0(value):
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def _from_all_ranks(value, group=None) -> list:
    """Every rank's value, in the order of ranks."""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value, group)
    return values


def _texts(errors: Iterable[str | None]) -> list[str]:
    return [f"rank {rank}: {error}" for rank, error in enumerate(errors) if error]
