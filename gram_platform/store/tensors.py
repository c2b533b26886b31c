"""Writes and reads safetensors files, one tensor at a time, and hashes weights.

Uses the safetensors library only to check headers. The library ignores the umask when it writes
files, and its errors lack error numbers.
"""

import contextlib
import errno
import hashlib
import json
import math
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from gram_platform.config.identity import invalid, require_choice, require_int
from gram_platform.model.pieces import Piece, num_rows
from gram_platform.store.files import keep_trying

# Names of torch's dtypes in safetensors files, which sort tensors in this order.
FILE_DTYPES = {
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
    "complex64": "C64",
    "float32": "F32",
    "uint32": "U32",
    "int32": "I32",
    "bfloat16": "BF16",
    "float16": "F16",
    "uint16": "U16",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
# safetensors' alignment of the first byte of data.
HEADER_ALIGNMENT = 8
# safetensors rejects longer headers.
LONGEST_HEADER = 100_000_000
# Maximum number of values in memory while a file is hashed.
BLOCK_SIZE = 2**19


def save_tensors(path: str | os.PathLike, tensors: Mapping[str, torch.Tensor]) -> None:
    """Writes tensors as one safetensors file. Raises OSError if writing fails.

    Writes the same bytes as `safetensors.torch.save_file`.
    """
    order = list(FILE_DTYPES)
    names = sorted(tensors, key=lambda name: (order.index(_plain(tensors[name].dtype)), name))
    header = _header([(n, tensors[n].shape, tensors[n].dtype) for n in names])
    _write(path, header, (tensors[n] for n in names))


def load_tensors(path: str | os.PathLike) -> dict[str, torch.Tensor]:
    """Reads all tensors of a safetensors file. Raises ValueError if the file is incomplete."""
    with open_tensors(path) as file:
        return dict(DiskTensors.of_files([file]))


@dataclass(frozen=True)
class StoredRows:
    """Rows [first, stop) of a tensor in a file. The tensor has `shape`. A scalar has one row."""

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
        return cls(piece.first_row, stop, piece.shape, _plain(piece.rows.dtype))

    def empty(self, first: int, stop: int) -> Piece:
        """Returns an uninitialised Piece for rows [first, stop) of the tensor."""
        shape = (stop - first, *self.shape[1:]) if self.shape else ()
        return Piece(torch.empty(shape, dtype=getattr(torch, self.dtype)), first, self.shape)


# `keep_trying` or `once`. The string names the file in errors.
Attempt = Callable[[Callable[[], Any], str], Any]


@dataclass(frozen=True, eq=False)
class TensorFile:
    """An open safetensors file, which only one thread at a time may read.

    `held` maps tensor names to the rows in the file. The file is not memory-mapped, because a
    process that reads a mapped file is killed if the mount fails.
    """

    held: Mapping[str, StoredRows]
    _path: str
    _file: FileIO
    _starts: Mapping[str, int]
    _attempt: Attempt

    def read(self, name: str, first: int, into: torch.Tensor) -> None:
        """Fills the contiguous CPU tensor `into` with rows, starting at row `first` in the file.

        Raises ValueError if the file lacks the tensor or is truncated.
        """
        if name not in self._starts:
            raise ValueError(f"{self._path} lacks {name}")
        start = self._starts[name] + first * into.nbytes // max(num_rows(into.shape), 1)
        self._attempt(lambda: self._fill(_bytes(into), start), self._path)

    def _fill(self, view: memoryview, start: int) -> None:
        self._file.seek(start)
        while view:
            if not (num_bytes := self._file.readinto(view)):
                raise ValueError(f"{self._path} is cut short")
            view = view[num_bytes:]


@contextlib.contextmanager
def open_tensors(path: str | os.PathLike, attempt: Attempt = keep_trying) -> Iterator[TensorFile]:
    """Context manager that opens a safetensors file.

    `attempt(work, path)` calls `work` to access the file. It is `keep_trying` in a storage, which
    retries, and `once` elsewhere. Raises ValueError if the file is incomplete, and OSError if it
    cannot be read.
    """
    name = os.fspath(path)
    with attempt(lambda: open(name, "rb", buffering=0), name) as file:
        yield attempt(lambda: _read_header(name, file, attempt), name)


def once(work: Callable[[], Any], place: str) -> Any:
    return work()


def _read_header(path: str, file: FileIO, attempt: Attempt) -> TensorFile:
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    header = file.read(min(length, LONGEST_HEADER))
    try:
        # The header is checked after it was read, because `safe_open` maps the file.
        with safe_open(path, "np"):
            pass
    except SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file: {error}") from error
    except OSError as error:
        # The library's error has no number. The file was readable before, so a retry may succeed.
        raise OSError(errno.EIO, str(error), path) from error
    entries = json.loads(header)
    entries.pop("__metadata__", None)
    dtypes = {stored: dtype for dtype, stored in FILE_DTYPES.items()}
    held, starts = {}, {}
    for name, entry in entries.items():
        require_choice(f"{path}: dtype", entry["dtype"], dtypes)
        shape = tuple(entry["shape"])
        held[name] = StoredRows(0, num_rows(shape), shape, dtypes[entry["dtype"]])
        starts[name] = 8 + length + entry["data_offsets"][0]
    return TensorFile(held, path, file, starts, attempt)


Shapes = Mapping[str, tuple[int, ...]]


def write_stream(
    path: str | os.PathLike,
    shapes: Shapes,
    dtype: torch.dtype,
    tensors: Iterable[tuple[str, torch.Tensor]],
    progress: Callable[[int], None] = lambda num_bytes: None,
) -> None:
    """Writes a safetensors file from (name, tensor) pairs, which must be in the order of `shapes`.

    Converts and writes one tensor at a time, then calls `progress` with its number of bytes. The
    caller must sync the file to disk.
    """

    def convert() -> Iterator[torch.Tensor]:
        remaining = iter(tensors)
        for expected in shapes.items():
            name, tensor = next(remaining)
            actual = name, tuple(tensor.shape)
            assert actual == expected, f"{actual} in place of {expected}"
            yield tensor.to("cpu", dtype)
            progress(tensor.numel() * dtype.itemsize)
            # Frees the memory before the next tensor is made.
            del tensor

    _write(path, _stream_header(shapes, dtype), convert())


def stream_bytes(shapes: Shapes, dtype: torch.dtype) -> int:
    num_values = sum(math.prod(shape) for shape in shapes.values())
    return len(_stream_header(shapes, dtype)) + num_values * dtype.itemsize


def _stream_header(shapes: Shapes, dtype: torch.dtype) -> bytes:
    kinds = ((name, shape, dtype) for name, shape in shapes.items())
    return _header(kinds, __metadata__={"format": "pt"})


def _header(kinds: Iterable[tuple[str, Sequence[int], torch.dtype]], **entries: Any) -> bytes:
    """Returns the first bytes of a file, which are the JSON header's length and the header.

    The header has the keyword arguments as entries, then one entry for each tensor in `kinds`.
    """
    end = 0
    for name, shape, dtype in kinds:
        first, end = end, end + math.prod(shape) * dtype.itemsize
        entries[name] = {
            "dtype": FILE_DTYPES[_plain(dtype)],
            "shape": list(shape),
            "data_offsets": [first, end],
        }
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % HEADER_ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _write(path: str | os.PathLike, header: bytes, tensors: Iterable[torch.Tensor]) -> None:
    with open(path, "wb") as file:
        file.write(header)
        for tensor in tensors:
            file.write(_bytes(tensor))
            del tensor


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _bytes(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


@dataclass(frozen=True, eq=False)
class DiskTensors(Mapping):
    """Maps names to tensors in open safetensors files. Each access reads the tensor from disk.

    `holders` maps a tensor's name to a (file, rows) pair for each file that has rows of the tensor.
    """

    holders: Mapping[str, Sequence[tuple[TensorFile, StoredRows]]]

    @classmethod
    def of_files(cls, files: Iterable[TensorFile]) -> "DiskTensors":
        return cls({name: [(file, rows)] for file in files for name, rows in file.held.items()})

    def describe(self, name: str) -> StoredRows:
        """Returns a tensor's shape and dtype, and which of its rows are in the first file."""
        return self.holders[name][0][1]

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.rows(name, 0, num_rows(self.describe(name).shape))

    def rows(self, name: str, first: int, stop: int) -> torch.Tensor:
        """Reads rows [first, stop) of a tensor. Raises ValueError if a row is in no file."""
        piece = self.describe(name).empty(first, stop)
        self._fill(name, piece)
        return piece.rows

    def _fill(self, name: str, piece: Piece) -> None:
        done = piece.first_row
        stop = done + num_rows(piece.rows.shape)
        for file, held in sorted(self.holders[name], key=lambda holder: holder[1].first):
            high = min(stop, held.stop)
            if held.first <= done < high:
                file.read(name, done - held.first, piece.between(done, high))
                done = high
        if done < stop:
            raise ValueError(f"no file has the rows {done} to {stop} of {name}")

    def sha256(self) -> str:
        """Computes `hash_tensors` block by block. Raises ValueError if a row is in no file."""
        stored = ((name, self.describe(name)) for name in sorted(self))
        return _hash((n, f"torch.{rows.dtype}", rows.shape, self._blocks(n)) for n, rows in stored)

    def _blocks(self, name: str) -> Iterator[torch.Tensor]:
        """Yields all rows of a tensor, block by block. Each block overwrites the previous one."""
        stored = self.describe(name)
        shape, dtype = stored.shape, getattr(torch, stored.dtype)
        if not math.prod(shape):
            return
        row_size, count = math.prod(shape[1:]), num_rows(shape)
        step = min(count, max(1, BLOCK_SIZE // row_size))
        memory = torch.frombuffer(mmap.mmap(-1, step * row_size * dtype.itemsize), dtype=dtype)
        for first in range(0, count, step):
            num = min(step, count - first)
            rows = memory[: num * row_size].reshape((num, *shape[1:]) if shape else ())
            self._fill(name, Piece(rows, first, shape))
            yield rows

    def __contains__(self, name: object) -> bool:
        return name in self.holders

    def __iter__(self) -> Iterator[str]:
        return iter(self.holders)

    def __len__(self) -> int:
        return len(self.holders)


def hash_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """Returns one SHA-256 of the names, dtypes, shapes and bytes of all tensors, sorted by name."""
    return hash_named((name, tensors[name]) for name in sorted(tensors))


def hash_named(items: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Computes `hash_tensors` from (name, tensor) pairs that are already sorted by name."""
    return _hash((name, str(value.dtype), tuple(value.shape), [value]) for name, value in items)


def _hash(items: Iterable[tuple[str, str, tuple[int, ...], Iterable[torch.Tensor]]]) -> str:
    digest = hashlib.sha256()
    for name, dtype, shape, parts in items:
        digest.update(json.dumps([name, dtype, list(shape)]).encode() + b"\n")
        for part in parts:
            digest.update(_bytes(part))
    return digest.hexdigest()
