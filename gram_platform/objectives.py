"""Training objectives as functions of logits."""

import math

import torch
import torch.nn.functional as F

from gram_platform.config import Objective


def cross_entropy(logits_BTV: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
    """Mean next-token cross entropy in nats over all B x T targets; computed in float32."""
    return F.cross_entropy(logits_BTV.flatten(0, 1).float(), targets_BT.flatten())


def token_cross_entropy(logits_BTV: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
    """The same of every target: losses_BT."""
    return F.cross_entropy(logits_BTV.flatten(0, 1).float(), targets_BT.flatten(), reduction="none").view_as(targets_BT)


def maxent_kl(logits_BTV: torch.Tensor) -> torch.Tensor:
    """KL(uniform || p) averaged over tokens, in nats: mean(-log p) - log V (Yuan et al. 2024, their code).

    Logits (2, 1, 0, -1) give 0.553895; the gradient of one token's logits is p - 1/V.
    """
    log_p = F.log_softmax(logits_BTV.float(), dim=-1)
    return -log_p.mean() - math.log(log_p.shape[-1])


def maxent_entropy(logits_BTV: torch.Tensor) -> torch.Tensor:
    """-H(p) averaged over tokens, in nats. Logits (2, 1, 0, -1) give -0.947537."""
    log_p = F.log_softmax(logits_BTV.float(), dim=-1)
    return (log_p.exp() * log_p).sum(-1).mean()


def training_loss(
    objective: Objective, domain: str, cross_entropy_loss: torch.Tensor, logits_BTV: torch.Tensor
) -> torch.Tensor:
    """What a micro-batch of `domain` minimises.

    MaxEnt is ME(forget batch) + w CE(retain batch); a window is half forget and half retain micro-batches and divides
    each by their number, so both terms are doubled to be means over their own half.
    """
    if objective.kind == "cross_entropy":
        return cross_entropy_loss
    if domain not in objective.forget:
        return 2.0 * objective.retain_weight * cross_entropy_loss
    return 2.0 * (maxent_kl if objective.kind == "maxent_kl" else maxent_entropy)(logits_BTV)
