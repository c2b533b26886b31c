"""Makes decisions that training and the planner both use, such as how ranks share weights."""

from collections.abc import Collection
from dataclasses import dataclass

from gram_platform.config import ModelConfig, ModuleSpec
from gram_platform.config.flops import BYTES, GIB, mlp_parameters, total_parameters
from gram_platform.config.identity import invalid

# [ours] The weights of models up to this size stay gathered.
KEPT_BYTES = GIB
# [ours] A module of this many parameters in one layer (16 MB in bfloat16) is a group of its own.
OWN_GROUP_PARAMETERS = 2**23
# [ours] Larger float32 gradients are reduced in every pass, not at a window's end.
LARGE_GRADIENTS_BYTES = 4 * GIB
# GPUs of one machine, which have fast links.
MACHINE_RANKS = 8
# Logits that are converted to float32 together, to fit a CPU's cache or fill a GPU.
LOGITS_AT_ONCE = {"cpu": 2**21, "cuda": 2**26}
# Float32 logits of an evaluation batch. Its size, and so rounding, depends on config and device.
EVALUATION_LOGITS_BYTES = {"cpu": 64 * 2**20, "cuda": 2 * GIB}


@dataclass(frozen=True)
class Sharing:
    """Describes how the ranks of a run share its weights."""

    num_shards: int
    keeps_gathered: bool
    # Whether each pass, not each window, reduces gradients. A rank then keeps only its own rows.
    reduces_every_pass: bool
    # Domains whose modules are gathered apart from their block, only where they are active.
    own_groups: frozenset[str]


def sharing_of(model: ModelConfig, precision: str, num_ranks: int, device: str) -> Sharing:
    """Decides how `num_ranks` ranks on `device` (cpu or cuda) share a model.

    - Weights of at most `KEPT_BYTES` in `precision` stay gathered between passes.
    - Gradients are reduced in every pass if the model is large, or if it is bfloat16 and has LoRAs.
      (Otherwise, a block's gradients could differ in dtype, which FSDP rejects.) Other models
      reduce gradients once a window.
    - A module MLP is gathered apart from its block if it is large, or if the model is bfloat16 and
      reduces gradients once a window.
    """
    parameters, in_float32 = total_parameters(model), precision == "float32"
    has_loras = any(module.kind == "lora" for module in model.modules)
    each_pass = 4 * parameters > LARGE_GRADIENTS_BYTES or (has_loras and not in_float32)

    def is_apart(module: ModuleSpec) -> bool:
        size = mlp_parameters(model.architecture, model.d_model, module.width)
        is_large = size >= OWN_GROUP_PARAMETERS
        return module.kind != "lora" and (is_large or not (in_float32 or each_pass))

    return Sharing(
        num_shards(num_ranks, device),
        BYTES[precision] * parameters <= KEPT_BYTES,
        each_pass,
        frozenset(module.domain for module in model.modules if is_apart(module)),
    )


def num_shards(num_ranks: int, device: str) -> int:
    """Returns the number of ranks that share one copy of the weights.

    If the ranks fill machines of `MACHINE_RANKS` GPUs, each machine has a copy, and machines
    exchange only gradients. Otherwise all ranks share one copy.
    """
    return MACHINE_RANKS if device == "cuda" and num_ranks % MACHINE_RANKS == 0 else num_ranks


def evaluation_batch(config: ModelConfig, device: object = "cpu") -> int:
    """Returns the number of sequences in each forward pass of an evaluation."""
    kind = str(device).partition(":")[0]
    most = EVALUATION_LOGITS_BYTES.get(kind, EVALUATION_LOGITS_BYTES["cpu"])
    return max(1, most // (4 * config.seq_len * config.vocab_size))


FLASH, CUDNN, EFFICIENT, MATH = "flash", "cuDNN", "memory-efficient", "math"
ON_CPU, ON_CPU_IN_BLOCKS = "flash for CPUs", "flash for CPUs, backward in blocks"
# The kernels of a GPU since Ampere.
GPU_KERNELS = frozenset((FLASH, CUDNN, EFFICIENT))
# The largest head that a kernel takes on every such GPU. cuDNN's is larger on some.
LARGEST_HEAD = {FLASH: 256, CUDNN: 128}
# The memory-efficient kernel reads heads in units of this size.
ALIGNED_BYTES = 16
# The longest context at which every score may be kept.
MATH_TOKENS = 512


def attention_kernel(
    device: str,
    num_bytes: int,
    head_dim: int,
    is_masked: bool,
    available: Collection[str] = GPU_KERNELS,
) -> str:
    """Returns the name of the attention kernel for `device` (cpu or cuda).

    `num_bytes` is the size of an element: 4 in float32, 2 in bfloat16. If `is_masked`, attention
    does not cross document ends. `available` lists the kernels that torch and the GPU support.

    torch's flash and cuDNN kernels need a 16-bit dtype, a head dimension of at most `LARGEST_HEAD`
    and no document mask. They accept query heads that share keys. The memory-efficient kernel needs
    a head size divisible by `ALIGNED_BYTES`, and a copy of keys and values for every query head
    (`sdp_utils.cpp` of torch 2.13). Plain matrix products ("math") store every score.
    """
    if device == "cpu":
        return ON_CPU if num_bytes == 4 else ON_CPU_IN_BLOCKS
    for kernel, largest in LARGEST_HEAD.items():
        if kernel in available and num_bytes == 2 and head_dim <= largest and not is_masked:
            return kernel
    is_aligned = head_dim * num_bytes % ALIGNED_BYTES == 0
    return EFFICIENT if EFFICIENT in available and is_aligned else MATH


def model_kernel(device: str, num_bytes: int, model: ModelConfig) -> str:
    """Returns the attention kernel of a model on a CPU, or on a GPU that supports all kernels."""
    return attention_kernel(device, num_bytes, model.head_dim, model.document_end >= 0)


def require_fast_attention(kernel: str, model: ModelConfig) -> None:
    """Raises ValueError if sequences exceed MATH_TOKENS tokens and `kernel` is MATH.

    This kernel stores every attention score.
    """
    if kernel == MATH and model.seq_len > MATH_TOKENS:
        allowed = (
            f"flash, cuDNN or memory-efficient attention above {MATH_TOKENS} tokens (here"
            f" {model.seq_len}): train in bfloat16 on a GPU since Ampere, with heads of a multiple"
            f" of 8 up to {LARGEST_HEAD[FLASH]} (here {model.head_dim}), and leave"
            " torch.backends.cuda's kernels enabled"
        )
        raise invalid("attention", kernel, allowed)
