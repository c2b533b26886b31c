"""Auxiliary modules of a batch whose rows differ: a module reads and writes only the rows that have it.

Its output is never computed for another row and thrown away by a weight of zero: what a row may not have cannot reach
it, not even as NaN. Shapes: B rows, T tokens, D d_model, F the widest module's width, M modules, n rows of a module.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from gram_platform.identity import invalid
from gram_platform.model.modules import Lora, Mlp

MAX_PADDING = 1.5  # padded over real rows up to which all modules are computed at once; above, one after the other


@dataclass(frozen=True)
class Group:
    """The rows of one module: all of them in order, or `rows_n`; `weights_n11` is None where all weights are 1."""

    module: int
    num_rows: int
    rows_n: torch.Tensor | None
    weights_n11: torch.Tensor | None

    def take(self, x_BTD: torch.Tensor) -> torch.Tensor:
        return x_BTD if self.rows_n is None else x_BTD.index_select(0, self.rows_n)

    def weighted(self, out_nTD: torch.Tensor) -> torch.Tensor:
        return out_nTD if self.weights_n11 is None else out_nTD * self.weights_n11

    def spread(self, out_nTD: torch.Tensor, num_rows: int) -> torch.Tensor:
        """The weighted output in its rows of [num_rows, T, D], zeros elsewhere."""
        if self.rows_n is None:
            return self.weighted(out_nTD)
        wide = out_nTD.new_zeros(num_rows, *out_nTD.shape[1:])
        return wide.index_copy_(0, self.rows_n, self.weighted(out_nTD))


@dataclass(frozen=True)
class Padded:
    """All modules with equally many rows each: row `sources` is read, `targets` written; padding goes to row B."""

    sources: torch.Tensor  # [M n]
    targets: torch.Tensor  # [M n]
    weights_Mn11: torch.Tensor | None


@dataclass(frozen=True)
class Activation:
    """Which rows of a batch have which modules; `padded` is None where it would compute too much for nothing."""

    num_rows: int
    groups: tuple[Group, ...]
    padded: Padded | None


def activation(domains: Sequence[str], rows: Sequence[Mapping[str, float]], device: str = "cpu") -> Activation:
    """Of rows' module weights (domain -> weight). ValueError for a domain that the model does not have."""
    members: list[list[tuple[int, float]]] = [[] for _ in domains]
    place = {domain: index for index, domain in enumerate(domains)}
    for row, weights in enumerate(rows):
        for domain, weight in weights.items():
            if domain not in place:
                raise invalid("rows.weights", domain, "one of the model's modules: " + ", ".join(domains))
            members[place[domain]].append((row, weight))
    groups = tuple(_group(m, found, len(rows), device) for m, found in enumerate(members) if found)
    num_pairs = sum(len(found) for found in members)
    is_even = len(groups) > 1 and len(domains) * max(map(len, members)) <= MAX_PADDING * num_pairs
    return Activation(len(rows), groups, _padded(members, len(rows), device) if is_even else None)


def _group(module: int, found: list[tuple[int, float]], num_rows: int, device: str) -> Group:
    everywhere, plain = len(found) == num_rows, all(weight == 1.0 for _, weight in found)
    rows_n = None if everywhere else torch.tensor([row for row, _ in found], device=device)
    weights_n = None if plain else torch.tensor([weight for _, weight in found], device=device)[:, None, None]
    return Group(module, len(found), rows_n, weights_n)


def _padded(members: list[list[tuple[int, float]]], num_rows: int, device: str) -> Padded:
    longest = max(map(len, members))
    filled = [found + [(num_rows, 1.0)] * (longest - len(found)) for found in members]
    targets = torch.tensor([row for found in filled for row, _ in found], device=device)
    weights = torch.tensor([[weight for _, weight in found] for found in filled], device=device)
    # padding may read any row: what comes of it is dropped
    return Padded(targets.clamp(max=num_rows - 1), targets, None if (weights == 1).all() else weights[..., None, None])


class RowMlps(nn.Module):
    """The auxiliary MLPs of one layer as stacks; a narrower one is filled up with zeros, which adds nothing."""

    def __init__(self, mlps: Sequence[Mlp]):
        super().__init__()
        width = max(mlp.c_fc.out_features for mlp in mlps)
        gaps = [width - mlp.c_fc.out_features for mlp in mlps]
        pairs = list(zip(mlps, gaps, strict=True))
        self.register_buffer("fc_MDF", torch.stack([F.pad(m.c_fc.weight, (0, 0, 0, gap)).T for m, gap in pairs]))
        self.register_buffer("fc_bias_M1F", torch.stack([F.pad(m.c_fc.bias, (0, gap))[None] for m, gap in pairs]))
        self.register_buffer("proj_MFD", torch.stack([F.pad(m.c_proj.weight, (0, gap)).T for m, gap in pairs]))
        self.register_buffer("proj_bias_M1D", torch.stack([m.c_proj.bias[None] for m in mlps]))

    def forward(self, x_BTD: torch.Tensor, active: Activation) -> torch.Tensor:
        """The sum of every row's modules; zeros for a row without any."""
        if active.padded is not None:
            return self._at_once(x_BTD, active.padded)
        total_BTD = torch.zeros_like(x_BTD)
        for group in active.groups:
            out_nTD = group.weighted(self._one(group.take(x_BTD), group.module))
            total_BTD = total_BTD + out_nTD if group.rows_n is None else total_BTD.index_add_(0, group.rows_n, out_nTD)
        return total_BTD

    def _one(self, x_nTD: torch.Tensor, module: int) -> torch.Tensor:
        hidden = torch.addmm(self.fc_bias_M1F[module], x_nTD.flatten(0, 1), self.fc_MDF[module])
        out = torch.addmm(self.proj_bias_M1D[module], F.gelu(hidden, approximate="tanh"), self.proj_MFD[module])
        return out.view_as(x_nTD)

    def _at_once(self, x_BTD: torch.Tensor, padded: Padded) -> torch.Tensor:
        num_rows, T, D = x_BTD.shape
        num_modules = self.fc_MDF.shape[0]
        taken_MXD = x_BTD.index_select(0, padded.sources).view(num_modules, -1, D)
        hidden_MXF = F.gelu(torch.baddbmm(self.fc_bias_M1F, taken_MXD, self.fc_MDF), approximate="tanh")
        out_MnTD = torch.baddbmm(self.proj_bias_M1D, hidden_MXF, self.proj_MFD).view(num_modules, -1, T, D)
        if padded.weights_Mn11 is not None:
            out_MnTD = out_MnTD * padded.weights_Mn11
        total = x_BTD.new_zeros(num_rows + 1, T, D)
        return total.index_add_(0, padded.targets, out_MnTD.flatten(0, 1))[:num_rows]


class RowLora:
    """A LoRA for `Mlp.forward` that changes only the rows of its group."""

    def __init__(self, lora: Lora, group: Group, num_rows: int):
        self.lora, self.group, self.num_rows = lora, group, num_rows

    def fc_a(self, x_BTD: torch.Tensor) -> torch.Tensor:
        return self.lora.fc_a(self.group.take(x_BTD))

    def fc_b(self, low_nTr: torch.Tensor) -> torch.Tensor:
        return self.group.spread(self.lora.fc_b(low_nTr), self.num_rows)

    def proj_a(self, hidden_BTF: torch.Tensor) -> torch.Tensor:
        return self.lora.proj_a(self.group.take(hidden_BTF))

    def proj_b(self, low_nTr: torch.Tensor) -> torch.Tensor:
        return self.group.spread(self.lora.proj_b(low_nTr), self.num_rows)
