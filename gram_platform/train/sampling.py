"""Continuing token sequences with given weights, one drawn token after another; needs torch alone.

Random numbers come from the caller, so that two models can be given the same ones. Shapes: B sequences, P tokens of
their prompts, C tokens drawn, V vocabulary.
"""

import hashlib
from collections.abc import Mapping

import torch

from gram_platform.config.identity import invalid
from gram_platform.model.decoding import remembering
from gram_platform.model.transformer import Transformer


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
