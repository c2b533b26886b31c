"""What the 26M stories model is trained in on this CPU: bfloat16, unless its products are emulated there."""

import functools
import sys
from dataclasses import replace

import torch

from gram_platform.benchmarks.timing import clock_of
from gram_platform.ladder import STORIES_SIZES, Size

EMULATED = 0.25  # of float32's rate: a CPU with units for bfloat16 is above 1, one without far below
PROBE = (256, 256, 256)  # rows, shared, columns of the product that tells


def stories_26m() -> Size:
    """The size, in the precision that people would train it in on this CPU; says so where that is not bfloat16."""
    share = bfloat16_share()
    if share >= EMULATED:
        return STORIES_SIZES["26M"]
    text = f"products in bfloat16 have {share:.3f} of float32's rate on this CPU, which has no units for them: "
    print(f"{text}the 26M model is measured in float32", file=sys.stderr)
    return replace(STORIES_SIZES["26M"], precision="float32")


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
