"""Compiles a run's blocks and loss with torch.compile, and runs uncompiled if that fails."""

import functools
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from gram_platform.config.terminal import one_line, warn
from gram_platform.model.kernels import repeats_keys, require_first_order
from gram_platform.model.transformer import Mlp, Transformer
from gram_platform.train.objectives import rows_at_once

# A function gets one graph per (sequences of a pass, sequences that train it).
MAX_GRAPHS = 32
Result = TypeVar("Result")


class Compilation:
    """Compiles functions until one fails. Then warns once, and runs all functions uncompiled.

    A function that fails is called again uncompiled, so it must be pure. If it fails again, its
    error is raised. If a function has run compiled in a forward pass, its recomputation in the
    backward pass is compiled too, because both must save the same tensors. One rank can run
    uncompiled while others run compiled, since compiled functions do not communicate.
    """

    def __init__(self, backend: str | Callable = "inductor"):
        """Limits the graphs per function. Beyond the limit, torch runs the function uncompiled.

        Drops the graphs of earlier runs in this process, which count towards the same limit.
        """
        torch.compiler.reset()
        torch._dynamo.utils.counters.clear()
        torch._dynamo.config.recompile_limit = MAX_GRAPHS
        # Compiles a backward pass with its forward pass, because an error in the middle of a
        # backward pass cannot be handled.
        if hasattr(torch._functorch.config, "force_non_lazy_backward_lowering"):
            torch._functorch.config.force_non_lazy_backward_lowering = True
        self.backend = backend
        self.has_failed = False
        # The functions that have run compiled in this forward pass.
        self.used: set[Callable] = set()

    def graphs_of(self, function: Callable[..., Result]) -> Callable[..., Result]:
        """Returns a version of `function` that is compiled at the first call with each shape."""

        @functools.cache
        def graphs() -> Callable[..., Result]:
            # This call fails if torch does not know the backend or the platform.
            return torch.compile(function, dynamic=False, backend=self.backend)

        return lambda *inputs: graphs()(*inputs)

    def compile(self, function: Callable[..., Result]) -> Callable[..., Result]:
        """Returns a version of `function` that runs compiled, or uncompiled after a failure."""
        return functools.partial(self.attempt, self.graphs_of(function), function)

    def attempt(
        self, compiled: Callable[..., Result], plain: Callable[..., Result], *inputs
    ) -> Result:
        """Calls `compiled`, or `plain` if this fails.

        After any failure, calls `plain`, unless this forward pass already ran `compiled`. Does not
        catch out-of-memory errors.
        """
        if self.has_failed and compiled not in self.used:
            return plain(*inputs)
        try:
            result = compiled(*inputs)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            result = plain(*inputs)
            self._fail(error)
        else:
            self.used.add(compiled)
        return result

    def _fail(self, error: Exception) -> None:
        if not self.has_failed:
            reason = one_line(f"{type(error).__name__}: {error}")
            failure = f"--compile: torch.compile ({self.backend}) failed"
            warn(f"{failure}, so the run continues without it, slower: {reason}", 2)
        self.has_failed = True


def compile_blocks(model: Transformer, compilation: Compilation) -> None:
    """Compiles every block's trunk and auxiliary MLPs in place.

    Can be called before or after sharding, since FSDP2's hooks stay outside the graphs.
    """
    torch.compiler.assume_constant_result(repeats_keys)
    # The previous pass is no longer recomputed.
    model.register_forward_pre_hook(lambda *_: compilation.used.clear())
    for block in model.blocks:
        block.trunk = compilation.compile(block.trunk)
        for module in block.aux.values():
            if isinstance(module, Mlp):
                module.forward = compilation.compile(module.forward)  # type: ignore[method-assign]


def num_graphs() -> int:
    """Returns the number of graphs compiled since the latest `Compilation` was created."""
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


# Logits_BTV, targets_BT and their weights_BT.
TargetLogits = tuple[Tensor, Tensor, Tensor | None]


