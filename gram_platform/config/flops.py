"""Counts a config's parameters and its compute, in two units.

`compute_units`   tokens x active parameters, the paper's unit, for budgets and lambda (`app:equal-compute`).
`hardware_flops`  2 x the multiply-adds that a step does, for utilisation. Includes attention; excludes weight gradients
                  of untrained sets and unneeded input gradients. Equals torch's FlopCounterMode with attention's math
                  kernel (the counter does not count the fused CPU kernel).

Also decides what training and the planner must decide alike, by pure functions of shape, precision and device: which
ranks share weights, what they gather and when they reduce, how much is evaluated at once, the kernel of attention.
"""

from collections.abc import Collection

from gram_platform.config import ModelConfig, ModuleSpec, RoutingConfig
from gram_platform.config.identity import invalid
from gram_platform.config.training import LLAMA


def mlp_parameters(architecture: str, d_model: int, width: int) -> int:
    """Counts the weights and biases of c_fc and c_proj, or the weights of SwiGLU's three projections."""
    if architecture == LLAMA:
        return 3 * d_model * width
    return 2 * d_model * width + width + d_model


def module_parameters(config: ModelConfig, domain: str) -> int:
    """Counts the parameters of one domain's module in all layers."""
    module = next(m for m in config.modules if m.domain == domain)
    if module.kind == "lora":
        num_projections = 3 if config.is_llama else 2  # each with two low-rank factors
        return config.num_layers * num_projections * module.width * (config.d_model + config.d_mlp)
    return config.num_layers * mlp_parameters(config.architecture, config.d_model, module.width)


def core_parameters(config: ModelConfig) -> int:
    """Counts parameters that are always active: embeddings, attention, norms, unembedding, core MLP."""
    attention = config.d_model * config.qkv_width + config.d_model**2
    norm = config.d_model * (1 if config.is_llama else 2)
    core_mlp = mlp_parameters(config.architecture, config.d_model, config.d_mlp) if config.d_mlp else 0
    embeddings = 2 * config.vocab_size * config.d_model
    return embeddings + config.num_layers * (attention + 2 * norm + core_mlp) + norm


def active_parameters(config: ModelConfig, active: Collection[str] = ()) -> int:
    """Counts the parameters of a forward pass with these domains' modules active."""
    return core_parameters(config) + sum(module_parameters(config, d) for d in active)


def companion_shares(routing: RoutingConfig, modules: Collection[str]) -> dict[str, float]:
    """Returns the probability that each module is active on a core batch with companions."""
    num_modules = len(modules)
    if routing.companions == "subset":  # an empty subset becomes one random module
        return dict.fromkeys(modules, 0.5 + 0.5**num_modules / num_modules)
    weights = dict(routing.companion_weights) or dict.fromkeys(modules, 1.0)
    return {domain: weights[domain] / sum(weights[d] for d in modules) for domain in modules}


def total_parameters(config: ModelConfig) -> int:
    return active_parameters(config, config.module_domains)


def compute_units(config: ModelConfig, num_tokens: int, active: Collection[str] = ()) -> int:
    """Returns the paper's FLOP proxy: tokens x active parameters, embeddings included."""
    return num_tokens * active_parameters(config, active)


def _linear(num_tokens: int, fan_in: int, fan_out: int, input_grad: bool, weight_grad: bool) -> int:
    return 2 * num_tokens * fan_in * fan_out * (1 + input_grad + weight_grad)


def _num_up(config: ModelConfig) -> int:
    """Counts an MLP's projections to its hidden units."""
    return 2 if config.is_llama else 1


def _mlp(
    config: ModelConfig, num_tokens: int, width: int, input_grad: bool, trained: bool, hidden_grad: bool = False
) -> int:
    """Counts c_gate, c_fc and c_proj; c_proj needs its input's gradient if any parameter before it is trained."""
    up = _num_up(config) * _linear(num_tokens, config.d_model, width, input_grad, trained)
    return up + _linear(num_tokens, width, config.d_model, input_grad or trained or hidden_grad, trained)


