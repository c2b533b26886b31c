"""Writing and loading checkpoints: the manifest last, every file verified."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from gram_platform.checkpoint import load_tensors, save_tensors
from gram_platform.identity import canonical_json
from gram_platform.store.checkpoints import MANIFEST, STATE, TENSORS, list_checkpoints, step_name
from gram_platform.store.files import CorruptFile, Folder, hash_file
from gram_platform.store.segments import read_chain


@dataclass(frozen=True)
class Resumed:
    """Where a run continues: the step that was committed last, its tensors and state, and its history up to there."""

    step: int
    tensors: dict[str, torch.Tensor]
    state: dict
    records_chain: list[dict]
    manifest: dict


def write_checkpoint(
    attempt: Folder, step: int, tensors: Mapping[str, torch.Tensor], state: Mapping, chain: Sequence, elapsed_s: float
) -> None:
    """Write one checkpoint; it exists from the moment its manifest does."""
    folder = attempt.child("checkpoints", step_name(step))
    files = {TENSORS: folder.write_with(TENSORS, lambda path: save_tensors(path, tensors))}
    state_text = canonical_json(state)
    files[STATE] = folder.write_with(STATE, lambda path: _write_text(path, state_text))
    manifest = {"step": step, "time": time.time(), "elapsed_s": elapsed_s, "files": files, "segments": list(chain)}
    folder.write_sealed(MANIFEST, manifest)


def load_newest(attempts: Folder) -> Resumed | None:
    """The newest checkpoint whose every file verifies; corrupted ones are set aside with a warning."""
    for step, attempt_id in reversed(list_checkpoints(attempts)):
        folder = attempts.child(attempt_id, "checkpoints")
        try:
            return _load(attempts, folder.child(step_name(step)))
        except (CorruptFile, FileNotFoundError) as error:
            if folder.child(step_name(step)).exists(MANIFEST):  # otherwise another attempt has just pruned it
                folder.set_aside(step_name(step), error)
    return None


def _load(attempts: Folder, folder: Folder) -> Resumed:
    manifest = folder.read_sealed(MANIFEST)
    if manifest is None:
        raise FileNotFoundError(folder.file(MANIFEST))
    for name, digest in manifest["files"].items():
        with folder.local_copy(name) as path:
            if hash_file(path) != digest:
                raise CorruptFile(f"{folder.path}/{name} does not match its sha256")
            if name == TENSORS:
                tensors = load_tensors(path)
    records = read_chain(attempts, manifest["segments"])
    return Resumed(manifest["step"], tensors, json.loads(folder.read(STATE)), records, manifest)


def _write_text(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
