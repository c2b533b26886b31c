"""Writes and reads tensors as safetensors files, and hashes a set of weights. No pickle.

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
from safetensors.torch import save_file

from gram_platform.config.identity import invalid, require_int
from gram_platform.model.pieces import Piece, num_rows

# Names of dtypes in safetensors.
FILE_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
# The alignment of the data's first byte, as in the format's reference writer.
HEADER_ALIGNMENT = 8


def save_tensors(path: str | os.PathLike, tensors: Mapping[str, torch.Tensor]) -> None:
    """Writes tensors of any shape and dtype as one safetensors file.

    Equal tensors give equal bytes.
    """
    try:
        save_file({name: _owned(tensors[name]) for name in sorted(tensors)}, os.fspath(path))
    except SafetensorError as error:
        raise OSError(f"{os.fspath(path)} cannot be written: {error}") from error


def load_tensors(path: str | os.PathLike) -> dict[str, torch.Tensor]:
    """Reads the tensors of a safetensors file into memory. ValueError when it is not whole."""
    with open_tensors(path) as file:
        return dict(DiskTensors.of_files([file]))


@dataclass(frozen=True)
class StoredRows:
    """Rows [first, stop) of a tensor of `shape`, held by a file; a scalar counts as one row."""

    first: int
    stop: int
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        for size in (self.first, self.stop, *self.shape):
            require_int("rows", size, 0, 2**63 - 1)
        if not isinstance(getattr(torch, self.dtype, None), torch.dtype):
            raise invalid("dtype", self.dtype, "the name of a type of tensors")

    @classmethod
    def of(cls, piece: Piece) -> "StoredRows":
        stop = piece.first_row + num_rows(tuple(piece.rows.shape))
        return cls(piece.first_row, stop, piece.shape, str(piece.rows.dtype).removeprefix("torch."))

    def empty(self, first: int, stop: int) -> Piece:
        """Makes an uninitialised piece for the rows [first, stop) of the tensor."""
        shape = (stop - first, *self.shape[1:]) if self.shape else ()
        return Piece(torch.empty(shape, dtype=getattr(torch, self.dtype)), first, self.shape)

    def read(self, file: safe_open, name: str, first: int, stop: int) -> torch.Tensor:
        """Reads the rows [first, stop) of the tensor from an open file that holds them."""
        if not self.shape:
            return file.get_tensor(name)
        return file.get_slice(name)[first - self.first : stop - self.first]


@contextlib.contextmanager
def open_tensors(path: str | os.PathLike) -> Iterator[safe_open]:
    """Opens a safetensors file to read slices from. ValueError when it is not whole."""
    try:
        with safe_open(os.fspath(path), "pt") as file:
            yield file
    except SafetensorError as error:
        raise ValueError(f"{os.fspath(path)} is not a whole safetensors file: {error}") from error


# Shapes by tensor name.
Shapes = Mapping[str, tuple[int, ...]]


def write_stream(
    path: str | os.PathLike,
    shapes: Shapes,
    dtype: torch.dtype,
    tensors: Iterable[tuple[str, torch.Tensor]],
    progress: Callable[[int], None] = lambda num_bytes: None,
) -> None:
    """Writes one safetensors file from tensors that come one by one.

    They come in the order of `shapes`, and are converted to `dtype`. One tensor is held at a time.
    `progress` gets the bytes of each. OSError when the file cannot be written.
    """
    remaining = iter(tensors)
    with open(path, "wb") as file:
        file.write(_header(shapes, dtype))
        for name, shape in shapes.items():
            found, tensor = next(remaining)
            assert (found, tuple(tensor.shape)) == (
                name,
                shape,
            ), f"{found} {tuple(tensor.shape)} in place of {name}"
            file.write(
                memoryview(
                    tensor.detach()
                    .to("cpu", dtype)
                    .contiguous()
                    .reshape(-1)
                    .view(torch.uint8)
                    .numpy()
                )
            )
            progress(tensor.numel() * dtype.itemsize)
            # Freed before the next one is made.
            del tensor
        file.flush()
        os.fsync(file.fileno())


def stream_bytes(shapes: Shapes, dtype: torch.dtype) -> int:
    """Counts the bytes of `write_stream`'s file."""
    return (
        len(_header(shapes, dtype))
        + sum(math.prod(shape) for shape in shapes.values()) * dtype.itemsize
    )


