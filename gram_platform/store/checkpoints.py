"""Lists, prunes and reads an attempt's checkpoints, metric records and weights.

Each counts once it has a manifest.
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
# Written last: the files beside it count from then on.
MANIFEST = "manifest.json"
# Prefixes, before a domain, of the metrics at a run's evaluation points.
VALIDATION, BEST = "validation/loss/", "best/loss/"
# The prefix, before a domain, of losses for people to watch, see `engine.evaluation`.
PROGRESS = "progress/loss/"
# The prefix of `gradient/<set>` and `weights/<set>`, which are too many for MLflow's table.
NORM = "norm/"
# The prefix of `<domain>/<module>`, see `train.learner.probed_norms`.
PROBE = NORM + "probe/"


class Segment(TypedDict):
    """An entry of a run's chain: which attempt wrote records, in which file, up to which step."""

    attempt: str
    file: str
    sha256: str
    last_step: int


class StoredMetrics(TypedDict):
    """The metrics of a step; a metric may be NaN."""

    step: int
    time: float
    metrics: dict[str, float | int]


class ShardsManifest(TypedDict):
    files: dict[str, str]


class CheckpointManifest(ShardsManifest):
    step: int
    elapsed_s: float
    segments: list[Segment]


# Checkpoints:


def step_name(step: int) -> str:
    return f"{step:09d}"


def list_checkpoints(attempts: Folder) -> list[tuple[int, str]]:
    """Lists (step, attempt_id) of a run's checkpoints, the lowest step first."""
    found = []
    for attempt_id in attempts.list():
        folder = attempts.child(attempt_id, CHECKPOINTS)
        names = [name for name in folder.list() if name.isdigit()]
        found += [(int(name), attempt_id) for name in names if folder.child(name).exists(MANIFEST)]
    return sorted(found)


def newest_manifest(attempts: Folder) -> dict | None:
    """Reads the newest checkpoint's manifest that can be read; tensors are not verified."""
    for step, attempt_id in reversed(list_checkpoints(attempts)):
        try:
            folder = attempts.child(attempt_id, CHECKPOINTS, step_name(step))
            manifest = folder.read_sealed(MANIFEST, CheckpointManifest)
        except CorruptFile:
            # The attempt that continues the run sets it aside with a warning.
            continue
        if manifest is not None:
            return manifest
    return None


@contextlib.contextmanager
def collect_denied(barred: list) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        barred.append(error)


def prune(attempts: Folder, keep: int, writer_id: str | None = None) -> list:
    """Removes the run's checkpoints, except the newest `keep` and the newest of `writer_id`.

    Returns what it may not remove.
    """
    barred: list = []
    checkpoints = list_checkpoints(attempts)
    of_writer = [c for c in checkpoints if keep and c[1] == writer_id]
    writers_newest = max(of_writer, default=None)
    for step, attempt_id in checkpoints[: len(checkpoints) - keep]:
        if (step, attempt_id) != writers_newest:
            folder = attempts.child(attempt_id, CHECKPOINTS)
            with collect_denied(barred):
                # The manifest goes first, so that a half-removed checkpoint does not exist.
                folder.child(step_name(step)).remove(MANIFEST)
                folder.remove(step_name(step))
    return barred


def clear_debris(attempts: Folder) -> list:
    """Removes half-written checkpoints and files of ended attempts; returns as `prune`."""
    barred: list = []
    for attempt_id in attempts.list():
        attempt = attempts.child(attempt_id)
        if not has_ended(read_lease(attempt)):
            continue
        with collect_denied(barred):
            attempt.remove_temporaries()
        folder = attempt.child(CHECKPOINTS)
        for name in folder.list():
            if name.isdigit() and not folder.child(name).exists(MANIFEST):
                with collect_denied(barred):
                    folder.remove(name)
    return barred


# Records:


def write_segment(
    attempt: Folder, attempt_id: str, records: Sequence[Mapping], after_step: int
) -> dict:
    """Writes records with steps rising above `after_step` as one file; returns its entry."""
    steps = [record["step"] for record in records]
    if any(b <= a for a, b in zip([after_step, *steps], steps, strict=False)):
        raise invalid("records", steps, f"rising steps above {after_step}, the last one committed")
    # `json` writes NaN, which canonical JSON refuses.
    lines = (json.dumps(record, sort_keys=True, separators=(",", ":")) for record in records)
    data = "".join(line + "\n" for line in lines).encode()
    name = f"{steps[0]:09d}-{steps[-1]:09d}.jsonl"
    attempt.child("segments").write(name, data)
    digest = hashlib.sha256(data).hexdigest()
    return {"attempt": attempt_id, "file": name, "sha256": digest, "last_step": steps[-1]}


def read_segment(attempts: Folder, entry: dict) -> list[dict]:
    """Reads the records of a chain's entry; CorruptFile if the file is missing or altered."""
    place = f"{attempts.path}/{entry['attempt']}/segments/{entry['file']}"
    try:
        data = attempts.child(entry["attempt"], "segments").read(entry["file"])
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise CorruptFile("its content does not match its sha256")
        return [parse_json(line, StoredMetrics) for line in data.splitlines()]
    except FileNotFoundError as error:
        raise CorruptFile(f"{place} is missing") from error
    except ValueError as error:
        raise CorruptFile(f"{place}: {error}") from error


def last_step(chain: Sequence[dict]) -> int:
    """Returns the last step with records; -1 for an empty chain."""
    return chain[-1]["last_step"] if chain else -1


# Weights:


def has_weights(attempt: Folder) -> bool:
    return attempt.exists(WEIGHTS) or attempt.child(SHARDS).exists(MANIFEST)


def clear_weights(attempts: Folder) -> None:
    """Removes the weights, finished or not, of attempts that ended without a finish.

    Call it once a finished attempt keeps the result's weights. An owner that was taken for ended,
    and wakes up between its weights and its finish, then loses a copy.
    """
    for attempt_id in attempts.list():
        attempt = attempts.child(attempt_id)
        if has_ended(read_lease(attempt)) and not attempt.exists(FINISHED):
            remove_weights(attempt)


def remove_weights(attempt: Folder) -> int:
    """Removes the attempt's weights, finished or not; returns the freed bytes."""
    shards = attempt.child(SHARDS)
    num_bytes = sum(shards.size(name) for name in shards.list())
    # The manifest goes first, so that half-removed weights do not exist.
    shards.remove(MANIFEST)
    attempt.remove(SHARDS)
    if attempt.exists(WEIGHTS):
        num_bytes += attempt.size(WEIGHTS)
        attempt.remove(WEIGHTS)
    return num_bytes
