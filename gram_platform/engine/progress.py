"""Says after which steps a run is evaluated: at its config's points, else at a few for people to watch.

The second kind belongs to the execution, like checkpoints: its losses are metrics under another name, which no result,
learning curve or table reads.
"""

import math
from typing import NamedTuple

from gram_platform.config import RunConfig
from gram_platform.config.flops import hardware_flops
from gram_platform.methods.budgets import run_flops

# The most that progress evaluations may take, of a run's training FLOPs: at most 3% of its seconds, since small models'
# forward passes alone take up to 1.15 times the seconds of as many FLOPs of training (two cores) [ours].
PROGRESS_SHARE = 0.025


class ProgressPlan(NamedTuple):
    """When a run is evaluated for people to watch, and on how many sequences of each domain."""

    steps: frozenset[int]
    num_sequences: int


def evaluation_steps(run: RunConfig) -> frozenset[int]:
    """Lists the steps after which a run is evaluated."""
    return _spaced(run.num_steps, run.eval_points.num_points)


def probe_steps(run: RunConfig) -> frozenset[int]:
    """Lists the steps after which a run's modules' gradients are measured."""
    return _spaced(run.num_steps, run.eval_points.num_probes)


def progress_of(run: RunConfig, num_points: int, num_available: int) -> ProgressPlan:
    """Plans up to `num_points` progress evaluations within PROGRESS_SHARE; none of a run with points in its config.

    A run that is too short for six gets fewer. `num_available`: validation sequences of the domain that has the fewest.
    """
    points, modules = run.eval_points, run.model.module_domains
    most = min(points.num_sequences, num_available)
    if points.num_points or not points.domains or not most:
        return ProgressPlan(frozenset(), 0)
    of_each = len(points.domains) * hardware_flops(run.model, 1, modules, backward=False)
    affordable = int(PROGRESS_SHARE * run_flops(run) / of_each)
    num_points = min(num_points, run.num_steps, affordable)
    num_sequences = min(most, affordable // num_points) if num_points else 0
    return ProgressPlan(_spaced(run.num_steps, num_points), num_sequences)


def _spaced(num_steps: int, num_points: int) -> frozenset[int]:
    """Spaces points equally; the last one is the run's last step."""
    return frozenset(math.ceil(num_steps * k / num_points) for k in range(1, num_points + 1))
