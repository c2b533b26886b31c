"""Trains a run as a generator of step records. Callers evaluate, log and save between steps."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gram_platform.config import Objective
from gram_platform.config.identity import sum_in_order
from gram_platform.config.routing import (
    SHARED,
    MicroBatch,
    Schedule,
    module_set,
    passes_of_window,
)
from gram_platform.model.layers import ActiveModules, Rows
from gram_platform.train.data import ScheduleReader, on_device
from gram_platform.train.learner import Learner
from gram_platform.train.objectives import training_loss
from gram_platform.train.optimizers import gradient_norms, learning_rate, weight_norms


class TrainingDiverged(RuntimeError):
    """Raised if a loss or gradient norm is not finite. Shows step, domain and learning rate."""


@dataclass(frozen=True)
class StepRecord:
    """The record of one optimizer step. `step` counts completed steps from 1."""

    step: int
    learning_rate: float
    # The norm before clipping.
    grad_norm: float
    domains: tuple[str, ...]
    # Cross entropy of each micro-batch, in nats per token.
    losses: tuple[float, ...]
    # Norms of parameter sets, see `training_steps`.
    norms: Mapping[str, float] = field(default_factory=dict)
    # In unlearning, the mean forget term of the window's forget micro-batches. Infinite without
    # any, since a record with NaN would not equal itself.
    forgetting: float = math.inf


def training_steps(
    learner: Learner,
    schedule: Schedule,
    reader: ScheduleReader,
    first_step: int = 0,
    norms_every: int = 0,
) -> Iterator[StepRecord]:
    """Trains from `first_step` to the end of the schedule. Yields a record after each step.

    A step trains on one window of micro-batches, which differ in domain and route. The learner runs
    a micro-batch in `num_passes` passes, or up to `num_merged` micro-batches in one pass. Up to
    rounding, the gradient is that of the micro-batches' mean loss. Parameter sets that no
    micro-batch trains have no gradient.

    Every `norms_every` steps (0 for never) and after the last step, records have the norms
    `gradient/<set>` of the trained sets before clipping, and `weights/<set>` after the step. If a
    loss or gradient norm is not finite, raises TrainingDiverged before weights change.
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
            require_finite("loss", loss, f"step {step + 1}, domain {domain!r}", rate)
        gradients = gradient_norms(learner.master_sets) if is_measured else {}
        grad_norm = learner.clip()
        where = f"step {step + 1}, domains {sorted(set(domains))}"
        require_finite("gradient norm", grad_norm, where, rate)
        learner.step(rate)
        weights = weight_norms(learner.master_sets) if is_measured else {}

        norms = {f"gradient/{name}": norm for name, norm in gradients.items()}
        norms |= {f"weights/{name}": norm for name, norm in weights.items()}
        forgetting = _forgetting(config.objective, domains, minimised)
        yield StepRecord(step + 1, rate, grad_norm, domains, losses, norms, forgetting)


