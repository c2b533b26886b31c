"""What a run needs before it starts: memory by part, disk, hours and cost on a given machine. Arithmetic only."""

from dataclasses import dataclass

from gram_platform.config import CORE, UNLABELLED, RunConfig
from gram_platform.flops import hardware_flops, total_parameters

BYTES = {"float32": 4, "bfloat16": 2}
GIB = 2**30


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
    """Bytes by part on one rank, and the whole run's FLOPs, hours and checkpoint size."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    checkpoint: int
    flops: float
    gpu_hours: float

    @property
    def memory(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits


def run_flops(run: RunConfig) -> float:
    """hardware_flops of a run's plan in expectation over its routing draws."""
    total, modules = 0.0, run.model.module_domains
    core = not run.routing.freeze_core
    spread, robust = run.routing.p_aux_spread, run.routing.p_core_robust
    for budget in run.data.domains:
        if budget.name == UNLABELLED:
            per_sequence = hardware_flops(run.model, 1, modules, core, core, modules)
        elif budget.name in modules:
            own = (budget.name,)
            full = hardware_flops(run.model, 1, own, core, core, own)
            frozen = hardware_flops(run.model, 1, own, False, False, own)
            per_sequence = spread * full + (1 - spread) * frozen
        else:
            per_sequence = (1 - robust) * hardware_flops(run.model, 1, (), core, core)
            if budget.name == CORE and modules:
                companions = [hardware_flops(run.model, 1, (d,), core, core, (d,)) for d in modules]
                per_sequence += robust * sum(companions) / len(modules)
            else:
                per_sequence = hardware_flops(run.model, 1, (), core, core)
        total += budget.num_draws * per_sequence
    return total


def needs(run: RunConfig, num_ranks: int, machine: Machine, utilisation: float = 0.4) -> Needs:
    """Needs of a run on `num_ranks` of a machine; weights, gradients and optimizer states are sharded evenly.

    Activations are an estimate for one rank's micro-batch without activation checkpointing: what autograd keeps of
    each layer, 10 d_model + 2 width values a token and layer, in the run's precision.
    """
    parameters, width = total_parameters(run.model), BYTES[run.precision]
    has_copy = run.precision != "float32"
    masters = 4 * parameters // num_ranks
    copies = width * parameters // num_ranks if has_copy else 0
    tokens = max(1, run.micro_batch // num_ranks) * run.model.seq_len
    mlp_width = run.model.d_mlp + max((m.width for m in run.model.modules), default=0)
    per_layer = 10 * run.model.d_model + 2 * mlp_width
    flops = run_flops(run)
    return Needs(
        weights=masters + copies,
        gradients=masters,
        optimizer=8 * parameters // num_ranks,
        activations=tokens * run.model.num_layers * per_layer * width,
        logits=tokens * run.model.vocab_size * (2 * 4 + (width if has_copy else 0)),
        checkpoint=12 * parameters,
        flops=flops,
        gpu_hours=flops / (machine.flops_per_second * utilisation) / 3600,
    )


def fewest_ranks(run: RunConfig, machine: Machine) -> int | None:
    """The smallest number of ranks that divides the micro-batch and fits memory (80% of it); None if none does."""
    for ranks in (r for r in range(1, run.micro_batch + 1) if run.micro_batch % r == 0):
        if needs(run, ranks, machine).memory <= 0.8 * machine.memory_bytes:
            return ranks
    return None
