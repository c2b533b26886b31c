"""Runs to compare: the dense model, and core with one module, on random tokens; needs torch and numpy alone."""

from dataclasses import dataclass

import numpy as np

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
from gram_platform.config.ladder import Size
from gram_platform.config.routing import Plan
from gram_platform.train.data import PlanReader
from gram_platform.train.learner import Learner

NUM_SEQUENCES = 1024  # of random tokens
NUM_STEPS = 1000  # of the plan; a benchmark takes the first few
AUX = "aux"
DENSE, GRAM, GRAM_FROZEN = "dense", "GRAM, all trained", "GRAM, core untrained"


@dataclass(frozen=True)
class Scene:
    """What is trained where: `num_micro_batches` of the size's own a step, and how many rounds are timed."""

    size: Size
    num_micro_batches: int
    num_rounds: int
    device: str = "cpu"
    compiled: bool = False

    @property
    def tokens_per_step(self) -> int:
        return self.num_micro_batches * self.size.micro_batch * self.size.seq_len

    @property
    def factor(self) -> float:
        """How many times the micro-batches of these steps the size's own steps have."""
        return self.size.batch_size / (self.num_micro_batches * self.size.micro_batch)


def training_run(scene: Scene, model: ModelConfig, domain: str, routing: RoutingConfig) -> RunConfig:
    """A run on one domain, so that the routes of all its micro-batches are alike."""
    size, batch = scene.size, scene.num_micro_batches * scene.size.micro_batch
    data = DataConfig("benchmark", (DomainBudget(domain, NUM_SEQUENCES, NUM_STEPS * batch),))
    points = EvalPoints(0, 1, (domain,))
    return RunConfig(
        model, data, routing, OptimizerConfig(1e-4, 0.1, 0.1), batch, size.micro_batch, points, 0, size.precision
    )


def runs(scene: Scene) -> dict[str, RunConfig]:
    """The dense model; core and one module, all trained; the same with the module alone trained."""
    modular = scene.size.modular((CORE, AUX))
    return {
        DENSE: training_run(scene, scene.size.dense(), CORE, RoutingConfig()),
        GRAM: training_run(scene, modular, CORE, RoutingConfig(p_core_robust=1.0)),
        GRAM_FROZEN: training_run(scene, modular, AUX, RoutingConfig(p_aux_spread=0.0)),
    }


def random_tokens(run: RunConfig) -> dict[str, np.ndarray]:
    """In the packed format: uint16 [NUM_SEQUENCES, seq_len + 1] of every domain."""
    generator, shape = np.random.default_rng(0), (NUM_SEQUENCES, run.model.seq_len + 1)
    names = [domain.name for domain in run.data.domains]
    return {name: generator.integers(0, run.model.vocab_size, shape, dtype=np.uint16) for name in names}


def parts(run: RunConfig, scene: Scene) -> tuple[Learner, Plan, PlanReader]:
    """What the loop takes."""
    plan = Plan(run)
    learner = Learner(run, scene.device, compiled=scene.compiled)
    return learner, plan, PlanReader(run, random_tokens(run))
