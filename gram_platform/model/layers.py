"""Defines layers for batches whose sequences use and train different modules.

Sequences that train a layer come first. Other sequences add no gradient to the layer's parameters.
Shapes: B sequences, T tokens, D d_model, R sequences that have a module.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Rows(NamedTuple):
    """Indices of the sequences that have a module. Those that train it come first."""

    index_R: Tensor
    # How many train it. None if all do or none does.
    num_trained: int | None


# By domain: the module's weight in all sequences, or the sequences that have the module.
ActiveModules = Mapping[str, float | Rows]


def add_output(total: Tensor, layer: Callable, x: Tensor, active: float | Rows) -> Tensor:
    """Returns `total` plus an active module's output, which `layer(x, num_trained)` computes."""
    if isinstance(active, Rows):
        out = layer(x.index_select(0, active.index_R), active.num_trained)
        return total.index_add(0, active.index_R, out)
    out = layer(x, None)
    return total + (out if active == 1.0 else active * out)


class Linear(nn.Linear):
    def forward(self, x: Tensor, num_trained: int | None = None) -> Tensor:
        if num_trained is None:
            return super().forward(x)
        return _Linear.apply(x, self.weight, self.bias, num_trained)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None, num_trained: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.num_trained = num_trained
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad: Tensor):
        x, weight = ctx.saved_tensors
        needs_x, _, needs_bias, _ = ctx.needs_input_grad
        first_grad, first = (rows[: ctx.num_trained].flatten(0, -2) for rows in (grad, x))
        grad_x = grad @ weight if needs_x else None
        return grad_x, first_grad.T @ first, first_grad.sum(0) if needs_bias else None, None


class Embedding(nn.Embedding):
    def forward(self, tokens_BT: Tensor, num_trained: int | None = None) -> Tensor:
        return _in_parts(F.embedding, tokens_BT, num_trained, weight=self.weight)


class LayerNorm(nn.LayerNorm):
    def forward(self, x_BTD: Tensor, num_trained: int | None = None) -> Tensor:
        norm = partial(F.layer_norm, normalized_shape=self.normalized_shape, eps=self.eps)
        return _in_parts(norm, x_BTD, num_trained, weight=self.weight, bias=self.bias)


class RMSNorm(nn.RMSNorm):
    def forward(self, x_BTD: Tensor, num_trained: int | None = None) -> Tensor:
        norm = partial(F.rms_norm, normalized_shape=self.normalized_shape, eps=self.eps)
        return _in_parts(norm, x_BTD, num_trained, weight=self.weight)


def _in_parts(layer: Callable, x: Tensor, num_trained: int | None, **parameters: Tensor) -> Tensor:
    if num_trained is None:
        return layer(x, **parameters)
    first, others = x.split([num_trained, len(x) - num_trained])
    constants = {name: parameter.detach() for name, parameter in parameters.items()}
    return torch.cat([layer(first, **parameters), layer(others, **constants)])
