"""Runs a search's trials on Ray Tune, as many at once as the cluster holds or could grow to.

Ray Tune places trials, reuses their processes and restarts crashed ones. A searcher of the platform proposes trials,
pauses, applies limits and stops hopeless ones. A search goes on from Optuna's database and the storage; Tune's results,
in `<storage>/tune`, are for reading alone. Many processes start at once, because Tune gives a trial that waits for its
process the next free one and cancels the start: started one by one, there would never be more than one process where a
trial is shorter than a start.
"""

import logging
import math
import os
import queue
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from ray import tune
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher

from gram_platform.engine.capacity import Admission
from gram_platform.engine.cluster import ClusterLost, require_ray
from gram_platform.engine.execution import Execution, Resources, results_place
from gram_platform.engine.life import MAX_CRASHES, Crashes
from gram_platform.engine.proposals import Proposal, Source
from gram_platform.engine.trials import (
    CANCEL,
    FAILED,
    GO,
    STOP,
    STOPPED,
    WAIT,
    Outcome,
    Point,
    Problem,
    TrialWatch,
    committed,
    execute_trial,
    placement,
    trial_ranks,
)
from gram_platform.store.checkpoints import VALIDATION
from gram_platform.train.data import start_thread

TUNE = {
    "TUNE_MAX_PENDING_TRIALS_PG": "64",  # processes started at once; Ray Tune's default for a searcher is 1
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # it would make an interrupted search look like one that has ended
    "TUNE_GLOBAL_CHECKPOINT_S": "30",  # how much of Tune's results a driver that is killed may lose
    "RAY_AIR_NEW_OUTPUT": "0",  # the driver prints progress
}
TUNE_FOLDER = "tune"  # of the storage
SCORED = "scored"  # the names of the metrics in a trial's last report
COMMIT_S = 600.0  # that a trial which was told to end may take to write its checkpoint


@dataclass(frozen=True)
class Tuning:
    """How many trials run at once, and when the next may start."""

    name: str  # of the folder of Ray Tune's files
    max_concurrent: int = 0  # 0: as many as the cluster holds or may hold
    decide: Callable[[], str] = lambda: GO  # before a trial starts: go, wait (paused), stop (limit) or cancel
    retry_diverged: bool = False  # train diverged runs again
    is_judged: bool = False  # ask the source after each report whether the trial is hopeless


def run_trials(
    source: Source,
    problem: Problem,
    execution: Execution,
    resources: Resources,
    tuning: Tuning,
    on_start: Callable[[Proposal], None] = lambda proposal: None,
    on_end: Callable[[Outcome], None] = lambda outcome: None,
) -> None:
    """Runs all trials of the source. Needs an initialised Ray; `on_start` and `on_end` are called in this process.

    An error of `source`, `on_start` or `on_end` ends the trials and is raised.
    """
    for name, value in TUNE.items():
        os.environ.setdefault(name, value)
    logging.getLogger("ray.tune").setLevel(logging.ERROR)
    ranks_of = partial(trial_ranks, problem, execution)
    searcher = _Searcher(source, tuning, ranks_of, Admission(resources), on_start, on_end)
    crash_count = _CrashCount(lambda point: committed(problem, point, execution.store()))
    shared = {"problem": problem, "execution": execution, "resources": resources}
    how = {"retry_diverged": tuning.retry_diverged, "is_judged": tuning.is_judged}
    trainable = tune.with_parameters(Trial, **shared, **how)
    placed = tune.with_resources(trainable, lambda config: placement(problem, config["point"], execution, resources))
    _tuner(placed, searcher, crash_count, tuning, execution.storage).fit()
    if searcher.error is not None:
        raise searcher.error


def _tuner(trainable, searcher: "_Searcher", crash_count: "_CrashCount", tuning: Tuning, storage: str) -> tune.Tuner:
    place, filesystem = results_place(storage, TUNE_FOLDER, tuning.name)
    return tune.Tuner(
        trainable,
        tune_config=tune.TuneConfig(
            search_alg=searcher,
            scheduler=_Stopping(searcher) if tuning.is_judged else None,
            num_samples=sys.maxsize,  # the searcher says when it is finished
            reuse_actors=True,
            trial_dirname_creator=lambda trial: trial.trial_id,
        ),
        run_config=tune.RunConfig(
            name=time.strftime("%Y%m%dT%H%M%S", time.gmtime()) + f"-{os.getpid()}",
            storage_path=place,
            storage_filesystem=filesystem,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),  # runs have theirs in the storage
            failure_config=tune.FailureConfig(max_failures=MAX_CRASHES - 1),
            callbacks=[crash_count],
            stop=_Cancelled(tuning, searcher),
            verbose=0,
        ),
    )


