"""The training metrics of a run, summed up at equally spaced steps."""

import math
import time
from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from gram_platform.config import RunConfig
from gram_platform.store.segments import NORM
from gram_platform.train.loop import StepRecord

NUM_TRAIN_RECORDS = 100  # of a run's training metrics, equally spaced


def record_interval(run: RunConfig) -> int:
    """Steps that one record of training metrics sums up."""
    return max(1, run.num_steps // NUM_TRAIN_RECORDS)


def evaluation_steps(run: RunConfig) -> frozenset[int]:
    """The steps after which a run is evaluated."""
    return _spaced(run.num_steps, run.eval_points.num_points)


def probe_steps(run: RunConfig) -> frozenset[int]:
    """The steps after which its modules' gradients are measured."""
    return _spaced(run.num_steps, run.eval_points.num_probes)


def _spaced(num_steps: int, num_points: int) -> frozenset[int]:
    """Equally spaced steps; the last is the run's last."""
    return frozenset(math.ceil(num_steps * k / num_points) for k in range(1, num_points + 1))


class Summary:
    """Means of the training metrics over `record_interval` steps."""

    def __init__(self, run: RunConfig):
        self.run, self.interval = run, record_interval(run)
        self.tokens_per_second = 0.0
        self._reset()
        self.start(0)

    def start(self, first_step: int) -> None:
        """The clock of `tokens_per_second` starts here."""
        self.first_step, self.started = first_step, time.monotonic()

    def state(self) -> dict:
        """What is summed up since the last interval ended, as JSON; {} where one ended."""
        losses = {domain: list(losses) for domain, losses in self.losses.items()}
        return {"losses": losses, "norms": list(self.norms)} if self.norms else {}

    def load_state(self, state: Mapping) -> None:
        self._reset()
        self.losses.update({domain: list(losses) for domain, losses in state.get("losses", {}).items()})
        self.norms += state.get("norms", [])

    def _reset(self) -> None:
        self.losses: dict[str, list[float]] = defaultdict(list)
        self.norms: list[float] = []

    def add(self, record: StepRecord) -> dict[str, float]:
        """The metrics of an interval that ends here, else {}."""
        for domain, loss in zip(record.domains, record.losses, strict=True):
            self.losses[domain].append(loss)
        self.norms.append(record.grad_norm)
        tokens_per_step = self.run.batch_size * self.run.model.seq_len
        elapsed_s = time.monotonic() - self.started
        self.tokens_per_second = (record.step - self.first_step) * tokens_per_step / max(elapsed_s, 1e-9)
        if record.step % self.interval and record.step < self.run.num_steps:
            return {}
        metrics = {
            "train/loss": float(np.mean([loss for losses in self.losses.values() for loss in losses])),
            "train/grad_norm": float(np.mean(self.norms)),
            "train/lr": record.learning_rate,
            "train/tokens_per_second": self.tokens_per_second,
        }
        metrics |= {f"train/loss/{domain}": float(np.mean(losses)) for domain, losses in self.losses.items()}
        metrics |= {NORM + name: norm for name, norm in record.norms.items()}
        self._reset()
        return metrics
