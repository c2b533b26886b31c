"""Evaluates models on packed sequences: losses by domain and by token, and continuations."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from gram_platform.config import ModelConfig
from gram_platform.config.identity import invalid
from gram_platform.config.layout import evaluation_batch
from gram_platform.model.transformer import Attention, Rotary, Transformer, seed_generator
from gram_platform.train.data import Arrays, tokens_of
from gram_platform.train.learner import Learner
from gram_platform.train.objectives import (
    cross_entropy,
    sequence_cross_entropy,
    token_cross_entropy,
)

Active = Callable[[str], Mapping[str, float]]


def require_sequences(arrays: Arrays, domains: Sequence[str], num_sequences: int) -> None:
    for domain in domains:
        available = len(arrays[domain]) if domain in arrays else 0
        if num_sequences > available:
            allowed = f"at most the {available} validation sequences of {domain!r}"
            raise invalid("eval_points.num_sequences", num_sequences, allowed)


@torch.no_grad()
def domain_losses(
    learner: Learner,
    arrays: Arrays,
    domains: Sequence[str],
    num_sequences: int,
    active: Active,
) -> dict[str, float]:
    """Returns the mean loss of each domain's first `num_sequences` rows.

    The loss is the cross entropy in nats per token. `active(domain)` returns the module weights for
    a domain's batches. All ranks must call this. Each rank evaluates every `num_ranks`th batch, but
    returns all losses. Batches are not split, so the losses are bitwise equal on any number of
    ranks. A rank without a batch repeats the last one, so that all ranks make equally many passes.
    """
    batches = _batches(learner.config.model, arrays, domains, num_sequences, learner.device)
    losses = [torch.zeros((), device=learner.device)] * len(batches)
    for first in range(0, len(batches), learner.num_ranks):
        index = first + learner.rank
        domain, rows = batches[min(index, len(batches) - 1)]
        tokens_BT = tokens_of(rows, learner.device)
        logits_BTV = learner.forward(tokens_BT[:, :-1], active(domain))
        loss = cross_entropy(logits_BTV, tokens_BT[:, 1:])
        if index < len(batches):
            losses[index] = loss
    return _means(batches, learner.sum_over_ranks(torch.stack(losses)).tolist())


def validation_losses(learner: Learner, arrays: Arrays) -> dict[str, float]:
    """Returns the `domain_losses` on the config's `eval_points`, with all modules active.

    Gathers weights only once. All ranks must call this.
    """
    points = learner.config.eval_points
    active = dict.fromkeys(learner.config.model.module_domains, 1.0)
    with learner.evaluating():
        return domain_losses(
            learner, arrays, points.domains, points.num_sequences, lambda _: active
        )


@torch.no_grad()
def progress_losses(learner: Learner, arrays: Arrays, num_sequences: int) -> dict[str, float]:
    """Returns `validation_losses` on each domain's first `num_sequences` rows, in small passes.

    Needs no more memory than training, since a pass has at most as many rows, and a sharded model
    gathers its weights in the same way. A pass can mix domains. All ranks must call this.
    """
    config, active = learner.config, dict.fromkeys(learner.config.model.module_domains, 1.0)
    rows = np.concatenate([arrays[domain][:num_sequences] for domain in config.eval_points.domains])
    width = config.micro_batch // learner.num_ranks // learner.num_passes
    parts = [range(first, min(first + width, len(rows))) for first in range(0, len(rows), width)]
    losses = torch.zeros(len(rows), device=learner.device)
    for first in range(0, len(parts), learner.num_ranks):
        part = parts[min(first + learner.rank, len(parts) - 1)]
        tokens_BT = tokens_of(rows[part.start : part.stop], learner.device)
        logits_BTV = learner.forward(tokens_BT[:, :-1], active)
        losses_B = sequence_cross_entropy(logits_BTV, tokens_BT[:, 1:])
        if first + learner.rank < len(parts):
            losses[part.start : part.stop] = losses_B
    means = learner.sum_over_ranks(losses).view(-1, num_sequences).mean(dim=1)
    return dict(zip(config.eval_points.domains, means.tolist(), strict=True))


@torch.no_grad()
def profile_losses(
    model: Transformer,
    arrays: Arrays,
    domains: Sequence[str],
    num_sequences: int,
    profiles: Sequence[Active],
) -> list[dict[str, float]]:
    """Returns every profile's `domain_losses`, bitwise equal to those of separate calls.

    For each batch, the first block's trunk runs only once for all profiles without active LoRAs or
    attention heads in this block.
    """
    batches = _batches(model.config, arrays, domains, num_sequences, model.device)
    losses: list[list[Tensor]] = [[] for _ in profiles]
    first, uncached = model.blocks[0], model.blocks[0].trunk
    outputs: list[tuple[Tensor, Tensor]] = []

    def trunk(x_BTD: Tensor, rotary: Rotary, loras: list, heads: list, *others):
        # LoRAs change the core MLP, and heads its input.
        if loras or heads:
            return uncached(x_BTD, rotary, loras, heads, *others)
        if not outputs:
            outputs.append(uncached(x_BTD, rotary, loras, heads, *others))
        return outputs[0]

    first.trunk = trunk
    try:
        for domain, rows in batches:
            tokens_BT = tokens_of(rows, model.device)
            for of_profile, active in zip(losses, profiles, strict=True):
                logits_BTV = model(tokens_BT[:, :-1], active(domain))
                of_profile.append(cross_entropy(logits_BTV, tokens_BT[:, 1:]))
            outputs.clear()
    finally:
        del first.trunk
    return [_means(batches, torch.stack(of_profile).tolist()) for of_profile in losses]


@torch.no_grad()
def token_losses(
    model: Transformer,
    arrays: Arrays,
    domains: Sequence[str],
    num_sequences: int,
    active: Active,
) -> dict[str, Tensor]:
    """Returns each domain's cross entropies in nats: float32 [num_sequences, seq_len] on the CPU.

    Column t is the loss of token t + 1. Other arguments are as in `domain_losses`.
    """
    losses: dict[str, list[Tensor]] = {domain: [] for domain in domains}
    for domain, rows in _batches(model.config, arrays, domains, num_sequences, model.device):
        tokens_BT = tokens_of(rows, model.device)
        logits_BTV = model(tokens_BT[:, :-1], active(domain))
        losses[domain].append(token_cross_entropy(logits_BTV, tokens_BT[:, 1:]).cpu())
    return {domain: torch.cat(of_batches) for domain, of_batches in losses.items()}


# Pairs of a domain and its rows [batch, seq_len + 1], which are read from disk when used.
Batches = list[tuple[str, np.ndarray]]


def _batches(
    config: ModelConfig,
    arrays: Arrays,
    domains: Sequence[str],
    num_sequences: int,
    device: torch.device | str,
) -> Batches:
    require_sequences(arrays, domains, num_sequences)
    batch = evaluation_batch(config, device)
    starts = range(0, num_sequences, batch)
    parts = [slice(first, min(first + batch, num_sequences)) for first in starts]
    return [(domain, arrays[domain][part]) for domain in domains for part in parts]


def _means(batches: Batches, losses: Sequence[float]) -> dict[str, float]:
    totals = {domain: (0.0, 0) for domain, _ in batches}
    # Not `sum`, which rounds differently in Python 3.12.
    for (domain, rows), loss in zip(batches, losses, strict=True):
        total, num_sequences = totals[domain]
        totals[domain] = total + loss * len(rows), num_sequences + len(rows)
    return {domain: total / num_sequences for domain, (total, num_sequences) in totals.items()}


def uniforms(num_tokens: int, *names: object) -> Tensor:
    """Draws float64 numbers [num_tokens] in [0, 1) on the CPU, seeded only by `names`."""
    return torch.rand(num_tokens, generator=seed_generator(*names), dtype=torch.float64)


@torch.no_grad()
def sample_continuations(
    model: Transformer,
    prompts_BP: Tensor,
    uniforms_BC: Tensor,
    active: Mapping[str, float],
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Returns sampled continuations (int64 tokens_BC, float64 surprisals_BC) on the CPU.

    Draws C tokens for each of B prompts of P tokens, with one random number of `uniforms_BC` each.
    The surprisal is -log of the token's probability, in nats. Raises ValueError unless prompt and
    continuation fit into the model's context.
    """
    num_prompt, num_tokens = prompts_BP.shape[1], uniforms_BC.shape[1]
    # The model never reads the last token.
    if num_prompt + num_tokens > model.config.seq_len + 1:
        allowed = f"prompt and continuation of at most {model.config.seq_len + 1} tokens"
        raise invalid("continuations.num_tokens", f"{num_prompt} + {num_tokens}", allowed)
    tokens, surprisals = [], []
    with kv_cache(model):
        logits_BV = model(prompts_BP.to(model.device), active)[:, -1]
        for step in range(num_tokens):
            drawn_B, surprisal_B = draw(logits_BV, uniforms_BC[:, step], temperature)
            tokens.append(drawn_B)
            surprisals.append(surprisal_B)
            if step + 1 < num_tokens:
                logits_BV = model(drawn_B[:, None].to(model.device), active)[:, -1]
    return torch.stack(tokens, dim=1), torch.stack(surprisals, dim=1)


