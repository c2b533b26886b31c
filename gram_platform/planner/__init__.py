"""Estimates a run's memory, disk space and machine hours before it starts."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gram_platform.config import ModelConfig, RunConfig
from gram_platform.config.flops import hardware_flops, total_parameters
from gram_platform.config.training import MISDIRECTION
from gram_platform.methods.budgets import run_flops
from gram_platform.methods.nodes import Node
from gram_platform.planner.memory import Memory, model_weights, rank_memory

# The share of the memory that a run can use [ours]. The rest is for the runtime, collectives and
# fragmentation.
USABLE_MEMORY = 0.8
# The fewest tokens of a pass on one GPU [ours], because fewer would leave the GPU idle.
LEAST_PASS_TOKENS = 4096
# The most tokens of a pass of merged micro-batches on one GPU [ours]. They fill an H200 at 26M
# (FINDINGS).
MOST_MERGED_TOKENS = 32_768


@dataclass(frozen=True)
class Machine:
    """The dense matmul rate, memory and price of a GPU or CPU slot."""

    name: str
    # In the run's precision.
    flops_per_second: float
    memory_bytes: float
    dollars_per_hour: float
    # Bytes per second that a rank exchanges with the other ranks of its machine.
    link_rate: float = 1e9

    @property
    def device(self) -> str:
        return "cpu" if self.name == "cpu" else "cuda"


# Rates are the vendors', for dense bfloat16. Prices are round figures for on-demand clouds [ours].
# Links have two thirds of the vendors' rate in one direction [ours].
MACHINES = {
    "h200": Machine("h200", 989e12, 141e9, 4.0, 300e9),
    "h100": Machine("h100", 989e12, 80e9, 3.0, 300e9),
    "a100": Machine("a100", 312e12, 80e9, 2.0, 200e9),
    # One core with bfloat16 matrix units.
    "cpu": Machine("cpu", 100e9, 8e9, 0.05),
}


@dataclass(frozen=True)
class Utilisation:
    """The share of a machine's dense matmul rate that training on one rank achieves."""

    machine: str
    size: str
    # Parameters of the dense model.
    parameters: int
    # Above 1 if the measured cores are faster than the machine's round rate.
    share: float
    source: str
    date: str

    @property
    def is_measured(self) -> bool:
        return not self.source.startswith(REVIEW)

    @property
    def text(self) -> str:
        kind = "measured" if self.is_measured else "an estimate"
        return (
            f"{self.share:.0%} for {self.size} on {self.machine}, {kind} ({self.source},"
            f" {self.date})"
        )


# These shares follow from counts of a step's kernel launches, bytes and products.
REVIEW = "reading the code, no GPU was used"
SPEED = "FINDINGS, Speed: one core with AVX512-BF16"
FIRST_GPU = "FINDINGS, The first GPU: eager"
# `python experiments/bench.py --gpu --check` prints a row.
UTILISATIONS = (
    Utilisation("h100", "26M", 26_252_288, 0.09, REVIEW, "2026-11-23"),
    Utilisation("h100", "50M", 47_995_776, 0.17, REVIEW, "2026-11-23"),
    Utilisation("h100", "100M", 103_201_984, 0.23, REVIEW, "2026-11-23"),
    Utilisation("h100", "800M", 806_509_504, 0.36, REVIEW, "2026-11-23"),
    Utilisation("h100", "5B", 4_967_743_104, 0.29, REVIEW + ", 8 ranks", "2026-11-23"),
    Utilisation("h200", "26M", 26_252_288, 0.167, FIRST_GPU, "2026-11-26"),
    Utilisation("h200", "50M", 47_944_704, 0.129, FIRST_GPU, "2026-11-26"),
    Utilisation("h200", "100M", 103_149_440, 0.207, FIRST_GPU, "2026-11-26"),
    Utilisation("h200", "800M", 806_441_600, 0.386, FIRST_GPU, "2026-11-26"),
    Utilisation("cpu", "0.1M", 88_704, 0.28, SPEED, "2026-11-24"),
    Utilisation("cpu", "0.28M", 219_800, 0.45, SPEED, "2026-11-24"),
    Utilisation("cpu", "0.6M", 605_760, 0.67, SPEED, "2026-11-24"),
    Utilisation("cpu", "3M", 2_836_992, 0.85, SPEED, "2026-11-24"),
    Utilisation("cpu", "26M", 26_252_288, 2.77, SPEED, "2026-11-24"),
)
# A GPU borrows the rows of this machine for sizes without a row.
BORROWED = "h100"

