"""Computes losses from logits or activations: cross entropy, unlearning and distillation."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gram_platform.config import Objective, RunConfig
from gram_platform.config.layout import LOGITS_AT_ONCE
from gram_platform.config.routing import hash_key, uniforms
from gram_platform.config.training import MISDIRECTION
from gram_platform.model.kernels import require_first_order
from gram_platform.model.transformer import NO_MODULES, Transformer


def cross_entropy(
    logits_BTV: Tensor, targets_BT: Tensor, weights_BT: Tensor | None = None
) -> Tensor:
    """Returns the weighted next-token cross entropy in nats, averaged over B x T targets."""
    return cross_entropies(logits_BTV, targets_BT, weights_BT, 1).view(())


def cross_entropies(
    logits_BTV: Tensor,
    targets_BT: Tensor,
    weights_BT: Tensor | None,
    num_losses: int,
) -> Tensor:
    """Returns the mean cross entropy of each of `num_losses` parts of the batch, as float32.

    With weights, all logits are converted to float32 at once.
    """
    if weights_BT is not None:
        losses_BT = token_cross_entropy(logits_BTV, targets_BT) * weights_BT
        return torch.stack([part.mean() for part in losses_BT.chunk(num_losses)])
    return _CrossEntropy.apply(logits_BTV.flatten(0, 1), targets_BT.flatten(), num_losses)


class _CrossEntropy(torch.autograd.Function):
    """Computes the gradient in the forward pass, so that few logits are in float32 at once."""

    @staticmethod
    def forward(ctx, logits_NV: Tensor, targets_N: Tensor, num_losses: int) -> Tensor:
        num_tokens, vocab_size = logits_NV.shape
        ctx.grad_NV = torch.empty_like(logits_NV) if ctx.needs_input_grad[0] else None
        fill = _fill_in_place if logits_NV.dtype == torch.float32 else _fill
        rows = rows_at_once(logits_NV.device, vocab_size)
        parts = []
        for first in range(0, num_tokens, rows):
            part = slice(first, first + rows)
            logits, targets = logits_NV[part], targets_N[part].unsqueeze(1)
            if ctx.grad_NV is None:
                log_p = F.log_softmax(logits, dim=-1, dtype=torch.float32)
                parts.append(-log_p.gather(1, targets))
            else:
                divisor = num_tokens // num_losses
                parts.append(fill(ctx.grad_NV[part], logits, targets, divisor))
        if num_losses > 1:
            return torch.cat(parts).view(num_losses, -1).mean(dim=1)
        return (sum(losses.sum() for losses in parts) / num_tokens).view(1)

    @staticmethod
    def backward(ctx, grad_M: Tensor):
        require_first_order()
        # The gradient is scaled in place, so it is usable only once.
        grad_NV, ctx.grad_NV = ctx.grad_NV, None
        grad_NV.view(len(grad_M), -1).mul_(grad_M.unsqueeze(1))
        return grad_NV, None, None


def _fill(grad_NV: Tensor, logits_NV: Tensor, targets_N1: Tensor, divisor: int) -> Tensor:
    """Fills `grad_NV` with (softmax - one-hot target) / divisor. Returns losses_N1."""
    log_p_NV = F.log_softmax(logits_NV, dim=-1, dtype=torch.float32)
    losses_N1 = -log_p_NV.gather(1, targets_N1)
    grad_NV.copy_(_subtract_targets(log_p_NV.exp_(), targets_N1, 1.0).div_(divisor))
    return losses_N1


def _fill_in_place(grad_NV: Tensor, logits_NV: Tensor, targets_N1: Tensor, divisor: int) -> Tensor:
    """Does the same as `_fill` for float32, with one `exp` and no further [N, V] tensors."""
    torch.sub(logits_NV, logits_NV.amax(dim=-1, keepdim=True), out=grad_NV)
    target_logits_N1 = grad_NV.gather(1, targets_N1)
    sums_N1 = grad_NV.exp_().sum(dim=-1, keepdim=True)
    _subtract_targets(grad_NV.mul_((divisor * sums_N1).reciprocal_()), targets_N1, 1.0 / divisor)
    return sums_N1.log_() - target_logits_N1


def _subtract_targets(p_NV: Tensor, targets_N1: Tensor, amount: float) -> Tensor:
    return p_NV.scatter_add_(1, targets_N1, p_NV.new_full((), -amount).expand(targets_N1.shape))


def rows_at_once(device: torch.device, vocab_size: int) -> int:
    """Returns the number of tokens whose logits are converted to float32 at a time."""
    return max(1, LOGITS_AT_ONCE.get(device.type, LOGITS_AT_ONCE["cuda"]) // vocab_size)


def token_cross_entropy(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Returns the cross entropy of every target in nats: float32 losses_BT."""
    logits_NV, targets_N = logits_BTV.flatten(0, 1).float(), targets_BT.flatten()
    return F.cross_entropy(logits_NV, targets_N, reduction="none").view_as(targets_BT)


