"""A learner: the model, its float32 master weights by set, their optimizers, and how gradients reach them.

One process: with precision float32 the model is its own master; with bfloat16 the model computes with a bfloat16 copy
of every weight, and each micro-batch's gradient is added in float32 to its master (what FSDP2's mixed precision does,
see `sharding.py`). Sets that a route does not train get no gradient at all, so AdamW leaves them alone.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import nn

from gram_platform.config import RunConfig
from gram_platform.config.identity import invalid
from gram_platform.config.routing import module_set
from gram_platform.model.pieces import Piece, all_rows, as_piece
from gram_platform.model.transformer import Mlp, Transformer, build, initial_weights, is_module, parameters_by_set
from gram_platform.train.data import on_device
from gram_platform.train.objectives import cross_entropy
from gram_platform.train.optimizers import Sets, clip_gradients, make_optimizers, set_learning_rate

MAX_GRAPHS = 16  # of trunks, and as many of auxiliary MLPs
NUM_COMPILED = 2  # functions that have graphs of their own: the trunk's and the auxiliary MLP's


DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Learner:
    """What the loop drives; `sharding.ShardedLearner` is the same on several ranks."""

    def __init__(
        self,
        config: RunConfig,
        device: torch.device | str = "cpu",
        start: Mapping[str, torch.Tensor] | None = None,
        activation_checkpointing: bool = False,
        compiled: bool = False,
    ):
        """`start`: weights by name that replace the seed's (see `starting_weights`).

        `activation_checkpointing`: blocks keep their inputs alone and are computed again in the backward pass: less
        memory, more time, the same bits. `compiled`: by torch.compile (see `compilation.py`).
        """
        self.config = config
        self.device = torch.device(device)
        self._pairs: dict[str, list[tuple[nn.Parameter, nn.Parameter]]] = {}  # set -> (computing copy, master)
        self.model, self.master_sets = self._build(starting_weights(config, start or {}))
        self.model.keeps_activations = not activation_checkpointing
        if compiled:
            compile_blocks(self.model)
        self.compute_sets = parameters_by_set(self.model)
        self.optimizers = make_optimizers(config.optimizer, self.master_sets)
        self._trained: frozenset[str] | None = None
        self.publish(self.master_sets)

    def _build(self, weights: Iterable[tuple[str, torch.Tensor]]) -> tuple[nn.Module, Sets]:
        """(the module that computes, the master weights by set): one model, or a copy of lower precision."""
        master = build(self.config.model, weights).to(self.device)
        master_sets = parameters_by_set(master)
        if self.config.precision == "float32":
            return master, master_sets
        with torch.device("meta"):
            compute = Transformer(self.config.model)
        compute.to(DTYPES[self.config.precision]).to_empty(device=self.device)
        compute.rotary = master.rotary  # its tables stay float32
        copies = parameters_by_set(compute)
        self._pairs = {s: [(copies[s][n], p) for n, p in named.items()] for s, named in master_sets.items()}
        return compute, master_sets

    # ------------------------------------------------------------------------------------------ one window

    def forward(self, tokens_BT: torch.Tensor, active: Mapping[str, float]) -> torch.Tensor:
        return self.model(tokens_BT, active)

    def train_only(self, trained: frozenset[str]) -> None:
        """Switches requires_grad so that the next backward reaches exactly these sets."""
        if trained == self._trained:
            return
        for name, parameters in self.compute_sets.items():
            for parameter in parameters.values():
                parameter.requires_grad_(name in trained)
        self._trained = trained

    def backward(self, loss: torch.Tensor, trained: Collection[str], is_last: bool) -> None:
        """Adds the gradients of `loss` to the masters'. `is_last`: the window's last micro-batch (for ranks)."""
        loss.backward()
        for name in self._pairs.keys() & set(trained):
            for copy, master in self._pairs[name]:
                if copy.grad is None:
                    continue
                if master.grad is None:
                    master.grad = copy.grad.float()
                else:
                    master.grad.add_(copy.grad)
                copy.grad = None

    def clip(self) -> float:
        """Clips the window's gradients; returns their norm before."""
        return clip_gradients(self.master_sets, self._sets_with_gradients(), self.config.optimizer)

    def _sets_with_gradients(self) -> list[str]:
        return [s for s, named in self.master_sets.items() if any(p.grad is not None for p in named.values())]

    def step(self, rate: float) -> None:
        """Steps the sets that have gradients, clears those, and publishes the new weights."""
        stepped = self._sets_with_gradients()
        set_learning_rate(self.optimizers, rate)
        for name in stepped:
            self.optimizers[name].step()
            self.optimizers[name].zero_grad(set_to_none=True)
        self.publish(stepped)

    def publish(self, names: Collection[str]) -> None:
        """Copies the masters of these sets into the computing model."""
        pairs = [pair for name in names for pair in self._pairs.get(name, ())]
        if pairs:
            with torch.no_grad():
                torch._foreach_copy_([copy for copy, _ in pairs], [master for _, master in pairs])

    def mean_over_ranks(self, values: torch.Tensor) -> torch.Tensor:
        """Per-rank means of equally many sequences as the global mean; one process: the values."""
        return values

    # ---------------------------------------------------------------------------------------------- state

    def state(self) -> dict[str, torch.Tensor]:
        """A flat dict of full CPU tensors: `model.<name>` and `optim.<set>.<name>.{step,exp_avg,exp_avg_sq}`.

        A set that never stepped has no optimizer keys.
        """
        return {name: self._to_full(value).to("cpu", copy=True) for name, value in self._tensors()}

    def pieces(self) -> dict[str, Piece]:
        """What this process holds of every tensor of `state`, copied to the CPU; nothing is communicated."""
        return {name: self._piece(name, value) for name, value in self._tensors()}

    def rows_of(self, name: str, shape: tuple[int, ...]) -> tuple[int, int]:
        """[first, stop): the rows that this process holds of a tensor of `state`, by its name and full shape."""
        return all_rows(name, shape)

    def weights(self) -> dict[str, torch.Tensor]:
        """The float32 weights by name, on the CPU."""
        return {n: self._to_full(p.detach()).cpu() for named in self.master_sets.values() for n, p in named.items()}

    def weight_pieces(self) -> dict[str, Piece]:
        """What this process holds of the float32 weights by name, copied to the CPU."""
        named = {name: p.detach() for parameters in self.master_sets.values() for name, p in parameters.items()}
        return {name: self._piece(f"model.{name}", value) for name, value in named.items()}

    def load_weights(self, weights: Mapping[str, torch.Tensor | Piece]) -> None:
        """Replaces every weight; names and shapes must be exactly the model's."""
        names = {n for named in self.master_sets.values() for n in named}
        if names != set(weights):
            difference = sorted(names ^ set(weights))
            raise ValueError(f"weights={difference[:4]!r} : expected exactly the model's names")
        for named in self.master_sets.values():
            for name, parameter in named.items():
                self._fill(parameter, f"model.{name}", weights[name])
        self.publish(self.master_sets)

    def load_state(self, state: Mapping[str, torch.Tensor | Piece]) -> None:
        """The inverse of `state` and of `pieces`: exactly its optimizer states exist afterwards.

        A piece must hold at least this process's rows (`rows_of`).
        """
        model = {n.removeprefix("model."): v for n, v in state.items() if n.startswith("model.")}
        for set_name, named in self.master_sets.items():
            self.optimizers[set_name].state.clear()
            for name, parameter in named.items():
                prefix = f"optim.{set_name}.{name}."
                if prefix + "step" in state:
                    self.optimizers[set_name].state[parameter] = self._slots(state, prefix, parameter)
        self.load_weights(model)

    def _slots(self, state: Mapping[str, torch.Tensor | Piece], prefix: str, parameter: nn.Parameter) -> dict:
        step = as_piece(state[prefix + "step"]).rows
        slots = {"step": step.to(self.device, copy=True)}
        for slot in ("exp_avg", "exp_avg_sq"):
            slots[slot] = torch.empty_like(parameter, requires_grad=False)
            self._fill(slots[slot], prefix + slot, state[prefix + slot])
        return slots

    def _tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for named in self.master_sets.values():
            for name, parameter in named.items():
                yield f"model.{name}", parameter.detach()
        for set_name, named in self.master_sets.items():
            for name, parameter in named.items():
                slots = self.optimizers[set_name].state.get(parameter, {})
                for slot, value in slots.items():
                    yield f"optim.{set_name}.{name}.{slot}", value

    def _piece(self, name: str, value: torch.Tensor) -> Piece:
        first, _ = self.rows_of(name, tuple(value.shape))
        return Piece(self._local(value).to("cpu", copy=True), first, tuple(value.shape))

    @torch.no_grad()
    def _fill(self, target: torch.Tensor, name: str, value: torch.Tensor | Piece) -> None:
        """Copies this process's rows of `value` into those that it holds of `target`."""
        piece = as_piece(value)
        if piece.shape != tuple(target.shape) or piece.rows.dtype != target.dtype:
            expected = f"{tuple(target.shape)} {target.dtype}"
            raise ValueError(f"{name}={piece.shape} {piece.rows.dtype}: expected {expected}")
        self._local(target).copy_(piece.between(*self.rows_of(name, piece.shape)))

    def _local(self, value: torch.Tensor) -> torch.Tensor:
        """What this process holds of a tensor: the same memory."""
        return value

    def _to_full(self, value: torch.Tensor) -> torch.Tensor:
        return value