def _accumulate_gradients(
    learner: Learner, window: list[MicroBatch], reader: ScheduleReader
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Runs all micro-batches forward and backward. Returns (cross entropies, minimised losses).

    Both are means over ranks, one for each micro-batch. They are copied from the device only once
    per window, because copying waits for all queued work.
    """
    num_losses, ranks = len(window) * learner.num_passes, (learner.rank, learner.num_ranks)
    values, num_done = torch.zeros(2, len(window), device=learner.device), 0
    passes = passes_of_window(window, learner.num_merged)
    for micro_batches in passes:
        read = [(reader.tokens(m, *ranks), *reader.weights(m, *ranks)) for m in micro_batches]
        joined = read[0] if len(read) == 1 else map(torch.cat, zip(*read, strict=True))
        sums = values[:, num_done : num_done + len(micro_batches)]
        num_done += len(micro_batches)
        for is_last, *part in learner.passes(*(on_device(rows, learner.device) for rows in joined)):
            ends_window = is_last and num_done == len(window)
            sums += _run_pass(learner, micro_batches, num_losses, ends_window, *part)
    rows = learner.mean_over_ranks(values / learner.num_passes).tolist()
    indices = [micro_batch.index for micro_batches in passes for micro_batch in micro_batches]
    _, losses, minimised = zip(*sorted(zip(indices, *rows, strict=True)), strict=True)
    return losses, minimised


def _run_pass(
    learner: Learner,
    micro_batches: Sequence[MicroBatch],
    num_losses: int,
    is_last: bool,
    tokens_BT: Tensor,
    weights_BT: Tensor | None = None,
) -> Tensor:
    """Runs a pass (one or more micro-batches, or a part of one) forward and backward.

    Returns the micro-batches' detached cross entropies and minimised losses, [2,
    len(micro_batches)]. Divides gradients by the window's number of losses, `num_losses`.
    """
    number = len(micro_batches)
    trained = frozenset().union(*(micro_batch.route.trained for micro_batch in micro_batches))
    learner.train_only(trained)
    active, num_trained = active_rows(micro_batches, len(tokens_BT) // number, learner.device)
    taught = learner.teach(tokens_BT[:, :-1], number)
    logits_BTV = learner.forward(tokens_BT[:, :-1], active, num_trained)
    # Distillation only reports the cross entropy.
    scored_BTV = logits_BTV.detach() if learner.teacher else logits_BTV
    losses_M = learner.losses((scored_BTV, tokens_BT[:, 1:], weights_BT), number)
    # Splitting a single part would copy its gradient.
    parts = [logits_BTV] if number == 1 else logits_BTV.chunk(number)
    to_minimise = []
    of_each = zip(micro_batches, losses_M.unbind(), parts, taught, strict=True)
    for micro_batch, loss, logits, target in of_each:
        domain, steered = micro_batch.domain, learner.misdirection
        activations = steered.activations(domain, tokens_BT[:, :-1]) if steered else None
        objective = learner.config.objective
        to_minimise.append(training_loss(objective, domain, loss, logits, activations, target))
    minimised_M = torch.stack(to_minimise)
    learner.backward(minimised_M.sum() / num_losses, is_last)
    return torch.stack([losses_M, minimised_M]).detach()


def active_rows(
    micro_batches: Sequence[MicroBatch], num_rows: int, device: torch.device
) -> tuple[ActiveModules, int | None]:
    """Returns a pass's active modules, and how many of its first sequences train the core.

    Each micro-batch has `num_rows` sequences. The number is None if all or no sequences train the
    core.
    """
    routes = [micro_batch.route for micro_batch in micro_batches]
    rows = torch.arange(len(routes) * num_rows).view(-1, num_rows)
    active: dict[str, float | Rows] = {}
    for domain, weight in dict(pair for route in routes for pair in route.active).items():
        having = [n for n, route in enumerate(routes) if domain in dict(route.active)]
        training = [n for n in having if module_set(domain) in routes[n].trained]
        others = [n for n in having if n not in training]
        num_trained = len(training) * num_rows if training and others else None
        if num_trained is None and len(having) == len(routes):
            active[domain] = weight
        else:
            assert weight == 1.0, "a schedule has no other weight"
            index_R = on_device(rows[training + others].flatten(), device)
            active[domain] = Rows(index_R, num_trained)
    num_core = sum(SHARED in route.trained for route in routes)
    return active, num_core * num_rows if 0 < num_core < len(routes) else None


def _forgetting(objective: Objective, domains: Sequence[str], minimised: Sequence[float]) -> float:
    losses = zip(domains, minimised, strict=True)
    terms = [value / 2.0 for domain, value in losses if domain in objective.forget]
    return sum_in_order(terms) / len(terms) if terms else math.inf


def require_finite(name: str, value: float, where: str, rate: float) -> None:
    if not math.isfinite(value):
        raise TrainingDiverged(f"{name} {value} at {where}, learning rate {rate:.3g}")
