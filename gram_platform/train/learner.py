"""Holds what a run trains: the model, float32 master weights, optimizers and gradients.

This learner runs in one process, and the multi-rank learner is in `sharding.py`. In float32 the
model holds the master weights. In bfloat16 it holds a copy of every weight, and the gradient of
each pass is added to the master in float32, as in FSDP2's mixed precision. Parameter sets that no
route in a window trains get no gradient, so AdamW skips them.
"""

import contextlib
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from gram_platform.config import ModelConfig, Objective, RunConfig
from gram_platform.config.identity import invalid
from gram_platform.config.routing import module_set
from gram_platform.config.training import DISTILLATION, MISDIRECTION
from gram_platform.model.layers import ActiveModules
from gram_platform.model.pieces import Piece, RowsOnDisk, all_rows, as_piece, whole
from gram_platform.model.transformer import (
    NO_MODULES,
    Transformer,
    build,
    initial_weight,
    is_module,
    is_trained,
    parameter_shapes,
    parameters_by_set,
    seed_generator,
)
from gram_platform.train.compilation import (
    Compilation,
    TargetLogits,
    compile_blocks,
    fuse_cross_entropy,
)
from gram_platform.train.data import Staging, rank_share, tokens_of
from gram_platform.train.objectives import Misdirection, cross_entropies, cross_entropy
from gram_platform.train.optimizers import (
    Sets,
    add_gradients,
    clip_gradients,
    gradient_norms,
    make_optimizers,
    set_learning_rate,
)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Learner:
    """Trains one run in one process, by `forward`, `train_only`, `backward`, `clip` and `step`."""

    rank, num_ranks = 0, 1

    def __init__(
        self,
        config: RunConfig,
        device: torch.device | str = "cpu",
        start: Mapping[str, Tensor | RowsOnDisk] | None = None,
        activation_checkpointing: bool = False,
        compiled: bool = False,
        num_passes: int = 1,
        num_merged: int = 1,
    ):
        """Builds the model from `start` (weights by name) and the seed, as `starting_weights` does.

        - `activation_checkpointing`: Blocks keep only their inputs and recompute the rest in the
          backward pass. This saves memory, costs time and leaves results bitwise equal.
        - `compiled`: Blocks and loss are compiled. If that fails, they run uncompiled.
        - `num_passes`: Splits this process's share of a micro-batch into passes, to save memory.
        - `num_merged`: The most micro-batches that share a pass, for fewer and larger matrix
          products. Must be 1 for misdirection.

        Either `num_passes` or `num_merged` must be 1. Both change the gradient only by rounding.
        """
        assert 1 in (num_passes, num_merged)
        self.config, self.num_passes, self.num_merged = config, num_passes, num_merged
        self.device = torch.device(device)
        # By set: each weight as (copy to compute with, master).
        self._copies: dict[str, list[tuple[nn.Parameter, nn.Parameter]]] = {}
        loaded = starting_weights(config, start or {}, self.rows_of)
        weights = ((name, add_noise(config, name, piece)) for name, piece in loaded)
        self.model, self.master_sets = self._build(weights)
        self.masters = {name: p for named in self.master_sets.values() for name, p in named.items()}
        self.model.keeps_activations = not activation_checkpointing
        self.compilation = Compilation() if compiled else None
        self.fused_loss = None
        if self.compilation:
            compile_blocks(self.model, self.compilation)
            self.fused_loss = fuse_cross_entropy(self.compilation)
        self.optimizers = make_optimizers(config.optimizer, self.master_sets)
        self._trained: frozenset[str] | None = None
        self.staging = Staging()
        self._publish(self.master_sets)
        kind, stored = config.objective.kind, start or {}
        self.misdirection = self._misdirection(stored) if kind == MISDIRECTION else None
        # The start without noise.
        self.teacher = self._freeze(stored, config.model) if kind == DISTILLATION else None

    def _build(self, weights: Iterable[tuple[str, Piece]]) -> tuple[nn.Module, Sets]:
        rows = ((name, piece.rows) for name, piece in weights)
        master = build(self.config.model, rows).to(self.device)
        master_sets = parameters_by_set(master)
        if self.config.precision == "float32":
            return master, master_sets
        with torch.device("meta"):
            compute = Transformer(self.config.model)
        compute.to(DTYPES[self.config.precision]).to_empty(device=self.device)
        compute.rotary = master.rotary
        compute_sets = parameters_by_set(compute)
        self._copies = {
            s: [(compute_sets[s][n], p) for n, p in named.items()]
            for s, named in master_sets.items()
        }
        return compute, master_sets

    def _misdirection(self, start: Mapping[str, Tensor | RowsOnDisk]) -> Misdirection:
        num_layers = self.config.objective.steered_layers
        model = replace(self.config.model, num_layers=num_layers)
        numbers = range(num_layers, self.config.model.num_layers)
        later = tuple(f"blocks.{number}." for number in numbers)
        layers = {name: rows for name, rows in start.items() if not name.startswith(later)}
        frozen = self._freeze(layers, model)
        return Misdirection(self.config, self.model, frozen.model, frozen.forward)

    def _freeze(self, start: Mapping[str, Tensor | RowsOnDisk], model: ModelConfig) -> "Learner":
        config = replace(self.config, model=model, objective=Objective())
        return type(self)(config, self.device, start)

    @torch.no_grad()
    def teach(self, tokens_BT: Tensor, number: int) -> Sequence[Tensor | None]:
        """Returns the teacher's logits of `number` micro-batches, or Nones without a teacher."""
        if self.teacher is None:
            return [None] * number
        return self.teacher.forward(tokens_BT, NO_MODULES).chunk(number)

    def passes(self, *of_sequences: Tensor) -> Iterator[tuple]:
        """Splits the rows of a micro-batch into `num_passes` parts. Yields (is_last, *tensors)."""
        divided = (rows.view(self.num_passes, -1, rows.shape[1]) for rows in of_sequences)
        parts = zip(*divided, strict=True)
        for number, part in enumerate(parts, start=1):
            yield number == self.num_passes, *part

    def forward(
        self, tokens_BT: Tensor, active: ActiveModules, num_trained: int | None = None
    ) -> Tensor:
        """Returns logits_BTV with the modules in `active` switched on."""
        return self.model(tokens_BT, active, num_trained)

    def losses(self, logits: TargetLogits, number: int) -> Tensor:
        """Returns the cross entropy of each of the `number` micro-batches of a pass."""

        def plain() -> Tensor:
            return cross_entropies(*logits, number)

        return self.fused_loss(logits, number, plain) if self.fused_loss else plain()

    def train_only(self, trained: frozenset[str]) -> None:
        """Sets requires_grad so that backward passes reach only the parameter sets in `trained`."""
        if trained == self._trained:
            return
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(is_trained(self.config.model, name, trained))
        for parameter in self.misdirection.above if self.misdirection else ():
            parameter.requires_grad_(False)
        self._trained = trained

    def backward(self, loss: Tensor, is_last: bool) -> None:
        """Adds the gradients of `loss` to the masters' gradients.

        `is_last` marks the last pass before the gradients are used. Only `ShardedLearner` needs it.
        """
        loss.backward()
        for pairs in self._copies.values():
            add_gradients(pairs)

    def evaluating(self) -> contextlib.AbstractContextManager:
        """Returns a context manager in which forward passes gather weights only once."""
        return contextlib.nullcontext()

    def sum_over_ranks(self, values: Tensor) -> Tensor:
        return values

    def mean_over_ranks(self, values: Tensor) -> Tensor:
        """Returns the mean of `values` over ranks, which have the same number of sequences."""
        return values

    def clip(self) -> float:
        return clip_gradients(self.master_sets, self.config.optimizer)

    def step(self, rate: float) -> None:
        """Runs AdamW on the sets with gradients, clears the gradients and updates the model."""
        trained = [
            name
            for name, named in self.master_sets.items()
            if any(p.grad is not None for p in named.values())
        ]
        self.staging.before_change()
        set_learning_rate(self.optimizers, rate)
        for name in trained:
            self.optimizers[name].step()
            self.optimizers[name].zero_grad()
        self._publish(trained)

    def _publish(self, set_names: Collection[str]) -> None:
        pairs = [pair for name in set_names for pair in self._copies.get(name, ())]
        if pairs:
            with torch.no_grad():
                torch._foreach_copy_([copy for copy, _ in pairs], [master for _, master in pairs])

    def pieces(self) -> dict[str, Piece]:
        """Copies this process's rows of the training state to the CPU, without communication.

        Weights are named `model.<name>`, and AdamW's states
        `optim.<set>.<name>.{step,exp_avg,exp_avg_sq}`. A set that was never updated has no states.
        Copies from a GPU are complete after `staging.wait`.
        """
        copies = self.staging.copy({name: self._local(value) for name, value in self._tensors()})
        return {name: self._piece(name, value, copies[name]) for name, value in self._tensors()}

    def weights(self) -> dict[str, Tensor]:
        return {name: p.detach().cpu() for name, p in self.masters.items()}

    def weight_pieces(self) -> dict[str, Piece]:
        """Copies this process's rows of the float32 weights to the CPU."""
        pieces = {}
        for name, master in self.masters.items():
            rows = self._local(master.detach()).to("cpu", copy=True)
            pieces[name] = self._piece(f"model.{name}", master, rows)
        return pieces

    def rows_of(self, name: str, shape: tuple[int, ...]) -> tuple[int, int]:
        """Returns (first, stop) of this process's rows of a tensor."""
        return all_rows(name, shape)

    def load_state(self, state: Mapping[str, Tensor | Piece]) -> None:
        """Restores the training state from the result of `pieces`, or from whole tensors.

        Clears optimizer states that `state` lacks. A piece must have at least the rows of this
        process (`rows_of`). Raises ValueError unless the names, shapes and dtypes of the weights
        match the model's.
        """
        stored = {name.removeprefix("model.") for name in state if name.startswith("model.")}
        if difference := sorted(self.masters.keys() ^ stored):
            raise invalid("weights", difference[:4], "exactly the names of the model's weights")
        for set_name, named in self.master_sets.items():
            self.optimizers[set_name].state.clear()
            for name, parameter in named.items():
                self._fill(parameter, f"model.{name}", state[f"model.{name}"])
                prefix = f"optim.{set_name}.{name}."
                if prefix + "step" in state:
                    step = as_piece(state[prefix + "step"]).rows.to(self.device, copy=True)
                    slots = self.optimizers[set_name].state[parameter] = {"step": step}
                    for slot in ("exp_avg", "exp_avg_sq"):
                        slots[slot] = torch.empty_like(parameter, requires_grad=False)
                        self._fill(slots[slot], prefix + slot, state[prefix + slot])
        self._publish(self.master_sets)

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.masters.items():
            yield f"model.{name}", parameter.detach()
        for set_name, named in self.master_sets.items():
            for name, parameter in named.items():
                for slot, value in self.optimizers[set_name].state.get(parameter, {}).items():
                    yield f"optim.{set_name}.{name}.{slot}", value

    def _piece(self, name: str, value: Tensor, rows: Tensor) -> Piece:
        first, _ = self.rows_of(name, tuple(value.shape))
        return Piece(rows, first, tuple(value.shape))

    @torch.no_grad()
    def _fill(self, target: Tensor, name: str, value: Tensor | Piece) -> None:
        piece = as_piece(value)
        if piece.shape != tuple(target.shape) or piece.rows.dtype != target.dtype:
            expected = f"{tuple(target.shape)} {target.dtype}"
            raise ValueError(f"{name}={piece.shape} {piece.rows.dtype}: expected {expected}")
        self._local(target).copy_(piece.between(*self.rows_of(name, piece.shape)))

    def _local(self, value: Tensor) -> Tensor:
        return value


