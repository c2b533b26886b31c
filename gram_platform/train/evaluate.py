"""Losses of given weights on packed sequences, of domains and of single tokens; needs torch and numpy alone."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch

from gram_platform.config import ModelConfig
from gram_platform.config.identity import invalid
from gram_platform.model.reuse import first_trunk_once, remembering
from gram_platform.model.transformer import Transformer
from gram_platform.train.data import on_device
from gram_platform.train.objectives import cross_entropy, token_cross_entropy

Forward = Callable[[torch.Tensor, Mapping[str, float]], torch.Tensor]
Active = Callable[[str], Mapping[str, float]]

LOGITS_BYTES = 64 * 2**20  # float32 logits of one batch: decides the batch, hence the rounding, from the config alone


def evaluation_batch(config: ModelConfig) -> int:
    """Sequences of one forward pass."""
    return max(1, LOGITS_BYTES // (4 * config.seq_len * config.vocab_size))


def require_sequences(arrays: Mapping[str, np.ndarray], domains: Sequence[str], num_sequences: int) -> None:
    """ValueError unless every domain has that many sequences."""
    for domain in domains:
        available = len(arrays[domain]) if domain in arrays else 0
        if num_sequences > available:
            allowed = f"at most the {available} validation sequences of {domain!r}"
            raise invalid("eval_points.num_sequences", num_sequences, allowed)


@torch.no_grad()
def domain_losses(
    forward: Forward,
    config: ModelConfig,
    arrays: Mapping[str, np.ndarray],
    domains: Sequence[str],
    num_sequences: int,
    active: Active,
    device: torch.device | str = "cpu",
) -> dict[str, float]:
    """Token-weighted mean cross entropy in nats of the first `num_sequences` rows of each domain.

    `forward(tokens_BT, active)` gives logits_BTV; `active(domain)` the module weights on a domain's batches.
    """
    require_sequences(arrays, domains, num_sequences)
    means = {}
    for domain in domains:
        mean = _Mean()
        for tokens in _batches(config, arrays[domain], num_sequences, device):
            mean.add(cross_entropy(forward(tokens[:, :-1], active(domain)), tokens[:, 1:]), len(tokens))
        means[domain] = mean
    return {domain: mean.value() for domain, mean in means.items()}


@torch.no_grad()
def profile_losses(
    model: Transformer,
    arrays: Mapping[str, np.ndarray],
    domains: Sequence[str],
    num_sequences: int,
    profiles: Sequence[Active],
    device: torch.device | str = "cpu",
) -> list[dict[str, float]]:
    """`domain_losses` of every profile of a model, bit for bit: what profiles have in common is computed once."""
    require_sequences(arrays, domains, num_sequences)
    means = [{domain: _Mean() for domain in domains} for _ in profiles]
    with first_trunk_once(model) as forget:
        for domain in domains:
            for tokens in _batches(model.config, arrays[domain], num_sequences, device):
                for of_profile, active in zip(means, profiles, strict=True):
                    loss = cross_entropy(model(tokens[:, :-1], active(domain)), tokens[:, 1:])
                    of_profile[domain].add(loss, len(tokens))
                forget()
    return [{domain: mean.value() for domain, mean in of_profile.items()} for of_profile in means]


@torch.no_grad()
def token_losses(
    forward: Forward,
    config: ModelConfig,
    arrays: Mapping[str, np.ndarray],
    domains: Sequence[str],
    num_sequences: int,
    active: Active,
    device: torch.device | str = "cpu",
) -> dict[str, torch.Tensor]:
    """Float32 cross entropies [num_sequences, seq_len] in nats of each domain's first rows, on the CPU.

    Column t is the loss of a row's token t + 1: nothing predicts the first one. Arguments as in `domain_losses`.
    """
    require_sequences(arrays, domains, num_sequences)
    losses = {}
    for domain in domains:
        batches = _batches(config, arrays[domain], num_sequences, device)
        parts = [token_cross_entropy(forward(b[:, :-1], active(domain)), b[:, 1:]).cpu() for b in batches]
        losses[domain] = torch.cat(parts)
    return losses


class _Mean:
    """The mean of batches' losses, weighted by their sequences; reads none before all are under way on the device."""

    def __init__(self) -> None:
        self._losses: list[torch.Tensor] = []
        self._sizes: list[int] = []

    def add(self, loss: torch.Tensor, num_sequences: int) -> None:
        self._losses.append(loss)
        self._sizes.append(num_sequences)

    def value(self) -> float:
        total = 0.0  # one by one: `sum` rounds differently from Python 3.12 on
        for loss, size in zip(torch.stack(self._losses).tolist(), self._sizes, strict=True):
            total += loss * size
        return total / sum(self._sizes)


def _batches(
    config: ModelConfig, rows: np.ndarray, num_sequences: int, device: torch.device | str
) -> Iterator[torch.Tensor]:
    """tokens_BT of the first rows, as many at once as one forward pass takes."""
    batch = evaluation_batch(config)
    for first in range(0, num_sequences, batch):
        part = rows[first : min(first + batch, num_sequences)]
        yield on_device(torch.from_numpy(part.astype(np.int64)), device)


def uniforms(num_tokens: int, *names: object) -> torch.Tensor:
    """Float64 numbers [num_tokens] in [0, 1) that depend on the names alone, from a generator on the CPU."""
    digest = hashlib.sha256("/".join(map(str, names)).encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return torch.rand(num_tokens, generator=generator, dtype=torch.float64)


@torch.no_grad()
def continued(
    model: Transformer,
    prompts_BP: torch.Tensor,
    uniforms_BC: torch.Tensor,
    active: Mapping[str, float],
    temperature: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(tokens_BC drawn after the prompts, surprisals_BC: -log of the probability each was drawn with, in nats).

    Int64 and float64 on the CPU. ValueError unless prompt and continuation fit into the model's context.
    """
    num_prompt, num_tokens = prompts_BP.shape[1], uniforms_BC.shape[1]
    if num_prompt + num_tokens > model.config.seq_len + 1:  # the last one drawn is never read
        allowed = f"prompt and continuation of at most {model.config.seq_len + 1} tokens"
        raise invalid("continuations.num_tokens", f"{num_prompt} + {num_tokens}", allowed)
    device = model.lm_head.weight.device
    tokens, surprisals = [], []
    with remembering(model):
        logits_BV = model(prompts_BP.to(device), active)[:, -1]
        for step in range(num_tokens):
            drawn_B, surprisal_B = draw(logits_BV, uniforms_BC[:, step], temperature)
            tokens.append(drawn_B)
            surprisals.append(surprisal_B)
            if step + 1 < num_tokens:
                logits_BV = model(drawn_B[:, None].to(device), active)[:, -1]
    return torch.stack(tokens, dim=1), torch.stack(surprisals, dim=1)


def draw(
    logits_BV: torch.Tensor, uniforms_B: torch.Tensor, temperature: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """(tokens_B, surprisals_B): the inverse of softmax(logits / temperature)'s distribution function, in float64."""
    log_p_BV = torch.log_softmax(logits_BV.cpu().double() / temperature, dim=-1)
    reached_BV = log_p_BV.exp().cumsum(dim=-1)
    wanted_B1 = uniforms_B[:, None] * reached_BV[:, -1:]  # the sum is 1 up to rounding
    tokens_B1 = torch.searchsorted(reached_BV, wanted_B1, right=True).clamp(max=logits_BV.shape[-1] - 1)
    return tokens_B1[:, 0], -log_p_BV.gather(1, tokens_B1)[:, 0]
