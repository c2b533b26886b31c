"""Euclidean norms of the parameter sets: of their gradients and of their weights, for whoever watches a run."""

import math
from collections.abc import Sequence

import torch

from gram_platform.train.optimizers import Sets


def gradient_norms(sets: Sets) -> dict[str, float]:
    """The norm of every set's gradients as they are now; sets without gradients are absent.

    With sharded parameters every rank must call it: all sets together are one reduction.
    """
    gradients = {name: [p.grad for p in named.values() if p.grad is not None] for name, named in sets.items()}
    return _norms({name: tensors for name, tensors in gradients.items() if tensors})


def weight_norms(sets: Sets) -> dict[str, float]:
    """The norm of every set's weights; sharded ones as above."""
    return _norms({name: [p.detach() for p in named.values()] for name, named in sets.items() if named})


def _norms(groups: dict[str, Sequence[torch.Tensor]]) -> dict[str, float]:
    """One pass over all tensors and one transfer from the device; then arithmetic on a number for each tensor."""
    if not groups:
        return {}
    norms = torch.stack(torch._foreach_norm([tensor for tensors in groups.values() for tensor in tensors]))
    left = iter((norms.full_tensor() if hasattr(norms, "full_tensor") else norms).tolist())  # a DTensor when sharded
    return {name: math.hypot(*(next(left) for _ in tensors)) for name, tensors in groups.items()}
