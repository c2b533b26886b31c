"""Names and orders the tensors of our dense model as Hugging Face's StarCoder2 and Llama do."""

from collections.abc import Iterator, Mapping

import torch

from gram_platform.config import ModelConfig
from gram_platform.config.training import merged_config
from gram_platform.model.merge import Weights, merged_mlp
from gram_platform.model.transformer import parameter_shapes
from gram_platform.release.stock_config import STOCKS

PROJECTIONS = ("q_proj", "k_proj", "v_proj")  # our qkv_proj stacks their rows in this order
OF_MODEL = {"wte": "model.embed_tokens", "ln_f": "model.norm", "lm_head": "lm_head"}
OF_BLOCK = {"ln_1": "input_layernorm", "attn.o_proj": "self_attn.o_proj", "ln_2": "post_attention_layernorm"}


def of_layer(model: ModelConfig) -> dict[str, str]:
    """Returns the names of a layer's modules: ours -> theirs, without queries, keys and values."""
    return OF_BLOCK | {f"mlp.{ours}": f"mlp.{theirs}" for ours, theirs in STOCKS[model.architecture].mlp.items()}


def foreign_shapes(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every tensor of a dense model's checkpoint, in the order of `foreign_weights`."""
    assert not model.modules, "a merged model has no modules"
    native = parameter_shapes(model)
    shapes = {f"{OF_MODEL['wte']}.weight": native["wte.weight"]}
    rows, biases = dict(zip(PROJECTIONS, projection_rows(model), strict=True)), not model.is_llama
    for layer in range(model.num_layers):
        ours, theirs = f"blocks.{layer}", f"model.layers.{layer}"
        for name, count in rows.items():
            shapes[f"{theirs}.self_attn.{name}.weight"] = (count, model.d_model)
            shapes |= {f"{theirs}.self_attn.{name}.bias": (count,)} if biases else {}
        shapes |= {f"{theirs}.self_attn.o_proj.bias": (model.d_model,)} if biases else {}
        for name, foreign in of_layer(model).items():
            shapes |= _parts(native, f"{ours}.{name}", f"{theirs}.{foreign}")
    return shapes | _parts(native, "ln_f", OF_MODEL["ln_f"]) | _parts(native, "lm_head", OF_MODEL["lm_head"])


def _parts(values: Mapping, ours: str, theirs: str) -> dict:
    """Returns the weight and, if there is one, the bias of our module under their name."""
    return {f"{theirs}.{part}": values[f"{ours}.{part}"] for part in ("weight", "bias") if f"{ours}.{part}" in values}


def foreign_weights(
    config: ModelConfig, weights: Weights, active: Mapping[str, float]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields (name, float32 tensor) of a view's checkpoint, merged layer by layer; holds one layer or embedding.

    `config` and `weights` are the view's (`views.open_view`), `active` its modules with their weights.
    """
    modules = {theirs: ours for ours, theirs in OF_MODEL.items()}
    tensors: dict[str, torch.Tensor] = {}
    for name in foreign_shapes(merged_config(config, active)):
        module, _, part = name.rpartition(".")
        if module in modules:
            yield name, weights[f"{modules[module]}.{part}"]
            continue
        tensors = tensors or _foreign_layer(config, weights, active, int(name.split(".")[2]))
        yield name, tensors.pop(name)
    assert not tensors, f"tensors without a place: {sorted(tensors)}"


def _foreign_layer(config: ModelConfig, weights: Weights, active: Mapping[str, float], layer: int) -> dict:
    ours, theirs = f"blocks.{layer}", f"model.layers.{layer}"
    merged = merged_mlp(config, weights, active, ours)
    split = weights[f"{ours}.attn.qkv_proj.weight"].split(projection_rows(config))
    tensors = {}
    for name, rows in zip(PROJECTIONS, split, strict=True):
        tensors[f"{theirs}.self_attn.{name}.weight"] = rows
    if not config.is_llama:
        sizes = dict(zip((*PROJECTIONS, "o_proj"), (*projection_rows(config), config.d_model), strict=True))
        tensors |= {f"{theirs}.self_attn.{name}.bias": torch.zeros(size) for name, size in sizes.items()}
    for name, foreign in of_layer(config).items():
        held = merged if name.startswith("mlp.") else weights
        tensors |= _parts(held, f"{ours}.{name}", f"{theirs}.{foreign}")
    return tensors


def projection_rows(model: ModelConfig) -> list[int]:
    """Returns the numbers of rows of the three projections in our qkv_proj."""
    return [n * model.head_dim for n in (model.num_heads, model.num_kv_heads, model.num_kv_heads)]
