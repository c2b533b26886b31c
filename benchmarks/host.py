"""Measures what a step costs the host that feeds a GPU: GRAM against dense, on the studies' plans.

Every width and length is tiny, so that Python, dispatch and autograd are left, with the operations
and the passes that a GPU gets.
"""

import contextlib
import functools
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.results import Aim, BenchmarkResult, BenchmarkSettings
from benchmarks.timing import interleaved
from benchmarks.workloads import DENSE
from gram_platform.config import CORE, RunConfig
from gram_platform.config.routing import Schedule
from gram_platform.methods import dense, gram
from gram_platform.model import cpu
from gram_platform.planner import MACHINES, choose_num_merged
from gram_platform.studies.library.stories import STUDY
from gram_platform.train.data import ScheduleReader
from gram_platform.train.learner import Learner
from gram_platform.train.loop import training_steps

MODULAR = "GRAM"
# The sizes with the presets of `experiments/stories.py` that train them.
PRESETS = {"26M": "paper", "3M": "gpu"}
DOMAINS = (CORE, "aux_1", "aux_2", "aux_3", "aux_4")
STEPS_AT_ONCE = 5
ROWS_KEPT = 4096
# Operations that only make another view.
VIEWS = (
    *("t", "view", "_unsafe_view", "_reshape_alias", "as_strided", "expand", "slice", "select"),
    *("transpose", "permute", "squeeze", "unsqueeze", "split", "split_with_sizes", "unbind"),
    *("detach", "alias"),
)


class Operations(TorchDispatchMode):
    """Counts operations; a fused one is one."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.number += function.overloadpacket.__name__ not in VIEWS
        return function(*args, **(kwargs or {}))


class Sequences:
    """So many sequences, with the tokens of the first ones again and again."""

    def __init__(self, number: int, run: RunConfig):
        shape, self.number = (ROWS_KEPT, run.model.seq_len + 1), number
        tokens = np.random.default_rng(0).integers(0, run.model.vocab_size, shape)
        self.rows = tokens.astype(np.uint16)

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, rows) -> np.ndarray:
        return self.rows[np.asarray(rows) % ROWS_KEPT]


def measure(settings: BenchmarkSettings) -> Iterator[BenchmarkResult]:
    """Yields milliseconds and operations of a step for each size; the long form has more rounds."""
    torch.set_num_threads(1)
    with operations_of_a_gpu():
        for size in PRESETS:
            yield from compare(size, 15 if settings.full else 5)


@contextlib.contextmanager
def operations_of_a_gpu() -> Iterator[None]:
    """Runs torch's own kernels in place of the code that is fast on CPUs."""
    before = os.environ.get(cpu.VARIABLE)
    os.environ[cpu.VARIABLE] = cpu.PLAIN
    cpu.has_fast_code.cache_clear()
    try:
        yield
    finally:
        del os.environ[cpu.VARIABLE]
        if before is not None:
            os.environ[cpu.VARIABLE] = before
        cpu.has_fast_code.cache_clear()


def planned_runs(size: str) -> Mapping[str, RunConfig]:
    """Plans the baseline and GRAM as the study of stories does, with four modules."""
    preset = STUDY.presets[PRESETS[size]]
    setting = preset.setting(preset.sizes[size], 0, "data", DOMAINS, (DOMAINS[1:],))
    plans = {DENSE: dense.plan_baseline(setting), MODULAR: gram.plan(setting)}
    return {name: plan.runs["all"] for name, plan in plans.items()}


def tiny_steps(run: RunConfig) -> Iterator:
    """Trains a tiny model on the run's schedule, in the passes of an H200."""
    modules = tuple(replace(module, width=8) for module in run.model.modules)
    sizes = {"d_model": 8, "num_heads": 2, "num_kv_heads": 1, "d_mlp": 16}
    model = replace(run.model, **sizes, vocab_size=64, seq_len=4, modules=modules)
    made, parts = replace(run, model=model), [p for d in run.data.domains for p in d.pool]
    arrays = {part.domain: Sequences(part.first + part.num_sequences, made) for part in parts}
    learner = Learner(made, num_merged=choose_num_merged(run, 1, MACHINES["h200"]))
    return training_steps(learner, Schedule(made), ScheduleReader(made, arrays))


def compare(size: str, num_rounds: int) -> Iterator[BenchmarkResult]:
    steps = {name: tiny_steps(run) for name, run in planned_runs(size).items()}
    actions = {name: functools.partial(_train, each) for name, each in steps.items()}
    seconds = interleaved(actions, num_rounds, time.process_time)
    result = functools.partial(BenchmarkResult, against="the baseline's, on the study's plans")
    milliseconds = {
        n: tuple(1000 * s / STEPS_AT_ONCE for s in spent) for n, spent in seconds.items()
    }
    name = f"the host, GRAM {size}"
    yield result(
        name, "ms a step", milliseconds[MODULAR], milliseconds[DENSE], aim=Aim("at most", 2.0)
    )
    counts = {}
    for name, action in actions.items():
        with Operations() as operations:
            action()
        counts[name] = (operations.number / STEPS_AT_ONCE,)
    name = f"operations, GRAM {size}"
    yield result(name, "a step", counts[MODULAR], counts[DENSE], aim=Aim("at most", 2.5))


def _train(steps: Iterator) -> None:
    for _ in range(STEPS_AT_ONCE):
        next(steps)
