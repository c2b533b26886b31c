"""Reads and writes a run's directory: config, tags, state, history, result, weights.

Only weights import torch.
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
from gram_platform.config.identity import invalid, masked
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
# A file beside the result.
REMOVED = "weights-removed.json"

if TYPE_CHECKING:
    from gram_platform.store.attempts import Attempt
    from gram_platform.store.tensors import DiskTensors


class RunResult(TypedDict):
    """The fields of a run's result that are read here or in reports."""

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


# The names of numbers that reports show of a result and of its timing.
SIZES = ("num_steps", "num_tokens", "parameters", "compute_units", "hardware_flops")
TIMES = ("elapsed_s", "tokens_per_second")


class Finish(TypedDict):
    """The content of FINISHED, which an attempt writes when it has trained to the end."""

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
        """Lists the ids of all attempts, the first one first."""
        ids = filter(ATTEMPT.fullmatch, self.attempts.list())
        return sorted(ids, key=lambda name: (_number(name), name))

    def start_attempt(self, owner: str, lease_seconds: float = 30.0) -> "Attempt":
        """Starts an attempt with a lease of `owner`; LeaseHeld while another lease is fresh."""
        from gram_platform.store.attempts import Attempt

        with self.folder.lock("attempts"):
            self.require_free()
            return Attempt(self, _next_id(self.attempt_ids()), owner, lease_seconds)

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
        """Reads {"message", "details", "time", "attempt"} if the last attempt failed."""
        attempt_ids = self.attempt_ids()
        if not attempt_ids:
            return None
        try:
            return self.attempt(attempt_ids[-1]).read_json("failure.json", Failure)
        except CorruptFile as error:
            return {"message": str(error), "details": {}, "attempt": attempt_ids[-1]}

    def record_failure(self, attempt_id: str, message: str, details: Mapping | None = None) -> None:
        """Makes the run `failed` until another attempt starts."""
        failure = {"message": masked(message), "details": details or {}, "attempt": attempt_id}
        self.attempt(attempt_id).write_json("failure.json", {**failure, "time": time.time()})

    def progress(self) -> dict | None:
        """Reads the last attempt's lease, and `attempt`."""
        attempt_ids = self.attempt_ids()
        lease = read_lease(self.attempt(attempt_ids[-1])) if attempt_ids else None
        return None if lease is None else {**lease, "attempt": attempt_ids[-1]}

    def timing(self) -> dict:
        """Reads `elapsed_s` and, of a complete run, tokens_per_second, host, started and ended.

        `elapsed_s` adds up the attempts, each up to the commit that the next one continued from.
        """
        head = self._head()
        if head is None:
            return {}
        return head.get("timing") or {"elapsed_s": head["elapsed_s"]}

    def last_step(self) -> int:
        """Reads the last step with a committed record; -1 without one."""
        head = self._head()
        return -1 if head is None else last_step(head["segments"])

    def read_committed_step(self) -> int:
        """Reads the step that the run would continue from; 0 without a checkpoint."""
        manifest = newest_manifest(self.attempts)
        return 0 if manifest is None else manifest["step"]

    def records(self) -> list[dict]:
        """Reads the committed metric records in order, no step twice.

        Skips a segment that was altered on disk, with a warning.
        """
        head = self._head()
        records = []
        for entry in head["segments"] if head else ():
            try:
                records += read_segment(self.attempts, entry)
            except CorruptFile as error:
                warn(f"run {self.run_id}: {error}", stacklevel=2)
        return records

    def lost_history(self) -> str:
        """Says which of a complete run's records cannot be read; "" if all can."""
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
        """Reads the sealed result; None without one.

        A corrupted file is set aside with a warning. A store opened for writing then restores it
        from a finished attempt with intact weights, if there is one.
        """
        result = super().result()
        if result is not None or not self.folder.writable:
            return result
        for attempt_id, finished in self.list_finished_attempts():
            # `drop_weights` may have removed them.
            if has_weights(self.attempt(attempt_id)):
                with self._intact_weights(attempt_id, finished["result"]) as tensors:
                    if tensors is None:
                        continue
            return self.publish(seal(finished["result"]))
        return None

    def set_result_aside(self, reason: str, fault: str = "outdated") -> None:
        # A finished attempt would restore the result.
        for attempt_id, _ in self.list_finished_attempts():
            self.attempt(attempt_id).set_aside(FINISHED, reason, fault)
        super().set_result_aside(reason, fault)

    def list_finished_attempts(self, result: dict | None = None) -> list[tuple[str, dict]]:
        """Lists (attempt_id, finish) of attempts that trained to the end; with `result`, to it."""
        expected = result and {key: value for key, value in result.items() if key != "sha256"}
        found = []
        for attempt_id in self.attempt_ids():
            try:
                finished = self.attempt(attempt_id).read_sealed(FINISHED, Finish)
                if finished and finished["result"]["run_id"] != self.run_id:
                    raise CorruptFile("it belongs to another run")
            except CorruptFile as error:
                self.attempt(attempt_id).set_aside(FINISHED, error)
                continue
            if finished and expected in (None, finished["result"]):
                found.append((attempt_id, finished))
        return found

    def winner(self, result: dict) -> str | None:
        """Returns the first attempt that has this result and its weights, or None."""
        finished = (attempt_id for attempt_id, _ in self.list_finished_attempts(result))
        return next((i for i in finished if has_weights(self.attempt(i))), None)

    @contextlib.contextmanager
    def open_weights(self) -> "Iterator[DiskTensors]":
        """Opens the final weights, verified; each access to a tensor reads it from disk.

        ValueError if the run is not complete or has no intact weights. A store opened for writing
        sets corrupted weights aside, and the result with them, so submitting again trains the run
        again.
        """
        result = self.require_result()
        for attempt_id in self._attempts_with_weights(result):
            with self._intact_weights(attempt_id, result) as tensors:
                if tensors is not None:
                    yield tensors
                    return
        self.set_result_aside("no attempt has weights of this hash", "corrupted")
        expected = f"a run with intact weights; to train this one again, {self.remedy}"
        raise invalid("run_id", self.run_id, expected)

    def _attempts_with_weights(self, result: dict) -> list[str]:
        """Lists attempts with weights, first those with this result.

        ValueError if `drop_weights` removed them.
        """
        finished = [attempt_id for attempt_id, _ in self.list_finished_attempts(result)]
        attempt_ids = dict.fromkeys([*finished, *self.attempt_ids()])
        present = [i for i in attempt_ids if has_weights(self.attempt(i))]
        if not present and self.weights_were_removed():
            remedy = f"to train it again, remove {self.folder.path}"
            expected = f"a run whose weights are kept, found one whose were removed; {remedy}"
            raise invalid("run_id", self.run_id, expected)
        return present

    def has_weights(self) -> bool:
        """Returns whether an attempt has weights, without reading them."""
        return any(has_weights(self.attempt(i)) for i in self.attempt_ids())

    def weights_were_removed(self) -> bool:
        return self.folder.exists(REMOVED)

    def drop_weights(self) -> int:
        """Removes the weights of a complete run; returns the bytes that became free.

        Losses and history stay. ValueError if the run is not complete, because it would be trained
        again.
        """
        self.require_result()
        # Written first: weights that are missing without it are made again.
        self.folder.write_json(REMOVED, {"time": time.time()})
        return sum(remove_weights(self.attempt(i)) for i in self.attempt_ids())

    def num_superfluous(self) -> int:
        """Counts checkpoints that a kill after the result has left."""
        return 0 if self.result() is None else len(list_checkpoints(self.attempts))

    def remove_remains(self) -> list:
        """Removes half-written files of killed attempts; returns what `prune` returns.

        Removes a complete run's checkpoints and superfluous weights too.
        """
        result = self.result()
        barred = [] if result is None else prune(self.attempts, keep=0)
        barred += clear_debris(self.attempts)
        winner_id = None if result is None else self.winner(result)
        # An attempt that goes on tidies up itself.
        with collect_denied(barred):
            if winner_id is not None and has_ended(read_lease(self.attempt(winner_id))):
                clear_weights(self.attempts)
            self.folder.remove_temporaries(GONE_AFTER_S)
        return barred

    @contextlib.contextmanager
    def _intact_weights(self, attempt_id: str, result: dict) -> "Iterator[DiskTensors | None]":
        """Yields an attempt's weights if they have the result's hash; otherwise sets them aside."""
        from gram_platform.store.shards import open_weights

        attempt = self.attempt(attempt_id)
        with contextlib.ExitStack() as stack:
            intact, reason = None, ""
            try:
                tensors = stack.enter_context(open_weights(attempt))
                if tensors.sha256() == result["weights_sha256"]:
                    intact = tensors
                else:
                    reason = WRONG_HASH
            except FileNotFoundError:
                # A second attempt has just removed its weights.
                pass
            except ValueError as error:
                reason = str(error)
            if reason:
                attempt.set_aside(WEIGHTS if attempt.exists(WEIGHTS) else SHARDS, reason)
                attempt.set_aside(FINISHED, "its weights are corrupted")
            yield intact

    def _head(self) -> dict | None:
        """Reads a complete run's finish, otherwise the newest manifest."""
        result = self.result()
        finished = self.list_finished_attempts(result) if result is not None else []
        return finished[0][1] if finished else newest_manifest(self.attempts)


def _next_id(attempt_ids: list[str]) -> str:
    """Makes an id that sorts after all earlier ones, even if machines' clocks differ."""
    number = 1 + max(map(_number, attempt_ids), default=0)
    now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S")
    return f"{number:04d}-{now}-{secrets.token_hex(3)}"


def _number(attempt_id: str) -> int:
    return int(attempt_id.partition("-")[0])
