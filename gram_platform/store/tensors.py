"""Tensors on disk: a safetensors file of a flat dict, and the hash that identifies a set of weights. No pickle.

Large sets are written and read tensor by tensor: `write_stream`, `DiskTensors`.
"""

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from gram_platform.model.pieces import Piece, num_rows

FILE_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}  # as safetensors spells them
HEADER_ALIGNMENT = 8  # of the data's first byte, by the format's own writer


def save_tensors(path: str | os.PathLike, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors of any shape and dtype as one safetensors file; equal tensors give equal bytes."""
    try:
        save_file({name: _owned(tensors[name]) for name in sorted(tensors)}, os.fspath(path))
    except SafetensorError as error:
        raise OSError(f"{os.fspath(path)} cannot be written: {error}") from error


def load_tensors(path: str | os.PathLike) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file, copied into memory. ValueError when it is not whole."""
    try:
        return {name: tensor.clone() for name, tensor in load_file(os.fspath(path)).items()}
    except SafetensorError as error:
        raise ValueError(f"{os.fspath(path)} is not a whole safetensors file: {error}") from error


@dataclass(frozen=True)
class StoredRows:
    """Rows [first, stop) of a tensor of `shape`, as a file holds them; a scalar counts as one row."""

    first: int
    stop: int
    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, piece: Piece) -> "StoredRows":
        stop = piece.first_row + num_rows(tuple(piece.rows.shape))
        return cls(piece.first_row, stop, piece.shape, str(piece.rows.dtype).removeprefix("torch."))

    @classmethod
    def from_plain(cls, fields: Mapping) -> "StoredRows":
        return cls(**{**fields, "shape": tuple(fields["shape"])})

    def empty(self, first: int, stop: int) -> Piece:
        """A piece for the rows [first, stop) of the tensor, not filled yet."""
        shape = (stop - first, *self.shape[1:]) if self.shape else ()
        return Piece(torch.empty(shape, dtype=getattr(torch, self.dtype)), first, self.shape)

    def read(self, file: safe_open, name: str, first: int, stop: int) -> torch.Tensor:
        """The rows [first, stop) of the tensor from an open file that holds at least those."""
        if not self.shape:
            return file.get_tensor(name)
        return file.get_slice(name)[first - self.first : stop - self.first]


@contextlib.contextmanager
def open_tensors(path: str | os.PathLike) -> Iterator[safe_open]:
    """A safetensors file to read slices from. ValueError when it is not whole."""
    try:
        with safe_open(os.fspath(path), "pt") as file:
            yield file
    except SafetensorError as error:
        raise ValueError(f"{os.fspath(path)} is not a whole safetensors file: {error}") from error


Shapes = Mapping[str, tuple[int, ...]]  # by a tensor's name


def write_stream(
    path: str | os.PathLike,
    shapes: Shapes,
    dtype: torch.dtype,
    tensors: Iterable[tuple[str, torch.Tensor]],
    progress: Callable[[int], None] = lambda num_bytes: None,
) -> None:
    """Write one safetensors file from tensors that come one by one in the order of `shapes`, converted to `dtype`.

    No more than one of them is held. `progress` is told the bytes of each. OSError when the file cannot be written.
    """
    coming = iter(tensors)
    with open(path, "wb") as file:
        file.write(_header(shapes, dtype))
        for name, shape in shapes.items():
            found, tensor = next(coming)
            assert (found, tuple(tensor.shape)) == (name, shape), f"{found} {tuple(tensor.shape)} in place of {name}"
            file.write(memoryview(tensor.detach().to("cpu", dtype).contiguous().reshape(-1).view(torch.uint8).numpy()))
            progress(tensor.numel() * dtype.itemsize)
            del tensor  # before the next one is made
        file.flush()
        os.fsync(file.fileno())


def stream_bytes(shapes: Shapes, dtype: torch.dtype) -> int:
    """The size of `write_stream`'s file."""
    return len(_header(shapes, dtype)) + sum(math.prod(shape) for shape in shapes.values()) * dtype.itemsize


def _header(shapes: Shapes, dtype: torch.dtype) -> bytes:
    """Its length in 8 bytes, then JSON: where every tensor lies behind it. The format pads it with blanks."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        first, end = end, end + math.prod(shape) * dtype.itemsize
        entries[name] = {"dtype": FILE_DTYPES[dtype], "shape": list(shape), "data_offsets": [first, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % HEADER_ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


class DiskTensors(Mapping):
    """Tensors of open files by name, each read whenever it is asked for; nothing is held.

    `parts`: for each name the files that have it, each with the rows that it holds, or None for all of them.
    """

    def __init__(self, parts: Mapping[str, Sequence[tuple[safe_open, StoredRows | None]]]) -> None:
        self._parts = parts

    @classmethod
    def of_files(cls, files: Iterable[safe_open]) -> "DiskTensors":
        """Of files that hold whole tensors."""
        return cls({name: [(file, None)] for file in files for name in file.keys()})  # noqa: SIM118 (not a mapping)

    def __getitem__(self, name: str) -> torch.Tensor:
        file, stored = self._parts[name][0]
        if stored is None:
            return file.get_tensor(name).clone()  # the file's own tensor is a view of its memory map
        return self.rows(name, 0, num_rows(stored.shape))

    def rows(self, name: str, first: int, stop: int) -> torch.Tensor:
        """The rows [first, stop) of a tensor, without reading the others."""
        file, stored = self._parts[name][0]
        if stored is None:
            return file.get_slice(name)[first:stop].clone()
        piece = stored.empty(first, stop)
        for file, held in self._parts[name]:
            assert held is not None, "a split tensor is split in every file"
            low, high = max(first, held.first), min(stop, held.stop)
            if low < high:
                piece.between(low, high).copy_(held.read(file, name, low, high))
        return piece.rows

    def shape(self, name: str) -> tuple[int, ...]:
        """Without reading the tensor."""
        file, stored = self._parts[name][0]
        return tuple(file.get_slice(name).get_shape()) if stored is None else stored.shape

    def __contains__(self, name: object) -> bool:
        return name in self._parts

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


def hash_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over the names in sorted order, each with its dtype, shape and raw bytes."""
    return hash_named((name, tensors[name]) for name in sorted(tensors))


def hash_named(items: Iterable[tuple[str, torch.Tensor]]) -> str:
    """`hash_tensors` of tensors that come one by one, names in sorted order."""
    digest = hashlib.sha256()
    for name, value in items:
        tensor = value.detach().cpu().contiguous()
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode() + b"\n")
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _owned(tensor: torch.Tensor) -> torch.Tensor:
    """safetensors refuses tensors that share memory: a slice of a larger buffer becomes a copy."""
    tensor = tensor.detach().cpu().contiguous()
    is_slice = tensor.untyped_storage().nbytes() != tensor.nbytes
    return tensor.clone() if is_slice else tensor
