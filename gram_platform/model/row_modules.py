"""Auxiliary modules of a batch whose rows differ: a module reads and writes only the rows that have it.

Its output is never computed for another row and thrown away by a weight of zero: what a row may not have cannot reach
it, not even as NaN. Shapes: B rows, T tokens, D d_model, F hidden units and r rank of the widest module, M modules, P
pairs of a row and a module, n pairs of one module times T; a layer is X -> Y, any of D -> F, F -> D and D -> D.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from gram_platform.config.identity import invalid
from gram_platform.model.kernels import gelu
from gram_platform.model.transformer import Lora, Mlp

MAX_PADDING = 1.5  # padded over real pairs up to which all modules are computed at once; above, one after the other


@dataclass(frozen=True)
class Pairs:
    """Pairs of a row and a module, those of one module after those of another.

    Row `sources` is read and row `targets` written; both are None where one module has all rows in order. Weights are
    None where all are 1. Padding is written to row B, which nobody reads.
    """

    num_rows: int
    parts: tuple[tuple[int, int], ...]  # modules with how many pairs each has
    sources_P: torch.Tensor | None = None
    targets_P: torch.Tensor | None = None
    weights_P11: torch.Tensor | None = None

    def take(self, x_BTX: torch.Tensor) -> torch.Tensor:
        """x_PTX"""
        return x_BTX if self.sources_P is None else x_BTX.index_select(0, self.sources_P)

    def sums(self, out_PTX: torch.Tensor) -> torch.Tensor:
        """total_BTX, every row's weighted outputs together; zeros for a row without any."""
        if self.weights_P11 is not None:
            out_PTX = out_PTX * self.weights_P11
        if self.targets_P is None:
            return out_PTX
        total = out_PTX.new_zeros(self.num_rows + 1, *out_PTX.shape[1:])
        return total.index_add_(0, self.targets_P, out_PTX)[: self.num_rows]


@dataclass(frozen=True)
class Activation:
    """Which rows of a batch have which modules.

    `even` has padding, so that all modules have equally many pairs; it is None where that would compute too much for
    nothing, or there are no two modules.
    """

    num_rows: int
    pairs: Pairs
    even: Pairs | None


def activation(domains: Sequence[str], rows: Sequence[Mapping[str, float]], device: str = "cpu") -> Activation:
    """Of rows' module weights (domain -> weight). ValueError for a domain that the model does not have."""
    members: list[list[tuple[int, float]]] = [[] for _ in domains]
    place = {domain: index for index, domain in enumerate(domains)}
    for row, weights in enumerate(rows):
        for domain, weight in weights.items():
            if domain not in place:
                raise invalid("rows.weights", domain, "one of the model's modules: " + ", ".join(domains))
            members[place[domain]].append((row, weight))
    longest, num_pairs = max(map(len, members), default=0), sum(map(len, members))
    even = None
    if num_pairs > longest and len(domains) * longest <= MAX_PADDING * num_pairs:
        even = _pairs([found + [(len(rows), 1.0)] * (longest - len(found)) for found in members], len(rows), device)
    return Activation(len(rows), _pairs(members, len(rows), device), even)


def _pairs(members: list[list[tuple[int, float]]], num_rows: int, device: str) -> Pairs:
    parts = tuple((module, len(found)) for module, found in enumerate(members) if found)
    targets = [row for found in members for row, _ in found]
    weights = torch.tensor([weight for found in members for _, weight in found], device=device)
    weights_P11 = None if (weights == 1).all() else weights[:, None, None]
    if targets == list(range(num_rows)) and len(parts) == 1:
        return Pairs(num_rows, parts, weights_P11=weights_P11)
    targets_P = torch.tensor(targets, dtype=torch.int64, device=device)
    # padding may read any row: what comes of it is dropped
    return Pairs(num_rows, parts, targets_P.clamp(max=num_rows - 1), targets_P, weights_P11)


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

    def forward(self, mlp: Mlp | None, x_BTD: torch.Tensor, active: Activation) -> torch.Tensor:
        """The core MLP, where there is one, with every row's modules."""
        aux_BTD = _of_modules(x_BTD, active, self._one, self._all)
        return aux_BTD if mlp is None else mlp(x_BTD) + aux_BTD

    def _one(self, x_XD: torch.Tensor, module: int) -> torch.Tensor:
        hidden = torch.addmm(self.fc_bias_M1F[module], x_XD, self.fc_MDF[module])
        return torch.addmm(self.proj_bias_M1D[module], gelu(hidden), self.proj_MFD[module])

    def _all(self, x_MXD: torch.Tensor) -> torch.Tensor:
        hidden_MXF = gelu(torch.baddbmm(self.fc_bias_M1F, x_MXD, self.fc_MDF))
        return torch.baddbmm(self.proj_bias_M1D, hidden_MXF, self.proj_MFD)


class RowLoras(nn.Module):
    """The LoRAs of one layer as stacks; one of a lower rank is filled up with zeros, which adds nothing."""

    def __init__(self, loras: Sequence[Lora]):
        super().__init__()
        rank = max(lora.fc_a.out_features for lora in loras)
        for name in ("fc", "proj"):
            a = [getattr(lora, f"{name}_a").weight for lora in loras]
            b = [getattr(lora, f"{name}_b").weight for lora in loras]
            self.register_buffer(f"{name}_a", torch.stack([F.pad(w, (0, 0, 0, rank - w.shape[0])).T for w in a]))
            self.register_buffer(f"{name}_b", torch.stack([F.pad(w, (0, rank - w.shape[1])).T for w in b]))

    def forward(self, mlp: Mlp, x_BTD: torch.Tensor, active: Activation) -> torch.Tensor:
        """The core MLP with every row's LoRAs."""
        hidden_BTF = mlp.c_fc(x_BTD) + _low_rank(x_BTD, self.fc_a, self.fc_b, active)
        hidden_BTF = gelu(hidden_BTF)
        return mlp.c_proj(hidden_BTF) + _low_rank(hidden_BTF, self.proj_a, self.proj_b, active)


def _low_rank(x_BTX: torch.Tensor, a_MXr: torch.Tensor, b_MrY: torch.Tensor, active: Activation) -> torch.Tensor:
    return _of_modules(x_BTX, active, lambda x, module: x @ a_MXr[module] @ b_MrY[module], lambda x: x @ a_MXr @ b_MrY)


def _of_modules(
    x_BTX: torch.Tensor,
    active: Activation,
    one: Callable[[torch.Tensor, int], torch.Tensor],
    every: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """total_BTY of every row's modules: `one` of x_nX and a module, `every` of x_MnX and all of them."""
    pairs = active.pairs if active.even is None else active.even
    taken_PTX = pairs.take(x_BTX)
    P, T, X = taken_PTX.shape
    if active.even is not None:
        out_PY = every(taken_PTX.view(len(pairs.parts), -1, X)).flatten(0, 1)
    else:
        split = taken_PTX.view(-1, X).split([num_pairs * T for _, num_pairs in pairs.parts])
        outs = [one(x_nX, module) for x_nX, (module, _) in zip(split, pairs.parts, strict=True)]
        out_PY = outs[0] if len(outs) == 1 else torch.cat(outs)
    return pairs.sums(out_PY.view(P, T, -1))
