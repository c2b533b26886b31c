"""Tensors on disk: a safetensors file of a flat dict, and the hash that identifies a set of weights. No pickle."""

import hashlib
import json
import os
from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file


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


def hash_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over the names in sorted order, each with its dtype, shape and raw bytes."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode() + b"\n")
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _owned(tensor: torch.Tensor) -> torch.Tensor:
    """safetensors refuses tensors that share memory: a slice of a larger buffer becomes a copy."""
    tensor = tensor.detach().cpu().contiguous()
    is_slice = tensor.untyped_storage().nbytes() != tensor.nbytes
    return tensor.clone() if is_slice else tensor
