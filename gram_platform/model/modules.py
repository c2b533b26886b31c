"""The MLP of a layer, core or auxiliary."""

import torch
import torch.nn.functional as F
from torch import nn


class Mlp(nn.Module):
    """GELU (tanh) MLP with biases: x_BTD -> x_BTD through `width` hidden units (StarCoder2's block)."""

    def __init__(self, d_model: int, width: int):
        super().__init__()
        self.c_fc = nn.Linear(d_model, width)
        self.c_proj = nn.Linear(width, d_model)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        return self.c_proj(F.gelu(self.c_fc(x_BTD), approximate="tanh"))
