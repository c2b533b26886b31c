"""Lists and removes checkpoints and weights of attempts. Writes and reads metric records.

Checkpoints and sharded weights without a manifest are incomplete and treated as absent.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TypedDict

from gram_platform.config.identity import invalid
from gram_platform.config.plain import parse_json
from gram_platform.store.files import CorruptFile, Folder
from gram_platform.store.leases import has_ended, read_lease

TENSORS, LAYOUT, STATE = "tensors.safetensors", "layout", "state.json"
FINISHED = "complete.json"
CHECKPOINTS, WEIGHTS, SHARDS = "checkpoints", "weights.safetensors", "weights"
NUM_CHECKPOINTS_KEPT = 2
# Written last. The files that it lists are invalid until then.
MANIFEST = "manifest.json"
# Prefixes of metric names. `<domain>` follows for the losses at a run's evaluation points,
VALIDATION, BEST = "validation/loss/", "best/loss/"
# and for losses for people to watch (`engine.evaluation`).
PROGRESS = "progress/loss/"
# `gradient/<set>` or `weights/<set>` follows. These metrics are too many for MLflow's table.
NORM = "norm/"
# `<domain>/<module>` follows (`train.learner.probe_norms`).
PROBE = NORM + "probe/"


class Segment(TypedDict):
    """Describes one file of a run's history. The file has metric records of one attempt."""

    attempt: str
    file: str
    sha256: str
    last_step: int


class StoredMetrics(TypedDict):
    """The metrics recorded at one step. A value may be NaN."""

    step: int
    time: float
    metrics: dict[str, float | int]


class ShardsManifest(TypedDict):
    files: dict[str, str]


class CheckpointManifest(ShardsManifest):
    step: int
    elapsed_s: float
    segments: list[Segment]


def step_name(step: int) -> str:
    return f"{step:09d}"


def list_checkpoints(attempts: Folder) -> list[tuple[int, str]]:
    """Lists a run's checkpoints as (step, attempt_id), in ascending order."""
    checkpoints = []
    for attempt_id in attempts.list():
        folder = attempts.child(attempt_id, CHECKPOINTS)
        for name in folder.list():
            if name.isdigit() and folder.child(name).exists(MANIFEST):
                checkpoints.append((int(name), attempt_id))
    return sorted(checkpoints)


def newest_manifest(attempts: Folder) -> dict | None:
    """Reads the newest intact checkpoint manifest, or returns None. Does not verify the tensors."""
    for step, attempt_id in reversed(list_checkpoints(attempts)):
        try:
            folder = attempts.child(attempt_id, CHECKPOINTS, step_name(step))
            manifest = folder.read_sealed(MANIFEST, CheckpointManifest)
        except CorruptFile:
            # The attempt that continues the run sets the manifest aside with a warning.
            continue
        if manifest is not None:
            return manifest
    return None


@contextlib.contextmanager
def collect_denied(errors: list) -> Iterator[None]:
    """Context manager that appends a PermissionError to `errors` instead of raising it."""
    try:
        yield
    except PermissionError as error:
        errors.append(error)


def prune(attempts: Folder, keep: int, writer_id: str | None = None) -> list:
    """Removes a run's old checkpoints. If `keep` is 0, removes all checkpoints.

    Otherwise keeps the `keep` newest checkpoints, and the newest one of the attempt `writer_id`.
    Returns a PermissionError for each checkpoint that cannot be removed.
    """
    errors: list = []
    checkpoints = list_checkpoints(attempts)
    writers_newest = max((c for c in checkpoints if keep and c[1] == writer_id), default=None)
    for step, attempt_id in checkpoints[: len(checkpoints) - keep]:
        if (step, attempt_id) != writers_newest:
            folder = attempts.child(attempt_id, CHECKPOINTS)
            with collect_denied(errors):
                # Removed first, so that a half-removed checkpoint counts as absent.
                folder.child(step_name(step)).remove(MANIFEST)
                folder.remove(step_name(step))
    return errors


def clear_debris(attempts: Folder) -> list:
    """Removes incomplete checkpoints and temporary files of attempts that have ended.

    Returns the PermissionErrors of files that it could not remove.
    """
    errors: list = []
    for attempt_id in attempts.list():
        attempt = attempts.child(attempt_id)
        if not has_ended(read_lease(attempt)):
            continue
        with collect_denied(errors):
            attempt.remove_temporaries()
        folder = attempt.child(CHECKPOINTS)
        for name in folder.list():
            if name.isdigit() and not folder.child(name).exists(MANIFEST):
                with collect_denied(errors):
                    folder.remove(name)
    return errors


def write_segment(
    attempt: Folder, attempt_id: str, records: Sequence[Mapping], after_step: int
) -> dict:
    """Writes records to one file and returns the file's history entry (a `Segment`).

    Raises ValueError unless the steps increase and all exceed `after_step`.
    """
    steps = [record["step"] for record in records]
    if any(b <= a for a, b in zip([after_step, *steps], steps, strict=False)):
        raise invalid("records", steps, f"rising steps above {after_step}, the last one committed")
    # `json` is used because it writes NaN, which canonical JSON rejects.
    lines = (json.dumps(record, sort_keys=True, separators=(",", ":")) for record in records)
    data = "".join(line + "\n" for line in lines).encode()
    name = f"{steps[0]:09d}-{steps[-1]:09d}.jsonl"
    attempt.child("segments").write(name, data)
    digest = hashlib.sha256(data).hexdigest()
    return {"attempt": attempt_id, "file": name, "sha256": digest, "last_step": steps[-1]}


def read_segment(attempts: Folder, entry: dict) -> list[dict]:
    """Reads the file of a history entry. Raises CorruptFile if the file is missing or altered."""
    path = f"{attempts.path}/{entry['attempt']}/segments/{entry['file']}"
    try:
        data = attempts.child(entry["attempt"], "segments").read(entry["file"])
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise CorruptFile("its content does not match its sha256")
        return [parse_json(line, StoredMetrics) for line in data.splitlines()]
    except FileNotFoundError as error:
        raise CorruptFile(f"{path} is missing") from error
    except ValueError as error:
        raise CorruptFile(f"{path}: {error}") from error


def last_step(chain: Sequence[dict]) -> int:
    return chain[-1]["last_step"] if chain else -1


def has_weights(attempt: Folder) -> bool:
    return attempt.exists(WEIGHTS) or attempt.child(SHARDS).exists(MANIFEST)


def clear_weights(attempts: Folder) -> None:
    """Removes the weights, complete or not, of attempts that ended without finishing.

    An attempt that was only suspended may seem to have ended, and then loses its weights. So call
    this only if a finished attempt has the weights that the result names.
    """
    for attempt_id in attempts.list():
        attempt = attempts.child(attempt_id)
        if has_ended(read_lease(attempt)) and not attempt.exists(FINISHED):
            remove_weights(attempt)


def remove_weights(attempt: Folder) -> int:
    """Removes an attempt's weights, complete or not. Returns the number of bytes freed."""
    shards = attempt.child(SHARDS)
    num_bytes = sum(shards.size(name) for name in shards.list())
    # Removed first, so that half-removed weights count as absent.
    shards.remove(MANIFEST)
    attempt.remove(SHARDS)
    if attempt.exists(WEIGHTS):
        num_bytes += attempt.size(WEIGHTS)
        attempt.remove(WEIGHTS)
    return num_bytes
