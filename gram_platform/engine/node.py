"""Trains one run in this process, from its last checkpoint to its result."""

import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import chain

import numpy as np

from gram_platform.config import RunConfig
from gram_platform.config.endings import Unavailable
from gram_platform.config.flops import total_parameters
from gram_platform.config.identity import invalid
from gram_platform.config.routing import Schedule
from gram_platform.config.terminal import say
from gram_platform.corpora.packed import PackedCorpus
from gram_platform.corpora.tokenizer import separator_tokens
from gram_platform.engine.devices import is_device_error
from gram_platform.engine.evaluation import evaluation_steps, probe_steps, progress_of
from gram_platform.engine.execution import Execution, owner
from gram_platform.engine.life import DIVERGENCE
from gram_platform.engine.process import (
    BackgroundJob,
    OutOfMemory,
    ResourceUsage,
    StopRequest,
    is_out_of_memory,
    memory_advice,
    set_up_torch,
    stop_on_signal,
)
from gram_platform.methods.budgets import plan_compute_units, run_flops
from gram_platform.methods.nodes import tags_to_add
from gram_platform.model.cpu import PLAIN_ON_CPU, keep_freed_memory
from gram_platform.model.kernels import kernel_in_use
from gram_platform.model.pieces import Piece, RowsOnDisk
from gram_platform.store import CorruptFile, LeaseHeld
from gram_platform.store.attempts import Attempt
from gram_platform.store.checkpoints import BEST, NORM, PROBE, PROGRESS, VALIDATION
from gram_platform.store.directories import SOURCE_HASHES
from gram_platform.store.shards import Resumed, read_checkpoint
from gram_platform.store.views import open_dense
from gram_platform.train.compilation import num_graphs
from gram_platform.train.data import ScheduleReader, Separator
from gram_platform.train.evaluate import progress_losses, require_sequences, validation_losses
from gram_platform.train.learner import DTYPES, Learner, probe_norms
from gram_platform.train.loop import StepRecord, TrainingDiverged, require_finite, training_steps

NUM_TRAIN_RECORDS = 100


