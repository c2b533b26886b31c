"""An attempt's final weights: one file, or of a large model a folder of shards whose manifest was written last.

    attempts/<attempt_id>/weights.safetensors
    attempts/<attempt_id>/weights/{tensors-00000.safetensors, layout-00000.json, ..., manifest.json}

`tensors.py` writes and reads them; this file needs no torch.
"""

from gram_platform.store.files import Folder

WEIGHTS, SHARDS = "weights.safetensors", "weights"
MANIFEST = "manifest.json"  # of whatever has several files: they count from the moment it is there


def has_weights(attempt: Folder) -> bool:
    """Whether the attempt has weights that were written to their end."""
    return attempt.exists(WEIGHTS) or attempt.child(SHARDS).exists(MANIFEST)


def remove_weights(attempt: Folder) -> int:
    """Remove the attempt's weights, finished or not; the number of bytes that became free."""
    shards = attempt.child(SHARDS)
    num_bytes = sum(shards.size(name) for name in shards.list())
    shards.remove(MANIFEST)  # first, so that half-removed weights do not exist
    attempt.remove(SHARDS)
    if attempt.exists(WEIGHTS):
        num_bytes += attempt.size(WEIGHTS)
        attempt.remove(WEIGHTS)
    return num_bytes


def set_weights_aside(attempt: Folder, reason: object) -> None:
    attempt.set_aside(WEIGHTS if attempt.exists(WEIGHTS) else SHARDS, reason)
