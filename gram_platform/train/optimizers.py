"""Updates parameter sets: learning-rate schedule, AdamW for each set, gradient clipping; measures norms by set."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import nn

from gram_platform.config import OptimizerConfig

Sets = Mapping[str, Mapping[str, nn.Parameter]]  # set -> qualified name -> parameter


def learning_rate(config: OptimizerConfig, step: int, num_steps: int) -> float:
    """Returns the rate of step 0 <= step < num_steps: warm-up, stable, decay.

    Linear from peak/warmup_steps to peak, constant, then linear down to peak/decay_steps at the last step.
    Fractions are of the run's steps, rounded to whole steps.
    """
    warmup_steps = round(config.warmup_fraction * num_steps)
    decay_steps = round(config.decay_fraction * num_steps)
    if step < warmup_steps:
        return config.peak_lr * (step + 1) / warmup_steps
    if step >= num_steps - decay_steps:
        return config.peak_lr * (num_steps - step) / decay_steps
    return config.peak_lr


def set_learning_rate(optimizers: Mapping[str, torch.optim.AdamW], rate: float) -> None:
    """Sets the rate of every optimizer: sets that step rarely follow the run's global step too [ours]."""
    for optimizer in optimizers.values():
        for group in optimizer.param_groups:
            group["lr"] = rate


def make_optimizers(config: OptimizerConfig, sets: Sets) -> dict[str, torch.optim.AdamW]:
    """Makes one AdamW for each set. Weight decay applies to matrices, and to vectors only with `decay_vectors`."""
    return {name: _adamw(config, list(parameters.values())) for name, parameters in sets.items()}


def _adamw(config: OptimizerConfig, parameters: list[nn.Parameter]) -> torch.optim.AdamW:
    matrices = [p for p in parameters if p.dim() >= 2]
    vectors = [p for p in parameters if p.dim() < 2]
    decays = ((matrices, config.weight_decay), (vectors, config.weight_decay if config.decay_vectors else 0.0))
    groups = [{"params": group, "weight_decay": decay} for group, decay in decays if group]
    betas = (config.beta1, config.beta2)
    return torch.optim.AdamW(groups, lr=config.peak_lr, betas=betas, eps=config.eps, fused=True)


def clip_gradients(sets: Sets, config: OptimizerConfig) -> float:
    """Scales gradients down to `clip_norm` (0: leaves them) and returns their norm before.

    `global`: one norm over all sets [ours]. `per_set`: one norm for each set; returns the largest. Parameters without
    gradients are left out.
    """
    groups = [[p for p in named.values() if p.grad is not None] for named in sets.values()]
    groups = [group for group in groups if group]
    if config.clip_scope == "global":
        groups = [[p for group in groups for p in group]]
    norms = [_clipped(group, config.clip_norm) for group in groups]
    return float(np.max([float(_full(norm)) for norm in norms]))  # NaN if any is NaN: Python's `max` may skip it


def _clipped(parameters: list[nn.Parameter], clip_norm: float) -> torch.Tensor:
    if clip_norm:
        return nn.utils.clip_grad_norm_(parameters, clip_norm)
    return nn.utils.get_total_norm([p.grad for p in parameters])


def gradient_norms(sets: Sets) -> dict[str, float]:
    """Measures the norm of every set's gradients; leaves out sets without gradients.

    With sharded parameters every rank must call it; one reduction serves all sets.
    """
    gradients = {name: [p.grad for p in named.values() if p.grad is not None] for name, named in sets.items()}
    return _norms({name: tensors for name, tensors in gradients.items() if tensors})


def weight_norms(sets: Sets) -> dict[str, float]:
    """Measures the norm of every set's weights; see `gradient_norms` for sharded parameters."""
    return _norms({name: [p.detach() for p in named.values()] for name, named in sets.items() if named})


def _norms(groups: dict[str, Sequence[torch.Tensor]]) -> dict[str, float]:
    """Computes one norm per tensor with a single transfer from the device, then combines the numbers by group."""
    if not groups:
        return {}
    norms = torch.stack(torch._foreach_norm([tensor for tensors in groups.values() for tensor in tensors]))
    left = iter(_full(norms).tolist())
    return {name: math.hypot(*(next(left) for _ in tensors)) for name, tensors in groups.items()}


def _full(norm: torch.Tensor) -> torch.Tensor:
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # a DTensor when sharded