def fuse_cross_entropy(
    compilation: Compilation,
) -> Callable[[TargetLogits, int, Callable], Tensor]:
    """Returns a compiled function that equals `objectives.cross_entropies` up to rounding.

    It takes a pass's logits, targets and weights, the number of losses and a function `plain`. It
    returns the losses [M], or the result of `plain()` if compiling fails. Two compiled functions,
    for the losses and for the gradient, convert and scale the logits while reading them. On a GPU,
    this moves at most 8 bytes per 2-byte logit. Separate operations move 32 bytes.

    Shapes: B sequences, T tokens, V vocabulary, N = B x T, M micro-batches of a pass.
    """
    losses = compilation.graphs_of(token_losses)
    graphs = compilation.graphs_of(logits_gradient)
    # If compiling fails, the gradient is computed some rows at a time.
    gradient = functools.partial(compilation.attempt, graphs, _in_parts)

    def compute(logits: TargetLogits, num_losses: int, plain: Callable) -> Tensor:
        logits_BTV, targets_BT, weights_BT = logits
        weights_N1 = None if weights_BT is None else weights_BT.reshape(-1, 1)
        inputs = num_losses, logits_BTV.flatten(0, 1), targets_BT.reshape(-1, 1), weights_N1
        return compilation.attempt(lambda: _CrossEntropies.apply(losses, gradient, *inputs), plain)

    return compute


class _CrossEntropies(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx,
        token_losses: Callable,
        gradient: Callable,
        num_losses: int,
        logits_NV: Tensor,
        targets_N1: Tensor,
        weights_N1: Tensor | None,
    ) -> Tensor:
        losses_N1, *statistics = token_losses(logits_NV, targets_N1)
        ctx.gradient = gradient
        ctx.save_for_backward(logits_NV, targets_N1, *statistics, weights_N1)
        weighted_N1 = losses_N1 if weights_N1 is None else losses_N1 * weights_N1
        return weighted_N1.view(num_losses, -1).mean(dim=1)

    @staticmethod
    def backward(ctx, grad_M: Tensor):
        require_first_order()
        *rows, weights_N1 = ctx.saved_tensors
        per_loss = len(rows[0]) // len(grad_M)
        scales_N1 = (grad_M / per_loss).repeat_interleave(per_loss).unsqueeze(1)
        scales_N1 = scales_N1 if weights_N1 is None else scales_N1 * weights_N1
        return None, None, None, ctx.gradient(*rows, scales_N1), None, None


def token_losses(logits_NV: Tensor, targets_N1: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns each token's cross entropy in nats, and two statistics that the gradient needs.

    These are the largest logit, and the log-sum-exp of the logits minus the largest. All are
    float32 [N, 1].
    """
    float_NV = logits_NV.float()
    largest_N1 = float_NV.amax(dim=-1, keepdim=True)
    logsum_N1 = (float_NV - largest_N1).exp().sum(dim=-1, keepdim=True).log()
    return logsum_N1 - (float_NV.gather(1, targets_N1) - largest_N1), largest_N1, logsum_N1


def logits_gradient(
    logits_NV: Tensor,
    targets_N1: Tensor,
    largest_N1: Tensor,
    logsum_N1: Tensor,
    scales_N1: Tensor,
) -> Tensor:
    """Returns (softmax - one-hot target) x scale in the logits' dtype.

    `largest_N1` and `logsum_N1` are from `token_losses`.
    """
    p_NV = (logits_NV.float() - largest_N1 - logsum_N1).exp()
    is_target_NV = torch.arange(logits_NV.shape[1], device=logits_NV.device) == targets_N1
    return ((p_NV - is_target_NV.float()) * scales_N1).to(logits_NV.dtype)


def _in_parts(logits_NV: Tensor, *rows: Tensor) -> Tensor:
    gradient_NV = torch.empty_like(logits_NV)
    number = rows_at_once(logits_NV.device, logits_NV.shape[1])
    tensors = (gradient_NV, logits_NV, *rows)
    for gradient, *part in zip(*(tensor.split(number) for tensor in tensors), strict=True):
        gradient.copy_(logits_gradient(*part))
    return gradient_NV