class Trial(tune.Trainable):
    """Executes one trial after another in one process of Ray Tune, each in a thread that reports never hold up.

    A trial reports numbers at each evaluation of its runs (`TrialWatch.see`), and at its end its metrics with the facts
    of its outcome. Told to stop, it ends after the current step and a checkpoint.
    """

    def setup(self, config: dict, is_judged: bool = False, **shared) -> None:
        self._is_judged, self._shared = is_judged, shared
        self._begin(config)

    def _begin(self, config: dict) -> None:
        self._reports: queue.SimpleQueue[dict | BaseException] = queue.SimpleQueue()
        self._watch = TrialWatch(self._reports.put, self._is_judged)
        self._thread = start_thread("trial", self._work, config)

    def _work(self, config: dict) -> None:
        try:
            outcome = execute_trial(config["name"], config["point"], **self._shared, watch=self._watch)
            self._reports.put({**plain_result(outcome), "done": True})
        except BaseException as error:  # SystemExit too: this machine is drained
            self._reports.put(error)

    def step(self) -> dict:
        """Returns the newest report, waiting for one; raises what ended the trial's thread."""
        report = self._reports.get()
        while not self._reports.empty():
            report = self._reports.get()
        if isinstance(report, BaseException):
            raise RuntimeError(f"the trial was ended: {type(report).__name__}: {report}") from report
        return report

    def reset_config(self, new_config: dict) -> bool:
        """Begins the next trial in this process, once the one before has ended."""
        if not self._end():
            return False
        self._begin(new_config)
        return True

    def cleanup(self) -> None:
        self._end()

    def _end(self) -> bool:
        """Tells the trial to end; False if it has not within `COMMIT_S`."""
        self._watch.give()
        self._thread.join(COMMIT_S)
        return not self._thread.is_alive()


FACTS = tuple(f.name for f in fields(Outcome) if f.name not in ("name", "point", "metrics", "nodes", "runs"))


def plain_result(outcome: Outcome) -> dict[str, Any]:
    """Returns a trial's last report: its metrics as numbers, and the facts of its outcome as numbers and texts."""
    facts = {fact: getattr(outcome, fact) for fact in FACTS}
    lists = {"nodes": " ".join(outcome.nodes), "runs": " ".join(outcome.runs), SCORED: " ".join(outcome.metrics)}
    return {**facts, **lists, **{name: float(value) for name, value in outcome.metrics.items()}}


def _stopped(proposal: Proposal, reason: str, result: Mapping[str, Any], num_ranks: int) -> Outcome:
    """Makes the outcome of a trial that is stopped after this report."""
    seconds = result["time_total_s"]
    facts = {"name": proposal.name, "point": dict(proposal.point), "state": STOPPED, "message": reason}
    spent = {"elapsed_s": seconds, "trained_s": seconds, "rank_s": seconds * num_ranks, "num_executed": 1}
    process = f"{result['hostname']}:{result['pid']}"
    return Outcome(**facts, **spent, started=time.time() - seconds, progress=result["progress"], process=process)


def outcome_of(proposal: Proposal, result: Mapping[str, Any]) -> Outcome:
    """Reads an outcome from a trial's last report."""
    lists = {name: tuple(result[name].split()) for name in ("nodes", "runs")}
    metrics = {name: result[name] for name in result[SCORED].split()}
    facts = {fact: result[fact] for fact in FACTS}
    return Outcome(name=proposal.name, point=dict(proposal.point), metrics=metrics, **lists, **facts)


# ----------------------------------------------------------------------------------------------------- searcher


class _Unpickled:
    """Keeps an object in this process: Ray Tune pickles its searcher and stopper for a restore that is never used."""

    def __reduce__(self):
        return object, ()

    def __deepcopy__(self, memo):
        return self


class _Cancelled(_Unpickled, tune.Stopper):
    """Ends all running trials when the search is cancelled; their checkpoints stay."""

    def __init__(self, tuning: Tuning, searcher: "_Searcher"):
        self._decide, self._searcher = tuning.decide, searcher

    def __call__(self, trial_id: str, result: dict) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._searcher.has_failed() or self._decide() == CANCEL


class _CrashCount(_Unpickled, tune.Callback):
    """Counts a trial's crashes since its last checkpoint; Ray Tune counts all of them."""

    def __init__(self, committed_of: Callable[[Point], int]):
        self._committed_of, self._crashes = committed_of, {}

    def on_trial_recover(self, iteration: int, trials: list, trial, **info) -> None:
        crashes = self._crashes.get(trial.trial_id, Crashes()).another(self._committed_of(trial.config["point"]))
        self._crashes[trial.trial_id] = crashes
        trial.max_failures = trial.num_failures + MAX_CRASHES - 1 - crashes.number


