"""Chooses the kernel of attention, for the model and for the planner: pure functions of shape, precision and device.

torch's flash and cuDNN kernels take grouped keys of 16-bit values up to a head of 256, and no mask of documents. The
memory-efficient kernel takes float32, larger heads and masks, but only with keys and values repeated for every head
(`sdp_utils.cpp` of torch 2.13). What no kernel takes runs as plain matrix products ("math"), which keep every score.
"""

from collections.abc import Collection

from gram_platform.config.identity import invalid
from gram_platform.config.training import ModelConfig

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
