"""The training loop: a generator of step records. Evaluating, logging and saving are the caller's business."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from gram_platform.config import Objective
from gram_platform.config.routing import MicroBatch, Plan
from gram_platform.train.data import PlanReader, on_device
from gram_platform.train.learner import Learner, gradient_norms, weight_norms
from gram_platform.train.objectives import cross_entropy, training_loss
from gram_platform.train.optimizers import learning_rate


class TrainingDiverged(RuntimeError):
    """A loss or gradient was not finite; the message names step, domain and learning rate."""


@dataclass(frozen=True)
class StepRecord:
    """What one optimizer step did. `step` counts completed steps: the first record has step 1."""

    step: int
    learning_rate: float
    grad_norm: float
    domains: tuple[str, ...]  # of each micro-batch
    losses: tuple[float, ...]  # nats per token, of each micro-batch
    norms: Mapping[str, float] = field(default_factory=dict)  # of sets, where they are measured: see `training_steps`
    forgetting: float = math.nan  # MaxEnt: the mean ME of the window's forget micro-batches


def training_steps(
    learner: Learner,
    plan: Plan,
    reader: PlanReader,
    first_step: int = 0,
    rank: int = 0,
    num_ranks: int = 1,
    norms_every: int = 0,
) -> Iterator[StepRecord]:
    """Trains from `first_step` to the plan's end, yielding after every optimizer step.

    A window's micro-batches each have their own domain and route; each loss is divided by their number, so that k
    micro-batches of one route are one batch. At every multiple of `norms_every` and at the last step `norms` has
    `gradient/<set>` of the sets that this window trained, before clipping, and `weights/<set>` after the step. Raises
    TrainingDiverged before a non-finite gradient touches a weight.
    """
    config = learner.config
    for step in range(first_step, config.num_steps):
        window = plan.window(step)
        # read after the window: reading waits for the device
        parts = torch.empty(len(window), 2, device=learner.device)
        for index, micro_batch in enumerate(window):
            tokens = on_device(reader.tokens(micro_batch, rank, num_ranks), learner.device)
            is_last = index == len(window) - 1
            parts[index, 0], parts[index, 1] = _micro_step(learner, micro_batch, tokens, len(window), is_last)
        losses, minimised = learner.mean_over_ranks(parts).T.tolist()
        rate = learning_rate(config.optimizer, step, config.num_steps)
        _check_finite(losses, window, step, rate)
        is_measured = norms_every > 0 and ((step + 1) % norms_every == 0 or step + 1 == config.num_steps)
        gradients = gradient_norms(learner.master_sets) if is_measured else {}
        norm = learner.clip()
        if not math.isfinite(norm):
            drawn = sorted({m.domain for m in window})
            where = f"step {step + 1}, domains {drawn}, learning rate {rate:.3g}"
            raise TrainingDiverged(f"gradient norm {norm} at {where}")
        learner.step(rate)
        weights = weight_norms(learner.master_sets) if is_measured else {}
        norms = {f"gradient/{name}": value for name, value in gradients.items()}
        norms |= {f"weights/{name}": value for name, value in weights.items()}
        domains = tuple(m.domain for m in window)
        forgetting = _forgetting(config.objective, domains, minimised)
        yield StepRecord(step + 1, rate, norm, domains, tuple(losses), norms, forgetting)


def _micro_step(
    learner: Learner, micro_batch: MicroBatch, tokens: torch.Tensor, num_micro_batches: int, is_last: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Forward and backward of one micro-batch; returns its mean cross entropy and what was minimised, detached."""
    route = micro_batch.route
    learner.train_only(route.trained)
    logits_BTV = learner.forward(tokens[:, :-1], dict(route.active))
    loss = cross_entropy(logits_BTV, tokens[:, 1:])
    minimised = training_loss(learner.config.objective, micro_batch.domain, loss, logits_BTV)
    learner.backward(minimised / num_micro_batches, route.trained, is_last)
    return loss.detach(), minimised.detach()


def _forgetting(objective: Objective, domains: Sequence[str], minimised: Sequence[float]) -> float:
    """The mean ME over a window's forget micro-batches, which `training_loss` doubles; NaN without any."""
    terms = [value / 2.0 for domain, value in zip(domains, minimised, strict=True) if domain in objective.forget]
    return sum(terms) / len(terms) if terms else math.nan


def _check_finite(losses: Sequence[float], window: list[MicroBatch], step: int, rate: float) -> None:
    for loss, micro_batch in zip(losses, window, strict=True):
        if not math.isfinite(loss):
            where = f"step {step + 1}, domain {micro_batch.domain!r}, learning rate {rate:.3g}"
            raise TrainingDiverged(f"loss {loss} at {where}")
