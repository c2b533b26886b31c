"""Reads a run's directory, starts attempts, and removes files that are no longer needed.

Methods import torch only if they start an attempt or read weights.
"""

import contextlib
import datetime
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from gram_platform.config import State, hash_run
from gram_platform.config.identity import invalid, mask_secrets
from gram_platform.config.terminal import warn
from gram_platform.store.checkpoints import (
    FINISHED,
    SHARDS,
    WEIGHTS,
    Segment,
    clear_debris,
    clear_weights,
    collect_denied,
    has_weights,
    last_step,
    list_checkpoints,
    newest_manifest,
    prune,
    read_segment,
    remove_weights,
)
from gram_platform.store.directories import WRONG_HASH, NodeDirectory, Number
from gram_platform.store.files import CorruptFile, Folder, seal
from gram_platform.store.leases import GONE_AFTER_S, LeaseHeld, has_ended, is_fresh, read_lease

ATTEMPT = re.compile("[0-9]{1,9}(-.*)?")
REMOVED = "weights-removed.json"

if TYPE_CHECKING:
    from gram_platform.store.attempts import Attempt
    from gram_platform.store.tensors import DiskTensors


class RunResult(TypedDict):
    """Fields of a run result that this module or a report reads."""

    run_id: str
    weights_sha256: str
    num_steps: NotRequired[Number]
    num_tokens: NotRequired[Number]
    parameters: NotRequired[Number]
    compute_units: NotRequired[Number]
    hardware_flops: NotRequired[Number]
    final: NotRequired[dict[str, Number]]


class Timing(TypedDict):
    elapsed_s: float
    tokens_per_second: float


# Numbers of a result and its timing that reports show.
SIZES = ("num_steps", "num_tokens", "parameters", "compute_units", "hardware_flops")
TIMES = ("elapsed_s", "tokens_per_second")


class Finish(TypedDict):
    """The content of FINISHED, which an attempt writes after its last training step."""

    result: RunResult
    segments: list[Segment]
    elapsed_s: float
    timing: Timing


class Failure(TypedDict):
    message: str
    details: dict[str, Any]


