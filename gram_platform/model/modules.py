"""The MLP of a layer, core or auxiliary, and LoRA on its two projections."""

from collections.abc import Iterable

import torch
from torch import nn

from gram_platform.model.kernels import gelu


class Lora(nn.Module):
    """Low-rank changes of the core MLP's two projections: W + t B A, nothing at the start (B is zero)."""

    def __init__(self, d_model: int, d_mlp: int, rank: int):
        super().__init__()
        self.fc_a = nn.Linear(d_model, rank, bias=False)
        self.fc_b = nn.Linear(rank, d_mlp, bias=False)
        self.proj_a = nn.Linear(d_mlp, rank, bias=False)
        self.proj_b = nn.Linear(rank, d_model, bias=False)


class Mlp(nn.Module):
    """GELU (tanh) MLP with biases: x_BTD -> x_BTD through `width` hidden units (StarCoder2's block)."""

    def __init__(self, d_model: int, width: int):
        super().__init__()
        self.c_fc = nn.Linear(d_model, width)
        self.c_proj = nn.Linear(width, d_model)

    def forward(self, x_BTD: torch.Tensor, loras: Iterable[tuple[Lora, float]] = ()) -> torch.Tensor:
        """`loras`: the active adapters with their weights."""
        hidden_BTF = self.c_fc(x_BTD)
        for lora, weight in loras:
            hidden_BTF = hidden_BTF + weight * lora.fc_b(lora.fc_a(x_BTD))
        hidden_BTF = gelu(hidden_BTF)
        out_BTD = self.c_proj(hidden_BTF)
        for lora, weight in loras:
            out_BTD = out_BTD + weight * lora.proj_b(lora.proj_a(hidden_BTF))
        return out_BTD
