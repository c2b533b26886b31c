"""Which checkpoints a run has: each exists when its manifest does, the newest two are kept.

    attempts/<attempt_id>/checkpoints/<step>/{tensors.safetensors, layout.json, state.json, manifest.json}

The manifest lists the SHA-256 of its files and the whole chain of metric segments up to its step, so continuing from
it needs nothing else. `tensors.py` writes and loads them.
"""

from gram_platform.store.files import CorruptFile, Folder
from gram_platform.store.leases import has_ended, read_lease
from gram_platform.store.weights import MANIFEST, remove_weights

TENSORS, LAYOUT, STATE = "tensors.safetensors", "layout", "state.json"
FINISHED = "complete.json"


def step_name(step: int) -> str:
    return f"{step:09d}"


def list_checkpoints(attempts: Folder) -> list[tuple[int, str]]:
    """(step, attempt_id) of every checkpoint of a run, oldest step first."""
    found = []
    for attempt_id in attempts.list():
        folder = attempts.child(attempt_id, "checkpoints")
        names = [name for name in folder.list() if name.isdigit()]
        found += [(int(name), attempt_id) for name in names if folder.child(name).exists(MANIFEST)]
    return sorted(found)


def newest_manifest(attempts: Folder) -> dict | None:
    """The manifest of the newest checkpoint that can be read, without looking at its tensors."""
    for step, attempt_id in reversed(list_checkpoints(attempts)):
        try:
            manifest = attempts.child(attempt_id, "checkpoints", step_name(step)).read_sealed(MANIFEST)
        except CorruptFile:
            continue  # set aside, with a warning, by the attempt that continues the run
        if manifest is not None:
            return manifest
    return None


def prune(attempts: Folder, keep: int, own_id: str | None = None) -> None:
    """Remove all but the newest `keep` checkpoints of the run and the newest of the attempt `own_id`."""
    checkpoints = list_checkpoints(attempts)
    own_newest = max((c for c in checkpoints if c[1] == own_id), default=None) if keep else None
    for step, attempt_id in checkpoints[: len(checkpoints) - keep]:
        if (step, attempt_id) != own_newest:
            folder = attempts.child(attempt_id, "checkpoints")
            folder.child(step_name(step)).remove(MANIFEST)  # first, so that a half-removed checkpoint does not exist
            folder.remove(step_name(step))


def clear_debris(attempts: Folder, own_id: str | None = None) -> None:
    """Remove half-written checkpoints, weights and files of attempts other than `own_id` that certainly ended."""
    for attempt_id in attempts.list():
        attempt = attempts.child(attempt_id)
        if attempt_id == own_id or not has_ended(read_lease(attempt)):
            continue
        attempt.remove_temporaries()
        folder = attempt.child("checkpoints")
        for name in folder.list():
            if name.isdigit() and not folder.child(name).exists(MANIFEST):
                folder.remove(name)
        if not attempt.exists(FINISHED):
            remove_weights(attempt)
