# ruff: noqa: F401 - other rooms import the names of runs and views from here
"""Defines `RunConfig`, which determines a training stage and its `run_id`.

A `RunConfig` contains everything that can change a result, but no paths, names or hardware.
`run_id` hashes its canonical JSON, so equal configs are the same run on every machine.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from gram_platform.config.identity import invalid, require_choice, require_int, short_hash
from gram_platform.config.plain import from_plain
from gram_platform.config.training import (
    CORE,
    DISTILLATION,
    MISDIRECTION,
    RESERVED_UNITS,
    UNLABELLED,
    UNLABELLED_OF,
    DataConfig,
    DomainBudget,
    EvalPoints,
    ModelConfig,
    ModuleSpec,
    Objective,
    OptimizerConfig,
    RoutingConfig,
    Slice,
    core_first,
    is_unlabelled,
)
from gram_platform.config.view import (
    EVAL_VERSION,
    IMPORTED,
    LOSSES,
    PRECISIONS,
    AnyEvaluation,
    Continuations,
    Evaluation,
    TaskScores,
    TokenLosses,
    View,
    evaluation_from_plain,
)

# Part of every run_id. Increase it when an equal config would give a different result.
RECIPE_VERSION = 1
CROSS_ENTROPY = Objective()
# A route's modules are bits of one integer.
MAX_MODULES = 60
MOST_PROBED = 4


class State(StrEnum):
    COMPLETE = "complete"
    RUNNING = "running"
    FAILED = "failed"
    # The loss of a trial became non-finite.
    DIVERGED = "diverged"
    # A node that was attempted and can be resumed.
    INTERRUPTED = "interrupted"
    # No node of a trial has started.
    WAITING = "waiting"
    ABSENT = "absent"
    # The storage has no trace of a study's node.
    MISSING = "missing"


@dataclass(frozen=True)
class RunConfig:
    """The complete config of one training stage."""

    model: ModelConfig
    data: DataConfig
    routing: RoutingConfig
    optimizer: OptimizerConfig
    # Sequences in an optimizer step (a window).
    batch_size: int
    # Sequences in a forward pass over all ranks. Routes, and so results, depend on it.
    micro_batch: int
    eval_points: EvalPoints
    seed: int
    # The precision of passes. Master weights and optimizer states are float32.
    precision: str = "bfloat16"
    objective: Objective = CROSS_ENTROPY
    start: View | None = None

    def __post_init__(self) -> None:
        require_int("batch_size", self.batch_size, 1)
        require_int("micro_batch", self.micro_batch, 1)
        require_int("seed", self.seed, 0, 2**63 - 1)
        require_choice("precision", self.precision, PRECISIONS)
        if self.batch_size % self.micro_batch:
            raise invalid(
                "micro_batch", self.micro_batch, f"a divisor of batch_size = {self.batch_size}"
            )
        for domain in self.data.domains:
            if domain.num_draws % self.route_unit:
                allowed = f"a multiple of {self.route_unit}, the sequences that share a route"
                raise invalid(f"data.domains[{domain.name}].num_draws", domain.num_draws, allowed)
        if self.data.num_draws % self.batch_size:
            allowed = f"draws that add up to whole steps of {self.batch_size} sequences"
            raise invalid("data.domains", self.data.num_draws, allowed)
        points = self.eval_points
        for name in ("num_points", "num_probes"):
            if (number := getattr(points, name)) > self.num_steps:
                allowed = f"at most {self.num_steps} steps"
                raise invalid(f"eval_points.{name}", number, allowed)
        if points.patience and not points.num_points:
            allowed = "0 without evaluations while training"
            raise invalid("eval_points.patience", points.patience, allowed)

        require_int("model.modules", len(self.model.modules), 0, MAX_MODULES)
        weights = dict(self.routing.companion_weights)
        unweighted = [d for d in self.model.module_domains if weights and d not in weights]
        if unweighted:
            allowed = f"a weight for each module; {unweighted[0]} has none"
            raise invalid("routing.companion_weights", weights, allowed)
        # A pass of several routes trains all parameters of a set on the same sequences.
        has_parts = any(module.kind == RESERVED_UNITS for module in self.model.modules)
        trains_parts = self.routing.spreads_embeddings or has_parts
        if trains_parts and self.routing.accumulation != "uniform":
            allowed = "uniform, because some batches train parts of parameter sets"
            raise invalid("routing.accumulation", self.routing.accumulation, allowed)
        kind = self.objective.kind
        if kind in (DISTILLATION, MISDIRECTION) and self.start is None:
            raise invalid("objective.kind", kind, "a kind that needs no start, or a start")
        if kind == DISTILLATION and self.model.modules:
            raise invalid("model.modules", self.model.module_domains, "() with distillation")
        if self.objective.forget:
            self._check_unlearning()
        if self.routing.freeze_core:
            self._check_frozen_core()
        if points.num_probes:
            self._check_probes(points)

    def _check_unlearning(self) -> None:
        objective, num_draws = self.objective, self.data.num_draws
        forget = sum(d.num_draws for d in self.data.domains if d.name in objective.forget)
        if 2 * forget != num_draws:
            raise invalid("objective.forget", forget, f"half of the run's {num_draws} draws")
        if self.micro_batches_per_step % 2 or self.routing.accumulation != "heterogeneous":
            allowed = (
                "cross_entropy unless windows are heterogeneous, with an even number of"
                " micro-batches"
            )
            raise invalid("objective.kind", objective.kind, allowed)
        steered = objective.steered_layers
        require_int("objective.steered_layers", steered, 0, self.model.num_layers)

    def _check_frozen_core(self) -> None:
        without = [d.name for d in self.data.domains if d.name not in self.model.module_domains]
        if without and not (
            without == [CORE] and self.model.modules and self.routing.p_core_robust == 1.0
        ):
            allowed = "false, since batches of these domains train no module: " + ", ".join(without)
            raise invalid("routing.freeze_core", True, allowed)

    def _check_probes(self, points: EvalPoints) -> None:
        if not self.model.modules or not any(is_unlabelled(d.name) for d in self.data.domains):
            allowed = "0 in a run without modules or unlabelled batches"
            raise invalid("eval_points.num_probes", points.num_probes, allowed)
        if points.num_sequences < self.micro_batch:
            allowed = f"at least a micro-batch of {self.micro_batch} in a run with probes"
            raise invalid("eval_points.num_sequences", points.num_sequences, allowed)

    @property
    def num_probed(self) -> int:
        """The number of validation micro-batches that a probe reads from each domain."""
        return min(MOST_PROBED, self.eval_points.num_sequences // self.micro_batch)

    @property
    def route_unit(self) -> int:
        """The number of consecutive sequences that share a route.

        Equals `micro_batch` if accumulation is heterogeneous, otherwise `batch_size`.
        """
        return self.micro_batch if self.routing.accumulation == "heterogeneous" else self.batch_size

    @property
    def num_steps(self) -> int:
        return self.data.num_draws // self.batch_size

    @property
    def micro_batches_per_step(self) -> int:
        return self.batch_size // self.micro_batch

    @property
    def num_tokens(self) -> int:
        return self.data.num_draws * self.model.seq_len

    @cached_property
    def run_id(self) -> str:
        return hash_run(self)


def hash_run(run: RunConfig | Mapping) -> str:
    return short_hash({"recipe_version": RECIPE_VERSION, "run": run})


def run_from_plain(plain: Mapping) -> RunConfig:
    return from_plain(RunConfig, plain)


def node_from_plain(kind: str, plain: Mapping) -> RunConfig | AnyEvaluation | TaskScores:
    """Builds a node's config from JSON. Raises KeyError unless `kind` is `run` or `evaluation`."""
    return {"run": run_from_plain, "evaluation": evaluation_from_plain}[kind](plain)
