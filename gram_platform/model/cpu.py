"""Chooses, once per process, between plain torch and code that is faster on some CPUs.

The fast code needs a private operator of torch (`kernels.py`) and glibc's allocator. Plain torch is
used where these are missing, as on macOS, and with GRAM_CPU_CODE=torch. It is slower and rounds
differently.
"""

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterator

import torch
import torch.nn.functional as F

VARIABLE, PLAIN = "GRAM_CPU_CODE", "torch"
# The name of an operator in torch.ops.aten.
OPERATOR = "_scaled_dot_product_flash_attention_for_cpu"
# The name of plain torch as an attention kernel.
PLAIN_ON_CPU = "plain torch for CPUs"
# The largest difference to plain torch, in float32.
BOUND = 1e-4


@functools.cache
def has_fast_code() -> bool:
    """Returns whether the fast code is allowed and reproduces torch's numbers."""
    operator = getattr(torch.ops.aten, OPERATOR, None)
    if os.environ.get(VARIABLE) == PLAIN or operator is None:
        return False
    x_BHTh = torch.linspace(-1.0, 1.0, 2 * 4 * 8, dtype=torch.float32, device="cpu")
    x_BHTh = x_BHTh.view(1, 2, 4, 8)
    future = torch.ones(4, 4, dtype=torch.bool, device="cpu").triu(1)
    scores_BHTT = (x_BHTh @ x_BHTh.transpose(2, 3) / 8**0.5).masked_fill(future, -torch.inf)
    expected = (
        F.scaled_dot_product_attention(x_BHTh, x_BHTh, x_BHTh, is_causal=True),
        scores_BHTT.logsumexp(-1),
    )
    try:
        outputs = operator(x_BHTh, x_BHTh, x_BHTh, is_causal=True, attn_mask=None)
        pairs = zip(outputs, expected, strict=True)
        return all(torch.allclose(*pair, atol=BOUND) for pair in pairs)
    except (RuntimeError, TypeError, ValueError):
        # The operator's arguments or outputs may differ in another torch.
        return False


# From glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
# The end of glibc's adaptive threshold, above which blocks are mapped one by one.
LARGEST_THRESHOLD = 32 * 2**20
UNTRIMMED_BYTES = 2**31 - 1


@contextlib.contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Context manager that keeps memory which is freed at the end of the heap; glibc only.

    Blocks of memory of 32 MiB and more still return to the system at once. glibc cannot restore its
    own thresholds, so memory that is freed later is kept until the next use of this function ends.
    """
    libc = ctypes.CDLL(None)
    if os.environ.get(VARIABLE) == PLAIN or not hasattr(libc, "mallopt"):
        yield
        return
    libc.mallopt(M_MMAP_THRESHOLD, LARGEST_THRESHOLD)
    libc.mallopt(M_TRIM_THRESHOLD, UNTRIMMED_BYTES)
    try:
        yield
    finally:
        libc.malloc_trim(0)
