"""Computes cross entropy and its gradient by two compiled functions, which convert and scale logits as they read them.

Separate operations on a GPU move 32 bytes for each logit of 2 bytes: log-softmax 6, exponential 8, division 8, copy 6
and scaling 4. These move at most 8: the maximum, the sum and the gradient each read it, and its gradient is written.

Shapes: B sequences, T tokens, V vocabulary, N = B x T, M micro-batches of a pass.
"""

from collections.abc import Callable, Sequence

import torch

from gram_platform.model.kernels import require_first_order
from gram_platform.train.compilation import Compilation
from gram_platform.train.objectives import rows_at_once

TargetLogits = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]  # logits_BTV, targets_BT, their weights_BT


class FusedCrossEntropy:
    """Returns what `objectives.cross_entropy` returns for each micro-batch of a pass, up to rounding."""

    def __init__(self, compilation: Compilation):
        self._attempt = compilation.attempt
        self.token_losses = compilation.graphs_of(token_losses)
        self._gradient = compilation.graphs_of(logits_gradient)

    def __call__(self, logits: TargetLogits, num_losses: int, plain: Callable) -> Sequence[torch.Tensor]:
        """Returns `num_losses` means over equally many sequences; `plain()` where compiling fails."""
        logits_BTV, targets_BT, weights_BT = logits
        weights_N1 = None if weights_BT is None else weights_BT.reshape(-1, 1)
        inputs = logits_BTV.flatten(0, 1), targets_BT.reshape(-1, 1), weights_N1
        return self._attempt(lambda: _CrossEntropies.apply(self, num_losses, *inputs).unbind(), plain)

    def gradient(self, *rows: torch.Tensor) -> torch.Tensor:
        """Returns `logits_gradient`, some rows at a time where compiling fails."""
        return self._attempt(self._gradient, _in_parts, *rows)


class _CrossEntropies(torch.autograd.Function):
    """Computes the gradient in the backward pass, where its scale is known."""

    @staticmethod
    def forward(
        ctx,
        fused: FusedCrossEntropy,
        num_losses: int,
        logits_NV: torch.Tensor,
        targets_N1: torch.Tensor,
        weights_N1: torch.Tensor | None,
    ) -> torch.Tensor:
        losses_N1, *statistics = fused.token_losses(logits_NV, targets_N1)
        ctx.fused = fused
        ctx.save_for_backward(logits_NV, targets_N1, *statistics, weights_N1)
        weighted_N1 = losses_N1 if weights_N1 is None else losses_N1 * weights_N1
        return weighted_N1.view(num_losses, -1).mean(dim=1)

    @staticmethod
    def backward(ctx, grad_M: torch.Tensor):
        require_first_order()
        *rows, weights_N1 = ctx.saved_tensors
        per_loss = len(rows[0]) // len(grad_M)
        scales_N1 = (grad_M / per_loss).repeat_interleave(per_loss).unsqueeze(1)
        scales_N1 = scales_N1 if weights_N1 is None else scales_N1 * weights_N1
        return None, None, ctx.fused.gradient(*rows, scales_N1), None, None


def token_losses(logits_NV: torch.Tensor, targets_N1: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns each token's cross entropy in nats, its largest logit, and the log-sum-exp of its logits minus that one.

    All are float32 of shape [N, 1].
    """
    float_NV = logits_NV.float()
    largest_N1 = float_NV.amax(dim=-1, keepdim=True)
    logsum_N1 = (float_NV - largest_N1).exp().sum(dim=-1, keepdim=True).log()
    return logsum_N1 - (float_NV.gather(1, targets_N1) - largest_N1), largest_N1, logsum_N1


def logits_gradient(
    logits_NV: torch.Tensor,
    targets_N1: torch.Tensor,
    largest_N1: torch.Tensor,
    logsum_N1: torch.Tensor,
    scales_N1: torch.Tensor,
) -> torch.Tensor:
    """Returns (p - 1[target]) x scale in the logits' dtype, from what `token_losses` returns."""
    p_NV = (logits_NV.float() - largest_N1 - logsum_N1).exp()
    is_target_NV = torch.arange(logits_NV.shape[1], device=logits_NV.device) == targets_N1
    return ((p_NV - is_target_NV.float()) * scales_N1).to(logits_NV.dtype)


def _in_parts(logits_NV: torch.Tensor, *rows: torch.Tensor) -> torch.Tensor:
    gradient_NV, number = torch.empty_like(logits_NV), rows_at_once(logits_NV.device, logits_NV.shape[1])
    parts = zip(*(of_all.split(number) for of_all in (gradient_NV, logits_NV, *rows)), strict=True)
    for gradient, *part in parts:
        gradient.copy_(logits_gradient(*part))
    return gradient_NV
