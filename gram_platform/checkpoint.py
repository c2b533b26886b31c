"""Tensors on disk: a safetensors file of a flat dict, and the hash that identifies a set of weights. No pickle."""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from gram_platform.train.pieces import Piece, num_rows


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
