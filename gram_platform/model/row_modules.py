"""Applies auxiliary modules to batches whose rows have different modules.

Each module is computed only for the rows that have it, so a forbidden module cannot affect a row,
not even as NaN times zero.

Shapes: B rows, T tokens, D d_model, F hidden units and r rank of the widest module, M modules, P
(row, module) pairs, n tokens of one module's pairs. X and Y are input and output sizes, D or F.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gram_platform.config.identity import invalid
from gram_platform.model.transformer import Lora, Mlp, activate

# The largest ratio of padded to real pairs at which all modules run at once.
MAX_PADDING = 1.5


@dataclass(frozen=True)
class Pairs:
    """Tells which rows have which modules, as (row, module) pairs sorted by module.

    Pair i reads row `sources_P[i]` of the input and adds its output to row `targets_P[i]`. Both
    tensors are None if all rows have the same single module. `weights_P11` is None if all weights
    are 1. Padding pairs add to an extra row B, which is dropped.
    """

    num_rows: int
    # (module, number of pairs) of each module.
    counts: tuple[tuple[int, int], ...]
    sources_P: Tensor | None = None
    targets_P: Tensor | None = None
    weights_P11: Tensor | None = None

    def take(self, x_BTX: Tensor) -> Tensor:
        """Returns x_PTX, the input row of each (row, module) pair."""
        return x_BTX if self.sources_P is None else x_BTX.index_select(0, self.sources_P)

    def add_up(self, out_PTX: Tensor) -> Tensor:
        """Returns each row's weighted sum of module outputs, total_BTX. It is 0 without modules."""
        if self.weights_P11 is not None:
            out_PTX = out_PTX * self.weights_P11
        if self.targets_P is None:
            return out_PTX
        total = out_PTX.new_zeros(self.num_rows + 1, *out_PTX.shape[1:])
        return total.index_add_(0, self.targets_P, out_PTX)[: self.num_rows]


@dataclass(frozen=True)
class Activation:
    """The active modules of each row in a batch, as (row, module) pairs.

    `padded` has the same number of pairs for each module. It is None if fewer than two modules are
    active, or if padding would give more than `MAX_PADDING` times as many pairs.
    """

    pairs: Pairs
    padded: Pairs | None


def activation(
    domains: Sequence[str], rows: Sequence[Mapping[str, float]], device: str = "cpu"
) -> Activation:
    """Builds the Activation of a batch from each row's weights (domain -> weight).

    Raises ValueError for a domain without a module.
    """
    of_domain: dict[str, list[tuple[int, float]]] = {domain: [] for domain in domains}
    for row, weights in enumerate(rows):
        for domain, weight in weights.items():
            if domain not in of_domain:
                allowed = "one of the model's modules: " + ", ".join(domains)
                raise invalid("rows.weights", domain, allowed)
            of_domain[domain].append((row, weight))
    members, num_rows, padded = list(of_domain.values()), len(rows), None
    longest, num_pairs = max(map(len, members), default=0), sum(map(len, members))
    if num_pairs > longest and len(domains) * longest <= MAX_PADDING * num_pairs:
        full = [rows + [(num_rows, 1.0)] * (longest - len(rows)) for rows in members]
        padded = _pairs(full, num_rows, device)
    return Activation(_pairs(members, num_rows, device), padded)


def _pairs(members: list[list[tuple[int, float]]], num_rows: int, device: str) -> Pairs:
    counts = tuple((module, len(rows)) for module, rows in enumerate(members) if rows)
    targets = [row for rows in members for row, _ in rows]
    weights = torch.tensor([weight for rows in members for _, weight in rows], device=device)
    weights_P11 = None if (weights == 1).all() else weights[:, None, None]
    if targets == list(range(num_rows)) and len(counts) == 1:
        return Pairs(num_rows, counts, weights_P11=weights_P11)
    targets_P = torch.tensor(targets, dtype=torch.int64, device=device)
    # Padding may read any row: its output is dropped.
    return Pairs(num_rows, counts, targets_P.clamp(max=num_rows - 1), targets_P, weights_P11)


