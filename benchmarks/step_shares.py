"""Measures the parts of a training step by wrapping the loop's calls from outside."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from benchmarks.timing import Clock
from gram_platform.config.routing import Plan
from gram_platform.train.data import PlanReader
from gram_platform.train.learner import Learner
from gram_platform.train.loop import StepRecord, training_steps

PER_STEP = ("optimizer", "clipping", "logging")  # once per step; other parts once per micro-batch
OVERHEADS = (*PER_STEP, "routing", "data loading")
ROUTING = "routing"
BACKWARD = "backward and accumulation"
PARTS_OF_A_STEP = {"forward": ("forward",), "backward": (BACKWARD,), "optimizer": ("optimizer", "clipping")}


@dataclass
class Stopwatch:
    """Sums seconds by part."""

    spent_s: dict[str, float] = field(default_factory=dict)
    clock: Clock = time.perf_counter  # on a GPU one that waits for queued work

    def watch(self, owner: object, method: str, part: str) -> None:
        """Counts later calls of `owner.method` for `part`."""
        setattr(owner, method, self.timed(getattr(owner, method), part))

    def timed(self, call: Callable, part: str) -> Callable:
        def timed_call(*args, **kwargs):
            started = self.clock()
            try:
                return call(*args, **kwargs)
            finally:
                self.spent_s[part] = self.spent_s.get(part, 0.0) + self.clock() - started

        return timed_call

    def shares(self, total_s: float, factor: float) -> dict[str, float]:
        """Returns each part's share of a step with `factor` times the micro-batches of the timed steps (`total_s`)."""
        weights = {part: 1.0 if part in PER_STEP else factor for part in self.spent_s}
        once_s = sum(spent for part, spent in self.spent_s.items() if part in PER_STEP)
        step_s = once_s + factor * (total_s - once_s)
        return {part: weights[part] * spent / step_s for part, spent in self.spent_s.items()}


def watched_steps(
    learner: Learner, plan: Plan, reader: PlanReader, log: Callable[[StepRecord], object], stopwatch: Stopwatch
) -> Iterator[StepRecord]:
    """Runs the product's loop under the stopwatch; `log` is the caller's work. The first step warms up, uncounted."""
    for owner, method, part in (
        (learner, "step", "optimizer"),
        (learner, "clip", "clipping"),
        (learner, "train_only", ROUTING),
        (plan, "window", ROUTING),
        (reader, "tokens", "data loading"),
        (learner, "forward", "forward"),
        (learner, "backward", BACKWARD),
    ):
        stopwatch.watch(owner, method, part)
    log = stopwatch.timed(log, "logging")
    for record in training_steps(learner, plan, reader):
        log(record)
        yield record
        if record.step == 1:
            stopwatch.spent_s.clear()
