"""Chooses, once per process, between plain torch and code that is faster on some CPUs.

The fast code uses a private torch operator (`kernels.py`) and glibc's allocator. Both are
optional, and GRAM_CPU_CODE=torch turns them off. Plain torch is slower and rounds differently.
"""

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterator

import torch
import torch.nn.functional as F

VARIABLE, PLAIN = "GRAM_CPU_CODE", "torch"
OPERATOR = "_scaled_dot_product_flash_attention_for_cpu"
PLAIN_ON_CPU = "plain torch for CPUs"
# The largest difference to plain torch, in float32.
BOUND = 1e-4


@functools.cache
def has_fast_code() -> bool:
    """Returns True if the torch operator exists, is not turned off, and agrees with plain torch."""
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
# The maximum of glibc's adaptive threshold. Larger blocks are mapped one by one.
LARGEST_THRESHOLD = 32 * 2**20
UNTRIMMED_BYTES = 2**31 - 1


@contextlib.contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Context manager that keeps glibc from returning freed heap memory to the system.

    Does nothing without glibc. Blocks of 32 MiB or more are still returned when freed. On exit,
    returns all kept memory. glibc's setting stays, so memory freed later is kept until this context
    manager exits again.
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
