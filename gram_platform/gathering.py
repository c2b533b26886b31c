"""Whether ranks gather weights once a route or twice a micro-batch: time against memory, decided by size alone.

A rank that keeps what it has gathered until the route changes or the window ends holds a whole copy of the active
weights in the computing precision; one that lets it go holds a layer or two. Apart from memory nothing can tell which.
"""

from gram_platform.config import ModelConfig
from gram_platform.flops import total_parameters

BYTES = {"float32": 4, "bfloat16": 2}
KEPT_BYTES = 2**30  # [ours] of a model whose gathered weights are kept


def keeps_gathered(model: ModelConfig, precision: str) -> bool:
    """Whether the whole model in this precision has at most `KEPT_BYTES`."""
    return BYTES[precision] * total_parameters(model) <= KEPT_BYTES
