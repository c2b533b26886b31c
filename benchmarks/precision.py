"""The 26M stories model as this CPU can train it: in bfloat16, unless its products are emulated there."""

import functools
import sys
from dataclasses import replace

import torch

from benchmarks.timing import clock_of
from gram_platform.config.ladder import STORIES_SIZES, Size

EMULATED = 0.25  # of float32's rate: a CPU with units for bfloat16 is above 1, one without far below
PROBE = (256, 256, 256)  # rows, shared, columns of the product that tells


def stories_26m() -> Size:
    """The size, in the precision that people would train it in on this CPU; says so where that is not bfloat16.

    In float32 a token takes three times as long: there the micro-batch is half as large, so that the bench stays quick.
    """
    share, size = bfloat16_share(), STORIES_SIZES["26M"]
    if share >= EMULATED:
        return size
    text = f"products in bfloat16 have {share:.3f} of float32's rate on this CPU, which has no units for them: "
    print(f"{text}the 26M model is measured in float32", file=sys.stderr)
    return replace(size, precision="float32", micro_batch=size.micro_batch // 2)


@functools.cache
def bfloat16_share() -> float:
    """The rate of a product in bfloat16 over that in float32."""
    return _seconds(torch.float32) / _seconds(torch.bfloat16)


def _seconds(dtype: torch.dtype) -> float:
    """The faster of two, after one that is not timed."""
    rows, shared, columns = PROBE
    left, right, clock = (
        torch.ones(rows, shared, dtype=dtype),
        torch.ones(shared, columns, dtype=dtype),
        clock_of("cpu"),
    )
    seconds = []
    for _ in range(3):
        started = clock()
        left @ right
        seconds.append(clock() - started)
    return min(seconds[1:])