def sequence_cross_entropy(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Returns the mean cross entropy of every sequence in nats: float32 losses_B."""
    at_once = max(1, rows_at_once(logits_BTV.device, logits_BTV.shape[-1]) // targets_BT.shape[1])
    parts = zip(logits_BTV.split(at_once), targets_BT.split(at_once), strict=True)
    return torch.cat(
        [token_cross_entropy(logits, targets).mean(dim=1) for logits, targets in parts]
    )


def maxent_kl(logits_BTV: Tensor) -> Tensor:
    """Returns KL(uniform || p) averaged over tokens, in nats. Source: code of Yuan et al. 2024.

    This is mean(-log p) - log V. Logits (2, 1, 0, -1) give 0.553895. The gradient with respect to
    one token's logits is p - 1/V.
    """
    log_p = F.log_softmax(logits_BTV.float(), dim=-1)
    return -log_p.mean() - math.log(log_p.shape[-1])


def maxent_entropy(logits_BTV: Tensor) -> Tensor:
    """Returns KL(p || uniform) averaged over tokens, in nats. The paper minimises this.

    It is log V - H(p), where V includes the vocabulary's padding. Logits (2, 1, 0, -1) give
    0.438757.
    """
    log_p = F.log_softmax(logits_BTV.float(), dim=-1)
    return (log_p.exp() * log_p).sum(-1).mean() + math.log(log_p.shape[-1])


MAXENT = {"maxent_kl": maxent_kl, "maxent_entropy": maxent_entropy}


def distillation_kl(logits_BTV: Tensor, taught_BTV: Tensor) -> Tensor:
    """Returns KL(teacher || p) averaged over tokens, in nats. `taught_BTV` has teacher logits."""
    log_p, log_taught = (
        F.log_softmax(logits.flatten(0, 1).float(), dim=-1) for logits in (logits_BTV, taught_BTV)
    )
    return F.kl_div(log_p, log_taught, reduction="batchmean", log_target=True)


def activation_distance(x_BTD: Tensor, target: Tensor) -> Tensor:
    """Returns mean((x - target)^2) over tokens and dimensions, for target [D] or [B, T, D]."""
    return (x_BTD.float() - target.float()).square().mean()


def training_loss(
    objective: Objective,
    domain: str,
    cross_entropy_loss: Tensor,
    logits_BTV: Tensor,
    activations: tuple[Tensor, Tensor] | None = None,
    taught_BTV: Tensor | None = None,
) -> Tensor:
    """Returns the loss to minimise for a micro-batch of `domain`.

    Unlearning minimises F(forget batch) + w R(retain batch). R is the cross entropy, and F is the
    MaxEnt loss or minus the cross entropy. For misdirection, F and R are the distance between the
    two `activations` (x, target). F and R are doubled, because the loop divides by the number of
    all micro-batches, of which half have F and half have R. Distillation compares with the
    teacher's logits, `taught_BTV`.
    """
    if objective.kind == "cross_entropy":
        return cross_entropy_loss
    if taught_BTV is not None:
        return distillation_kl(logits_BTV, taught_BTV)
    retained = activation_distance(*activations) if activations else cross_entropy_loss
    if domain not in objective.forget:
        return 2.0 * objective.retain_weight * retained
    if activations:
        return 2.0 * retained
    if objective.kind == "gradient_difference":
        return -2.0 * cross_entropy_loss
    return 2.0 * MAXENT[objective.kind](logits_BTV)


class Misdirection:
    """Provides a layer's output in the trained model, and the target that RMU compares it with.

    On forget domains the target is a fixed random vector. Its components are drawn from the seed,
    uniformly in [0, 1) as in the authors' code, and then scaled to the norm `steering`. On other
    domains the target is the layer's output with the weights at the start of the run. The
    parameters above the layer (`above`) are never trained. They only serve to report the cross
    entropy, which has no gradient.
    """

    def __init__(
        self, config: RunConfig, model: Transformer, frozen: Transformer, run_frozen: Callable
    ):
        """`run_frozen(tokens_BT, active)` runs the model `frozen`.

        `frozen` has the layers up to the compared one, with the weights at the start of the run.
        """
        self.objective, self.run_frozen = config.objective, run_frozen
        values_D = uniforms(hash_key(config.seed, MISDIRECTION), np.arange(config.model.d_model))
        direction_D = torch.from_numpy(values_D / np.linalg.norm(values_D)).float()
        self.target_D = (config.objective.steering * direction_D).to(model.rotary.cos_Th.device)
        num_layers = self.objective.steered_layers
        above = (*model.blocks[num_layers:], model.ln_f, model.lm_head)
        self.above = [parameter for part in above for parameter in part.parameters()]
        self.kept: dict[str, Tensor] = {}
        for name, steered in (("trained", model), ("frozen", frozen)):
            steered.blocks[num_layers - 1].register_forward_hook(partial(self._keep, name))

    def _keep(self, name: str, block: nn.Module, inputs: tuple, x_BTD: Tensor) -> Tensor:
        if name == "frozen" or torch.is_grad_enabled():
            self.kept[name] = x_BTD
        return x_BTD.detach()

    def activations(self, domain: str, tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the layer's output x_BTD in the last forward pass, and its target.

        The pass read `tokens_BT`. The target is [D] on forget domains, and [B, T, D] on others.
        """
        x_BTD = self.kept.pop("trained")
        if domain in self.objective.forget:
            return x_BTD, self.target_D
        with torch.no_grad():
            self.run_frozen(tokens_BT, NO_MODULES)
        return x_BTD, self.kept.pop("frozen")