class _Stopping(_Unpickled, FIFOScheduler):
    """Stops trials that the source finds hopeless; the others run in their order."""

    def __init__(self, searcher: "_Searcher"):
        super().__init__()
        self._searcher = searcher

    def on_trial_result(self, tune_controller, trial, result: dict) -> str:
        return self.STOP if self._searcher.is_hopeless(trial.trial_id, result) else self.CONTINUE


class _Searcher(_Unpickled, Searcher):
    """Adapts a source to Ray Tune."""

    def __init__(self, source: Source, tuning: Tuning, ranks_of, admission: Admission, on_start, on_end):
        super().__init__(metric="progress", mode="max")
        self._source, self._tuning, self._ranks_of, self._admission = source, tuning, ranks_of, admission
        self._on_start, self._on_end = on_start, on_end
        self._ranks: dict[str, int] = {}  # of running trials
        self._widest = 1  # of the trials so far: the next one's is known only when it is drawn
        self._running: dict[str, tuple[Proposal, float]] = {}
        self._hopeless: dict[str, Outcome] = {}  # trials that are stopped
        self.error: Exception | None = None  # kept here: Ray Tune would turn it into text, and blame the trial

    def has_failed(self) -> bool:
        """Tells whether the search ends with an error; Ray Tune asks again and again."""
        try:
            require_ray()
        except ClusterLost as error:
            self.error = error
        return self.error is not None

    def suggest(self, trial_id: str) -> dict | str | None:
        decision = self._tuning.decide()
        if decision in (STOP, CANCEL) or self.error is not None:
            return Searcher.FINISHED
        if decision == WAIT or not self._has_room():
            return None
        proposal = self._source.next()
        if proposal is None:
            return Searcher.FINISHED
        self._running[trial_id] = (proposal, time.time())
        self._ranks[trial_id] = self._ranks_of(proposal.point)
        self._widest = max(self._widest, self._ranks[trial_id])
        self._on_start(proposal)
        return {"name": proposal.name, "point": dict(proposal.point)}

    def _has_room(self) -> bool:
        """Tells whether one more trial may be handed to Ray: it can start, or need not know the others' results.

        A trial that depends on results is proposed only when it can start: then Optuna knows all earlier ones, and
        pauses and limits apply. On a cluster that can grow the others wait in Ray's queue, which starts machines for
        them, and so does what `max_concurrent` allows.
        """
        most = self._tuning.max_concurrent
        if not self._running:
            return True
        if 0 < most <= len(self._running):
            return False
        may_wait = bool(most) or self._source.is_independent
        return self._admission.room(self._ranks.values(), may_wait).take(self._widest)

    def on_trial_result(self, trial_id: str, result: dict) -> None:
        """Does nothing: `_Stopping` sees each report."""

    def is_hopeless(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        """Tells whether the source gives a trial up after this report."""
        losses = {k.removeprefix(VALIDATION): v for k, v in result.items() if k.startswith(VALIDATION)}
        if not losses or self.error is not None or not all(map(math.isfinite, losses.values())):
            return False
        proposal, _ = self._running[trial_id]
        try:
            reason = self._source.judge(proposal, result["progress"], losses)
        except Exception as error:
            self.error = error
            return False
        if reason:
            self._hopeless[trial_id] = _stopped(proposal, reason, result, self._ranks[trial_id])
        return bool(reason)

    def on_trial_complete(self, trial_id: str, result: dict | None = None, error: bool = False) -> None:
        proposal, started = self._running.pop(trial_id)
        self._ranks.pop(trial_id)
        if result and SCORED in result:
            outcome = outcome_of(proposal, result)
        elif trial_id in self._hopeless and not error:
            outcome = self._hopeless[trial_id]
        elif error:
            message = f"its process died {MAX_CRASHES} times without a checkpoint in between"
            facts = {"name": proposal.name, "point": proposal.point, "state": FAILED, "message": message}
            outcome = Outcome(**facts, started=started, elapsed_s=time.time() - started)
        else:
            return  # cancelled; the next driver adopts it
        try:
            self._source.tell(proposal, outcome)
            self._on_end(outcome)
        except Exception as error:
            self.error = error  # raised after Ray Tune has ended

    def save(self, checkpoint_path: str) -> None:
        """Writes an empty file: the source keeps the state."""
        with open(checkpoint_path, "wb"):
            pass

    def restore(self, checkpoint_path: str) -> None:
        raise NotImplementedError("a search is continued by submitting it again")