class RowMlps(nn.Module):
    """One layer's auxiliary MLPs, stacked and padded with zeros to the same width."""

    def __init__(self, mlps: Sequence[Mlp]):
        super().__init__()
        width = max(mlp.c_fc.out_features for mlp in mlps)
        gaps = [width - mlp.c_fc.out_features for mlp in mlps]
        pairs = list(zip(mlps, gaps, strict=True))
        biases = [F.pad(_bias(m.c_fc), (0, gap))[None] for m, gap in pairs]
        gates = [_pad(m.c_gate, gap) for m, gap in pairs if m.c_gate is not None]
        proj = [F.pad(m.c_proj.weight, (0, gap)).T for m, gap in pairs]
        self.register_buffer("fc_MDF", torch.stack([_pad(m.c_fc, gap) for m, gap in pairs]))
        self.register_buffer("fc_bias_M1F", torch.stack(biases))
        self.register_buffer("gate_MDF", torch.stack(gates) if gates else None)
        self.register_buffer("proj_MFD", torch.stack(proj))
        self.register_buffer("proj_bias_M1D", torch.stack([_bias(m.c_proj)[None] for m in mlps]))

    def forward(self, mlp: Mlp | None, x_BTD: Tensor, active: Activation) -> Tensor:
        """Returns the core MLP's output, if any, plus the outputs of each row's modules."""
        aux_BTD = _sum_modules(x_BTD, active, self._one, self._all)
        return aux_BTD if mlp is None else mlp(x_BTD) + aux_BTD

    def _one(self, x_XD: Tensor, module: int) -> Tensor:
        hidden_XF = torch.addmm(self.fc_bias_M1F[module], x_XD, self.fc_MDF[module])
        gate_XF = None if self.gate_MDF is None else x_XD @ self.gate_MDF[module]
        hidden_XF = activate(hidden_XF, gate_XF)
        return torch.addmm(self.proj_bias_M1D[module], hidden_XF, self.proj_MFD[module])

    def _all(self, x_MXD: Tensor) -> Tensor:
        hidden_MXF = torch.baddbmm(self.fc_bias_M1F, x_MXD, self.fc_MDF)
        gate_MXF = None if self.gate_MDF is None else torch.bmm(x_MXD, self.gate_MDF)
        hidden_MXF = activate(hidden_MXF, gate_MXF)
        return torch.baddbmm(self.proj_bias_M1D, hidden_MXF, self.proj_MFD)


def _pad(projection: nn.Linear, gap: int) -> Tensor:
    return F.pad(projection.weight, (0, 0, 0, gap)).T


def _bias(projection: nn.Linear) -> Tensor:
    if projection.bias is None:
        return projection.weight.new_zeros(projection.out_features)
    return projection.bias


class RowLoras(nn.Module):
    """One layer's LoRAs, stacked and padded with zeros to the same rank."""

    def __init__(self, loras: Sequence[Lora]):
        super().__init__()
        rank = max(lora.fc_a.out_features for lora in loras)
        for name in ("fc", "gate", "proj") if hasattr(loras[0], "gate_a") else ("fc", "proj"):
            a = [getattr(lora, f"{name}_a").weight for lora in loras]
            b = [getattr(lora, f"{name}_b").weight for lora in loras]
            self.register_buffer(
                f"{name}_a", torch.stack([F.pad(w, (0, 0, 0, rank - w.shape[0])).T for w in a])
            )
            self.register_buffer(
                f"{name}_b", torch.stack([F.pad(w, (0, rank - w.shape[1])).T for w in b])
            )

    def forward(self, mlp: Mlp, x_BTD: Tensor, active: Activation) -> Tensor:
        """Applies the core MLP with each row's LoRAs."""
        hidden_BTF = mlp.c_fc(x_BTD) + _low_rank(x_BTD, self.fc_a, self.fc_b, active)
        gate_BTF = None
        if mlp.c_gate is not None:
            gate_BTF = mlp.c_gate(x_BTD) + _low_rank(x_BTD, self.gate_a, self.gate_b, active)
        hidden_BTF = activate(hidden_BTF, gate_BTF)
        return mlp.c_proj(hidden_BTF) + _low_rank(hidden_BTF, self.proj_a, self.proj_b, active)


def _low_rank(x_BTX: Tensor, a_MXr: Tensor, b_MrY: Tensor, active: Activation) -> Tensor:
    return _sum_modules(
        x_BTX,
        active,
        lambda x, module: x @ a_MXr[module] @ b_MrY[module],
        lambda x: x @ a_MXr @ b_MrY,
    )


def _sum_modules(
    x_BTX: Tensor,
    active: Activation,
    one: Callable[[Tensor, int], Tensor],
    every: Callable[[Tensor], Tensor],
) -> Tensor:
    """Returns total_BTY, the weighted sum of the outputs of each row's modules.

    If pairs are padded, calls `every(x_MnX)` once for all modules. Otherwise calls
    `one(x_nX, module)` for each active module.
    """
    pairs = active.pairs if active.padded is None else active.padded
    taken_PTX = pairs.take(x_BTX)
    P, T, X = taken_PTX.shape
    if active.padded is not None:
        out_PY = every(taken_PTX.view(len(pairs.counts), -1, X)).flatten(0, 1)
    else:
        split = taken_PTX.view(-1, X).split([num_pairs * T for _, num_pairs in pairs.counts])
        outs = [one(x_nX, module) for x_nX, (module, _) in zip(split, pairs.counts, strict=True)]
        out_PY = outs[0] if len(outs) == 1 else torch.cat(outs)
    return pairs.add_up(out_PY.view(P, T, -1))
