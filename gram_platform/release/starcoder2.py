"""Converts our dense model to Hugging Face's StarCoder2 and back. Its block is ours with attention biases of zero.

Source: `transformers/models/starcoder2` (5.23; older releases read `rope_theta` in place of `rope_parameters`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from gram_platform.config import ModelConfig
from gram_platform.config.identity import invalid, require_int, require_real
from gram_platform.config.training import merged_config
from gram_platform.model.transformer import Transformer, merged_mlp

Weights = Mapping[str, torch.Tensor]
ACTIVATION = "gelu_pytorch_tanh"
PROJECTIONS = ("q_proj", "k_proj", "v_proj")  # our qkv_proj stacks their rows in this order
OF_MODEL = {"wte": "model.embed_tokens", "ln_f": "model.norm", "lm_head": "lm_head"}
OF_LAYER = {
    "ln_1": "input_layernorm",
    "attn.o_proj": "self_attn.o_proj",
    "ln_2": "post_attention_layernorm",
    "mlp.c_fc": "mlp.c_fc",
    "mlp.c_proj": "mlp.c_proj",
}
# Starcoder2Config's defaults: it writes only the fields that differ from them
DEFAULTS = {
    "vocab_size": 49_152,
    "hidden_size": 3072,
    "intermediate_size": 12_288,
    "num_hidden_layers": 30,
    "num_attention_heads": 24,
    "num_key_value_heads": 2,
    "hidden_act": ACTIVATION,
    "max_position_embeddings": 4096,
    "norm_epsilon": 1e-5,
    "sliding_window": None,
    "use_bias": True,
    "tie_word_embeddings": True,
}
DEFAULT_THETA = 10_000.0
SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
SIZES += ("num_key_value_heads", "max_position_embeddings")
SIZES_OR_NULL = ("head_dim", "sliding_window")
MAX_SIZE = 2**28  # of each: the elements of a matrix stay far below what torch can count

# ---------------------------------------------------------------------------------------------------- export


def foreign_config(model: ModelConfig, dtype: torch.dtype, end_of_text: int | None) -> dict:
    """Builds config.json of a dense model. `end_of_text`: id of the document separator, None without a tokenizer."""
    return {
        "architectures": ["Starcoder2ForCausalLM"],
        "model_type": "starcoder2",
        "vocab_size": model.vocab_size,
        "hidden_size": model.d_model,
        "intermediate_size": model.d_mlp,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "hidden_act": ACTIVATION,
        "max_position_embeddings": model.seq_len,
        "initializer_range": model.init_std,
        "norm_epsilon": model.norm_eps,
        "rope_theta": model.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},
        "sliding_window": None,
        "attention_dropout": 0.0,
        "residual_dropout": 0.0,
        "embedding_dropout": 0.0,
        "use_bias": True,
        "tie_word_embeddings": False,
        "use_cache": True,
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }


def foreign_shapes(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every tensor of a dense model's checkpoint, in the order of `foreign_weights`."""
    assert not model.modules, "a merged model has no modules"
    native = dense_shapes(model)
    shapes = {f"{OF_MODEL['wte']}.weight": native["wte.weight"]}
    rows = dict(zip(PROJECTIONS, projection_rows(model), strict=True))
    for layer in range(model.num_layers):
        ours, theirs = f"blocks.{layer}", f"model.layers.{layer}"
        for name, count in rows.items():
            shapes[f"{theirs}.self_attn.{name}.weight"] = (count, model.d_model)
            shapes[f"{theirs}.self_attn.{name}.bias"] = (count,)
        shapes[f"{theirs}.self_attn.o_proj.bias"] = (model.d_model,)
        for name, foreign in OF_LAYER.items():
            found = {p: native[f"{ours}.{name}.{p}"] for p in ("weight", "bias") if f"{ours}.{name}.{p}" in native}
            shapes |= {f"{theirs}.{foreign}.{part}": shape for part, shape in found.items()}
    shapes |= {f"{OF_MODEL['ln_f']}.{part}": native[f"ln_f.{part}"] for part in ("weight", "bias")}
    return shapes | {f"{OF_MODEL['lm_head']}.weight": native["lm_head.weight"]}


