"""Shares work between forward passes: keys and values of a prefix, the first layer's trunk of several profiles."""

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import nn

from gram_platform.model.transformer import Attention, Lora, Rotary, Transformer


class CachedAttention(nn.Module):
    """Attends over the tokens of all calls so far: any number in the first call, one in each later call.

    Shapes as in `transformer.py`.
    """

    def __init__(self, attention: Attention):
        super().__init__()
        self.attention = attention
        self.cache: tuple[torch.Tensor, torch.Tensor] | None = None  # k_BKSh, v_BKSh

    def forward(self, x_BTD: torch.Tensor, rotary: Rotary, mask_BTT: torch.Tensor | None = None) -> torch.Tensor:
        """Attends from x_BTD to all tokens so far; with a mask, a second call needs rows of one document each."""
        first = 0 if self.cache is None else self.cache[0].shape[2]
        q_BHTh, *new = self.attention.heads(x_BTD, rotary, first)
        if self.cache is not None:
            assert x_BTD.shape[1] == 1, "after the first call, one token at a time"
            new = [torch.cat(pair, dim=2) for pair in zip(self.cache, new, strict=True)]
        self.cache = new[0], new[1]
        return self.attention.attend(q_BHTh, *self.cache, first == 0, mask_BTT if first == 0 else None)


@contextlib.contextmanager
def kv_cache(model: Transformer) -> Iterator[Transformer]:
    """Gives the model a cache of keys and values inside the `with` block, so that each call continues the one before.

    A further token then costs one token's forward pass and its attention to earlier tokens.
    """
    uncached = [block.attn for block in model.blocks]
    for block in model.blocks:
        block.attn = CachedAttention(block.attn)
    try:
        yield model
    finally:
        for block, attention in zip(model.blocks, uncached, strict=True):
            block.attn = attention


@contextlib.contextmanager
def shared_first_trunk(model: Transformer) -> Iterator[Callable[[], None]]:
    """Computes the first layer's attention and core MLP once for several calls inside the `with` block.

    All calls must have the same tokens until the yielded function, which clears the cache, is called. Calls with LoRAs,
    which change the core MLP, do not share. Logits are the same bit for bit. Not for training.
    """
    block, uncached = model.blocks[0], model.blocks[0].trunk
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def trunk(x_BTD: torch.Tensor, rotary: Rotary, loras: list[tuple[Lora, float]], *mask: torch.Tensor | None):
        if loras:
            return uncached(x_BTD, rotary, loras, *mask)
        if not kept:
            kept.append(uncached(x_BTD, rotary, loras, *mask))
        return kept[0]

    was_set = "trunk" in vars(block)  # set by torch.compile
    block.trunk = trunk
    try:
        yield kept.clear
    finally:
        if was_set:
            block.trunk = uncached
        else:
            del block.trunk