def starting_weights(config: RunConfig, start: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, float32 tensor) of every parameter: from `start` where it has one, else the seed's.

    A branch adds modules to a base, so `start` may lack modules; ValueError for any other difference.
    """
    left = dict(start)
    for name, value in initial_weights(config.model, config.seed):
        given = left.pop(name, None)
        if given is None and start and not is_module(name):
            raise invalid("start", "nothing", f"a start with {name} of shape {tuple(value.shape)}")
        if given is not None and given.shape != value.shape:
            raise invalid("start", tuple(given.shape), f"a start with {name} of shape {tuple(value.shape)}")
        yield name, value if given is None else given
    if left:
        raise invalid("start", sorted(left)[:4], "weights that the run's model has")


def compile_blocks(model: Transformer, backend: str | Callable = "inductor", max_graphs: int = MAX_GRAPHS) -> None:
    """Compiles the model's layers in place, before or after sharding: FSDP2's hooks stay outside of the graphs.

    The bound on the graphs of one function is torch.compile's own and the process's, so the last call sets it.
    """
    torch._dynamo.config.recompile_limit = max_graphs
    for block in model.blocks:
        block.trunk = torch.compile(block.trunk, dynamic=False, backend=backend)
        for module in block.aux.values():
            if isinstance(module, Mlp):
                compiled = torch.compile(module.forward, dynamic=False, backend=backend)
                module.forward = compiled  # type: ignore[method-assign]


def gradient_norms(sets: Sets) -> dict[str, float]:
    """The norm of every set's gradients as they are now; sets without gradients are absent.

    With sharded parameters every rank must call it: all sets together are one reduction.
    """
    gradients = {name: [p.grad for p in named.values() if p.grad is not None] for name, named in sets.items()}
    return _norms({name: tensors for name, tensors in gradients.items() if tensors})


def weight_norms(sets: Sets) -> dict[str, float]:
    """The norm of every set's weights; sharded ones as above."""
    return _norms({name: [p.detach() for p in named.values()] for name, named in sets.items() if named})