def starting_weights(
    config: RunConfig, start: Mapping[str, Tensor | RowsOnDisk], rows_of: Callable
) -> Iterator[tuple[str, Piece]]:
    """Yields (name, float32 piece) for every parameter.

    If `start` has the parameter, the piece holds this process's rows of it (`rows_of`). Otherwise
    the piece holds all rows, drawn from the seed. `start` can be empty, or lack modules that a
    branch adds to its base. Raises ValueError if `start` lacks any other parameter, or has one that
    is unknown to the model or of another shape.
    """
    left = dict(start)
    for name, shape in parameter_shapes(config.model).items():
        value = left.pop(name, None)
        expected = f"a start with {name} of shape {shape}"
        if value is None and start and not is_module(name):
            raise invalid("start", "nothing", expected)
        if value is None:
            yield name, whole(initial_weight(config.model, config.seed, name, shape))
            continue
        if tuple(value.shape) != shape:
            raise invalid("start", tuple(value.shape), expected)
        first, stop = rows_of(f"model.{name}", shape)
        yield name, Piece(value[first:stop], first, shape)
    if left:
        raise invalid("start", sorted(left)[:4], "weights that the run's model has")


def add_noise(config: RunConfig, name: str, piece: Piece) -> Piece:
    """Mixes noise into a weight as described in `Objective`.

    A matrix's noise and initial weights come from one seed but are independent.
    """
    objective, first, shape = config.objective, piece.first_row, piece.shape
    if not objective.noise:
        return piece
    if len(shape) == 1:
        noise = initial_weight(config.model, config.seed, name, shape)
    else:
        generator = seed_generator(config.seed, "noise", name)
        noise = nn.init.xavier_uniform_(torch.empty(shape), objective.noise_scale, generator)
    rows = torch.lerp(piece.rows, noise[first : first + len(piece.rows)], objective.noise)
    return Piece(rows, first, shape)


