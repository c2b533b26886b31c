"""Trains a run on several ranks with FSDP2 and gradient routing.

The embedding, each block, and the last norm with the head are sharded separately. So are large
auxiliary MLPs (`Sharing.own_groups`), which are not gathered while inactive. Small auxiliary MLPs
stay in their block's group, for fewer collectives. All ranks have the same routes, and each has a
share of every micro-batch's sequences. Gradients are reduced in float32, per window or per pass
(`config.layout`). A wrong order of calls can give wrong gradients without an error (see
`train_only`).
"""

import contextlib
import os
from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from gram_platform.config.layout import sharing_of
from gram_platform.model.layers import ActiveModules
from gram_platform.model.pieces import Piece, all_rows, rank_rows
from gram_platform.model.transformer import Transformer, parameters_by_set
from gram_platform.train.learner import DTYPES, Learner
from gram_platform.train.optimizers import Sets


def rank_mesh(device: str, shards: int) -> DeviceMesh:
    """Returns a mesh [machines, ranks] if several machines each hold all weights, or else [ranks].

    Each machine holds them if all machines have `shards` ranks. Otherwise all ranks share one copy.
    Ray Train sets LOCAL_WORLD_SIZE and numbers the ranks of a machine consecutively.
    """
    num_ranks = dist.get_world_size()
    of_machine = int(os.environ.get("LOCAL_WORLD_SIZE", num_ranks))
    is_whole = torch.tensor(of_machine == shards, dtype=torch.int, device=device)
    dist.all_reduce(is_whole, dist.ReduceOp.MIN)
    if shards == num_ranks or not is_whole:
        return init_device_mesh(device, (num_ranks,))
    shape = num_ranks // shards, shards
    return init_device_mesh(device, shape, mesh_dim_names=("machine", "rank"))


class ShardedLearner(Learner):
    """Trains one rank's part of a run. Needs an initialised process group.

    All ranks must call its methods in the same order.
    """

    _is_evaluating = False

    def _build(self, weights: Iterable[tuple[str, Piece]]) -> tuple[nn.Module, Sets]:
        self.rank, self.num_ranks = dist.get_rank(), dist.get_world_size()
        model_config, kind = self.config.model, self.device.type
        self.sharing = sharing_of(model_config, self.config.precision, self.num_ranks, kind)
        self.mesh = rank_mesh(kind, self.sharing.num_shards)
        with torch.device("meta"):
            model = Transformer(model_config)
        self._shard(model)
        model.to_empty(device=self.device)
        model.rotary.reset_tables()
        assert all(isinstance(p, DTensor) for p in model.parameters())
        parameters = dict(model.named_parameters())
        for name, piece in weights:
            self._fill(parameters[name], f"model.{name}", piece)
        self.model = model
        self._set_reshard_after_forward(not self.sharing.keeps_gathered)
        self._warm_up()
        return model, parameters_by_set(model)

    def _shard(self, model: Transformer) -> None:
        policy = MixedPrecisionPolicy(
            DTYPES[self.config.precision], torch.float32, cast_forward_inputs=False
        )
        groups: list = [model.wte]
        for block in model.blocks:
            apart = self.sharing.own_groups
            groups += [block.aux[d] for d in self.config.model.module_domains if d in apart]
            groups.append(block)
        for group in (*groups, [model.ln_f, model.lm_head], model):
            fully_shard(group, mesh=self.mesh, mp_policy=policy)

    def _set_reshard_after_forward(self, is_wanted: bool) -> None:
        self.model.set_reshard_after_forward(is_wanted)
        self.model.lm_head.set_reshard_after_forward(False)

    def _warm_up(self) -> None:
        """Runs a first pass with all weights trainable.

        In this pass, FSDP2 fixes the dtype in which it reduces the gradients of trainable weights.
        """
        for parameter in self.model.parameters():
            parameter.requires_grad_(True)
        self._trained = None
        with torch.no_grad():
            tokens_BT = torch.zeros(1, 2, dtype=torch.long, device=self.device)
            self.forward(tokens_BT, dict.fromkeys(self.config.model.module_domains, 1.0))

    def forward(
        self, tokens_BT: Tensor, active: ActiveModules, num_trained: int | None = None
    ) -> Tensor:
        logits_BTV = super().forward(tokens_BT, active, num_trained)
        if not (torch.is_grad_enabled() or self._is_evaluating):
            self._reshard()
        return logits_BTV

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Context manager that keeps all weights gathered, for use between steps."""
        self._set_reshard_after_forward(False)
        self._is_evaluating = True
        try:
            yield
        finally:
            self._is_evaluating = False
            self._set_reshard_after_forward(not self.sharing.keeps_gathered)
            self._reshard()

    def train_only(self, trained: frozenset[str]) -> None:
        """Sets requires_grad like `Learner`. First reshards all weights if `trained` has changed.

        Weights that stayed gathered would keep the old requires_grad, and get wrong gradients
        without an error.
        """
        if trained != self._trained:
            self._reshard()
        super().train_only(trained)

    def _reshard(self) -> None:
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def backward(self, loss: Tensor, is_last: bool) -> None:
        """Accumulates full gradients on each rank, and reduces them in the window's last pass.

        With `reduces_every_pass`, ranks reduce in every pass and accumulate only their rows.
        The last pass also reshards all weights. FSDP2's final callback reduces the parameter sets
        that the last pass does not reach.
        """
        self.model.set_requires_gradient_sync(is_last or self.sharing.reduces_every_pass)
        self.model.set_reshard_after_backward(is_last or not self.sharing.keeps_gathered)
        loss.backward()

    def sum_over_ranks(self, values: Tensor) -> Tensor:
        """Sums `values` over ranks with one all-reduce, which may overwrite them."""
        total = values.to(self.device)
        dist.all_reduce(total)
        return total

    def mean_over_ranks(self, values: Tensor) -> Tensor:
        """Averages `values` over ranks with one all-reduce. Returns the means on the CPU."""
        return (self.sum_over_ranks(values) / self.num_ranks).cpu()

    def weights(self) -> dict[str, Tensor]:
        """Gathers the full weights one by one on rank 0's CPU. Returns {} on other ranks."""
        each, is_first = self.each_weight(), self.rank == 0
        return {name: full.to("cpu", copy=True) for name, full in each if is_first}

    def each_weight(self) -> Iterator[tuple[str, Tensor]]:
        """Yields (name, full weight), sorted by name.

        Every rank must iterate over all weights, since each weight needs an all-gather.
        """
        for name in sorted(self.masters):
            yield name, self.masters[name].detach().full_tensor()

    def rows_of(self, name: str, shape: tuple[int, ...]) -> tuple[int, int]:
        """Returns (first, stop) of this rank's rows of a tensor. Scalars stay whole."""
        if not shape:
            return all_rows(name, shape)
        last = self.mesh.ndim - 1
        return rank_rows(shape[0], self.mesh.get_local_rank(last), self.mesh.size(last))

    @property
    def has_first_copy(self) -> bool:
        """True if this rank has rows of the first copy of the weights. All copies are equal."""
        return self.mesh.ndim == 1 or self.mesh.get_local_rank(0) == 0

    def _local(self, value: Tensor) -> Tensor:
        return value.to_local() if isinstance(value, DTensor) else value
