"""Updates parameter sets: learning rate, an AdamW for each set, clipping, and norms by set.

Functions take lists of tensors, so that a GPU needs few kernels. If a tensor is sharded, they use
only this rank's rows.
"""

import math
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gram_platform.config import OptimizerConfig

# Parameters by set and qualified name.
Sets = Mapping[str, Mapping[str, nn.Parameter]]


def learning_rate(config: OptimizerConfig, step: int, num_steps: int) -> float:
    """Returns the learning rate of `step`, where 0 <= step < num_steps.

    It rises linearly from peak/warmup_steps to peak, stays constant, and falls linearly to
    peak/decay_steps at the last step. warmup_steps and decay_steps are the config's fractions of
    `num_steps`, rounded.
    """
    warmup_steps = round(config.warmup_fraction * num_steps)
    decay_steps = round(config.decay_fraction * num_steps)
    if step < warmup_steps:
        return config.peak_lr * (step + 1) / warmup_steps
    if step >= num_steps - decay_steps:
        return config.peak_lr * (num_steps - step) / decay_steps
    return config.peak_lr


def set_learning_rate(optimizers: Mapping[str, torch.optim.AdamW], rate: float) -> None:
    """Sets the same rate for all optimizers, even if routes train some sets rarely [ours]."""
    for optimizer in optimizers.values():
        for group in optimizer.param_groups:
            group["lr"] = rate


def make_optimizers(config: OptimizerConfig, sets: Sets) -> dict[str, torch.optim.AdamW]:
    """Makes an AdamW for each parameter set. Vectors get weight decay only with `decay_vectors`."""
    return {name: _adamw(config, list(parameters.values())) for name, parameters in sets.items()}


def _adamw(config: OptimizerConfig, parameters: list[nn.Parameter]) -> torch.optim.AdamW:
    matrices = [p for p in parameters if p.dim() >= 2]
    vectors = [p for p in parameters if p.dim() < 2]
    of_vectors = config.weight_decay if config.decay_vectors else 0.0
    decays = ((matrices, config.weight_decay), (vectors, of_vectors))
    groups = [{"params": group, "weight_decay": decay} for group, decay in decays if group]
    betas = (config.beta1, config.beta2)
    return torch.optim.AdamW(groups, lr=config.peak_lr, betas=betas, eps=config.eps, fused=True)


def clip_gradients(sets: Sets, config: OptimizerConfig) -> float:
    """Clips gradients to `clip_norm` (0 for never) and returns the norm before clipping [ours].

    The norm is over all sets. The factor is as in torch's `clip_grad_norm_`.
    """
    gradients = [p.grad for named in sets.values() for p in named.values() if p.grad is not None]
    norm = torch.linalg.vector_norm(_tensor_norms(gradients))
    if config.clip_norm:
        factor = torch.clamp(config.clip_norm / (norm + 1e-6), max=1.0)
        torch._foreach_mul_(_locals(gradients), factor)
    return float(norm)


def add_gradients(pairs: Sequence[tuple[nn.Parameter, nn.Parameter]]) -> None:
    """Moves the gradient of each copy to its float32 master. `pairs` are (copy, master).

    On a CPU, gradients are converted while they are added. A GPU converts them first, since it then
    needs fewer kernels.
    """
    pairs = [pair for pair in pairs if pair[0].grad is not None]
    gradients = [copy.grad for copy, _ in pairs]
    if gradients and gradients[0].device.type != "cpu":
        converted = [torch.empty_like(gradient, dtype=torch.float32) for gradient in gradients]
        torch._foreach_copy_(converted, gradients)
        gradients = converted
    sums = zip((master.grad for _, master in pairs), gradients, strict=True)
    terms = [each for each in sums if each[0] is not None]
    if terms:
        torch._foreach_add_(*map(list, zip(*terms, strict=True)))
    for (copy, master), gradient in zip(pairs, gradients, strict=True):
        copy.grad = None
        if master.grad is None:
            master.grad = gradient.float()


def gradient_norms(sets: Sets) -> dict[str, float]:
    """Returns the gradient norm of every set that has gradients. All ranks must call this."""
    groups = {}
    for name, named in sets.items():
        if gradients := [p.grad for p in named.values() if p.grad is not None]:
            groups[name] = gradients
    return _norms(groups)


def weight_norms(sets: Sets) -> dict[str, float]:
    """Returns the norm of every set's weights. All ranks must call this."""
    return _norms({name: [p.detach() for p in named.values()] for name, named in sets.items()})


def _norms(groups: Mapping[str, Sequence[Tensor]]) -> dict[str, float]:
    tensors = [tensor for group in groups.values() for tensor in group]
    left = iter(_tensor_norms(tensors).tolist())
    return {name: math.hypot(*(next(left) for _ in tensors)) for name, tensors in groups.items()}


def _tensor_norms(tensors: Sequence[Tensor]) -> Tensor:
    norms = torch.stack(torch._foreach_norm(_locals(tensors)))
    if not _is_sharded(tensors[0]):
        return norms
    squares = norms.square()
    mesh = tensors[0].device_mesh
    dist.all_reduce(squares, group=mesh.get_group(mesh.ndim - 1))
    return squares.sqrt()


@torch.no_grad()
def _locals(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.to_local() if _is_sharded(tensor) else tensor for tensor in tensors]


def _is_sharded(tensor: Tensor) -> bool:
    """Returns True for a DTensor, without importing its class, which takes 0.5 s."""
    return hasattr(tensor, "to_local")
