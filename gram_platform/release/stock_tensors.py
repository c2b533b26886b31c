"""Converts between our dense model's tensors and those of StarCoder2 or Llama checkpoints."""

import math
from collections.abc import Iterator, Mapping
from functools import partial

import torch

from gram_platform.config import ModelConfig
from gram_platform.config.identity import invalid
from gram_platform.config.training import merge_config
from gram_platform.model.transformer import parameter_shapes
from gram_platform.release.stock_config import STOCKS
from gram_platform.store.tensors import DiskTensors
from gram_platform.store.views import Weights, merge_layer

# Our qkv_proj stacks their rows in this order.
PROJECTIONS = ("q_proj", "k_proj", "v_proj")
OF_MODEL = {"wte": "model.embed_tokens", "ln_f": "model.norm", "lm_head": "lm_head"}
OF_BLOCK = {
    "ln_1": "input_layernorm",
    "attn.o_proj": "self_attn.o_proj",
    "ln_2": "post_attention_layernorm",
}
# Rotary frequencies in older Llama checkpoints; they follow from theta.
ROTARY = ".rotary_emb.inv_freq"


def of_layer(model: ModelConfig) -> dict[str, str]:
    """Returns {our name: Hugging Face's name} for a layer's submodules, except QKV projections."""
    return OF_BLOCK | {
        f"mlp.{ours}": f"mlp.{theirs}" for ours, theirs in STOCKS[model.architecture].mlp.items()
    }


def foreign_shapes(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a checkpoint's tensors, in the order of `foreign_weights`."""
    assert not model.modules, "a merged model has no modules"
    shapes = parameter_shapes(model).items()
    weights = {name: torch.empty(shape, device="meta") for name, shape in shapes}
    return {name: tuple(made.shape) for name, made in foreign_weights(model, weights, {})}


def foreign_weights(
    config: ModelConfig, weights: Weights, active: Mapping[str, float]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the (name, float32 tensor) pairs of a view's merged checkpoint.

    Holds one merged layer or embedding in memory at a time. `config` and `weights` are from
    `views.open_view`. `active` maps each active module to the factor by which it is scaled.
    """
    yield from _parts(weights, "wte", OF_MODEL["wte"])
    for layer in range(config.num_layers):
        yield from _foreign_layer(config, weights, active, layer)
    for name in ("ln_f", "lm_head"):
        yield from _parts(weights, name, OF_MODEL[name])


def _parts(weights: Weights, ours: str, theirs: str) -> Iterator[tuple[str, torch.Tensor]]:
    for part in ("weight", "bias"):
        if f"{ours}.{part}" in weights:
            yield f"{theirs}.{part}", weights[f"{ours}.{part}"]


def _foreign_layer(
    config: ModelConfig, weights: Weights, active: Mapping[str, float], layer: int
) -> Iterator[tuple[str, torch.Tensor]]:
    ours, theirs = f"blocks.{layer}", f"model.layers.{layer}"
    merged = merge_layer(config, weights, active, ours)
    rows = projection_rows(merge_config(config, active))
    split = merged[f"{ours}.attn.qkv_proj.weight"].split(rows)
    zeros = partial(torch.zeros, device=split[0].device)
    for name, rows in zip(PROJECTIONS, split, strict=True):
        yield f"{theirs}.self_attn.{name}.weight", rows
        if not config.is_llama:
            yield f"{theirs}.self_attn.{name}.bias", zeros(len(rows))
    if not config.is_llama:
        yield f"{theirs}.self_attn.o_proj.bias", zeros(config.d_model)
    for name, foreign in of_layer(config).items():
        held = weights if name.startswith("ln_") else merged
        yield from _parts(held, f"{ours}.{name}", f"{theirs}.{foreign}")


def projection_rows(model: ModelConfig) -> list[int]:
    """Returns how many rows of our qkv_proj the query, key and value each have."""
    return [n * model.head_dim for n in (model.num_heads, model.num_kv_heads, model.num_kv_heads)]


class CheckpointWeights(Mapping):
    """Maps our parameter names to a checkpoint's tensors, loaded in float32 on access.

    If `has_biases` is False, StarCoder2's linear layers get zero biases. Raises ValueError if the
    checkpoint has fewer layers than `model`, or on access to a missing or invalid tensor.
    """

    def __init__(
        self, model: ModelConfig, foreign: DiskTensors, is_tied: bool, has_biases: bool
    ) -> None:
        self._model, self._foreign = model, foreign
        self._is_tied, self._has_biases = is_tied, has_biases
        layers = {name.split(".")[2] for name in foreign if name.startswith("model.layers.")}
        if model.num_layers > len(layers):
            allowed = f"at most {len(layers)}, the layers that the checkpoint's tensors name"
            raise invalid("config.json: num_hidden_layers", model.num_layers, allowed)
        self._shapes = parameter_shapes(model)

    def __contains__(self, name: object) -> bool:
        return name in self._shapes

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def __getitem__(self, name: str) -> torch.Tensor:
        if not name.endswith("qkv_proj.weight"):
            return self._read(self._foreign_name(name), self._shapes[name])
        layer, width = f"model.layers.{name.split('.')[1]}.self_attn", self._model.d_model
        pairs = zip(PROJECTIONS, projection_rows(self._model), strict=True)
        return torch.cat([self._read(f"{layer}.{p}.weight", (n, width)) for p, n in pairs])

    def rows(self, name: str, first: int, stop: int) -> torch.Tensor:
        """Reads rows [first, stop) of an embedding or unembedding."""
        return self._foreign.rows(self._foreign_name(name), first, stop).float()

    def _foreign_name(self, name: str) -> str:
        module, _, part = name.rpartition(".")
        if module == "lm_head" and self._is_tied:
            module = "wte"
        if module in OF_MODEL:
            return f"{OF_MODEL[module]}.{part}"
        _, layer, rest = module.split(".", 2)
        return f"model.layers.{layer}.{of_layer(self._model)[rest]}.{part}"

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
        # `aminmax` propagates NaN and needs no second tensor.
        if not all(map(math.isfinite, tensor.aminmax())):
            raise invalid(name, "NaN or infinity", "finite numbers, in float32 too")
        return tensor

    def require_zero_biases(self) -> None:
        """Raises ValueError if a StarCoder2 attention bias is missing or not zero."""
        for name, shape in foreign_shapes(self._model).items():
            if ".self_attn." in name and name.endswith(".bias"):
                largest = float(self._read(name, shape).abs().max())
                if largest:
                    allowed = "zero, because attention here has no biases"
                    raise invalid(name, f"up to {largest:.3g}", allowed)

    def require_no_others(self) -> None:
        """Raises ValueError if the checkpoint has a tensor that our model lacks."""
        known = foreign_shapes(self._model)
        if not self._has_biases:
            known = {name for name in known if not _is_linear_bias(name)}
        names = (name for name in self._foreign if not name.endswith(ROTARY))
        if strays := sorted(name for name in names if name not in known):
            kind = f"a {STOCKS[self._model.architecture].title} model"
            kind += "" if self._has_biases else " whose use_bias is false"
            raise invalid("tensors", strays[:4], f"those of {kind} and no others")


def _is_linear_bias(name: str) -> bool:
    return name.endswith(".bias") and (".mlp." in name or ".self_attn." in name)
