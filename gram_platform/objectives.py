"""Training objectives as functions of logits."""

import torch
import torch.nn.functional as F


def cross_entropy(logits_BTV: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
    """Mean next-token cross entropy in nats over all B x T targets; computed in float32."""
    return F.cross_entropy(logits_BTV.flatten(0, 1).float(), targets_BT.flatten())
