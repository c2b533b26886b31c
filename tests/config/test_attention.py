"""The kernel of attention by device, precision, head and mask; what is refused."""

import dataclasses

import pytest

from gram_platform.config.ladder import DEMO_SIZES, PAPER_SIZES, SMOKE_SIZES, STORIES_SIZES
from gram_platform.config.layout import (
    CUDNN,
    EFFICIENT,
    FLASH,
    GPU_KERNELS,
    MATH,
    MATH_TOKENS,
    ON_CPU,
    ON_CPU_IN_BLOCKS,
    attention_kernel,
    model_kernel,
    require_fast_attention,
)
from tests.refused import refused

FAST = dict.fromkeys(("50M", "100M", "200M", "400M", "800M"), FLASH) | dict.fromkeys(
    ("2B", "5B"), EFFICIENT
)


@pytest.mark.parametrize("size", PAPER_SIZES.values(), ids=PAPER_SIZES)
def test_every_size_of_the_ladder_has_a_fast_kernel(size):
    assert model_kernel("cuda", 2, size.dense()) == FAST[size.name]
    masked = dataclasses.replace(size.dense(), document_end=0)
    assert model_kernel("cuda", 2, masked) == model_kernel("cuda", 4, size.dense()) == EFFICIENT


@pytest.mark.parametrize(
    "size", [*DEMO_SIZES.values(), *SMOKE_SIZES.values(), *STORIES_SIZES.values()]
)
def test_no_small_size_needs_plain_products(size):
    for num_bytes in (2, 4):
        require_fast_attention(model_kernel("cuda", num_bytes, size.dense()), size.dense())


def test_the_cpus_kernels():
    assert attention_kernel("cpu", 4, 48, False, ()) == ON_CPU
    assert attention_kernel("cpu", 2, 384, True, ()) == ON_CPU_IN_BLOCKS


def test_what_a_gpu_lacks_decides():
    assert attention_kernel("cuda", 2, 64, False, GPU_KERNELS - {FLASH}) == CUDNN
    assert attention_kernel("cuda", 2, 200, False, GPU_KERNELS - {FLASH}) == EFFICIENT
    assert attention_kernel("cuda", 2, 64, False, {EFFICIENT}) == EFFICIENT
    assert attention_kernel("cuda", 2, 300, False) == MATH  # 600 bytes are no multiple of 16
    assert attention_kernel("cuda", 4, 64, False, {FLASH, CUDNN}) == MATH


def test_plain_products_in_a_long_context_are_refused():
    model = PAPER_SIZES["5B"].dense()
    with refused("attention", MATH):
        require_fast_attention(MATH, model)
    require_fast_attention(MATH, dataclasses.replace(model, seq_len=MATH_TOKENS))
    require_fast_attention(EFFICIENT, model)