def _lora(config: ModelConfig, num_tokens: int, rank: int, input_grad: bool, hidden_grad: bool, trained: bool) -> int:
    """Counts B A of every projection; `hidden_grad`: the core's hidden units need a gradient."""
    up = _linear(num_tokens, config.d_model, rank, input_grad, trained)
    up += _linear(num_tokens, rank, config.d_mlp, input_grad or trained, trained)
    up *= _num_up(config)
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
) -> int:
    """Counts the FLOPs of one forward (and backward) pass over `num_sequences` sequences of `config.seq_len` tokens.

    Attention counts as two products over all T x T positions forward and four backward, whichever kernel runs (a fused
    one skips the masked half, but recomputes scores). Embedding look-ups, norms and element-wise work count as 0.
    """
    tokens, d_model = num_sequences * config.seq_len, config.d_model
    loras = [m for m in config.modules if m.kind == "lora" and m.domain in active]
    mlps = [m for m in config.modules if m.kind == "mlp" and m.domain in active]
    scores = 4 * num_sequences * config.num_heads * config.seq_len**2 * config.head_dim  # QK^T and PV
    shared, core = shared_trained and backward, core_trained and backward
    trained = set(modules_trained) if backward else set()
    flowing = shared  # the layer's input needs a gradient: a parameter before it is trained
    total = 0
    for _ in range(config.num_layers):
        total += _linear(tokens, d_model, config.qkv_width, flowing, shared)
        total += _linear(tokens, d_model, d_model, flowing or shared, shared)
        total += scores * (3 if flowing or shared else 1)
        after_attention = flowing or shared
        hidden = after_attention or core or any(m.domain in trained for m in loras)
        total += _mlp(config, tokens, config.d_mlp, after_attention, core, hidden)
        for module in loras:
            total += _lora(config, tokens, module.width, after_attention, hidden, module.domain in trained)
        for module in mlps:
            total += _mlp(config, tokens, module.width, after_attention, module.domain in trained)
        flowing = after_attention or core or bool(trained & set(active))
    return total + _linear(tokens, d_model, config.vocab_size, flowing or shared, shared)


# ---------------------------------------------------------------------------------------- ranks, batches and kernels

GIB = 2**30
BYTES = {"float32": 4, "bfloat16": 2}
KEPT_BYTES = GIB  # [ours] keep the weights of models up to this size
OWN_GROUP_PARAMETERS = 2**23  # [ours] of a module in one layer, 16 MB in bfloat16: fewer join the block's group
LARGE_GRADIENTS_BYTES = 4 * GIB  # [ours] above it, whole float32 gradients do not wait for a window's end
MACHINE_RANKS = 8  # GPUs of one machine, between which bytes are cheap
LOGITS_AT_ONCE = {"cpu": 2**21, "cuda": 2**26}  # converted to float32 together: fits a CPU's cache, or fills a GPU
# float32 logits of one evaluation batch: the batch, hence the rounding, depends on the config and the kind of device
EVALUATION_LOGITS_BYTES = {"cpu": 64 * 2**20, "cuda": 2 * GIB}


def num_shards(num_ranks: int, device: str) -> int:
    """Counts the ranks that share one copy of the weights: all; on several machines of GPUs, those of a machine.

    Machines then exchange gradients alone, and a rank's memory does not fall below that of `MACHINE_RANKS`.
    """
    return MACHINE_RANKS if device == "cuda" and num_ranks % MACHINE_RANKS == 0 else num_ranks


def keeps_gathered(model: ModelConfig, precision: str) -> bool:
    """Tells whether the whole model takes at most `KEPT_BYTES` in this precision."""
    return BYTES[precision] * total_parameters(model) <= KEPT_BYTES


