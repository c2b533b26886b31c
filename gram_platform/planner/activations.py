"""What autograd keeps of one micro-batch between forward and backward, and what the loss adds.

Counted from the operations in `model/` and `objectives.py`, tensor by tensor. Tests compare with the storages that
autograd really saves. Kernels that save the scores of attention (torch's math kernel) are not counted: flash and
memory-efficient attention keep queries, keys, values, the output, and a float32 log-sum a head and token.
"""

from collections.abc import Collection
from dataclasses import dataclass

from gram_platform.config import ModelConfig
from gram_platform.planner.weights import CORE_MLP, SHARED, module_set

INDEX_BYTES = 8  # token ids are int64
FLOAT_BYTES = 4
NORM_STATISTICS = 2 * FLOAT_BYTES  # mean and reciprocal deviation of one LayerNorm and token

# Float32 copies of the logits alive at once when the loss's backward peaks, beside the logits themselves. Cross
# entropy: log-softmax, its gradient, and the gradient of its input. MaxEnt adds its own log-softmax (the cross entropy
# is reported and its graph stays) and, as -H(p), the probabilities and three products.
FLOAT_LOGITS = {"cross_entropy": 3, "maxent_kl": 4, "maxent_entropy": 6}


@dataclass(frozen=True)
class Saved:
    """Bytes a token: of each layer's input, of everything that each layer saves, and outside the layers."""

    layer_inputs: tuple[int, ...]
    layers: tuple[int, ...]
    outside: int


def saved_bytes(config: ModelConfig, width: int, active: Collection[str], trained: Collection[str]) -> Saved:
    """`width`: bytes of a value in the forward pass. `trained`: parameter sets, as a route names them."""
    shared, core = SHARED in trained, CORE_MLP in trained and config.d_mlp > 0
    modules_trained = any(module_set(d) in trained for d in active)
    flowing = shared  # whether the gradient of a layer's input is needed
    inputs, layers = [], []
    for _ in range(config.num_layers):
        inputs.append(width * config.d_model)
        layers.append(_attention(config, width, flowing, shared) + _mlps(config, width, flowing, active, trained))
        flowing = flowing or shared or core or modules_trained
    head = (width * config.d_model + NORM_STATISTICS) * flowing + width * config.d_model * shared
    return Saved(tuple(inputs), tuple(layers), head + 2 * INDEX_BYTES)


def _attention(config: ModelConfig, width: int, flowing: bool, shared: bool) -> int:
    """The first norm and attention; queries and rotated keys are one tensor, keys and values are repeated for heads."""
    if not (flowing or shared):
        return 0
    d_model, key_width = config.d_model, config.num_kv_heads * config.head_dim
    normed_input = d_model * shared
    values = d_model + normed_input + (d_model + key_width) + 3 * d_model
    return width * values + NORM_STATISTICS + FLOAT_BYTES * config.num_heads


def _mlps(config: ModelConfig, width: int, flowing: bool, active: Collection[str], trained: Collection[str]) -> int:
    """The second norm, the core MLP with the active LoRAs, and the active modules beside it."""
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
        values += config.d_mlp  # behind it
    values += sum(2 * rank for rank, is_trained in loras if is_trained)
    for module, is_trained in specs:
        if module.kind == "mlp":
            values += module.width * ((is_input_needed or is_trained) + is_trained)
    return width * values + statistics


def logits_bytes(config: ModelConfig, width: int, objective: str) -> int:
    """Bytes a token at the peak of the loss's backward: the logits, and float32 tensors of their size."""
    return config.vocab_size * (width + FLOAT_BYTES * FLOAT_LOGITS[objective])


def evaluation_logits_bytes(config: ModelConfig, width: int) -> int:
    """Bytes a token without gradients: the logits, their float32 copy unless they are float32, and its log-softmax."""
    return config.vocab_size * (width + FLOAT_BYTES + FLOAT_BYTES * (width != FLOAT_BYTES))