def probe_norms(learner: Learner, sequences: np.ndarray) -> dict[str, float]:
    """Returns the gradient norm of each module's matrices, by the module's domain.

    Uses `num_probed` micro-batches from the start of `sequences` [num_sequences, seq_len + 1],
    which are from one domain. All modules are active and get gradients, as in an unlabelled batch,
    and the core gets none. Biases are left out: MLP outputs are summed, so the output bias has the
    same gradient in every module, and would dominate the norm of narrow modules.

    A norm is the root mean square over the micro-batches. Weights, optimizer states and
    gradients do not change. All ranks must call this.
    """
    config = learner.config
    modules = {module_set(domain): domain for domain in config.model.module_domains}
    active = dict.fromkeys(modules.values(), 1.0)
    matrices = {
        name: {n: p for n, p in learner.master_sets[name].items() if p.dim() > 1}
        for name in modules
    }
    assert all(p.grad is None for p in learner.masters.values()), "only between two steps"
    squares = dict.fromkeys(modules, 0.0)
    learner.train_only(frozenset(modules))
    for number in range(config.num_probed):
        micro_batch = sequences[number * config.micro_batch :][: config.micro_batch]
        share = rank_share(micro_batch, learner.rank, learner.num_ranks)
        tokens_BT = tokens_of(share, learner.device)
        for is_last, part_BT in learner.passes(tokens_BT):
            loss = cross_entropy(learner.forward(part_BT[:, :-1], active), part_BT[:, 1:])
            learner.backward(loss / learner.num_passes, is_last)
        for name, norm in gradient_norms(matrices).items():
            squares[name] += norm**2
        for parameter in learner.masters.values():
            parameter.grad = None
    return {
        domain: math.sqrt(squares[name] / config.num_probed) for name, domain in modules.items()
    }