# torch.compile pays off from the paper's 50M, which has 48 million parameters. On an H200 it trains
# 26M 1.02 times as fast, 100M 1.89 times and 800M 1.25 times (FINDINGS). Compiling 100M took 15 s.
COMPILED_PARAMETERS, COMPILED_S = 45e6, 300.0

# Tokens per second and GPU in the authors' logs, for each size's slowest dense run, fastest dense
# run, and GRAM. Each is a median over 1,000 steps on 8 GPUs (32 at 5B, one at 26M) of a kind that
# the logs do not name.
PUBLISHED_RATES = {
    "26M": (1_170_000, 1_170_000, 840_000),
    "50M": (242_526, 341_333, 263_314),
    "100M": (176_172, 399_610, 287_439),
    "200M": (110_592, 246_857, 197_486),
    "400M": (74_238, 117_760, 79_702),
    "800M": (40_593, 65_636, 60_832),
    "2B": (27_536, 29_166, 24_763),
    "5B": (6_598, 11_389, 10_488),
}


def utilisation_of(machine: str, parameters: int) -> Utilisation:
    """Returns the utilisation for the model size nearest to `parameters` by ratio.

    If UTILISATIONS has no row for a size on this GPU, uses the row of the GPU named in BORROWED.
    """
    rows = [row for row in UTILISATIONS if row.machine == machine]
    if machine != "cpu":
        sizes = {row.size for row in rows}
        rows += [row for row in UTILISATIONS if row.machine == BORROWED and row.size not in sizes]
    return min(rows, key=lambda row: abs(math.log(row.parameters / max(parameters, 1))))


@dataclass(frozen=True)
class Passes:
    """How a rank divides or merges micro-batches into passes, and the rank's peak memory."""

    num_passes: int
    # The number of micro-batches in one pass.
    num_merged: int
    memory: Memory


@dataclass(frozen=True)
class Needs:
    """One rank's passes and peak memory, and the whole run's FLOPs, hours and stored bytes."""

    passes: Passes
    checkpoint: int
    # Bytes of the final weights.
    result: int
    flops: float
    # Hours of all ranks together.
    gpu_hours: float

    def disk_bytes(self, num_kept: int) -> int:
        """Returns the peak bytes on disk.

        Counts `num_kept` checkpoints, plus the larger of one more checkpoint and the final
        weights.
        """
        return num_kept * self.checkpoint + max(self.checkpoint, self.result)


def run_evaluation_flops(run: RunConfig) -> float:
    """Counts the FLOPs of evaluation points and probes in a run that does not stop early."""
    points, modules = run.eval_points, run.model.module_domains
    num_sequences = points.num_points * len(points.domains) * points.num_sequences
    num_probed = points.num_probes * len(points.domains) * run.num_probed * run.micro_batch
    probes = hardware_flops(run.model, num_probed, modules, False, False, modules)
    return float(hardware_flops(run.model, num_sequences, modules, backward=False) + probes)


def training_rate(model: ModelConfig, machine: Machine) -> float:
    return machine.flops_per_second * utilisation_of(machine.name, total_parameters(model)).share


def needs(run: RunConfig, num_ranks: int, machine: Machine) -> Needs:
    """Estimates what a run needs on `num_ranks` ranks, without activation checkpointing."""
    return Needs(
        passes=plan_passes(run, num_ranks, machine, machine.device),
        checkpoint=checkpoint_bytes(run),
        result=4 * total_parameters(run.model),
        flops=run_flops(run),
        gpu_hours=training_hours(run, machine),
    )


def training_hours(run: RunConfig, machine: Machine) -> float:
    """Estimates a run's hours, summed over ranks. Omits progress evaluations (at most 3% more)."""
    return (run_flops(run) + run_evaluation_flops(run)) / training_rate(run.model, machine) / 3600


def estimate_hours(node: Node, machine: Machine) -> float:
    """Estimates the machine hours of a run. Returns 0 for an evaluation, which is short."""
    return training_hours(node.config, machine) if isinstance(node.config, RunConfig) else 0.0


def evaluation_hours(nodes: Iterable[Node], runs: Mapping[str, Node], machine: Machine) -> float:
    """Estimates the machine hours of the evaluations in `nodes`. `runs` maps ids to run nodes."""
    seconds = 0.0
    for evaluation in (node.config for node in nodes if not isinstance(node.config, RunConfig)):
        run = runs[evaluation.view.run_id].config
        assert isinstance(run, RunConfig), "a view is of a run"
        flops = sum(
            hardware_flops(
                run.model,
                evaluation.num_sequences,
                tuple(evaluation.view.active(domain)),
                backward=False,
            )
            for domain in evaluation.domains
        )
        seconds += flops / training_rate(run.model, machine)
    return seconds / 3600