def _norms(groups: dict[str, Sequence[torch.Tensor]]) -> dict[str, float]:
    """One pass over all tensors and one transfer from the device; then arithmetic on a number for each tensor."""
    if not groups:
        return {}
    norms = torch.stack(torch._foreach_norm([tensor for tensors in groups.values() for tensor in tensors]))
    left = iter((norms.full_tensor() if hasattr(norms, "full_tensor") else norms).tolist())  # a DTensor when sharded
    return {name: math.hypot(*(next(left) for _ in tensors)) for name, tensors in groups.items()}


def probed_norms(learner: Learner, sequences: np.ndarray, rank: int = 0, num_ranks: int = 1) -> dict[str, float]:
    """{module: the norm of its matrices' gradients} on a domain's first sequences [num_sequences, seq_len + 1].

    Every module is on and takes gradients, as in an unlabelled batch; the core is left out, which changes none of
    theirs. Biases are left out too: outputs are summed, so that of the output has the same gradient in every module,
    and in narrow ones it is most of the norm. The root mean square over `num_probed` micro-batches of the run's size.
    Weights, optimizer states and gradients of the learner stay as they are; with several ranks all must call it.
    """
    config = learner.config
    modules = {module_set(domain): domain for domain in config.model.module_domains}
    sets, active = {name: learner.master_sets[name] for name in modules}, dict.fromkeys(modules.values(), 1.0)
    matrices = {name: {n: p for n, p in own.items() if p.dim() > 1} for name, own in sets.items()}
    assert all(p.grad is None for own in learner.master_sets.values() for p in own.values()), "only between two steps"
    squares = dict.fromkeys(modules, 0.0)
    learner.train_only(frozenset(modules))
    for number in range(config.num_probed):
        tokens = on_device(_share(sequences, config.micro_batch, number, rank, num_ranks), learner.device)
        loss = cross_entropy(learner.forward(tokens[:, :-1], active), tokens[:, 1:])
        learner.backward(loss, modules, is_last=True)
        for name, norm in gradient_norms(matrices).items():
            squares[name] += norm**2
        for own in sets.values():
            for parameter in own.values():
                parameter.grad = None
    return {domain: math.sqrt(squares[name] / config.num_probed) for name, domain in modules.items()}


def _share(sequences: np.ndarray, micro_batch: int, number: int, rank: int, num_ranks: int) -> torch.Tensor:
    """A rank's sequences of one micro-batch, int64 [micro_batch / num_ranks, seq_len + 1]."""
    share = micro_batch // num_ranks
    first = number * micro_batch + rank * share
    return torch.from_numpy(sequences[first : first + share].astype(np.int64))
