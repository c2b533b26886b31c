"""Writes the files of one attempt at a run: lease, checkpoints, result or failure.

An attempt may be killed at any time. The next attempt continues from the last commit and produces
the same `result.json`. Concurrent attempts write to separate folders, but each commit also removes
old checkpoints of other attempts.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch

from gram_platform.config.identity import invalid
from gram_platform.config.terminal import warn
from gram_platform.model.pieces import Piece
from gram_platform.store.checkpoints import (
    CHECKPOINTS,
    FINISHED,
    MANIFEST,
    NUM_CHECKPOINTS_KEPT,
    SHARDS,
    WEIGHTS,
    clear_debris,
    clear_weights,
    last_step,
    list_checkpoints,
    prune,
    remove_weights,
    step_name,
    write_segment,
)
from gram_platform.store.files import CorruptFile, Folder, seal
from gram_platform.store.leases import HEARTBEAT_INTERVAL_S, LONGEST_STEP_S, Lease, LeaseLost
from gram_platform.store.shards import (
    Resumed,
    checkpoint_folder,
    read_checkpoint,
    write_manifest,
    write_shard,
)
from gram_platform.store.tensors import hash_tensors, save_tensors


class Attempt:
    """One attempt at a run, used as a context manager that releases the lease on exit.

    A thread renews the lease, because one step may take longer than the lease lasts. If the lease
    expires, `heartbeat` and commits raise LeaseLost.
    """

    def __init__(self, run, attempt_id: str, owner: str, lease_seconds: float) -> None:
        self.run = run
        self.attempt_id = attempt_id
        self._attempts = run.attempts
        self._folder = run.attempts.child(attempt_id)
        self._chain: list[dict] = []
        self._step = -1
        self._earlier_s = 0.0
        self._started = time.time()
        self._clock = time.monotonic()
        self._last_step = self._clock
        warning = f"run {run.run_id}: its lease cannot be written, so others may train it too"
        self._lease = Lease(
            self._folder, owner, lease_seconds, self._is_working, HEARTBEAT_INTERVAL_S, warning
        )

    def __enter__(self) -> "Attempt":
        return self

    def __exit__(self, *_) -> None:
        self.release()

    @property
    def elapsed_s(self) -> float:
        """Seconds of training in this attempt, plus `elapsed_s` of the resumed checkpoint."""
        return self._earlier_s + time.monotonic() - self._clock

    def resume(
        self, read: Callable[[Folder, int, str], Resumed] = read_checkpoint
    ) -> Resumed | None:
        """Loads the newest intact checkpoint to continue from. Returns None if there is none.

        `read(attempts, step, attempt_id)` reads one checkpoint. If this fails, tries the next older
        one. Sets damaged checkpoints aside with a warning. If none can be read and the storage
        failed for at least one, raises the last OSError, because None would make the caller restart
        the run.
        """
        unreadable = None
        clear_debris(self._attempts)
        for step, attempt_id in reversed(list_checkpoints(self._attempts)):
            try:
                resumed = read(self._attempts, step, attempt_id)
            except (CorruptFile, FileNotFoundError) as error:
                folder = self._attempts.child(attempt_id, CHECKPOINTS)
                # If the manifest is gone, another attempt pruned the checkpoint.
                if folder.child(step_name(step)).exists(MANIFEST):
                    folder.set_aside(step_name(step), error)
            except OSError as error:
                unreadable = error
                place = f"run {self.run.run_id}: the checkpoint of step {step}"
                warn(f"{place} cannot be read: {error}", stacklevel=2)
            else:
                self._chain = list(resumed.manifest["segments"])
                self._step = resumed.step
                self._earlier_s = resumed.manifest["elapsed_s"]
                self._clock = time.monotonic()
                return resumed
        if unreadable is not None:
            raise unreadable
        return None

    def commit(
        self,
        step: int,
        tensors: Mapping[str, torch.Tensor | Piece],
        state: Mapping,
        records: Sequence[Mapping] = (),
    ) -> None:
        """Writes a checkpoint for `step` and appends `records` to the run's history.

        `tensors` maps names to CPU tensors. `state` must be JSON-serialisable, without NaN or
        infinity. `records` are the metric records {"step", "time", "metrics"} since the last
        commit. Raises ValueError unless `step` and the steps of `records` exceed all committed
        steps, and LeaseLost if another process may have taken over the run.
        """
        self._require_above_last(step)
        with self._detect_takeover():
            files = write_shard(checkpoint_folder(self._folder, step), tensors)
        self.commit_shards(step, files, state, records)

    def commit_shards(
        self, step: int, files: Mapping[str, str], state: Mapping, records: Sequence[Mapping] = ()
    ) -> None:
        """Commits a checkpoint whose shards are already in this attempt's folder.

        `files` is {name: SHA-256}, merged from the `write_shard` results of all ranks.
        """
        self._require_above_last(step)
        with self._detect_takeover():
            chain = self._extend_chain(records)
            write_manifest(self._folder, step, files, state, chain, self.elapsed_s)
        self._step, self._chain = step, chain
        prune(self._attempts, NUM_CHECKPOINTS_KEPT, self.attempt_id)

    def heartbeat(
        self,
        step: int,
        num_steps: int,
        tokens_per_second: float,
        loss: float | None = None,
        num_ranks: int = 1,
    ) -> None:
        """Reports progress, which the lease thread writes to the lease file within a second.

        `loss` is the last training loss in nats per token. Raises LeaseLost if the lease has
        expired.
        """
        self._require_lease()
        self._last_step = time.monotonic()
        progress = {
            "step": step,
            "num_steps": num_steps,
            "tokens_per_second": float(tokens_per_second),
            "num_ranks": num_ranks,
        }
        self._lease.report(progress if loss is None else progress | {"loss": float(loss)})

    def complete(
        self,
        final: Mapping,
        tensors: Mapping[str, torch.Tensor],
        records: Sequence[Mapping] = (),
        measured: Mapping[str, float | str] | None = None,
    ) -> dict:
        """Stores a run's final weights and result. Returns the stored result.

        If the run already has a result, keeps it. Removes the run's checkpoints. `final` has
        deterministic fields of the result, which also has `run_id`, `weights_sha256` and `sha256`.
        `records` are the metric records since the last commit. `measured` has extra fields for the
        run's `timing()`.
        """
        save = partial(self._folder.write_with, WEIGHTS, partial(save_tensors, tensors=tensors))
        return self._finish(save, final, hash_tensors(tensors), records, measured)

    def complete_shards(
        self,
        final: Mapping,
        files: Mapping[str, str],
        weights_sha256: str,
        records: Sequence[Mapping] = (),
        measured: Mapping[str, float | str] | None = None,
    ) -> dict:
        """Completes the run as `complete` does, but with weights that are already stored as shards.

        `files` is as in `commit_shards`. `weights_sha256` comes from `hash_tensors`.
        """
        save = partial(self._folder.child(SHARDS).write_sealed, MANIFEST, {"files": dict(files)})
        return self._finish(save, final, weights_sha256, records, measured)

    def _finish(
        self,
        save: Callable[[], object],
        final: Mapping,
        weights_sha256: str,
        records: Sequence,
        measured: Mapping | None,
    ) -> dict:
        chain = self._extend_chain(records)
        fields = {**final, "weights_sha256": weights_sha256, "run_id": self.run.run_id}
        if self.run.result() is None:
            save()
            elapsed_s = self.elapsed_s
            timing = {
                "elapsed_s": elapsed_s,
                "tokens_per_second": final.get("num_tokens", 0) / elapsed_s if elapsed_s else 0.0,
                "attempt": self.attempt_id,
                "started": self._started,
                "ended": time.time(),
                "host": self._lease.fields["host"],
                **(measured or {}),
            }
            finish = {
                "result": fields,
                "segments": chain,
                "elapsed_s": elapsed_s,
                "timing": timing,
            }
            self._folder.write_sealed(FINISHED, finish)
        result = self.run.publish(seal(fields))
        self._remove_superfluous(result)
        self.release()
        return result

    def fail(self, message: str, details: Mapping | None = None) -> None:
        self.run.record_failure(self.attempt_id, message, details)
        self.release()

    def release(self) -> None:
        self._lease.release()

    def _require_lease(self) -> None:
        if self._lease.is_overdue():
            raise LeaseLost(self.run.run_id, self._lease.fields)

    @contextlib.contextmanager
    def _detect_takeover(self) -> Iterator[None]:
        self._require_lease()
        try:
            yield
        except FileNotFoundError as error:
            raise LeaseLost(self.run.run_id, self._lease.fields) from error

    def _require_above_last(self, step: int) -> None:
        if step <= self._step:
            raise invalid("step", step, f"a step above {self._step}, the last one committed")

    def _extend_chain(self, records: Sequence[Mapping]) -> list[dict]:
        if not records:
            return self._chain
        segment = write_segment(self._folder, self.attempt_id, records, last_step(self._chain))
        return [*self._chain, segment]

    def _remove_superfluous(self, result: Mapping) -> None:
        prune(self._attempts, keep=0)
        clear_debris(self._attempts)
        winner_id = self.run.winner(result)
        if winner_id == self.attempt_id:
            clear_weights(self._attempts)
        elif winner_id is not None:
            self._folder.remove(FINISHED)
            remove_weights(self._folder)

    def _is_working(self) -> bool:
        return time.monotonic() - self._last_step < LONGEST_STEP_S
