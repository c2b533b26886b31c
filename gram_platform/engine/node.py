"""Execute one run in this process, from its last checkpoint to its result."""

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from fractions import Fraction

import numpy as np
import torch

from gram_platform.config import RunConfig
from gram_platform.config.flops import total_parameters
from gram_platform.config.identity import invalid
from gram_platform.config.routing import Plan
from gram_platform.corpora import PackedCorpus
from gram_platform.engine.execution import Execution, owner
from gram_platform.engine.life import DIVERGENCE
from gram_platform.engine.process import (
    Background,
    Notice,
    OutOfMemory,
    Usage,
    freed_memory_kept,
    is_out_of_memory,
    memory_advice,
    termination_notice,
)
from gram_platform.methods.budgets import plan_compute_units
from gram_platform.model.pieces import Piece, whole
from gram_platform.planner import run_flops
from gram_platform.store import Store
from gram_platform.store.attempts import Attempt
from gram_platform.store.checkpoints import NORM, PROBE
from gram_platform.store.shards import Resumed
from gram_platform.store.views import materialised
from gram_platform.train.data import PlanReader
from gram_platform.train.evaluate import domain_losses, require_sequences
from gram_platform.train.learner import Learner, probed_norms
from gram_platform.train.loop import StepRecord, TrainingDiverged, training_steps

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


def execute_run(run: RunConfig, tags: Mapping[str, str], execution: Execution) -> dict:
    """The run's result, trained from its last checkpoint if it is not there yet.

    Raises LeaseHeld while another process works on it, TrainingDiverged (recorded as the run's failure) for a
    non-finite loss, OutOfMemory (recorded too) with advice, ValueError for data that does not fit. A SIGTERM ends the
    process after the step at work, with a checkpoint of it.
    """
    torch.set_num_threads(execution.num_threads)
    directory = execution.store().run(run.run_id)
    directory.ensure_config(run)
    directory.add_tags(tags)
    if (result := directory.result()) is not None:
        return result
    corpus = execution.corpus(run.data.data_id)
    attempts = directory.start_attempt(owner(), execution.lease_s)
    with termination_notice() as notice, attempts as attempt, freed_memory_kept():
        if (result := directory.result()) is not None:  # another driver's attempt has ended in the meantime
            return result
        try:
            return RunExecution(run, corpus, attempt, execution, notice=notice).finish()
        except TrainingDiverged as error:
            attempt.fail(str(error), DIVERGENCE)
            raise
        except Exception as error:
            if is_out_of_memory(error):
                message = memory_advice(error, run, execution)
                attempt.fail(message, {"kind": "memory"})
                raise OutOfMemory(message) from error
            attempt.fail(f"{type(error).__name__}: {error}", {"kind": "error"})
            raise


def starting_point(run: RunConfig, execution: Execution) -> dict[str, torch.Tensor] | None:
    """The dense weights of the view that a run starts from, read only; None for the seed's own."""
    return None if run.start is None else materialised(Store(execution.storage), run.start)[1]


def new_learner(
    kind: type[Learner], run: RunConfig, execution: Execution, start: dict[str, torch.Tensor] | None
) -> Learner:
    """The learner of a run at its starting point."""
    return kind(run, execution.device, start, execution.activation_checkpointing, execution.compiled)