def draw(logits_BV: Tensor, uniforms_B: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Draws from softmax(logits / temperature) in float64. Returns (tokens_B, surprisals_B)."""
    log_p_BV = torch.log_softmax(logits_BV.cpu().double() / temperature, dim=-1)
    reached_BV = log_p_BV.exp().cumsum(dim=-1)
    # The last sum is 1 up to rounding.
    wanted_B1 = uniforms_B[:, None] * reached_BV[:, -1:]
    tokens_B1 = torch.searchsorted(reached_BV, wanted_B1, right=True)
    tokens_B1 = tokens_B1.clamp(max=logits_BV.shape[-1] - 1)
    return tokens_B1[:, 0], -log_p_BV.gather(1, tokens_B1)[:, 0]


class CachedAttention(nn.Module):
    """Attention to the tokens of this and earlier calls. Calls after the first take one token."""

    def __init__(self, attention: Attention):
        super().__init__()
        self.attention = attention
        # The keys k_BKSh and values v_BKSh.
        self.cache: tuple[Tensor, Tensor] | None = None

    def forward(
        self, x_BTD: Tensor, _: None, rotary: Rotary, mask_BTT: Tensor | None = None
    ) -> Tensor:
        """Applies the document mask in the first call. Later calls need one document per row."""
        first = 0 if self.cache is None else self.cache[0].shape[2]
        q_BHTh, *new = self.attention.heads(x_BTD, rotary, first)
        if self.cache is not None:
            assert x_BTD.shape[1] == 1, "after the first call, one token at a time"
            new = [torch.cat(pair, dim=2) for pair in zip(self.cache, new, strict=True)]
        self.cache = new[0], new[1]
        mask_BTT = mask_BTT if first == 0 else None
        return self.attention.attend(q_BHTh, *self.cache, first == 0, mask_BTT)


@contextlib.contextmanager
def kv_cache(model: Transformer) -> Iterator[None]:
    """Context manager that caches keys and values, so that each call continues the previous one."""
    uncached = {name: m for name, m in model.named_modules() if isinstance(m, Attention)}
    for name, attention in uncached.items():
        model.set_submodule(name, CachedAttention(attention))
    try:
        yield
    finally:
        for name, attention in uncached.items():
            model.set_submodule(name, attention)
