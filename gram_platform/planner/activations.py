"""Counts the bytes that autograd saves of one micro-batch for the backward pass, and those that the loss adds.

Counts tensor by tensor from the operations in `model/` and `train/objectives.py`; tests compare with the storages that
autograd saves. Assumes attention kernels that save queries, keys, values, the output, and a float32 log-sum for each
head and token, but not the scores (torch's math kernel saves them).
"""

from collections.abc import Collection
from dataclasses import dataclass

from gram_platform.config import ModelConfig
from gram_platform.config.routing import CORE_MLP, SHARED, module_set

LOGITS_AT_ONCE = 2**26  # logits that a GPU has in float32 at a time (`train/objectives.py`)
INDEX_BYTES = 8  # token ids are int64
FLOAT_BYTES = 4
NORM_STATISTICS = 2 * FLOAT_BYTES  # mean and reciprocal deviation of a LayerNorm, for each token

# Float32 tensors of the logits' size at the peak of MaxEnt's backward pass: the log-softmax, its gradient, and the
# gradient of its input; for -H(p) also the probabilities and a product.
FLOAT_LOGITS = {"maxent_kl": 3, "maxent_entropy": 5}


@dataclass(frozen=True)
class Saved:
    """Bytes saved for each token: each layer's input, all that each layer saves, and all outside the layers."""

    layer_inputs: tuple[int, ...]
    layers: tuple[int, ...]
    outside: int


def saved_bytes(config: ModelConfig, width: int, active: Collection[str], trained: Collection[str]) -> Saved:
    """Counts saved bytes. `width`: bytes of a value in the forward pass; `trained`: a route's parameter sets."""
    shared, core = SHARED in trained, CORE_MLP in trained and config.d_mlp > 0
    modules_trained = any(module_set(d) in trained for d in active)
    flowing = shared  # the layer's input needs a gradient
    inputs, layers = [], []
    for _ in range(config.num_layers):
        inputs.append(width * config.d_model)
        layers.append(_attention(config, width, flowing, shared) + _mlps(config, width, flowing, active, trained))
        flowing = flowing or shared or core or modules_trained
    head = (width * config.d_model + NORM_STATISTICS) * flowing + width * config.d_model * shared
    return Saved(tuple(inputs), tuple(layers), head + INDEX_BYTES)


def _attention(config: ModelConfig, width: int, flowing: bool, shared: bool) -> int:
    """Counts the first norm and attention; rotated queries and keys are one tensor.

    Values are a view of the projection's output, kept whole; float32 kernels repeat keys and values for every head.
    """
    if not (flowing or shared):
        return 0
    d_model, key_width = config.d_model, config.num_kv_heads * config.head_dim
    normed_input = d_model * shared
    is_repeated = width == FLOAT_BYTES and config.num_kv_heads < config.num_heads
    keys_and_values = 2 * d_model if is_repeated else d_model + 2 * key_width
    values = d_model + normed_input + (d_model + key_width) + keys_and_values + d_model
    return width * values + NORM_STATISTICS + FLOAT_BYTES * config.num_heads


def _mlps(config: ModelConfig, width: int, flowing: bool, active: Collection[str], trained: Collection[str]) -> int:
    """Counts the second norm, the core MLP with the active LoRAs, and the active MLP modules."""
    core = CORE_MLP in trained and config.d_mlp > 0
    specs = [(m, module_set(m.domain) in trained) for m in config.modules if m.domain in active]
    loras = [(m.width, is_trained) for m, is_trained in specs if m.kind == "lora"]
    is_input_needed = flowing or SHARED in trained
    values, statistics = 0, 0
    if is_input_needed:
        values, statistics = config.d_model, NORM_STATISTICS
    if core or any(is_trained for _, is_trained in specs):
        values += config.d_model  # the normalised input, one tensor for all
    lora_trained = any(is_trained for _, is_trained in loras)
    if is_input_needed or core or lora_trained:
        values += config.d_mlp  # before the activation
    if core or lora_trained:
        values += config.d_mlp  # after the activation
    values += sum(2 * rank for rank, is_trained in loras if is_trained)
    for module, is_trained in specs:
        if module.kind == "mlp":
            values += module.width * ((is_input_needed or is_trained) + is_trained)
    return width * values + statistics


def logits_bytes(config: ModelConfig, width: int, objective: str, num_tokens: int) -> int:
    """Counts bytes at the loss's peak: the logits, the gradient of their cross entropy, and float32 tensors.

    Cross entropy has float32 tensors of some tokens at a time, none of float32 logits; MaxEnt has FLOAT_LOGITS of all.
    """
    values = num_tokens * config.vocab_size
    part = _float_values(values, width) if width != FLOAT_BYTES else 0
    floats = values * FLOAT_LOGITS[objective] if objective in FLOAT_LOGITS else part
    return 2 * width * values + FLOAT_BYTES * floats


def evaluation_logits_bytes(config: ModelConfig, width: int, num_tokens: int) -> int:
    """Counts bytes of a loss without gradients: the logits, and float32 tensors of some tokens at a time."""
    values = num_tokens * config.vocab_size
    return width * values + FLOAT_BYTES * _float_values(values, width)


def _float_values(num_values: int, width: int) -> int:
    """Counts float32 values at a time: the log-softmax, and the logits unless they are float32 already."""
    return min(num_values, LOGITS_AT_ONCE) * (1 + (width != FLOAT_BYTES))
