"""Defines the runs that benchmarks compare, on random tokens: a dense model, and a core with one
module.

Needs only torch and numpy.
"""

import functools
import sys
from dataclasses import dataclass, replace

import numpy as np
import torch

from benchmarks.timing import clock_of
from gram_platform.config import (
    CORE,
    DataConfig,
    DomainBudget,
    EvalPoints,
    ModelConfig,
    OptimizerConfig,
    RoutingConfig,
    RunConfig,
)
from gram_platform.config.ladder import STORIES_SIZES, Size
from gram_platform.config.routing import Schedule
from gram_platform.train.data import ScheduleReader
from gram_platform.train.learner import Learner

NUM_SEQUENCES = 1024
# One of so many micro-batches is auxiliary.
AUX_ONE_OF = 12
# Steps in the plan; a benchmark runs only the first few.
NUM_STEPS = 1000
# A share of float32's rate; native bfloat16 is above 1, emulation far below.
EMULATED = 0.25
# The probed product's rows, inner size and columns.
PROBE = (256, 256, 256)
AUX = "aux"
DENSE, GRAM, GRAM_FROZEN = "dense", "GRAM, all trained", "GRAM, core untrained"


@dataclass(frozen=True)
class Workload:
    """Says what is trained where: micro-batches per step, in the size's own micro-batch, and timed
    rounds."""

    size: Size
    num_micro_batches: int
    num_rounds: int
    device: str = "cpu"
    compiled: bool = False
    # Micro-batches in a pass.
    num_merged: int = 1

    @property
    def tokens_per_step(self) -> int:
        return self.num_micro_batches * self.size.micro_batch * self.size.seq_len


def training_run(
    workload: Workload, model: ModelConfig, domain: str, routing: RoutingConfig
) -> RunConfig:
    """Plans a run on one domain, so that all its micro-batches have the same route."""
    size, batch = workload.size, workload.num_micro_batches * workload.size.micro_batch
    data = DataConfig("benchmark", (DomainBudget(domain, NUM_SEQUENCES, NUM_STEPS * batch),))
    points = EvalPoints(0, 1, (domain,))
    return RunConfig(
        model,
        data,
        routing,
        OptimizerConfig(1e-4, 0.1, 0.1),
        batch,
        size.micro_batch,
        points,
        0,
        size.precision,
    )


def compared_runs(workload: Workload) -> dict[str, RunConfig]:
    """Plans the dense model; core and one module, all trained; the same with only the module
    trained."""
    modular = workload.size.modular((CORE, AUX))
    return {
        DENSE: training_run(workload, workload.size.dense(), CORE, RoutingConfig()),
        GRAM: training_run(workload, modular, CORE, RoutingConfig(p_core_robust=1.0)),
        GRAM_FROZEN: training_run(workload, modular, AUX, RoutingConfig(p_aux_spread=0.0)),
    }


def mixed_run(workload: Workload) -> RunConfig:
    """Plans core and one module whose micro-batches have several routes, drawn as in Simple
    Stories."""
    size = workload.size
    routing = RoutingConfig(p_core_robust=0.5, p_aux_spread=0.3)
    run = training_run(workload, size.modular((CORE, AUX)), CORE, routing)
    number = NUM_STEPS * workload.num_micro_batches
    draws = {CORE: number - number // AUX_ONE_OF, AUX: number // AUX_ONE_OF}
    budgets = (DomainBudget(d, NUM_SEQUENCES, n * size.micro_batch) for d, n in draws.items())
    return replace(run, data=DataConfig("benchmark", tuple(budgets)))


def random_tokens(run: RunConfig) -> dict[str, np.ndarray]:
    """Draws tokens in the packed format: uint16 [NUM_SEQUENCES, seq_len + 1] for every domain."""
    generator, shape = np.random.default_rng(0), (NUM_SEQUENCES, run.model.seq_len + 1)
    names = [domain.name for domain in run.data.domains]
    return {
        name: generator.integers(0, run.model.vocab_size, shape, dtype=np.uint16) for name in names
    }


def loop_arguments(run: RunConfig, workload: Workload) -> tuple[Learner, Schedule, ScheduleReader]:
    """Builds the training loop's arguments."""
    plan = Schedule(run)
    learner = Learner(
        run, workload.device, compiled=workload.compiled, num_merged=workload.num_merged
    )
    return learner, plan, ScheduleReader(run, random_tokens(run))


def stories_26m() -> Size:
    """Returns the 26M stories model in this CPU's best training precision; warns on stderr if that
    is not bfloat16.

    In float32 a token takes three times as long; the micro-batch is then halved, so that the
    benchmark stays quick.
    """
    share, size = bfloat16_share(), STORIES_SIZES["26M"]
    if share >= EMULATED:
        return size
    text = (
        f"products in bfloat16 have {share:.3f} of float32's rate on this CPU, which emulates"
        " them: "
    )
    print(f"{text}the 26M model is measured in float32", file=sys.stderr)
    return replace(size, precision="float32", micro_batch=size.micro_batch // 2)


@functools.cache
def bfloat16_share() -> float:
    """Measures the rate of a bfloat16 product over that of a float32 product."""
    return _seconds(torch.float32) / _seconds(torch.bfloat16)


def _seconds(dtype: torch.dtype) -> float:
    """Times a product: the faster of two, after a warm-up."""
    rows, shared, columns = PROBE
    left, right = torch.ones(rows, shared, dtype=dtype), torch.ones(shared, columns, dtype=dtype)
    clock, seconds = clock_of("cpu"), []
    for _ in range(3):
        started = clock()
        left @ right
        seconds.append(clock() - started)
    return min(seconds[1:])
