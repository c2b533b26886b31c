"""Decides by model size whether ranks keep gathered weights, which trades memory for time and changes nothing else.

A rank that keeps them gathers once a route and holds all active weights in the computing precision until the route
changes or the window ends. A rank that does not gathers twice a micro-batch and holds one or two layers.
"""

from gram_platform.config import ModelConfig
from gram_platform.config.flops import total_parameters

BYTES = {"float32": 4, "bfloat16": 2}
KEPT_BYTES = 2**30  # [ours] keep the weights of models up to this size


def keeps_gathered(model: ModelConfig, precision: str) -> bool:
    """Tells whether the whole model takes at most `KEPT_BYTES` in this precision."""
    return BYTES[precision] * total_parameters(model) <= KEPT_BYTES
