"""Hugging Face's StarCoder2: how it spells our dense model, both ways. Its block is ours with attention biases of zero.

Source: `transformers/models/starcoder2` (5.23; older releases read `rope_theta` in place of `rope_parameters`).
"""

from collections.abc import Iterator, Mapping

import torch

from gram_platform.checkpoint import DiskTensors
from gram_platform.config import ModelConfig
from gram_platform.identity import invalid
from gram_platform.model.merge import merged_config, merged_mlp
from gram_platform.model.transformer import Transformer

Weights = Mapping[str, torch.Tensor]
ACTIVATION = "gelu_pytorch_tanh"
PROJECTIONS = ("q_proj", "k_proj", "v_proj")  # their rows, in this order, are our qkv_proj's
OF_MODEL = {"wte": "model.embed_tokens", "ln_f": "model.norm", "lm_head": "lm_head"}
OF_LAYER = {
    "ln_1": "input_layernorm",
    "attn.o_proj": "self_attn.o_proj",
    "ln_2": "post_attention_layernorm",
    "mlp.c_fc": "mlp.c_fc",
    "mlp.c_proj": "mlp.c_proj",
}
# what a config.json that leaves a field out means: Starcoder2Config writes only what differs from these
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
    "tie_word_embeddings": True,
}
DEFAULT_THETA = 10_000.0

# ------------------------------------------------------------------------------------------------------- out


def foreign_config(model: ModelConfig, dtype: torch.dtype, end_of_text: int | None) -> dict:
    """config.json of a dense model. `end_of_text`: the token that separates documents, None without a tokenizer."""
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
    """The shape of every tensor of a dense model's checkpoint, in the order of `foreign_weights`."""
    assert not model.modules, "a merged model has no modules"
    own = dense_shapes(model)
    shapes = {f"{OF_MODEL['wte']}.weight": own["wte.weight"]}
    rows = dict(zip(PROJECTIONS, _projection_rows(model), strict=True))
    for layer in range(model.num_layers):
        ours, theirs = f"blocks.{layer}", f"model.layers.{layer}"
        for name, count in rows.items():
            shapes[f"{theirs}.self_attn.{name}.weight"] = (count, model.d_model)
            shapes[f"{theirs}.self_attn.{name}.bias"] = (count,)
        shapes[f"{theirs}.self_attn.o_proj.bias"] = (model.d_model,)
        for name, foreign in OF_LAYER.items():
            found = {p: own[f"{ours}.{name}.{p}"] for p in ("weight", "bias") if f"{ours}.{name}.{p}" in own}
            shapes |= {f"{theirs}.{foreign}.{part}": shape for part, shape in found.items()}
    shapes |= {f"{OF_MODEL['ln_f']}.{part}": own[f"ln_f.{part}"] for part in ("weight", "bias")}
    return shapes | {f"{OF_MODEL['lm_head']}.weight": own["lm_head.weight"]}


def foreign_weights(
    config: ModelConfig, weights: Weights, active: Mapping[str, float]
) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, float32 tensor) of a view's checkpoint, merged layer by layer: one layer or embedding is held at a time.

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
    split = weights[f"{ours}.attn.qkv_proj.weight"].split(_projection_rows(config))
    tensors = {f"{theirs}.self_attn.o_proj.bias": torch.zeros(config.d_model)}
    for name, rows in zip(PROJECTIONS, split, strict=True):
        tensors[f"{theirs}.self_attn.{name}.weight"] = rows
        tensors[f"{theirs}.self_attn.{name}.bias"] = torch.zeros(len(rows))
    for name, foreign in OF_LAYER.items():
        for part, full in ((part, f"{ours}.{name}.{part}") for part in ("weight", "bias")):
            if full in merged or full in weights:
                tensors[f"{theirs}.{foreign}.{part}"] = merged[full] if full in merged else weights[full]
    return tensors


def _projection_rows(model: ModelConfig) -> list[int]:
    """Rows of the three projections in our qkv_proj."""
    return [n * model.head_dim for n in (model.num_heads, model.num_kv_heads, model.num_kv_heads)]


# -------------------------------------------------------------------------------------------------------- in


