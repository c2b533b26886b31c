"""What a run needs before it starts: memory by part, disk, hours and cost on a given machine. Arithmetic only."""

import math
from dataclasses import dataclass

from gram_platform.config import AnyEvaluation, ModelConfig, RunConfig
from gram_platform.flops import hardware_flops, total_parameters
from gram_platform.identity import invalid
from gram_platform.planner.memory import Memory, rank_memory
from gram_platform.planner.weights import model_weights
from gram_platform.routing import CORE_MLP, SHARED, module_set, route_counts

GIB = 2**30
USABLE_MEMORY = 0.8  # of an accelerator's: the rest is for its runtime, collectives and fragmentation [ours]


@dataclass(frozen=True)
class Machine:
    """One accelerator (or CPU slot): its dense matmul rate in the run's precision, memory, and price."""

    name: str
    flops_per_second: float
    memory_bytes: float
    dollars_per_hour: float


MACHINES = {  # vendor datasheets for dense bfloat16; prices are round figures for on-demand clouds [ours]
    "h200": Machine("h200", 989e12, 141e9, 4.0),
    "h100": Machine("h100", 989e12, 80e9, 3.0),
    "a100": Machine("a100", 312e12, 80e9, 2.0),
    "cpu": Machine("cpu", 100e9, 8e9, 0.05),  # one core with bfloat16 matrix units
}


@dataclass(frozen=True)
class Needs:
    """One rank's memory at its peak, and the whole run's FLOPs, hours and bytes in the storage.

    `checkpoint` has weights and optimizer states of every set that is ever trained; `result` the final weights.
    """

    memory: Memory
    checkpoint: int
    result: int
    flops: float  # training, without what activation checkpointing computes again
    evaluation_flops: float  # of the run's own evaluations
    recomputed_flops: float
    gpu_hours: float


def run_flops(run: RunConfig, num_steps: int | None = None) -> int:
    """hardware_flops of a run's drawn plan, or of its first `num_steps` steps."""
    total = 0
    for (_, route), count in route_counts(run, num_steps).items():
        modules = [domain for domain, _ in route.active if module_set(domain) in route.trained]
        trained = (SHARED in route.trained, CORE_MLP in route.trained, modules)
        total += hardware_flops(run.model, count * run.micro_batch, tuple(dict(route.active)), *trained)
    return total


def run_evaluation_flops(run: RunConfig) -> float:
    """FLOPs of all evaluations and probes while training, every module active; patience may end a run earlier."""
    points, modules = run.eval_points, run.model.module_domains
    num_sequences = points.num_points * len(points.domains) * points.num_sequences
    num_probed = points.num_probes * len(points.domains) * run.num_probed * run.micro_batch
    probes = hardware_flops(run.model, num_probed, modules, False, False, modules)
    return float(hardware_flops(run.model, num_sequences, modules, backward=False) + probes)


def evaluation_flops(evaluation: AnyEvaluation, model: ModelConfig) -> float:
    """FLOPs of an evaluation of a view of `model`."""
    forward = [
        hardware_flops(model, evaluation.num_sequences, tuple(evaluation.view.active(domain)), backward=False)
        for domain in evaluation.domains
    ]
    return float(sum(forward))


def recomputed_flops(run: RunConfig) -> int:
    """FLOPs that activation checkpointing adds: every block's forward pass once more."""
    head = 2 * run.model.seq_len * run.model.d_model * run.model.vocab_size
    total = 0
    for (_, route), count in route_counts(run).items():
        num_sequences = count * run.micro_batch
        forward = hardware_flops(run.model, num_sequences, tuple(dict(route.active)), backward=False)
        total += forward - num_sequences * head
    return total


def needs(
    run: RunConfig, num_ranks: int, machine: Machine, utilisation: float = 0.4, checkpointing: bool = False
) -> Needs:
    """Needs of a run on `num_ranks` of a machine, `utilisation` of whose rate it reaches.

    `checkpointing`: activation checkpointing of every block. Hours are those of all ranks together.
    """
    memory = rank_memory(run, num_ranks, checkpointing)
    flops, evaluations = run_flops(run), run_evaluation_flops(run)
    recomputed = recomputed_flops(run) if checkpointing else 0.0
    return Needs(
        memory=memory,
        checkpoint=checkpoint_bytes(run),
        result=4 * total_parameters(run.model),
        flops=flops,
        evaluation_flops=evaluations,
        recomputed_flops=recomputed,
        gpu_hours=(flops + evaluations + recomputed) / (machine.flops_per_second * utilisation) / 3600,
    )


def checkpoint_bytes(run: RunConfig) -> int:
    """Float32 weights, and two moments and a step of every parameter that the optimizers hold on one process."""
    alone = rank_memory(run, 1)
    return 4 * sum(w.num_values for w in model_weights(run.model)) + alone.optimizer


def fits(run: RunConfig, num_ranks: int, machine: Machine, checkpointing: bool = False) -> bool:
    """Whether a rank's peak stays within USABLE_MEMORY of the machine's."""
    return rank_memory(run, num_ranks, checkpointing).total <= USABLE_MEMORY * machine.memory_bytes


def fewest_ranks(run: RunConfig, machine: Machine, checkpointing: bool = False) -> int | None:
    """The smallest number of ranks that divides the micro-batch and fits memory; None if none does."""
    for ranks in (r for r in range(1, run.micro_batch + 1) if run.micro_batch % r == 0):
        if fits(run, ranks, machine, checkpointing):
            return ranks
    return None


# ----------------------------------------------------------------------------------------- the ranks of a study's runs

AUTO = 0


@dataclass(frozen=True)
class Ranks:
    """How many ranks the runs of a study get: a number for all, or sizes' own; AUTO: the fewest that fit `machine`.

    `checkpointing`: as for `fits`.
    """

    number: int = 1
    of_size: tuple[tuple[str, int], ...] = ()
    machine: Machine = MACHINES["cpu"]
    checkpointing: bool = False

    def wanted(self, size: str) -> int:
        """The number that a size's runs are to have, AUTO if the planner says."""
        return dict(self.of_size).get(size, self.number)

    def of(self, run: RunConfig, size: str) -> int:
        """The ranks of one run, which divide its micro-batch: an attack's may be another than its size's.

        ValueError for AUTO where no number of ranks fits.
        """
        if (wanted := self.wanted(size)) != AUTO:
            return math.gcd(wanted, run.micro_batch)
        fewest = fewest_ranks(run, self.machine, self.checkpointing)
        if fewest is None:
            raise invalid("machine", self.machine.name, f"one whose memory holds a rank of a run of {size}")
        return fewest


def ranks_at_once(present: int, most: int, widest: int) -> int:
    """Ranks to hand to a cluster that has room for `present` and may grow to `most`; the widest node has `widest`.

    Nodes of one rank wait in Ray's queue without harm: as many again are handed over, so that an autoscaler sees the
    demand. A run of several ranks gives up when its workers do not come: no more than what the cluster may grow to.
    """
    present = max(present, widest)
    return 2 * present if widest == 1 else min(2 * present, max(present, most))