def foreign_weights(
    config: ModelConfig, weights: Weights, active: Mapping[str, float]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields (name, float32 tensor) of a view's checkpoint, merged layer by layer; holds one layer or embedding.

    `config` and `weights` are the view's (`views.open_view`), `active` its modules with their weights.
    """
    order = list(foreign_shapes(merged_config(config, active)))
    yield order[0], weights["wte.weight"]
    per_layer = (len(order) - 4) // config.num_layers
    for layer in range(config.num_layers):
        tensors = _foreign_layer(config, weights, active, layer)
        names = order[1 + layer * per_layer : 1 + (layer + 1) * per_layer]
        yield from ((name, tensors.pop(name)) for name in names)
        assert not tensors, f"tensors without a place: {sorted(tensors)}"
    yield order[-3], weights["ln_f.weight"]
    yield order[-2], weights["ln_f.bias"]
    yield order[-1], weights["lm_head.weight"]


def _foreign_layer(config: ModelConfig, weights: Weights, active: Mapping[str, float], layer: int) -> dict:
    ours, theirs = f"blocks.{layer}", f"model.layers.{layer}"
    merged = merged_mlp(config, weights, active, ours)
    split = weights[f"{ours}.attn.qkv_proj.weight"].split(projection_rows(config))
    tensors = {f"{theirs}.self_attn.o_proj.bias": torch.zeros(config.d_model)}
    for name, rows in zip(PROJECTIONS, split, strict=True):
        tensors[f"{theirs}.self_attn.{name}.weight"] = rows
        tensors[f"{theirs}.self_attn.{name}.bias"] = torch.zeros(len(rows))
    for name, foreign in OF_LAYER.items():
        for part, full in ((part, f"{ours}.{name}.{part}") for part in ("weight", "bias")):
            if full in merged or full in weights:
                tensors[f"{theirs}.{foreign}.{part}"] = merged[full] if full in merged else weights[full]
    return tensors


def projection_rows(model: ModelConfig) -> list[int]:
    """Returns the numbers of rows of the three projections in our qkv_proj."""
    return [n * model.head_dim for n in (model.num_heads, model.num_kv_heads, model.num_kv_heads)]


# ---------------------------------------------------------------------------------------------------- import


def dense_shapes(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every parameter of our model, by name; builds one block, since all are alike."""
    with torch.device("meta"):
        parameters = dict(Transformer(replace(model, num_layers=1)).named_parameters())
    first = "blocks.0."
    block = {n.removeprefix(first): tuple(p.shape) for n, p in parameters.items() if n.startswith(first)}
    others = {name: tuple(p.shape) for name, p in parameters.items() if not name.startswith(first)}
    layers = range(model.num_layers)
    return others | {f"blocks.{layer}.{name}": shape for layer in layers for name, shape in block.items()}


def native_config(plain: Mapping, seq_len: int | None = None) -> ModelConfig:
    """Builds our ModelConfig from a config.json. ValueError for a model that is not ours.

    `seq_len`: sequence length of later training, by default all positions.
    """
    fields = checked_fields(plain)
    head_dim = fields.get("head_dim") or fields["hidden_size"] // fields["num_attention_heads"]
    if head_dim * fields["num_attention_heads"] != fields["hidden_size"]:
        raise invalid("config.json: head_dim", head_dim, "hidden_size / num_attention_heads")
    longest = min(fields["max_position_embeddings"], fields["sliding_window"] or fields["max_position_embeddings"])
    wanted = longest if seq_len is None else seq_len
    if not 1 <= wanted <= longest:
        raise invalid("seq_len", seq_len, f"1 to {longest}, the tokens that the model attends to")
    return ModelConfig(
        num_layers=fields["num_hidden_layers"],
        d_model=fields["hidden_size"],
        num_heads=fields["num_attention_heads"],
        num_kv_heads=fields["num_key_value_heads"],
        d_mlp=fields["intermediate_size"],
        vocab_size=fields["vocab_size"],
        seq_len=wanted,
        rope_theta=_theta(fields),
        norm_eps=fields["norm_epsilon"],
        init_std=fields["initializer_range"],
    )


def checked_fields(plain: Mapping) -> dict:
    """Fills a config.json's absent fields with defaults. ValueError for a wrong type, such as 64.0 for 64."""
    fields = {**DEFAULTS, "initializer_range": ModelConfig.init_std, **plain}
    for name, allowed in (("model_type", "starcoder2"), ("hidden_act", ACTIVATION)):
        if fields.get(name) != allowed:
            raise invalid(f"config.json: {name}", fields.get(name), allowed)
    for name in (*SIZES, *(name for name in SIZES_OR_NULL if fields.get(name) is not None)):
        require_int(f"config.json: {name}", fields[name], 1, MAX_SIZE)
    for name in ("norm_epsilon", "initializer_range"):
        require_real(f"config.json: {name}", fields[name], 0.0, open_low=True)
    for name in ("use_bias", "tie_word_embeddings"):
        if not isinstance(fields[name], bool):
            raise invalid(f"config.json: {name}", fields[name], "true or false")
    return fields


def _theta(fields: Mapping) -> float:
    for name in ("rope_parameters", "rope_scaling"):
        if not isinstance(fields.get(name), Mapping | None):
            raise invalid(f"config.json: {name}", fields[name], "a JSON object or null")
    rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise invalid("config.json: rope_type", kind, "default: positions that are not scaled")
    theta = rope.get("rope_theta", fields.get("rope_theta", DEFAULT_THETA))
    require_real("config.json: rope_theta", theta, 0.0, open_low=True)
    return float(theta)