def reduces_every_pass(model: ModelConfig, precision: str) -> bool:
    """Tells whether ranks reduce gradients in every pass, not once a window: each then keeps its rows alone.

    So do large models; and models with LoRAs in bfloat16: a LoRA is in its block's group, gradients of one group must
    have one dtype, and those that wait for a window's end are float32.
    """
    has_loras = any(module.kind == "lora" for module in model.modules)
    is_large = 4 * total_parameters(model) > LARGE_GRADIENTS_BYTES
    return is_large or (has_loras and precision != "float32")


def has_own_group(model: ModelConfig, module: ModuleSpec, precision: str) -> bool:
    """Tells whether ranks gather a layer's module apart from its block, only where it is active.

    So do large MLPs, and all MLPs in bfloat16 whose gradients wait for a window's end (`reduces_every_pass`).
    """
    is_large = mlp_parameters(model.architecture, model.d_model, module.width) >= OWN_GROUP_PARAMETERS
    may_join = precision == "float32" or reduces_every_pass(model, precision)
    return module.kind == "mlp" and (is_large or not may_join)


def evaluation_batch(config: ModelConfig, device: object = "cpu") -> int:
    """Returns the number of sequences in one forward pass of an evaluation on a device, such as cuda:0."""
    most = EVALUATION_LOGITS_BYTES.get(str(device).partition(":")[0], EVALUATION_LOGITS_BYTES["cpu"])
    return max(1, most // (4 * config.seq_len * config.vocab_size))


FLASH, CUDNN, EFFICIENT, MATH = "flash", "cuDNN", "memory-efficient", "math"
ON_CPU, ON_CPU_IN_BLOCKS = "flash for CPUs", "flash for CPUs, backward in blocks"
GPU_KERNELS = frozenset((FLASH, CUDNN, EFFICIENT))  # of a GPU since Ampere
LARGEST_HEAD = {FLASH: 256, CUDNN: 128}  # cuDNN's is larger on some GPUs
ALIGNED_BYTES = 16  # the memory-efficient kernel reads heads in units of this size
MATH_TOKENS = 512  # the longest context at which every score may be kept


def attention_kernel(
    device: str, num_bytes: int, head_dim: int, is_masked: bool, available: Collection[str] = GPU_KERNELS
) -> str:
    """Names the kernel that attends on `device` (cpu or cuda) with values of `num_bytes` (4: float32, 2: bfloat16).

    torch's flash and cuDNN kernels take grouped keys of 16-bit values up to a head of 256, and no mask of documents.
    The memory-efficient kernel takes float32, larger heads and masks, but only with keys and values repeated for every
    head (`sdp_utils.cpp` of torch 2.13). What no kernel takes runs as plain matrix products ("math"), which keep every
    score.

    `is_masked`: attention ends where a document ends. `available`: the kernels of torch and of the GPU.
    """
    if device == "cpu":
        return ON_CPU if num_bytes == 4 else ON_CPU_IN_BLOCKS
    for kernel, largest in LARGEST_HEAD.items():
        if kernel in available and num_bytes == 2 and head_dim <= largest and not is_masked:
            return kernel
    is_aligned = head_dim * num_bytes % ALIGNED_BYTES == 0
    return EFFICIENT if EFFICIENT in available and is_aligned else MATH


def model_kernel(device: str, num_bytes: int, model: ModelConfig) -> str:
    """Names the kernel of a model on a GPU with all kernels, or on a CPU."""
    return attention_kernel(device, num_bytes, model.head_dim, model.document_end >= 0)


def require_fast_attention(kernel: str, model: ModelConfig) -> None:
    """ValueError for plain matrix products in a long context: they keep seq_len scores for each head and token."""
    if kernel == MATH and model.seq_len > MATH_TOKENS:
        allowed = (
            f"flash, cuDNN or memory-efficient attention above {MATH_TOKENS} tokens (here {model.seq_len}, heads of "
            f"{model.head_dim}): train in bfloat16 with heads of at most {LARGEST_HEAD[FLASH]}, a multiple of 8, on a "
            "GPU since Ampere, and leave torch.backends.cuda's kernels enabled"
        )
        raise invalid("attention", kernel, allowed)
