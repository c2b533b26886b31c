"""Computes once what several passes share: keys and values of a prefix, and the trunk of several profiles."""

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import nn

from gram_platform.model.transformer import Attention, Lora, Rotary, Transformer


class RememberingAttention(nn.Module):
    """Attention over all calls so far: the first reads any number of tokens, every later one a single token.

    Shapes as in `transformer.py`.
    """

    def __init__(self, attention: Attention):
        super().__init__()
        self.attention = attention
        self.seen: tuple[torch.Tensor, torch.Tensor] | None = None  # k_BKSh, v_BKSh

    def forward(self, x_BTD: torch.Tensor, rotary: Rotary, documents_BTT: torch.Tensor | None = None) -> torch.Tensor:
        """`documents_BTT` is of this call's tokens alone, so later calls must go on in the last document."""
        first = 0 if self.seen is None else self.seen[0].shape[2]
        q_BHTh, *new = self.attention.heads(x_BTD, rotary, first)
        if self.seen is not None:
            assert x_BTD.shape[1] == 1, "after the first call, one token at a time"
            new = [torch.cat(pair, dim=2) for pair in zip(self.seen, new, strict=True)]
        self.seen = new[0], new[1]
        return self.attention.attend(q_BHTh, *self.seen, first == 0, documents_BTT if first == 0 else None)


@contextlib.contextmanager
def remembering(model: Transformer) -> Iterator[Transformer]:
    """Within the block the model's calls continue one another; it is as before afterwards.

    The cost of a further token is that of one token and of looking back at those before it.
    """
    plain = [block.attn for block in model.blocks]
    for block in model.blocks:
        block.attn = RememberingAttention(block.attn)
    try:
        yield model
    finally:
        for block, attention in zip(model.blocks, plain, strict=True):
            block.attn = attention


@contextlib.contextmanager
def first_trunk_once(model: Transformer) -> Iterator[Callable[[], None]]:
    """Within the block calls share the first layer's attention and core MLP: those of the first of them.

    So all must be of the same tokens, until the function that is yielded is called: then others may come. A call with
    LoRAs, which change the core MLP, computes its own. Bit for bit the same logits. Not for training.
    """
    block, plain = model.blocks[0], model.blocks[0].trunk
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def trunk(x_BTD: torch.Tensor, rotary: Rotary, loras: list[tuple[Lora, float]], *mask: torch.Tensor | None):
        if loras:
            return plain(x_BTD, rotary, loras, *mask)
        if not kept:
            kept.append(plain(x_BTD, rotary, loras, *mask))
        return kept[0]

    was_set = "trunk" in vars(block)  # a compiled one
    block.trunk = trunk
    try:
        yield kept.clear
    finally:
        if was_set:
            block.trunk = plain
        else:
            del block.trunk