def _header(shapes: Shapes, dtype: torch.dtype) -> bytes:
    """Writes the header.

    It is its length in 8 bytes, then JSON with each tensor's offsets, padded with blanks.
    """
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        first, end = end, end + math.prod(shape) * dtype.itemsize
        entries[name] = {
            "dtype": FILE_DTYPES[dtype],
            "shape": list(shape),
            "data_offsets": [first, end],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % HEADER_ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


@dataclass(frozen=True, eq=False)
class DiskTensors(Mapping):
    """Maps names to tensors of open files; each access reads the tensor from disk.

    `holders`: for each name the files that hold it, each with the rows that it has, or None for all
    rows.
    """

    holders: Mapping[str, Sequence[tuple[safe_open, StoredRows | None]]]

    @classmethod
    def of_files(cls, files: Iterable[safe_open]) -> "DiskTensors":
        """Makes the mapping of files that hold whole tensors."""
        return cls({name: [(file, None)] for file in files for name in file.keys()})  # noqa: SIM118 (not a mapping)

    def __getitem__(self, name: str) -> torch.Tensor:
        file, stored = self.holders[name][0]
        if stored is None:
            # `get_tensor` returns a view of the memory map.
            return file.get_tensor(name).clone()
        return self.rows(name, 0, num_rows(stored.shape))

    def rows(self, name: str, first: int, stop: int) -> torch.Tensor:
        """Reads only the rows [first, stop) of a tensor."""
        file, stored = self.holders[name][0]
        if stored is None:
            return file.get_slice(name)[first:stop].clone()
        piece = stored.empty(first, stop)
        for file, held in self.holders[name]:
            assert held is not None, "a split tensor is split in every file"
            low, high = max(first, held.first), min(stop, held.stop)
            if low < high:
                piece.between(low, high).copy_(held.read(file, name, low, high))
        return piece.rows

    def sha256(self) -> str:
        """Computes `hash_tensors` from the files' memory maps.

        No copy of a tensor is left in this process.
        """
        return _hash((name, *self._mapped(name)) for name in sorted(self))

    def _mapped(self, name: str) -> tuple[str, tuple[int, ...], Iterator[torch.Tensor]]:
        """Returns a tensor's dtype, shape and rows, in order, as views of the memory maps."""
        file, stored = self.holders[name][0]
        if stored is None:
            whole = file.get_tensor(name)
            return str(whole.dtype), tuple(whole.shape), iter([whole])
        return (
            f"torch.{stored.dtype}",
            stored.shape,
            self._rows_in_order(name, num_rows(stored.shape)),
        )

    def _rows_in_order(self, name: str, stop: int) -> Iterator[torch.Tensor]:
        """ValueError when the files lack rows."""
        done, parts = 0, [(held, file) for file, held in self.holders[name] if held is not None]
        for held, file in sorted(parts, key=lambda part: part[0].first):
            if held.first <= done < held.stop:
                part = file.get_tensor(name)
                yield part if not held.shape else part[done - held.first :]
                done = held.stop
        if done != stop:
            raise ValueError(f"no file has the rows {done} to {stop} of {name}")

    def __contains__(self, name: object) -> bool:
        return name in self.holders

    def __iter__(self) -> Iterator[str]:
        return iter(self.holders)

    def __len__(self) -> int:
        return len(self.holders)


def hash_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """Computes SHA-256 over the names in sorted order, each with dtype, shape and raw bytes."""
    return hash_named((name, tensors[name]) for name in sorted(tensors))


def hash_named(items: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Computes `hash_tensors` of tensors that come one by one, names in sorted order."""
    return _hash((name, str(value.dtype), tuple(value.shape), [value]) for name, value in items)


def _hash(items: Iterable[tuple[str, str, tuple[int, ...], Iterable[torch.Tensor]]]) -> str:
    """Hashes (name, dtype, shape, parts in the order of their bytes)."""
    digest = hashlib.sha256()
    for name, dtype, shape, parts in items:
        digest.update(json.dumps([name, dtype, list(shape)]).encode() + b"\n")
        for part in parts:
            digest.update(part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _owned(tensor: torch.Tensor) -> torch.Tensor:
    """Copies a slice of a larger buffer: safetensors refuses tensors that share memory."""
    tensor = tensor.detach().cpu().contiguous()
    is_slice = tensor.untyped_storage().nbytes() != tensor.nbytes
    return tensor.clone() if is_slice else tensor