class RunExecution:
    """One attempt at a run: trains, evaluates at the run's points, commits, and writes the result."""

    def __init__(self, run: RunConfig, corpus: PackedCorpus, attempt: Attempt | None, execution: Execution, **parts):
        self.run, self.corpus, self.attempt, self.execution = run, corpus, attempt, execution
        self.plan = Plan(run)
        drawn = sorted({part.domain for budget in run.data.domains for part in budget.pool})
        self.reader = PlanReader(run, self.plan, {domain: corpus.train(domain) for domain in drawn})
        points = run.eval_points
        self.validation = {d: corpus.validation(d) for d in points.domains}
        if points.num_points or points.num_probes:
            require_sequences(self.validation, points.domains, points.num_sequences)
        self.learner = parts.get("learner") or new_learner(Learner, run, execution, starting_point(run, execution))
        self.rank, self.num_ranks = parts.get("rank", 0), parts.get("num_ranks", 1)
        self.notice = parts.get("notice") or Notice()
        self.summary = Summary(run)
        self.usage = Usage(execution.device)
        self.background = Background()
        self.step = 0
        self.records: list[dict] = []  # since the last commit
        self.final: dict[str, float] = {}
        self.num_stale = 0  # evaluations since the best one
        self.evaluation_s = 0.0

    @property
    def identity(self) -> dict:
        """What a checkpoint must agree on to be continued."""
        return {"data_fingerprint": self.corpus.fingerprint, "plan_sha256": self.plan.fingerprint}

    def finish(self) -> dict:
        """Trains what is left and returns the result."""
        with self.background:
            for record in self._steps(self._resume()):
                self.step = record.step
                if self._is_exhausted(record):
                    break
                if self._should_commit(record.step):
                    self.commit(record.step)
                    self._leave_if_told()
        return self.complete()

    def _is_exhausted(self, record: StepRecord) -> bool:
        """Whether early stopping ends the run here: evaluations without a better one, or enough unlearnt."""
        is_unlearnt = self.run.objective.stop_below > 0.0 and record.forgetting <= self.run.objective.stop_below
        return is_unlearnt or 0 < self.run.eval_points.patience <= self.num_stale

    def _resume(self) -> int:
        resumed = self._load_checkpoint()
        if resumed is None:
            return 0
        stored = {key: resumed.state[key] for key in self.identity}
        if stored != self.identity:
            raise invalid("data", self.identity, f"what the run's checkpoint was trained on: {stored}")
        torch.set_rng_state(resumed.pieces["random.torch"].rows)
        self.learner.load_state(resumed.pieces)
        self.final, self.num_stale = dict(resumed.state["final"]), resumed.state["num_stale"]
        self.summary.load_state(resumed.state.get("summary", {}))  # absent where one ended
        self.evaluation_s = resumed.state.get("evaluation_s", 0.0)
        self.step = resumed.step
        return resumed.step

    def _load_checkpoint(self) -> Resumed | None:
        return self.attempt.resume()

    def _steps(self, first_step: int) -> Iterator[StepRecord]:
        """Trains and records; yields after each step's metrics are in `records`."""
        self.summary.start(first_step)
        self._last_commit = time.monotonic()
        eval_steps, steps_probed = evaluation_steps(self.run), probe_steps(self.run)
        ranks = (self.rank, self.num_ranks)
        steps = training_steps(self.learner, self.plan, self.reader, first_step, *ranks, self.summary.interval)
        for record in steps:
            metrics = self.summary.add(record)
            if record.step in eval_steps:
                losses = self.evaluate()
                _require_finite(losses, record)
                metrics |= {f"validation/loss/{domain}": loss for domain, loss in losses.items()}
                self._keep_best(losses)
            if record.step in steps_probed:
                metrics |= self.probe()
            if metrics:
                self.records.append({"step": record.step, "time": time.time(), "metrics": metrics})
                self.usage.look()
                kept = (k for k in metrics if not (k.endswith("tokens_per_second") or k.startswith(NORM)))
                self.final |= {k: metrics[k] for k in kept}
            if self.attempt is not None:
                self.attempt.heartbeat(record.step, self.run.num_steps, self.summary.tokens_per_second)
            yield record

    def evaluate(self) -> dict[str, float]:
        """Validation losses with every module active."""
        started, points = time.monotonic(), self.run.eval_points
        active = dict.fromkeys(self.run.model.module_domains, 1.0)
        losses = domain_losses(
            self.learner.forward,
            self.run.model,
            self.validation,
            points.domains,
            points.num_sequences,
            lambda _: active,
            self.execution.device,
        )
        self.evaluation_s += time.monotonic() - started
        return losses

    def probe(self) -> dict[str, float]:
        """`norm/probe/<domain>/<module>`: how hard the domain's batches pull at every module when all are on."""
        started, ranks = time.monotonic(), (self.rank, self.num_ranks)
        found = {domain: probed_norms(self.learner, rows, *ranks) for domain, rows in self.validation.items()}
        self.evaluation_s += time.monotonic() - started
        return {f"{PROBE}{domain}/{module}": n for domain, norms in found.items() for module, n in norms.items()}

    def _keep_best(self, losses: dict[str, float]) -> None:
        """The losses of the evaluation whose mean over domains is lowest, as best/loss/<domain>."""
        best = [self.final.get(f"best/loss/{domain}", math.inf) for domain in losses]
        if np.mean(list(losses.values())) < np.mean(best):
            self.final |= {f"best/loss/{domain}": loss for domain, loss in losses.items()}
            self.num_stale = 0
        else:
            self.num_stale += 1

    def _should_commit(self, step: int) -> bool:
        """Checkpoints follow the clock and the notice of an end; the last step needs none."""
        return (self._is_due() or self.notice.given) and step < self.run.num_steps

    def _is_due(self) -> bool:
        return time.monotonic() - self._last_commit >= self.execution.checkpoint_every_s

    def _leave_if_told(self) -> None:
        """Ends the work after a commit; what is being written is waited for."""
        if self.notice.given:
            self.notice.leave()

    def commit(self, step: int) -> None:
        """Copies what a checkpoint holds, and leaves its writing to the background: it exists when that has ended."""
        state = {**self.identity, "final": dict(self.final), "num_stale": self.num_stale}
        state |= {"summary": self.summary.state(), "evaluation_s": self.evaluation_s}
        pieces = {**self.learner.pieces(), "random.torch": whole(torch.get_rng_state())}
        records, self.records = self.records, []
        self.background.start(lambda: self._write_checkpoint(step, pieces, state, records))
        self._last_commit = time.monotonic()

    def _write_checkpoint(self, step: int, pieces: dict[str, Piece], state: dict, records: list[dict]) -> None:
        self.attempt.commit(step, pieces, state, records)

    def complete(self) -> dict:
        """Writes the weights and the result: deterministic fields only."""
        done = Fraction(self.step, self.run.num_steps)  # below 1 after early stopping
        fields = {
            **self.identity,
            "num_steps": self.step,
            "num_tokens": int(done * self.run.num_tokens),
            "parameters": total_parameters(self.run.model),
            "compute_units": plan_compute_units(self.run, self.step),
            "hardware_flops": run_flops(self.run, self.step),
            "final": self.final,
        }
        used = {"num_ranks": self.num_ranks, "num_threads": self.execution.num_threads, **self.usage.facts()}
        return self._write_result(fields, {"evaluation_s": self.evaluation_s, **used})

    def _write_result(self, fields: dict, measured: dict) -> dict:
        return self.attempt.complete(fields, self.learner.weights(), self.records, measured)


def _require_finite(losses: Mapping[str, float], record: StepRecord) -> None:
    """TrainingDiverged after a step that left weights without finite losses: no later step may tell."""
    for domain, loss in losses.items():
        if not math.isfinite(loss):
            where = f"step {record.step}, domain {domain!r}, learning rate {record.learning_rate:.3g}"
            raise TrainingDiverged(f"validation loss {loss} after {where}")