def dense_shapes(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter of our own model, by name."""
    with torch.device("meta"):
        return {name: tuple(value.shape) for name, value in Transformer(model).named_parameters()}


def own_config(plain: Mapping, seq_len: int | None = None) -> ModelConfig:
    """The shape that a config.json describes. ValueError for what is not our model.

    `seq_len`: of the sequences that it shall be trained on, by default all its positions.
    """
    if plain.get("model_type") != "starcoder2":
        raise invalid("config.json: model_type", plain.get("model_type"), "starcoder2")
    fields = {**DEFAULTS, **plain}
    if fields["hidden_act"] != ACTIVATION:
        raise invalid("config.json: hidden_act", fields["hidden_act"], ACTIVATION)
    head_dim = fields.get("head_dim") or fields["hidden_size"] // fields["num_attention_heads"]
    if head_dim * fields["num_attention_heads"] != fields["hidden_size"]:
        raise invalid("config.json: head_dim", head_dim, "hidden_size / num_attention_heads")
    longest = min(fields["max_position_embeddings"], fields["sliding_window"] or fields["max_position_embeddings"])
    if not 1 <= (seq_len or longest) <= longest:
        raise invalid("seq_len", seq_len, f"1 to {longest}, what every token of the model sees")
    return ModelConfig(
        num_layers=fields["num_hidden_layers"],
        d_model=fields["hidden_size"],
        num_heads=fields["num_attention_heads"],
        num_kv_heads=fields["num_key_value_heads"],
        d_mlp=fields["intermediate_size"],
        vocab_size=fields["vocab_size"],
        seq_len=seq_len or longest,
        rope_theta=_theta(fields),
        norm_eps=fields["norm_epsilon"],
        init_std=fields.get("initializer_range", ModelConfig.init_std),
    )


def _theta(fields: Mapping) -> float:
    rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise invalid("config.json: rope_type", kind, "default: positions that are not scaled")
    return float(rope.get("rope_theta", fields.get("rope_theta", DEFAULT_THETA)))


class OwnWeights(Mapping):
    """A StarCoder2 checkpoint's tensors as float32 under our names, each made when it is asked for.

    A tied unembedding is the embedding; biases that the checkpoint lacks are zero. ValueError for a tensor that is
    missing, has another shape, or is an attention bias other than zero.
    """

    def __init__(self, model: ModelConfig, foreign: DiskTensors, is_tied: bool) -> None:
        self._model, self._foreign, self._is_tied = model, foreign, is_tied
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
            rows = _projection_rows(self._model)
            pairs = zip(PROJECTIONS, rows, strict=True)
            return torch.cat([self._read(f"{layer}.{p}.weight", (n, self._model.d_model)) for p, n in pairs])
        return self._read(self._foreign_name(name), shape)

    def rows(self, name: str, first: int, stop: int) -> torch.Tensor:
        """The rows [first, stop) of an embedding or unembedding."""
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
            if name.endswith(("mlp.c_fc.bias", "mlp.c_proj.bias")):  # use_bias=False
                return torch.zeros(shape)
            raise invalid(name, "nothing", f"a tensor of shape {shape}")
        tensor = self._foreign[name]
        if tuple(tensor.shape) != shape or not tensor.is_floating_point():
            found = f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
            raise invalid(name, found, f"{shape} of a floating type, by config.json")
        return tensor.float()

    def require_zero_biases(self) -> None:
        """ValueError for an attention bias that is not zero: our attention has none."""
        for layer in range(self._model.num_layers):
            for projection in (*PROJECTIONS, "o_proj"):
                name = f"model.layers.{layer}.self_attn.{projection}.bias"
                largest = float(self._foreign[name].abs().max()) if name in self._foreign else 0.0
                if largest:
                    text = f"zero: attention here has no biases, and that of layer {layer} {projection} is not zero"
                    raise invalid(name, f"up to {largest:.3g}", text)

    def require_no_others(self) -> None:
        """ValueError for tensors that our model has no place for: they would be lost."""
        known = set(foreign_shapes(self._model))
        if strays := sorted(set(self._foreign) - known):
            raise invalid("tensors", strays[:4], "those of a StarCoder2 model and no others")
