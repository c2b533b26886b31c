"""Converts between the config of a dense model and Hugging Face's config.json.

Source: `transformers/models/starcoder2` and `llama` in version 5.23. Older versions read
`rope_theta` instead of `rope_parameters`, so exports have both.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from gram_platform.config import ModelConfig
from gram_platform.config.identity import invalid, require_choice, require_int, require_real
from gram_platform.config.training import LLAMA, STARCODER2


@dataclass(frozen=True)
class Stock:
    """A Hugging Face architecture that `ModelConfig.architecture` can select."""

    title: str
    model_class: str
    # The field with the norms' epsilon.
    norm_eps: str
    # Hugging Face's names of the MLP projections, by our names.
    mlp: Mapping[str, str]
    # Further fields of an export's config.json.
    written: Mapping[str, object]
    # Defaults for fields that a config.json omits.
    defaults: Mapping[str, object]
    # Fields for which our models support only this value.
    only: Mapping[str, object] = field(default_factory=dict)


STOCKS = {
    STARCODER2: Stock(
        title="StarCoder2",
        model_class="Starcoder2ForCausalLM",
        norm_eps="norm_epsilon",
        mlp={"c_fc": "c_fc", "c_proj": "c_proj"},
        written={
            "sliding_window": None,
            "residual_dropout": 0.0,
            "embedding_dropout": 0.0,
            "use_bias": True,
        },
        defaults={
            "vocab_size": 49_152,
            "hidden_size": 3072,
            "intermediate_size": 12_288,
            "num_hidden_layers": 30,
            "num_attention_heads": 24,
            "num_key_value_heads": 2,
            "hidden_act": "gelu_pytorch_tanh",
            "max_position_embeddings": 4096,
            "norm_epsilon": 1e-5,
            "use_bias": True,
            "tie_word_embeddings": True,
        },
    ),
    LLAMA: Stock(
        title="Llama",
        model_class="LlamaForCausalLM",
        norm_eps="rms_norm_eps",
        mlp={"c_gate": "gate_proj", "c_fc": "up_proj", "c_proj": "down_proj"},
        written={"attention_bias": False, "mlp_bias": False},
        defaults={
            "vocab_size": 32_000,
            "hidden_size": 4096,
            "intermediate_size": 11_008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            # None stands for the number of query heads.
            "num_key_value_heads": None,
            "hidden_act": "silu",
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-6,
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
        },
        only={"attention_bias": False, "mlp_bias": False},
    ),
}
DEFAULT_THETA = 10_000.0
DIMENSIONS = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
DIMENSIONS += ("num_attention_heads", "num_key_value_heads", "max_position_embeddings")
SIZES_OR_NULL = ("head_dim", "sliding_window")
# The largest size for which torch can count the elements of a matrix.
MAX_SIZE = 2**28


def foreign_config(model: ModelConfig, dtype: torch.dtype, end_of_text: int | None) -> dict:
    """Builds a dense model's config.json. `end_of_text` is the end-of-text token's id, or None."""
    stock = STOCKS[model.architecture]
    head_dim = {"head_dim": model.head_dim} if model.head_width else {}
    return {
        "architectures": [stock.model_class],
        "model_type": model.architecture,
        "vocab_size": model.vocab_size,
        "hidden_size": model.d_model,
        "intermediate_size": model.d_mlp,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "hidden_act": stock.defaults["hidden_act"],
        "max_position_embeddings": model.seq_len,
        "initializer_range": model.init_std,
        stock.norm_eps: model.norm_eps,
        "rope_theta": model.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "use_cache": True,
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "torch_dtype": str(dtype).removeprefix("torch."),
        **stock.written,
        **head_dim,
    }


def native_config(plain: Mapping, seq_len: int | None = None) -> ModelConfig:
    """Builds our ModelConfig from a config.json. Raises ValueError for an unsupported model.

    `seq_len` is the sequence length of later training (default: the model's maximum).
    """
    fields = check_fields(plain)
    positions = fields["max_position_embeddings"]
    longest = min(positions, fields.get("sliding_window") or positions)
    seq_len = longest if seq_len is None else seq_len
    if not 1 <= seq_len <= longest:
        raise invalid("seq_len", seq_len, f"1 to {longest}, the tokens that the model attends to")
    return ModelConfig(
        num_layers=fields["num_hidden_layers"],
        d_model=fields["hidden_size"],
        num_heads=fields["num_attention_heads"],
        num_kv_heads=fields["num_key_value_heads"],
        d_mlp=fields["intermediate_size"],
        vocab_size=fields["vocab_size"],
        seq_len=seq_len,
        rope_theta=_theta(fields),
        norm_eps=fields[STOCKS[fields["model_type"]].norm_eps],
        init_std=fields["initializer_range"],
        architecture=fields["model_type"],
        head_width=fields.get("head_dim") or 0,
    )


def check_fields(plain: Mapping) -> dict:
    """Adds defaults to a config.json's fields. Raises ValueError if a field is invalid."""
    require_choice("config.json: model_type", plain.get("model_type"), tuple(STOCKS))
    stock = STOCKS[plain["model_type"]]
    fields = {**stock.defaults, "initializer_range": ModelConfig.init_std, **plain}
    if fields["hidden_act"] != stock.defaults["hidden_act"]:
        raise invalid("config.json: hidden_act", fields["hidden_act"], stock.defaults["hidden_act"])
    if fields["num_key_value_heads"] is stock.defaults["num_key_value_heads"] is None:
        fields["num_key_value_heads"] = fields["num_attention_heads"]
    for name in (*DIMENSIONS, *(name for name in SIZES_OR_NULL if fields.get(name) is not None)):
        require_int(f"config.json: {name}", fields[name], 1, MAX_SIZE)
    for name in (stock.norm_eps, "initializer_range"):
        require_real(f"config.json: {name}", fields[name], 0.0, open_low=True)
    for name in (name for name, value in stock.defaults.items() if isinstance(value, bool)):
        if not isinstance(fields[name], bool):
            raise invalid(f"config.json: {name}", fields[name], "true or false")
    for name, value in stock.only.items():
        if fields[name] != value:
            allowed = f"{value}, as in a {stock.title} model without biases"
            raise invalid(f"config.json: {name}", fields[name], allowed)
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