@dataclass(frozen=True)
class RunDirectory(NodeDirectory):
    """`<storage>/runs/<run_id>/{config.json, tags.json, result.json, attempts/}`."""

    kind = "run"
    id_field = "run_id"
    result_kind = RunResult

    def id_of(self, plain: Mapping) -> str:
        return hash_run(plain)

    @property
    def run_id(self) -> str:
        return self.node_id

    @property
    def attempts(self) -> Folder:
        return self.folder.child("attempts")

    def attempt(self, attempt_id: str) -> Folder:
        return self.attempts.child(attempt_id)

    def attempt_ids(self) -> list[str]:
        ids = filter(ATTEMPT.fullmatch, self.attempts.list())
        return sorted(ids, key=lambda name: (_number(name), name))

    def start_attempt(self, owner: str, lease_seconds: float = 30.0) -> "Attempt":
        """Starts an attempt by `owner`. Raises LeaseHeld if another attempt seems to be running."""
        from gram_platform.store.attempts import Attempt

        with self.folder.lock("attempts"):
            self.require_free()
            # The id sorts after all earlier ids, even if machines' clocks differ.
            number = 1 + max(map(_number, self.attempt_ids()), default=0)
            now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S")
            attempt_id = f"{number:04d}-{now}-{secrets.token_hex(3)}"
            return Attempt(self, attempt_id, owner, lease_seconds)

    def require_free(self) -> None:
        for attempt_id in self.attempt_ids():
            lease = read_lease(self.attempt(attempt_id))
            if lease is not None and is_fresh(lease):
                raise LeaseHeld(self.run_id, lease)

    def status(self) -> State:
        if self.result() is not None:
            return State.COMPLETE
        attempt_ids = self.attempt_ids()
        if any(is_fresh(read_lease(self.attempt(attempt_id))) for attempt_id in attempt_ids):
            return State.RUNNING
        if not attempt_ids:
            return State.ABSENT
        return State.INTERRUPTED if self.failure() is None else State.FAILED

    def failure(self) -> dict | None:
        """Reads the last attempt's failure, or returns None if there is none.

        The fields are `message`, `details`, `attempt` and, if failure.json is intact, `time`.
        """
        attempt_ids = self.attempt_ids()
        if not attempt_ids:
            return None
        try:
            return self.attempt(attempt_ids[-1]).read_json("failure.json", Failure)
        except CorruptFile as error:
            return {"message": str(error), "details": {}, "attempt": attempt_ids[-1]}

    def record_failure(self, attempt_id: str, message: str, details: Mapping | None = None) -> None:
        """Records an attempt's failure. The run's status is failed until another attempt starts."""
        failure = {
            "message": mask_secrets(message),
            "details": details or {},
            "attempt": attempt_id,
        }
        self.attempt(attempt_id).write_json("failure.json", {**failure, "time": time.time()})

    def progress(self) -> dict | None:
        """Returns the last attempt's lease, or None. The field `attempt` is the attempt's id."""
        attempt_ids = self.attempt_ids()
        lease = read_lease(self.attempt(attempt_ids[-1])) if attempt_ids else None
        return None if lease is None else {**lease, "attempt": attempt_ids[-1]}

    def timing(self) -> dict:
        """Reads `elapsed_s` and, for a complete run, fields such as `tokens_per_second` and `host`.

        `elapsed_s` is the sum over all attempts. For an interrupted attempt, it includes only the
        time up to the checkpoint from which the next attempt continued.
        """
        head = self._head()
        if head is None:
            return {}
        return head.get("timing") or {"elapsed_s": head["elapsed_s"]}

    def last_step(self) -> int:
        """Returns the last step with a committed metric record, or -1 if there is none."""
        head = self._head()
        return last_step(head["segments"] if head else [])

    def read_committed_step(self) -> int:
        """Returns the step of the newest checkpoint, or 0 if there is none."""
        return (newest_manifest(self.attempts) or {"step": 0})["step"]

    def records(self) -> list[dict]:
        """Reads the committed metric records in step order, one per step.

        Skips missing and altered files with a warning.
        """
        head, records = self._head(), []
        for entry in head["segments"] if head else ():
            try:
                records += read_segment(self.attempts, entry)
            except CorruptFile as error:
                warn(f"run {self.run_id}: {error}", stacklevel=2)
        return records

    def lost_history(self) -> str:
        """Explains which records of a complete run are lost. Returns "" if all are intact."""
        head = self._head()
        if head is None:
            return f"no attempt in {self.attempts.path} has a {FINISHED}"
        try:
            for entry in head["segments"]:
                read_segment(self.attempts, entry)
        except CorruptFile as error:
            return str(error)
        return ""

    def result(self) -> dict | None:
        """Reads and verifies the result, or returns None. Sets a corrupted result aside.

        A writable store restores a missing result from a finished attempt whose weights are not
        corrupted.
        """
        result = super().result()
        if result is not None or not self.folder.writable:
            return result
        for attempt_id, finished in self.list_finished_attempts():
            # The weights may be missing, because `drop_weights` removes them.
            if has_weights(self.attempt(attempt_id)):
                with self._intact_weights(attempt_id, finished["result"]) as tensors:
                    if tensors is None:
                        continue
            return self.publish(seal(finished["result"]))
        return None

    def set_result_aside(self, reason: str, fault: str = "outdated") -> None:
        # Otherwise a finished attempt would restore the result.
        for attempt_id, _ in self.list_finished_attempts():
            self.attempt(attempt_id).set_aside(FINISHED, reason, fault)
        super().set_result_aside(reason, fault)

    def list_finished_attempts(self, result: dict | None = None) -> list[tuple[str, dict]]:
        """Returns (attempt_id, content of FINISHED) pairs of the finished attempts.

        If `result` is given, returns only the attempts with this result.
        """
        expected = result and {key: value for key, value in result.items() if key != "sha256"}
        attempts = []
        for attempt_id in self.attempt_ids():
            try:
                finish = self.attempt(attempt_id).read_sealed(FINISHED, Finish)
                if finish and finish["result"]["run_id"] != self.run_id:
                    raise CorruptFile("it belongs to another run")
            except CorruptFile as error:
                self.attempt(attempt_id).set_aside(FINISHED, error)
                continue
            if finish and expected in (None, finish["result"]):
                attempts.append((attempt_id, finish))
        return attempts

    def winner(self, result: dict) -> str | None:
        """Returns the id of the first attempt that ended with `result` and has weights, or None."""
        finished = (attempt_id for attempt_id, _ in self.list_finished_attempts(result))
        return next((i for i in finished if has_weights(self.attempt(i))), None)

    @contextlib.contextmanager
    def open_weights(self) -> "Iterator[DiskTensors]":
        """Context manager that yields the verified final weights. Each access reads from disk.

        Raises ValueError if the run is incomplete or has no intact weights. A writable store then
        sets corrupted weights and the result aside, so that submitting again retrains the run.
        """
        result = self.require_result()
        finished = [attempt_id for attempt_id, _ in self.list_finished_attempts(result)]
        attempt_ids = dict.fromkeys([*finished, *self.attempt_ids()])
        present = [i for i in attempt_ids if has_weights(self.attempt(i))]
        if not present and self.weights_were_removed():
            remedy = f"to train it again, remove {self.folder.path}"
            expected = f"a run whose weights are kept, found one whose were removed; {remedy}"
            raise invalid("run_id", self.run_id, expected)
        for attempt_id in present:
            with self._intact_weights(attempt_id, result) as tensors:
                if tensors is not None:
                    yield tensors
                    return
        self.set_result_aside("no attempt has weights of this hash", "corrupted")
        expected = f"a run with intact weights; to train this one again, {self.remedy}"
        raise invalid("run_id", self.run_id, expected)

    def has_weights(self) -> bool:
        return any(has_weights(self.attempt(i)) for i in self.attempt_ids())

    def weights_were_removed(self) -> bool:
        return self.folder.exists(REMOVED)

    def drop_weights(self) -> int:
        """Removes a complete run's weights but keeps its losses. Returns the number of bytes freed.

        Raises ValueError if the run is incomplete.
        """
        self.require_result()
        # Written first. Without this file, a run whose weights are missing is trained again.
        self.folder.write_json(REMOVED, {"time": time.time()})
        return sum(remove_weights(self.attempt(i)) for i in self.attempt_ids())

    def num_superfluous(self) -> int:
        """Returns the number of checkpoints that killed attempts have left in a complete run."""
        return 0 if self.result() is None else len(list_checkpoints(self.attempts))

    def remove_remains(self) -> list:
        """Removes half-written files of killed attempts.

        If the run is complete, also removes its checkpoints and the weights of attempts that ended
        without finishing. Returns the PermissionErrors of files that it could not remove.
        """
        result = self.result()
        errors = [] if result is None else prune(self.attempts, keep=0)
        errors += clear_debris(self.attempts)
        winner_id = None if result is None else self.winner(result)
        # An attempt that has not ended removes superfluous weights itself.
        with collect_denied(errors):
            if winner_id is not None and has_ended(read_lease(self.attempt(winner_id))):
                clear_weights(self.attempts)
            self.folder.remove_temporaries(GONE_AFTER_S)
        return errors

    @contextlib.contextmanager
    def _intact_weights(self, attempt_id: str, result: dict) -> "Iterator[DiskTensors | None]":
        """Context manager that yields an attempt's weights. Yields None if they are not intact.

        Sets corrupted files aside.
        """
        from gram_platform.store.shards import open_weights

        attempt = self.attempt(attempt_id)
        with contextlib.ExitStack() as stack:
            intact = None
            try:
                tensors = stack.enter_context(open_weights(attempt))
                if tensors.sha256() != result["weights_sha256"]:
                    raise CorruptFile(WRONG_HASH)
                intact = tensors
            except FileNotFoundError:
                # The attempt has just removed its superfluous weights.
                pass
            except ValueError as error:
                attempt.set_aside(WEIGHTS if attempt.exists(WEIGHTS) else SHARDS, error)
                attempt.set_aside(FINISHED, "its weights are corrupted")
            yield intact

    def _head(self) -> dict | None:
        result = self.result()
        finished = self.list_finished_attempts(result) if result is not None else []
        return finished[0][1] if finished else newest_manifest(self.attempts)


def _number(attempt_id: str) -> int:
    return int(attempt_id.partition("-")[0])
