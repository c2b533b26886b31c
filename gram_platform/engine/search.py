"""Runs a search's trials on Ray Tune, as many at once as the cluster holds or could grow to.

Ray Tune places trials, reuses their processes and restarts crashed ones. A searcher of the platform proposes trials,
pauses and applies limits: Tune's state dies with the driver, while Optuna's database and the storage stay. Many
processes start at once, because Tune gives a trial that waits for its process the next free one and cancels the start:
started one by one, there would never be more than one process where a trial is shorter than a start.
"""

import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

from ray import tune
from ray.tune.search import Searcher

from gram_platform.engine.capacity import Admission
from gram_platform.engine.execution import Execution, Resources
from gram_platform.engine.life import MAX_CRASHES, Crashes
from gram_platform.engine.proposals import Proposal, Source, outcome_from_plain
from gram_platform.engine.trials import (
    CANCEL,
    FAILED,
    GO,
    STOP,
    WAIT,
    Outcome,
    Point,
    Problem,
    committed,
    execute_trial,
    placement,
    trial_ranks,
)

TUNE = {
    "TUNE_MAX_PENDING_TRIALS_PG": "64",  # processes started at once; Ray Tune's default for a searcher is 1
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # the run directories have it all
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # it would make an interrupted search look like one that has ended
    "TUNE_GLOBAL_CHECKPOINT_S": "600",  # nothing is restored from Tune's state
    "RAY_AIR_NEW_OUTPUT": "0",  # the driver prints progress
}


@dataclass(frozen=True)
class Tuning:
    """How many trials run at once, and when the next may start."""

    name: str  # of the folder of Ray Tune's files
    max_concurrent: int = 0  # 0: as many as the cluster holds or may hold
    decide: Callable[[], str] = lambda: GO  # before a trial starts: go, wait (paused), stop (limit) or cancel
    retry_diverged: bool = False  # train diverged runs again


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
    trainable = tune.with_parameters(_trial, **shared, retry_diverged=tuning.retry_diverged)
    placed = tune.with_resources(trainable, lambda config: placement(problem, config["point"], execution, resources))
    with tempfile.TemporaryDirectory(prefix="gram-tune-") as scratch:  # Tune's files end with the driver
        _tuner(placed, searcher, crash_count, tuning, scratch).fit()
    if searcher.error is not None:
        raise searcher.error


def _tuner(trainable, searcher: "_Searcher", crash_count: "_CrashCount", tuning: Tuning, scratch: str) -> tune.Tuner:
    return tune.Tuner(
        trainable,
        tune_config=tune.TuneConfig(
            search_alg=searcher,
            num_samples=sys.maxsize,  # the searcher says when it is finished
            reuse_actors=True,
            trial_dirname_creator=lambda trial: trial.trial_id,
        ),
        run_config=tune.RunConfig(
            name=tuning.name,
            storage_path=scratch,
            failure_config=tune.FailureConfig(max_failures=MAX_CRASHES - 1),
            callbacks=[crash_count],
            stop=_Cancelled(tuning, searcher),
            verbose=0,
        ),
    )


def _trial(config: dict, **shared) -> None:
    """Executes one trial for Ray Tune; reports the outcome as text, because Tune flattens nested results."""
    outcome = execute_trial(config["name"], config["point"], **shared)
    tune.report({"outcome": json.dumps(asdict(outcome))})


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
        return self._searcher.error is not None or self._decide() == CANCEL


class _CrashCount(_Unpickled, tune.Callback):
    """Counts a trial's crashes since its last checkpoint; Ray Tune counts all of them."""

    def __init__(self, committed_of: Callable[[Point], int]):
        self._committed_of, self._crashes = committed_of, {}

    def on_trial_recover(self, iteration: int, trials: list, trial, **info) -> None:
        crashes = self._crashes.get(trial.trial_id, Crashes()).another(self._committed_of(trial.config["point"]))
        self._crashes[trial.trial_id] = crashes
        trial.max_failures = trial.num_failures + MAX_CRASHES - 1 - crashes.number


class _Searcher(_Unpickled, Searcher):
    """Adapts a source to Ray Tune."""

    def __init__(self, source: Source, tuning: Tuning, ranks_of, admission: Admission, on_start, on_end):
        super().__init__(metric="outcome", mode="min")
        self._source, self._tuning, self._ranks_of, self._admission = source, tuning, ranks_of, admission
        self._on_start, self._on_end = on_start, on_end
        self._ranks: dict[str, int] = {}  # of running trials
        self._widest = 1  # of the trials so far: the next one's is known only when it is drawn
        self._running: dict[str, tuple[Proposal, float]] = {}
        self.error: Exception | None = None  # kept here: Ray Tune would turn it into text, and blame the trial

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
        """Does nothing: a trial reports once, at its end."""

    def on_trial_complete(self, trial_id: str, result: dict | None = None, error: bool = False) -> None:
        proposal, started = self._running.pop(trial_id)
        self._ranks.pop(trial_id)
        if result and "outcome" in result:
            outcome = outcome_from_plain(json.loads(result["outcome"]))
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
