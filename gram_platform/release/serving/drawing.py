"""The next token of every row: the likeliest, or drawn at the row's own temperature from its own random numbers.

Shapes: B rows, V vocabulary.
"""

import torch

from gram_platform.train.evaluate import draw

COLDEST = 1e-6  # temperatures below it take the likeliest: logits divided by them need not be finite


def next_tokens(
    logits_BV: torch.Tensor, temperatures_B: torch.Tensor, top_ps_B: torch.Tensor, uniforms_B: torch.Tensor
) -> torch.Tensor:
    """tokens_B, int64 on the CPU; a temperature below COLDEST takes the likeliest (the lowest id among equals).

    A row's token depends on its own logits and numbers alone. A nucleus of `top_p` has the likeliest tokens until
    their probabilities reach it, at least one.
    """
    tokens_B = logits_BV.argmax(dim=-1).cpu()
    warm = (temperatures_B >= COLDEST).nonzero()[:, 0]
    if len(warm):
        scaled = logits_BV[warm.to(logits_BV.device)].cpu().double() / temperatures_B[warm, None]
        if (top_ps_B[warm] < 1).any():
            scaled = _nucleus(scaled, top_ps_B[warm])
        tokens_B[warm] = draw(scaled, uniforms_B[warm])[0]
    return tokens_B


def _nucleus(logits_BV: torch.Tensor, top_ps_B: torch.Tensor) -> torch.Tensor:
    """The logits with -inf outside each row's nucleus."""
    p_BV, order_BV = logits_BV.softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    before_BV = p_BV.cumsum(dim=-1) - p_BV
    outside_BV = (before_BV >= top_ps_B[:, None]) & (top_ps_B[:, None] < 1)
    outside_BV[:, 0] = False
    return logits_BV.masked_fill(torch.zeros_like(outside_BV).scatter(1, order_BV, outside_BV), -torch.inf)