class MetricsSummary:
    """Makes a record of training metrics, with mean losses, every `interval` steps."""

    def __init__(self, run: RunConfig):
        self.run, self.interval = run, max(1, run.num_steps // NUM_TRAIN_RECORDS)
        self.tokens_per_second = 0.0
        self._reset()

    def start(self, first_step: int) -> None:
        self.first_step, self.started = first_step, time.monotonic()

    def state(self) -> dict:
        """Returns the losses and gradient norms since the last record, or {} if there are none."""
        losses = {domain: list(losses) for domain, losses in self.losses.items()}
        return {"losses": losses, "norms": list(self.norms)} if self.norms else {}

    def load_state(self, state: Mapping) -> None:
        self.losses.update(state.get("losses", {}))
        self.norms += state.get("norms", [])

    def _reset(self) -> None:
        self.losses: dict[str, list[float]] = defaultdict(list)
        self.norms: list[float] = []

    def add(self, record: StepRecord) -> dict[str, float]:
        """Adds a step. If this step completes a record, returns the record, otherwise {}."""
        for domain, loss in zip(record.domains, record.losses, strict=True):
            self.losses[domain].append(loss)
        self.norms.append(record.grad_norm)
        tokens_per_step = self.run.batch_size * self.run.model.seq_len
        elapsed_s = time.monotonic() - self.started
        self.tokens_per_second = (
            (record.step - self.first_step) * tokens_per_step / max(elapsed_s, 1e-9)
        )
        if record.step % self.interval and record.step < self.run.num_steps:
            return {}
        metrics = {
            "train/loss": float(np.mean(list(chain(*self.losses.values())))),
            "train/grad_norm": float(np.mean(self.norms)),
            "train/lr": record.learning_rate,
            "train/tokens_per_second": self.tokens_per_second,
        }
        metrics |= {
            f"train/loss/{domain}": float(np.mean(losses)) for domain, losses in self.losses.items()
        }
        metrics |= {NORM + name: norm for name, norm in record.norms.items()}
        self._reset()
        return metrics


def execute_run(
    run: RunConfig,
    tags: Mapping[str, str],
    execution: Execution,
    stop_request: StopRequest | None = None,
) -> dict:
    """Trains a run from its last checkpoint unless it has a current result; returns the result.

    On SIGTERM or a stop request, exits after the current step, with a checkpoint. Raises LeaseHeld
    while another process is training the run, and ValueError if the data have changed since the
    checkpoint. TrainingDiverged, OutOfMemory (with advice) and unexpected errors are raised and
    recorded as the run's failure.
    """
    set_up_torch(execution)
    store = execution.store()
    directory = store.run(run.run_id)
    directory.ensure_config(run)
    directory.add_tags(tags_to_add(directory.tags(), tags))
    if (result := store.current_result(directory)) is not None:
        return result
    corpus = execution.corpus_of(run)
    signals = stop_on_signal() if stop_request is None else contextlib.nullcontext(stop_request)
    with (
        signals as stop_request,
        directory.start_attempt(owner(), execution.lease_s) as attempt,
        keep_freed_memory(),
    ):
        if (result := store.current_result(directory)) is not None:
            return result
        try:
            with starting_point(run, execution) as start:
                store.set_outdated_aside(directory)
                learner = new_learner(Learner, run, execution, start)
            return RunExecution(run, corpus, attempt, execution, learner, stop_request).finish()
        except TrainingDiverged as error:
            attempt.fail(str(error), DIVERGENCE)
            raise
        except Exception as error:
            if is_out_of_memory(error):
                message = memory_advice(error, execution.placement.fewest)
                attempt.fail(message, {"kind": "memory"})
                raise OutOfMemory(message) from error
            # After these errors another process can continue the run, so it has not failed.
            if not (isinstance(error, LeaseHeld | Unavailable) or is_device_error(error)):
                attempt.fail(f"{type(error).__name__}: {error}", {"kind": "error"})
            raise


Start = Mapping[str, RowsOnDisk] | None


@contextlib.contextmanager
def starting_point(run: RunConfig, execution: Execution) -> Iterator[Start]:
    """Context manager that yields the verified dense weights from which a run starts.

    Yields None if the run starts from random weights. Sets corrupted weights aside.
    """
    if run.start is None:
        yield None
        return
    with open_dense(execution.store(), run.start) as (_, weights):
        yield weights


def schedule_reader(run: RunConfig, corpus: PackedCorpus) -> ScheduleReader:
    """Opens a run's sequences.

    If `responses_after` is set, the loss covers only what follows this text in a document.
    """
    domains = sorted({piece.domain for budget in run.data.domains for piece in budget.pool})
    text = run.objective.responses_after
    separator = Separator(*separator_tokens(corpus.tokenizer_path, text)) if text else None
    return ScheduleReader(
        run, {domain: corpus.train(domain) for domain in domains}, corpus.is_permuted, separator
    )


def new_learner(kind: type[Learner], run: RunConfig, execution: Execution, start: Start) -> Learner:
    division = execution.placement.fewest
    return kind(
        run,
        execution.device,
        start,
        execution.activation_checkpointing,
        execution.placement.compiled,
        division.num_passes,
        division.num_merged,
    )


class RunExecution:
    """One attempt at a run: trains, evaluates, commits checkpoints and writes the result.

    `attempt` is None on all ranks except rank 0.
    """

    def __init__(
        self,
        run: RunConfig,
        corpus: PackedCorpus,
        attempt: Attempt | None,
        execution: Execution,
        learner: Learner,
        stop_request: StopRequest,
    ):
        self.run, self.corpus, self.attempt, self.execution = run, corpus, attempt, execution
        # The hashes of the weights that the run starts from, by run id.
        self.sources = execution.store().source_weights(run.start)
        self.schedule = Schedule(run)
        self.reader = schedule_reader(run, corpus)
        points = run.eval_points
        self.validation = {d: corpus.validation(d) for d in points.domains}
        if points.num_points or points.num_probes:
            require_sequences(self.validation, points.domains, points.num_sequences)
        fewest = min(map(len, self.validation.values()), default=0)
        self.progress = progress_of(run, fewest)
        self.attention = kernel_in_use(run.model, DTYPES[run.precision], execution.device)
        if execution.device != "cpu" or self.attention == PLAIN_ON_CPU:
            say(f"run {run.run_id}: {self.attention} attention in {run.precision}")
        self.learner, self.stop_request = learner, stop_request
        self.summary = MetricsSummary(run)
        self.usage = ResourceUsage(execution.device)
        self.background = BackgroundJob()
        self.step = 0
        self.records: list[dict] = []
        self.final: dict[str, float] = {}
        self.num_stale, self.evaluation_s = 0, 0.0

    @property
    def identity(self) -> dict:
        """The hashes of the data and of the plan (domains and routes in training order).

        A run resumes only from a checkpoint with the same hashes.
        """
        return {
            "data_fingerprint": self.corpus.fingerprint,
            "plan_sha256": self.schedule.fingerprint,
        }

    def finish(self) -> dict:
        with self.background:
            for record in self._steps(self._resume()):
                self.step = record.step
                if self._is_exhausted(record):
                    break
                if self._should_commit(record.step):
                    self.commit(record.step)
                    self._stop_if_requested()
        return self.complete()

    def _is_exhausted(self, record: StepRecord) -> bool:
        stop_below = self.run.objective.stop_below
        is_unlearnt = stop_below > 0.0 and record.forgetting <= stop_below
        return is_unlearnt or 0 < self.run.eval_points.patience <= self.num_stale

    def _resume(self) -> int:
        resumed = self._load_checkpoint()
        if resumed is None:
            return 0
        stored = {key: resumed.state[key] for key in self.identity}
        if stored != self.identity:
            raise invalid(
                "data", self.identity, f"the data and plan of the run's checkpoint, {stored}"
            )
        self.sources = resumed.state.get(SOURCE_HASHES, {})
        self.learner.load_state(resumed.pieces)
        self.final, self.num_stale = dict(resumed.state["final"]), resumed.state["num_stale"]
        self.summary.load_state(resumed.state["summary"])
        self.evaluation_s = resumed.state["evaluation_s"]
        self.step = resumed.step
        return resumed.step

    def _load_checkpoint(self) -> Resumed | None:
        return self.attempt.resume(lambda *at: self._check_start(read_checkpoint(*at)))

    def _check_start(self, resumed: Resumed) -> Resumed:
        if (resumed.state.get(SOURCE_HASHES) or self.sources) != self.sources:
            raise CorruptFile("its run started from other weights")
        return resumed

    def _steps(self, first_step: int) -> Iterator[StepRecord]:
        """Trains step by step, and yields each step after adding its metrics to `records`."""
        self.summary.start(first_step)
        self._last_commit, self._commit_s = time.monotonic(), 0.0
        at_evaluations, at_probes = evaluation_steps(self.run), probe_steps(self.run)
        steps = training_steps(
            self.learner, self.schedule, self.reader, first_step, self.summary.interval
        )
        for record in steps:
            metrics = self.summary.add(record)
            if record.step in at_evaluations:
                losses = self.evaluate()
                # Only this detects a loss that is not finite after the last step.
                for domain, loss in losses.items():
                    where = f"step {record.step}, domain {domain!r}"
                    require_finite(f"validation loss {loss}", loss, where, record.learning_rate)
                metrics |= {VALIDATION + domain: loss for domain, loss in losses.items()}
                self._keep_best(losses)
            if record.step in self.progress.steps:
                metrics |= self.evaluate_progress()
            if record.step in at_probes:
                metrics |= self.probe()
            if metrics:
                self.usage.look()
                self.final |= {
                    name: value
                    for name, value in metrics.items()
                    if not name.endswith("tokens_per_second")
                    and not name.startswith((NORM, PROGRESS))
                }
                metrics |= self.usage.system()
                self.records.append({"step": record.step, "time": time.time(), "metrics": metrics})
            if self.attempt:
                self.attempt.heartbeat(
                    record.step,
                    self.run.num_steps,
                    self.summary.tokens_per_second,
                    self.final.get("train/loss"),
                    self.learner.num_ranks,
                )
            yield record

    def evaluate(self) -> dict[str, float]:
        with self._as_evaluation():
            return validation_losses(self.learner, self.validation)

    def evaluate_progress(self) -> dict[str, float]:
        """Measures `progress/loss/<domain>` on a few sequences. Losses can be infinite or NaN."""
        with self._as_evaluation():
            losses = progress_losses(self.learner, self.validation, self.progress.num_sequences)
        return {PROGRESS + domain: loss for domain, loss in losses.items()}

    def probe(self) -> dict[str, float]:
        """Measures the gradient norms `norm/probe/<domain>/<module>` with all modules active."""
        metrics = {}
        with self._as_evaluation():
            for domain, rows in self.validation.items():
                for module, norm in probe_norms(self.learner, rows).items():
                    metrics[f"{PROBE}{domain}/{module}"] = norm
        return metrics

    @contextlib.contextmanager
    def _as_evaluation(self) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.evaluation_s += time.monotonic() - started

    def _keep_best(self, losses: dict[str, float]) -> None:
        best = [self.final.get(BEST + domain, math.inf) for domain in losses]
        if np.mean(list(losses.values())) < np.mean(best):
            self.final |= {BEST + domain: loss for domain, loss in losses.items()}
            self.num_stale = 0
        else:
            self.num_stale += 1

    def _should_commit(self, step: int) -> bool:
        return (self._is_due() or self.stop_request.received) and step < self.run.num_steps

    def _is_due(self) -> bool:
        interval_s = self.execution.commit_interval(self._commit_s)
        return time.monotonic() - self._last_commit >= interval_s and not (
            interval_s and self.background.is_busy
        )

    def _stop_if_requested(self) -> None:
        if self.stop_request.received:
            self.background.wait()
            self.stop_request.exit()

    def commit(self, step: int) -> None:
        """Copies the training state, and writes the copy as a checkpoint in the background."""
        started = time.monotonic()
        # Waits for the last checkpoint, because the new copy overwrites the last one.
        self.background.wait()
        state = {
            **self.identity,
            SOURCE_HASHES: self.sources,
            "final": dict(self.final),
            "num_stale": self.num_stale,
            "summary": self.summary.state(),
            "evaluation_s": self.evaluation_s,
        }
        pieces, wait_for_copy = self.learner.pieces(), self.learner.staging.wait
        records, self.records = self.records, []
        self.background.start(
            lambda: (wait_for_copy(), self._write_checkpoint(step, pieces, state, records))
        )
        self._last_commit = time.monotonic()
        self._commit_s = self._last_commit - started

    def _write_checkpoint(
        self, step: int, pieces: dict[str, Piece], state: dict, records: list[dict]
    ) -> None:
        self.attempt.commit(step, pieces, state, records)

    def complete(self) -> dict:
        """Writes the weights and the result; returns the result."""
        fields = {
            **self.identity,
            **({SOURCE_HASHES: self.sources} if self.sources else {}),
            "num_steps": self.step,
            "num_tokens": int(Fraction(self.step, self.run.num_steps) * self.run.num_tokens),
            "parameters": total_parameters(self.run.model),
            "compute_units": plan_compute_units(self.run, self.step),
            "hardware_flops": run_flops(self.run, self.step),
            "final": self.final,
        }
        compilation = self.learner.compilation
        measured = {
            "evaluation_s": self.evaluation_s,
            "num_threads": self.execution.num_threads,
            "deterministic": self.execution.deterministic,
            "code": self.execution.code,
            "num_ranks": self.learner.num_ranks,
            "num_passes": self.learner.num_passes,
            "num_merged": self.learner.num_merged,
            "attention": self.attention,
            "compiled": compilation is not None and not compilation.has_failed,
        }
        if measured["compiled"]:
            measured["num_graphs"] = num_graphs()
            say(f"run {self.run.run_id}: {num_graphs()} compiled graphs")
        return self._write_result(fields, measured | self.usage.facts())

    def _write_result(self, fields: dict, measured: dict) -> dict:
        return self.attempt.complete(fields, self.learner.weights(), self.records, measured)
