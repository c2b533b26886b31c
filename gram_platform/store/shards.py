"""Writes and reads checkpoints and weights in shards.

    checkpoints/<step>/{tensors.safetensors, layout.json, state.json, manifest.json}
    checkpoints/<step>/{tensors-00000.safetensors, layout-00000.json, tensors-00001..., ...}

A single-rank run writes the files of the first line. In a multi-rank run, each rank writes a shard
with its own rows, as in the second line. A layout file lists which rows of each tensor a shard
contains. Any number of ranks can read a checkpoint, and each reads only the rows that it needs.
Every file is verified before use.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gram_platform.config.identity import canonical_json, hash_file
from gram_platform.config.plain import parse_json
from gram_platform.model.pieces import Piece, all_rows, as_piece
from gram_platform.store.checkpoints import (
    CHECKPOINTS,
    LAYOUT,
    MANIFEST,
    SHARDS,
    STATE,
    TENSORS,
    WEIGHTS,
    CheckpointManifest,
    ShardsManifest,
    step_name,
)
from gram_platform.store.files import CorruptFile, Folder, is_safe_name, keep_trying
from gram_platform.store.tensors import DiskTensors, StoredRows, open_tensors, save_tensors

# Rows [first, stop).
Range = tuple[int, int]
# Maps a tensor's name and full shape to the rows to read.
RowsOf = Callable[[str, tuple[int, ...]], Range]
# The rows in a shard, by the tensor's name.
Layout = Mapping[str, StoredRows]


@dataclass(frozen=True)
class Resumed:
    """The content of a checkpoint."""

    step: int
    pieces: dict[str, Piece]
    state: dict
    manifest: dict


def checkpoint_folder(attempt: Folder, step: int) -> Folder:
    return attempt.child(CHECKPOINTS, step_name(step))


def write_shard(
    folder: Folder, tensors: Mapping[str, torch.Tensor | Piece], rank: int = 0, num_ranks: int = 1
) -> dict[str, str]:
    """Writes one rank's shard and layout. Returns {file name: SHA-256} for the manifest."""
    pieces = {name: as_piece(value) for name, value in tensors.items()}
    rows = {name: piece.rows for name, piece in pieces.items()}
    text = canonical_json({name: StoredRows.of(piece) for name, piece in pieces.items()})
    shard = TENSORS if num_ranks == 1 else f"tensors-{rank:05d}.safetensors"
    layout = _layout_name(shard)
    return {
        shard: folder.write_with(shard, lambda path: save_tensors(path, rows)),
        layout: folder.write_with(layout, lambda path: Path(path).write_text(text)),
    }


def write_manifest(
    attempt: Folder,
    step: int,
    files: Mapping[str, str],
    state: Mapping,
    chain: Sequence,
    elapsed_s: float,
) -> None:
    """Writes the state, then the manifest, which completes the checkpoint.

    `files` is {file name: SHA-256} of all ranks' shards and layouts.
    """
    folder = checkpoint_folder(attempt, step)
    text = canonical_json(state)
    digest = folder.write_with(STATE, lambda path: Path(path).write_text(text))
    manifest = {
        "step": step,
        "time": time.time(),
        "elapsed_s": elapsed_s,
        "files": {**files, STATE: digest},
        "segments": list(chain),
    }
    folder.write_sealed(MANIFEST, manifest)


def read_checkpoint(
    attempts: Folder, step: int, attempt_id: str, rows_of: RowsOf = all_rows
) -> Resumed:
    """Reads the rows selected by `rows_of` from a checkpoint, and verifies the files.

    Raises CorruptFile if a file was altered or rows are missing, and FileNotFoundError if a file is
    missing.
    """
    folder = checkpoint_folder(attempts.child(attempt_id), step)
    manifest = _manifest(folder, CheckpointManifest)
    pieces = _read_pieces(folder, manifest["files"], rows_of)
    state = _read_json(folder, STATE, manifest["files"])
    return Resumed(manifest["step"], pieces, state, manifest)


