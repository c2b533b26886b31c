"""Counts a config's parameters, and its compute in two units.

- `compute_units` are tokens x active parameters. The paper uses them for budgets and lambda
  (`app:equal-compute`).
- `hardware_flops` are for utilisation. Each multiply-add of a step counts as two. Includes
  attention. Excludes weight gradients of frozen parameters and unneeded input gradients. Equals
  the count of torch's FlopCounterMode with the math attention kernel. (The counter ignores the
  fused CPU kernel.)
"""

from collections.abc import Collection

from gram_platform.config import ModelConfig, RoutingConfig
from gram_platform.config.identity import sum_in_order
from gram_platform.config.training import LLAMA, RESERVED_UNITS

GIB = 2**30
BYTES = {"float32": 4, "bfloat16": 2}


def mlp_parameters(architecture: str, d_model: int, width: int) -> int:
    """Counts an MLP's parameters. A Llama's has three matrices. Others have two, with biases."""
    if architecture == LLAMA:
        return 3 * d_model * width
    return 2 * d_model * width + width + d_model


def attention_parameters(config: ModelConfig, num_heads: int, num_kv_heads: int) -> int:
    return 2 * config.d_model * config.head_dim * (num_heads + num_kv_heads)


def module_parameters(config: ModelConfig, domain: str) -> int:
    module = next(m for m in config.modules if m.domain == domain)
    if module.kind == "lora":
        # Each projection has two low-rank factors.
        num_projections = 3 if config.is_llama else 2
        return config.num_layers * num_projections * module.width * (config.d_model + config.d_mlp)
    size = mlp_parameters(config.architecture, config.d_model, module.width)
    has_no_output_bias = module.kind == RESERVED_UNITS and not config.is_llama
    if module.num_heads:
        size += attention_parameters(config, module.num_heads, 1)
    return config.num_layers * (size - has_no_output_bias * config.d_model)


def core_parameters(config: ModelConfig) -> int:
    """Counts the parameters that are always active, which are all except the modules'."""
    attention = attention_parameters(config, config.num_heads, config.num_kv_heads)
    norm = config.d_model * (1 if config.is_llama else 2)
    core_mlp = (
        mlp_parameters(config.architecture, config.d_model, config.d_mlp) if config.d_mlp else 0
    )
    embeddings = 2 * config.vocab_size * config.d_model
    return embeddings + config.num_layers * (attention + 2 * norm + core_mlp) + norm


def active_parameters(config: ModelConfig, active: Collection[str] = ()) -> int:
    return core_parameters(config) + sum(module_parameters(config, d) for d in active)


def companion_shares(routing: RoutingConfig, modules: Collection[str]) -> dict[str, float]:
    """Returns {module: probability that a core batch with companions activates it}.

    A core batch's companions are the modules that it activates.
    """
    num_modules = len(modules)
    if routing.companions == "all":
        return dict.fromkeys(modules, 1.0)
    if routing.companions == "subset":
        # An empty subset becomes one random module.
        return dict.fromkeys(modules, 0.5 + 0.5**num_modules / num_modules)
    weights = dict(routing.companion_weights) or dict.fromkeys(modules, 1.0)
    return {
        domain: weights[domain] / sum_in_order(weights[d] for d in modules) for domain in modules
    }


def total_parameters(config: ModelConfig) -> int:
    return active_parameters(config, config.module_domains)


def compute_units(config: ModelConfig, num_tokens: int, active: Collection[str] = ()) -> int:
    """Returns the paper's FLOP proxy: tokens x active parameters, including embeddings."""
    return num_tokens * active_parameters(config, active)


def _linear(num_tokens: int, fan_in: int, fan_out: int, input_grad: bool, weight_grad: bool) -> int:
    return 2 * num_tokens * fan_in * fan_out * (1 + input_grad + weight_grad)


def _attention(
    config: ModelConfig,
    num_sequences: int,
    num_heads: int,
    num_kv_heads: int,
    input_grad: bool,
    trained: bool,
) -> int:
    tokens, d_model = num_sequences * config.seq_len, config.d_model
    width, has_grad = num_heads * config.head_dim, input_grad or trained
    qkv_width = width + 2 * num_kv_heads * config.head_dim
    scores = 4 * tokens * config.seq_len * width * (3 if has_grad else 1)
    qkv = _linear(tokens, d_model, qkv_width, input_grad, trained)
    return qkv + _linear(tokens, width, d_model, has_grad, trained) + scores


def _mlp(
    config: ModelConfig,
    num_tokens: int,
    width: int,
    input_grad: bool,
    trained: bool,
    hidden_grad: bool = False,
) -> int:
    # SwiGLU has two up-projections.
    up = (1 + config.is_llama) * _linear(num_tokens, config.d_model, width, input_grad, trained)
    return up + _linear(
        num_tokens, width, config.d_model, input_grad or trained or hidden_grad, trained
    )


def _lora(
    config: ModelConfig,
    num_tokens: int,
    rank: int,
    input_grad: bool,
    hidden_grad: bool,
    trained: bool,
) -> int:
    up = _linear(num_tokens, config.d_model, rank, input_grad, trained)
    up += _linear(num_tokens, rank, config.d_mlp, input_grad or trained, trained)
    up *= 1 + config.is_llama
    down = _linear(num_tokens, config.d_mlp, rank, hidden_grad, trained)
    return up + down + _linear(num_tokens, rank, config.d_model, hidden_grad or trained, trained)


def hardware_flops(
    config: ModelConfig,
    num_sequences: int,
    active: Collection[str] = (),
    shared_trained: bool = True,
    core_trained: bool = True,
    modules_trained: Collection[str] = (),
    backward: bool = True,
    embeddings_trained: bool = False,
) -> int:
    """Counts the FLOPs of a forward pass over full sequences. If `backward`, adds a backward pass.

    For all kernels, attention counts as two matrix products over all T x T positions in the
    forward pass and four in the backward pass. (Fused kernels skip the masked half, but recompute
    scores.) Embedding look-ups, norms and element-wise operations count as 0.
    """
    tokens, d_model = num_sequences * config.seq_len, config.d_model
    loras = [m for m in config.modules if m.kind == "lora" and m.domain in active]
    mlps = [m for m in config.modules if m.kind != "lora" and m.domain in active]
    shared, core = shared_trained and backward, core_trained and backward
    trained = set(modules_trained) if backward else set()
    # Whether the layer's input needs a gradient, because an earlier parameter is trained.
    flowing = shared or (embeddings_trained and backward)
    total = 0
    for _ in range(config.num_layers):
        heads = [(config.num_heads, config.num_kv_heads, shared)]
        heads += [(m.num_heads, 1, m.domain in trained) for m in mlps if m.num_heads]
        for num_heads, num_kv_heads, is_trained in heads:
            total += _attention(config, num_sequences, num_heads, num_kv_heads, flowing, is_trained)
        after_attention = flowing or any(is_trained for *_, is_trained in heads)
        # Whether the core MLP's hidden units need a gradient.
        hidden = after_attention or core or any(m.domain in trained for m in loras)
        total += _mlp(config, tokens, config.d_mlp, after_attention, core, hidden)
        for module in loras:
            total += _lora(
                config, tokens, module.width, after_attention, hidden, module.domain in trained
            )
        for module in mlps:
            total += _mlp(config, tokens, module.width, after_attention, module.domain in trained)
        flowing = after_attention or core or bool(trained & set(active))
    return total + _linear(tokens, d_model, config.vocab_size, flowing or shared, shared)