def pays_to_compile(run: RunConfig, hours: float) -> bool:
    return total_parameters(run.model) >= COMPILED_PARAMETERS and 3600 * hours > COMPILED_S


def checkpoint_bytes(run: RunConfig) -> int:
    """Counts the bytes of float32 weights and of the trained parameters' optimizer state."""
    weights = 4 * sum(weight.num_values for weight in model_weights(run.model))
    return weights + rank_memory(run, 1).optimizer


def fits(
    run: RunConfig,
    num_ranks: int,
    machine: Machine,
    checkpointing: bool = False,
    num_passes: int = 0,
) -> bool:
    """Returns True if a rank's peak memory is at most USABLE_MEMORY x the machine's memory.

    A rank runs its share of a micro-batch in `num_passes` passes. If `num_passes` is 0,
    returns True if at least one possible number of passes fits.
    """
    possible = (num_passes,) if num_passes else reversed(possible_passes(run, num_ranks, machine))
    needed = (rank_memory(run, num_ranks, checkpointing, machine.device, n).total for n in possible)
    return any(total <= USABLE_MEMORY * machine.memory_bytes for total in needed)


def plan_passes(
    run: RunConfig, num_ranks: int, machine: Machine, device: str, checkpointing: bool = False
) -> Passes:
    """Chooses passes that fit into `machine`'s memory.

    The returned peak memory is for `device`, which is "cpu" or "cuda".
    """
    merged = choose_num_merged(run, num_ranks, machine, checkpointing)
    passes = choose_num_passes(run, num_ranks, machine, checkpointing) if merged == 1 else 1
    memory = rank_memory(run, num_ranks, checkpointing, device, passes, merged)
    return Passes(passes, merged, memory)


def choose_num_passes(
    run: RunConfig, num_ranks: int, machine: Machine, checkpointing: bool = False
) -> int:
    """Returns the fewest passes per micro-batch with which a rank fits into memory.

    If no number of passes fits, returns the largest possible number.
    """
    possible = possible_passes(run, num_ranks, machine)
    return next(
        (n for n in possible if fits(run, num_ranks, machine, checkpointing, n)), possible[-1]
    )


def possible_passes(run: RunConfig, num_ranks: int, machine: Machine) -> tuple[int, ...]:
    """Lists the numbers of equal passes into which a rank's share of a micro-batch can be split.

    If a GPU runs several passes, each has at least LEAST_PASS_TOKENS. A CPU runs one pass, because
    its results must repeat exactly.
    """
    share = run.micro_batch // num_ranks
    most = share * run.model.seq_len // LEAST_PASS_TOKENS if machine.device == "cuda" else 1
    return (1, *(n for n in range(2, most + 1) if share % n == 0))


def choose_num_merged(
    run: RunConfig, num_ranks: int, machine: Machine, checkpointing: bool = False
) -> int:
    """Returns how many micro-batches to merge into a pass to minimise the passes per window.

    A pass must fit into memory. On a single rank, which gathers no weights, a pass has at most
    MOST_MERGED_TOKENS, which already fill the GPU. Returns 1 for RMU, which cannot merge, and on a
    CPU, where larger passes are no faster (FINDINGS).
    """
    tokens, window = run.micro_batch * run.model.seq_len, run.micro_batches_per_step
    if machine.device != "cuda" or run.objective.kind == MISDIRECTION:
        return 1
    most = window if num_ranks > 1 else min(MOST_MERGED_TOKENS // tokens, window)
    sizes = dict.fromkeys(-(-window // number) for number in range(1, window))
    usable = USABLE_MEMORY * machine.memory_bytes
    of_rank = run, num_ranks, checkpointing, machine.device, 1
    fitting = (n for n in sizes if n <= most and rank_memory(*of_rank, n).total <= usable)
    return next(fitting, 1)


@dataclass(frozen=True)
class Budget:
    """Limits on the machine hours and cost of all submissions together. 0 means no limit."""

    max_hours: float
    max_cost: float
    dollars_per_hour: float

    def name_reached_limit(self, hours: float) -> str:
        """Describes the limit that `hours` has reached. If there is none, returns ""."""
        if self.max_hours and hours >= self.max_hours:
            return f"{hours:.2f} machine hours are used, max_hours is {self.max_hours:g}"
        if self.max_cost and hours * self.dollars_per_hour >= self.max_cost:
            return f"${hours * self.dollars_per_hour:.2f} are used, max_cost is {self.max_cost:g}"
        return ""
