"""Reads the tensors of a StarCoder2 checkpoint as weights of our dense model."""

import math
from collections.abc import Iterator, Mapping

import torch

from gram_platform.config import ModelConfig
from gram_platform.config.identity import invalid
from gram_platform.release.starcoder2 import (
    OF_LAYER,
    OF_MODEL,
    PROJECTIONS,
    dense_shapes,
    foreign_shapes,
    projection_rows,
)
from gram_platform.store.tensors import DiskTensors


class CheckpointWeights(Mapping):
    """Maps our parameter names to a StarCoder2 checkpoint's tensors in float32, each read on access.

    A tied unembedding is the embedding. Linear layers without biases (`has_biases` False) get zeros. ValueError for a
    tensor that is missing, has another shape, or holds NaN or infinity, and for more layers than the checkpoint has.
    """

    def __init__(self, model: ModelConfig, foreign: DiskTensors, is_tied: bool, has_biases: bool) -> None:
        self._model, self._foreign, self._is_tied, self._has_biases = model, foreign, is_tied, has_biases
        layers = {name.split(".")[2] for name in foreign if name.startswith("model.layers.")}
        if model.num_layers > len(layers):
            allowed = f"at most {len(layers)}, the layers that the checkpoint's tensors name"
            raise invalid("config.json: num_hidden_layers", model.num_layers, allowed)
        self._shapes = dense_shapes(model)

    def __contains__(self, name: object) -> bool:
        return name in self._shapes

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def __getitem__(self, name: str) -> torch.Tensor:
        shape = self._shapes[name]
        if name.endswith("qkv_proj.weight"):
            layer = f"model.layers.{name.split('.')[1]}.self_attn"
            rows = projection_rows(self._model)
            pairs = zip(PROJECTIONS, rows, strict=True)
            return torch.cat([self._read(f"{layer}.{p}.weight", (n, self._model.d_model)) for p, n in pairs])
        return self._read(self._foreign_name(name), shape)

    def rows(self, name: str, first: int, stop: int) -> torch.Tensor:
        """Reads the rows [first, stop) of an embedding or unembedding."""
        return self._foreign.rows(self._foreign_name(name), first, stop).float()

    def _foreign_name(self, name: str) -> str:
        module, _, part = name.rpartition(".")
        if module == "lm_head" and self._is_tied:
            module = "wte"
        if module in OF_MODEL:
            return f"{OF_MODEL[module]}.{part}"
        _, layer, rest = module.split(".", 2)
        return f"model.layers.{layer}.{OF_LAYER[rest]}.{part}"

    def _read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if name not in self._foreign:
            if not self._has_biases and _is_linear_bias(name):
                return torch.zeros(shape)
            raise invalid(name, "nothing", f"a tensor of shape {shape}")
        tensor = self._foreign[name]
        if tuple(tensor.shape) != shape or not tensor.is_floating_point():
            found = f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
            raise invalid(name, found, f"{shape} of a floating type, as config.json says")
        tensor = tensor.float()
        if not all(
            map(math.isfinite, tensor.aminmax())
        ):  # the minimum is NaN if any element is; no tensor-sized temporary
            raise invalid(name, "NaN or infinity", "finite numbers, in float32 too")
        return tensor

    def require_zero_biases(self) -> None:
        """ValueError for an attention bias that is missing or not zero: ours has none."""
        shapes = foreign_shapes(self._model)
        for layer in range(self._model.num_layers):
            for projection in (*PROJECTIONS, "o_proj"):
                name = f"model.layers.{layer}.self_attn.{projection}.bias"
                largest = float(self._read(name, shapes[name]).abs().max())
                if largest:
                    raise invalid(name, f"up to {largest:.3g}", "zero, because attention here has no biases")

    def require_no_others(self) -> None:
        """ValueError for tensors without a place in our model: they would be lost."""
        known = {name for name in foreign_shapes(self._model) if self._has_biases or not _is_linear_bias(name)}
        if strays := sorted(set(self._foreign) - known):
            kind = "a StarCoder2 model" if self._has_biases else "a StarCoder2 model whose use_bias is false"
            raise invalid("tensors", strays[:4], f"those of {kind} and no others")


def _is_linear_bias(name: str) -> bool:
    """Tells whether `use_bias` covers this tensor of a checkpoint; norms always have biases."""
    return name.endswith(".bias") and (".mlp." in name or ".self_attn." in name)
