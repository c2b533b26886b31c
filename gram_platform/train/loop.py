"""Trains a run: a generator of step records. The caller evaluates, logs and saves between steps."""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from gram_platform.config import Objective
from gram_platform.config.identity import sum_in_order
from gram_platform.config.routing import MicroBatch, Schedule, same_routes
from gram_platform.train.data import ScheduleReader, on_device
from gram_platform.train.learner import Learner
from gram_platform.train.objectives import training_loss
from gram_platform.train.optimizers import gradient_norms, learning_rate, weight_norms


class TrainingDiverged(RuntimeError):
    """A loss or gradient norm is not finite; says the step, the domain and the learning rate."""


@dataclass(frozen=True)
class StepRecord:
    """One optimizer step. `step` counts completed steps: the first record has step 1."""

    step: int
    learning_rate: float
    # Before clipping.
    grad_norm: float
    domains: tuple[str, ...]
    # Cross entropy of each micro-batch, in nats per token.
    losses: tuple[float, ...]
    # Norms of parameter sets, see `training_steps`.
    norms: Mapping[str, float] = field(default_factory=dict)
    # In unlearning, the mean forget term of the window's forget micro-batches. It is infinite
    # without any, and never NaN: a record with NaN does not equal itself.
    forgetting: float = math.inf


def training_steps(
    learner: Learner,
    schedule: Schedule,
    reader: ScheduleReader,
    first_step: int = 0,
    norms_every: int = 0,
) -> Iterator[StepRecord]:
    """Trains from `first_step` to the schedule's end; yields a record after each optimizer step.

    A step trains on one window. Micro-batches of a window differ in domain and route. Each runs in
    `num_passes` passes of the learner, or up to `num_merged` of one route share a pass. In every
    case the gradient is that of the mean of the micro-batches' losses, up to rounding.

    Every `norms_every` steps (0: never), and after the last step, the record's norms are
    `gradient/<set>`, before clipping, of the sets that the window trained, and `weights/<set>`
    after the step. Raises TrainingDiverged before a non-finite gradient changes a weight.
    """
    config = learner.config
    for step in range(first_step, config.num_steps):
        window = schedule.window(step)
        domains = tuple(micro_batch.domain for micro_batch in window)
        rate = learning_rate(config.optimizer, step, config.num_steps)
        is_last = step + 1 == config.num_steps
        is_measured = norms_every > 0 and (is_last or (step + 1) % norms_every == 0)

        losses, minimised = _accumulate_gradients(learner, window, reader)
        for domain, loss in zip(domains, losses, strict=True):
            require_finite(f"loss {loss}", loss, f"step {step + 1}, domain {domain!r}", rate)
        gradients = gradient_norms(learner.master_sets) if is_measured else {}
        grad_norm = learner.clip()
        where = f"step {step + 1}, domains {sorted(set(domains))}"
        require_finite(f"gradient norm {grad_norm}", grad_norm, where, rate)
        learner.step(rate)
        weights = weight_norms(learner.master_sets) if is_measured else {}

        norms = {f"gradient/{name}": norm for name, norm in gradients.items()}
        norms |= {f"weights/{name}": norm for name, norm in weights.items()}
        forgetting = _forgetting(config.objective, domains, minimised)
        yield StepRecord(step + 1, rate, grad_norm, domains, tuple(losses), norms, forgetting)


def _accumulate_gradients(
    learner: Learner, window: list[MicroBatch], reader: ScheduleReader
) -> tuple[list[float], list[float]]:
    """Runs every micro-batch forward and backward.

    Returns their cross entropies and minimised losses over all ranks. Reads them from the device
    once, after the whole window, because a read waits for all queued work.
    """
    num_losses, ranks = len(window) * learner.num_passes, (learner.rank, learner.num_ranks)
    values = torch.zeros(len(window), 2, device=learner.device)
    groups = same_routes(window, learner.num_merged)
    for group in groups:
        micro_batches = [window[index] for index in group]
        read = [(reader.tokens(m, *ranks), *reader.weights(m, *ranks)) for m in micro_batches]
        joined = read[0] if len(read) == 1 else map(torch.cat, zip(*read, strict=True))
        for is_last, *part in learner.passes(*(on_device(rows, learner.device) for rows in joined)):
            ends_window = is_last and group is groups[-1]
            found = _pass(learner, micro_batches, num_losses, ends_window, *part)
            for index, value in zip(group, found, strict=True):
                values[index] += value
    losses, minimised = learner.mean_over_ranks(values / learner.num_passes).T.tolist()
    return losses, minimised


def _pass(
    learner: Learner,
    micro_batches: Sequence[MicroBatch],
    num_losses: int,
    is_last: bool,
    tokens_BT: torch.Tensor,
    weights_BT: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    """Runs micro-batches of one route, or a part of one, forward and backward.

    Returns the cross entropy and minimised loss of each, detached. `num_losses` and `is_last` are
    of the window; `weights_BT` are of the targets.
    """
    route, number = micro_batches[0].route, len(micro_batches)
    learner.train_only(route.trained)
    logits_BTV = learner.forward(tokens_BT[:, :-1], dict(route.active))
    whole = logits_BTV, tokens_BT[:, 1:], weights_BT
    parts = list(zip(*(_parts(rows, number) for rows in whole), strict=True))
    found, to_minimise = [], []
    for micro_batch, loss, (logits, _, _) in zip(
        micro_batches, learner.losses(whole, parts), parts, strict=True
    ):
        domain, steered = micro_batch.domain, learner.misdirection
        # A pass of misdirection has one micro-batch.
        activations = steered.activations(domain, tokens_BT[:, :-1]) if steered else None
        minimised = training_loss(learner.config.objective, domain, loss, logits, activations)
        found.append(torch.stack([loss.detach(), minimised.detach()]))
        to_minimise.append(minimised)
    learner.backward(functools.reduce(torch.add, to_minimise) / num_losses, route.trained, is_last)
    return found


def _parts(rows: torch.Tensor | None, number: int) -> Sequence[torch.Tensor | None]:
    """Divides sequences among micro-batches; a cut would copy the gradient of a single part."""
    return [rows] * number if rows is None or number == 1 else rows.chunk(number)


def _forgetting(objective: Objective, domains: Sequence[str], minimised: Sequence[float]) -> float:
    """Averages the forget term over forget micro-batches, without the 2 of `training_loss`.

    Infinite without any.
    """
    losses = zip(domains, minimised, strict=True)
    terms = [value / 2.0 for domain, value in losses if domain in objective.forget]
    return sum_in_order(terms) / len(terms) if terms else math.inf


def require_finite(found: str, value: float, where: str, rate: float) -> None:
    if not math.isfinite(value):
        raise TrainingDiverged(f"{found} at {where}, learning rate {rate:.3g}")
