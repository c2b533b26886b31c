"""A learner on several ranks: FSDP2 with gradient routing.

Auxiliary modules, blocks and the root are sharded separately, so an inactive module is never gathered. Routes are the
same on all ranks; ranks split a micro-batch's sequences. Gradients are reduced in float32, once a window; weights are
gathered as `config/flops.py` decides. The order of calls here is what was found to work; a comment says where
another order trains wrongly without an error.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from gram_platform.config.flops import keeps_gathered
from gram_platform.model.pieces import Piece, all_rows, rank_rows
from gram_platform.model.transformer import Lora, Transformer, parameters_by_set
from gram_platform.train.learner import DTYPES, Learner
from gram_platform.train.optimizers import Sets


class ShardedLearner(Learner):
    """Needs an initialised process group; every method is called on all ranks, in the same order."""

    def _build(self, weights: Iterable[tuple[str, torch.Tensor]]) -> tuple[nn.Module, Sets]:
        self.mesh = init_device_mesh(self.device.type, (dist.get_world_size(),))
        with torch.device("meta"):
            model = Transformer(self.config.model)
        policy = MixedPrecisionPolicy(DTYPES[self.config.precision], torch.float32, cast_forward_inputs=False)
        self._keeps_gathered = keeps_gathered(self.config.model, self.config.precision)
        how = {"mesh": self.mesh, "mp_policy": policy, "reshard_after_forward": not self._keeps_gathered}
        for block in model.blocks:
            for module in block.aux.values():
                if not isinstance(module, Lora):  # called in pieces, and small: it stays in its block's group
                    fully_shard(module, **how)
            fully_shard(block, **how)
        fully_shard(model, **how)
        model.to_empty(device=self.device)
        model.rotary.reset_tables()
        assert all(isinstance(p, DTensor) for p in model.parameters())
        parameters = dict(model.named_parameters())
        for name, value in weights:
            self._fill(parameters[name], f"model.{name}", value)
        self.model = model
        has_loras = any(module.kind == "lora" for module in self.config.model.modules)
        self._reduces_each = has_loras and self.config.precision != "float32"
        self._warm_up()
        return model, parameters_by_set(model)

    def _warm_up(self) -> None:
        """One forward with everything trainable and active: groups that start frozen never learn their reduce dtype."""
        for parameter in self.model.parameters():
            parameter.requires_grad_(True)
        self._trained = None
        with torch.no_grad():
            tokens_BT = torch.zeros(1, 2, dtype=torch.long, device=self.device)
            self.forward(tokens_BT, dict.fromkeys(self.config.model.module_domains, 1.0))

    def forward(self, tokens_BT: torch.Tensor, active: Mapping[str, float]) -> torch.Tensor:
        logits_BTV = self.model(tokens_BT, active)
        if not torch.is_grad_enabled():
            self._let_go()
        return logits_BTV

    def train_only(self, trained: frozenset[str]) -> None:
        """What is gathered has the requires_grad flags of when it was: kept beyond them it would train wrongly."""
        if trained != self._trained:
            self._let_go()
        super().train_only(trained)

    def _let_go(self) -> None:
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def backward(self, loss: torch.Tensor, trained: Collection[str], is_last: bool) -> None:
        """Gradients are reduced once a window; the last micro-batch lets go of all weights, which a step then changes.

        Sets that took no part in the last micro-batch are reduced all the same, by the root's final callback; until
        then each rank holds the full gradients of what is trained.

        LoRAs share their block's group, and a group's gradients must have one dtype: what a window has accumulated is
        float32 and what is new is not. With LoRAs in a lower precision every micro-batch is therefore reduced.
        """
        self.model.set_requires_gradient_sync(is_last or self._reduces_each)
        self.model.set_reshard_after_backward(is_last or not self._keeps_gathered)
        loss.backward()

    def mean_over_ranks(self, values: torch.Tensor) -> torch.Tensor:
        total = values.to(self.device)
        dist.all_reduce(total)
        return (total / dist.get_world_size()).cpu()

    def weights(self) -> dict[str, torch.Tensor]:
        """On rank 0 the full weights on the CPU, gathered one by one; nothing on the others."""
        kept = ((name, full.to("cpu", copy=True)) for name, full in self.each_weight() if dist.get_rank() == 0)
        return dict(kept)

    def each_weight(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, full weight) in the order of names; every rank must take them all, for each is gathered by all."""
        named = {name: p for parameters in self.master_sets.values() for name, p in parameters.items()}
        for name in sorted(named):
            yield name, self._to_full(named[name].detach())

    def load_state(self, state: Mapping[str, torch.Tensor | Piece]) -> None:
        super().load_state(state)
        self._warm_up()

    def rows_of(self, name: str, shape: tuple[int, ...]) -> tuple[int, int]:
        """This rank's chunk of every weight and of its moments; all of anything else."""
        if not shape or not name.startswith(("model.", "optim.")):
            return all_rows(name, shape)
        return rank_rows(shape[0], self.mesh.get_local_rank(), self.mesh.size())

    def _local(self, value: torch.Tensor) -> torch.Tensor:
        return value.to_local() if isinstance(value, DTensor) else value

    def _to_full(self, value: torch.Tensor) -> torch.Tensor:
        return value.full_tensor() if isinstance(value, DTensor) else value
