"""Trains the peer: Hugging Face's StarCoder2 of the same shape, in a plain loop as its users write
it."""

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from gram_platform.config import ModelConfig, RunConfig
from gram_platform.config.routing import Schedule
from gram_platform.train.data import ScheduleReader

# The weights are float32 and computed with in bfloat16, or are bfloat16.
AUTOCAST, COPY = "autocast", "bfloat16 weights"
FULL = "float32"
# The peers by the run's precision; the first one matches it.
PEERS = {"bfloat16": (AUTOCAST, COPY), "float32": (FULL,)}


def why_no_peer() -> str:
    """Says why there is no peer here; "" if there is one."""
    try:
        import transformers  # noqa: F401
    except ModuleNotFoundError:
        return "transformers is not installed: there is nothing to compare with"
    return ""


def starcoder2(config: ModelConfig) -> nn.Module:
    """Builds the Hugging Face model of a dense config's shape; unlike ours it has attention
    biases."""
    from transformers import Starcoder2Config, Starcoder2ForCausalLM

    return Starcoder2ForCausalLM(
        Starcoder2Config(
            vocab_size=config.vocab_size,
            hidden_size=config.d_model,
            intermediate_size=config.d_mlp,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            max_position_embeddings=config.seq_len,
            norm_epsilon=config.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
            tie_word_embeddings=False,
        )
    )


def peer_loss(peer: nn.Module, tokens_BT: torch.Tensor) -> torch.Tensor:
    """Returns the mean next-token cross entropy by the peer's own loss."""
    inputs_BT = tokens_BT[:, :-1]
    return peer(
        input_ids=inputs_BT, labels=inputs_BT, shift_labels=tokens_BT[:, 1:].contiguous()
    ).loss


def peer_steps(
    run: RunConfig,
    plan: Schedule,
    reader: ScheduleReader,
    precision: str,
    device: torch.device | str,
    compiled: bool = False,
    num_merged: int = 1,
) -> Iterator[float]:
    """Trains the peer on a plan's micro-batches, `num_merged` in a pass; yields each step's
    gradient norm."""
    peer = starcoder2(run.model).to(device).train()
    if precision == COPY:
        peer.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(
        peer.parameters(), lr=run.optimizer.peak_lr, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    forward = torch.compile(peer) if compiled else peer
    kind = torch.device(device).type
    for step in range(run.num_steps):
        window = plan.window(step)
        for first in range(0, len(window), num_merged):
            merged = window[first : first + num_merged]
            tokens_BT = torch.cat([reader.tokens(micro_batch) for micro_batch in merged])
            tokens_BT = tokens_BT.to(device, non_blocking=True)
            context = (
                torch.autocast(kind, torch.bfloat16)
                if precision == AUTOCAST
                else contextlib.nullcontext()
            )
            with context:
                loss = peer_loss(forward, tokens_BT)
            (loss * len(merged) / len(window)).backward()
        norm = nn.utils.clip_grad_norm_(peer.parameters(), run.optimizer.clip_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield float(norm)