@contextlib.contextmanager
def open_weights(attempt: Folder) -> Iterator[DiskTensors]:
    """Context manager that yields an attempt's final weights. Each access reads from disk.

    The caller must verify the weights' hash. Raises FileNotFoundError if the weights are missing,
    and ValueError if a file is incomplete.
    """
    with contextlib.ExitStack() as stack:
        if attempt.exists(WEIGHTS):
            path = stack.enter_context(attempt.local_copy(WEIGHTS))
            yield DiskTensors.of_files([stack.enter_context(open_tensors(path))])
            return
        shards = attempt.child(SHARDS)
        files = _manifest(shards, ShardsManifest)["files"]
        holders: dict[str, list] = {}
        for shard in [name for name in files if name.endswith(".safetensors")]:
            path = stack.enter_context(shards.local_copy(shard))
            file = stack.enter_context(open_tensors(path))
            for name, rows in _layout(shards, shard, files).items():
                holders.setdefault(name, []).append((file, rows))
        yield DiskTensors(holders)


def _manifest(folder: Folder, kind: type) -> dict:
    manifest = folder.read_sealed(MANIFEST, kind)
    if manifest is None:
        raise FileNotFoundError(folder.file(MANIFEST))
    if not all(map(is_safe_name, manifest["files"])):
        raise CorruptFile(f"{folder.path}/{MANIFEST} names files of other folders")
    return manifest


def _read_pieces(folder: Folder, files: Mapping[str, str], rows_of: RowsOf) -> dict[str, Piece]:
    shards = [name for name in files if name.endswith(".safetensors")]
    layouts = {shard: _layout(folder, shard, files) for shard in shards}
    shapes = {name: stored.shape for layout in layouts.values() for name, stored in layout.items()}
    selection = {name: rows_of(name, shape) for name, shape in shapes.items()}
    pieces: dict[str, Piece] = {}
    missing = {name: stop - first for name, (first, stop) in selection.items()}
    for shard, ranges in _choose(layouts, selection).items():
        with _open_verified(folder, shard, files[shard]) as path, open_tensors(path) as file:
            for name, (first, stop) in ranges.items():
                stored = layouts[shard][name]
                piece = pieces.setdefault(name, stored.empty(*selection[name]))
                file.read(name, first - stored.first, piece.between(first, stop))
                missing[name] -= stop - first
    if lacking := sorted(name for name, count in missing.items() if count):
        raise CorruptFile(f"{folder.path}: its shards lack rows of {lacking[:4]}")
    for name in selection.keys() - pieces.keys():
        # A tensor with fewer rows than ranks has no rows for some ranks.
        stored = next(layout[name] for layout in layouts.values() if name in layout)
        pieces[name] = stored.empty(*selection[name])
    return pieces


def _choose(
    layouts: Mapping[str, Layout], selection: Mapping[str, Range]
) -> dict[str, dict[str, Range]]:
    """Returns {shard: {tensor name: rows to read}}. Rows in several shards are read only once."""
    overlaps = {
        shard: {
            name: (first, stop)
            for name, stored in layout.items()
            if (first := max(selection[name][0], stored.first))
            < (stop := min(selection[name][1], stored.stop))
        }
        for shard, layout in layouts.items()
    }
    sizes = {shard: sum(b - a for a, b in rows.values()) for shard, rows in overlaps.items()}
    taken: set[tuple[str, Range]] = set()
    chosen: dict[str, dict[str, Range]] = {}
    for shard in sorted(sizes, key=lambda shard: (-sizes[shard], shard)):
        new = {name: rows for name, rows in overlaps[shard].items() if (name, rows) not in taken}
        taken |= set(new.items())
        if new:
            chosen[shard] = new
    return chosen


def _layout(folder: Folder, shard: str, files: Mapping[str, str]) -> Layout:
    return _read_json(folder, _layout_name(shard), files, dict[str, StoredRows])


def _read_json(folder: Folder, name: str, files: Mapping[str, str], kind: Any = dict) -> dict:
    if name not in files:
        raise CorruptFile(f"{folder.path}/{MANIFEST} lacks {name}")
    with _open_verified(folder, name, files[name]) as path:
        try:
            return parse_json(Path(path).read_bytes(), kind)
        except ValueError as error:
            raise CorruptFile(f"{folder.path}/{name}: {error}") from error


def _layout_name(shard: str) -> str:
    return LAYOUT + shard.removeprefix("tensors").removesuffix(".safetensors") + ".json"


@contextlib.contextmanager
def _open_verified(folder: Folder, name: str, digest: str) -> Iterator[str]:
    with folder.local_copy(name) as path:
        if keep_trying(lambda: hash_file(path), path) != digest:
            raise CorruptFile(f"{folder.path}/{name} does not match its sha256")
        yield path
