"""Losses of given weights on packed sequences; needs torch and numpy alone."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from gram_platform.config import ModelConfig
from gram_platform.identity import invalid
from gram_platform.objectives import cross_entropy

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
    forward: Callable[[torch.Tensor, Mapping[str, float]], torch.Tensor],
    config: ModelConfig,
    arrays: Mapping[str, np.ndarray],
    domains: Sequence[str],
    num_sequences: int,
    active: Callable[[str], Mapping[str, float]],
    device: torch.device | str = "cpu",
) -> dict[str, float]:
    """Token-weighted mean cross entropy in nats of the first `num_sequences` rows of each domain.

    `forward(tokens_BT, active)` gives logits_BTV; `active(domain)` the module weights on a domain's batches.
    """
    require_sequences(arrays, domains, num_sequences)
    batch, losses = evaluation_batch(config), {}
    for domain in domains:
        total = 0.0
        for first in range(0, num_sequences, batch):
            rows = arrays[domain][first : min(first + batch, num_sequences)]
            tokens = torch.from_numpy(rows.astype(np.int64)).to(device)
            total += float(cross_entropy(forward(tokens[:, :-1], active(domain)), tokens[:, 1:])) * len(rows)
        losses[domain] = total / num_sequences
    return losses
