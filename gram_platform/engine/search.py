"""Trials on Ray Tune: as many at once as the cluster holds or could grow to, each with what its size needs.

Ray Tune places trials, reuses their processes and starts them again when these die; what to try next, pausing and
limits are a searcher of ours, because Tune's own state dies with the driver and ours does not (Optuna's database, the
run directories). Tune gives a free process to a trial whose own has not started yet, and cancels that start: processes
that start one by one would never be more than one where trials are shorter than a start.
"""

import json
import logging
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

from ray import tune
from ray.tune.search import Searcher

from gram_platform.engine.capacity import capacity, has_fixed_size
from gram_platform.engine.execution import Execution, Resources
from gram_platform.engine.proposals import Proposal, Source, told
from gram_platform.engine.trials import CANCEL, FAILED, GO, STOP, WAIT, Outcome, Point, Problem, execute_trial
from gram_platform.planner import GIB, MACHINES, needs

MAX_CRASHES = 4  # of the processes of one trial before it counts as failed
PROCESS_BYTES = GIB  # of a worker before it holds a model: Python, torch, Ray, the page cache's mapping
MEMORY_STEP = GIB // 4  # requests are rounded up to it, so that trials of like sizes share processes
ASK_CLUSTER_EVERY_S = 5.0  # how large it is
TUNE = {
    "TUNE_MAX_PENDING_TRIALS_PG": "64",  # processes started at once; Ray Tune's default for a searcher is 1
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # the run directories have it all
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # it would make an interrupted search look like one that has ended
    "TUNE_GLOBAL_CHECKPOINT_S": "600",  # nothing is restored from Tune's own state
    "RAY_AIR_NEW_OUTPUT": "0",  # the driver says what happens
}


@dataclass(frozen=True)
class Tuning:
    """How many trials run at once, and who may hold them up."""

    name: str  # of the folder of Ray Tune's own files
    max_concurrent: int = 0  # 0: what the cluster can hold; more only waits for one that may grow
    decide: Callable[[], str] = lambda: GO  # before a trial starts: go, wait (paused), stop (limit) or cancel
    retry_diverged: bool = False  # train runs again whose loss is known to become non-finite


def run_trials(
    source: Source,
    problem: Problem,
    execution: Execution,
    resources: Resources,
    tuning: Tuning,
    on_start: Callable[[Proposal], None] = lambda proposal: None,
    on_end: Callable[[Outcome], None] = lambda outcome: None,
) -> None:
    """Runs the source's trials to the end. Needs an initialised Ray; `on_start` and `on_end` are called here.

    An error of `source`, `on_start` or `on_end` ends the trials, and is raised.
    """
    for name, value in TUNE.items():
        os.environ.setdefault(name, value)
    logging.getLogger("ray.tune").setLevel(logging.ERROR)
    ranks_of = partial(trial_ranks, problem, execution)
    searcher = _Searcher(source, tuning, ranks_of, _most_ranks(tuning, resources), on_start, on_end)
    shared = {"problem": problem, "execution": execution, "resources": resources}
    trainable = tune.with_parameters(_trial, **shared, retry_diverged=tuning.retry_diverged)
    placed = tune.with_resources(trainable, lambda config: _placement(problem, config["point"], execution, resources))
    with tempfile.TemporaryDirectory(prefix="gram-tune-") as own_files:  # nothing in them outlives the driver
        _tuner(placed, searcher, tuning, own_files).fit()
    if searcher.error is not None:
        raise searcher.error


def _tuner(trainable, searcher: "_Searcher", tuning: Tuning, own_files: str) -> tune.Tuner:
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
            storage_path=own_files,
            failure_config=tune.FailureConfig(max_failures=MAX_CRASHES - 1),
            stop=_Cancelled(tuning, searcher),
            verbose=0,
        ),
    )


def _trial(config: dict, **shared) -> None:
    """The function that Ray Tune calls; text, because Tune flattens nested results."""
    outcome = execute_trial(config["name"], config["point"], **shared)
    tune.report({"outcome": json.dumps(asdict(outcome))})


# ---------------------------------------------------------------------------------------------------- resources


def _placement(problem: Problem, point: Point, execution: Execution, resources: Resources):
    """What Ray reserves for a trial: a rank's CPUs, GPUs and the memory that its largest run needs.

    A sharded trial only waits for Ray Train's workers, which have reservations of their own.
    """
    if trial_ranks(problem, execution, point) > 1:
        return tune.PlacementGroupFactory([{"memory": MEMORY_STEP}])
    bundle = {"CPU": resources.cpus_per_rank, "memory": trial_memory(problem, point)}
    if resources.gpus_per_rank:
        bundle = {"CPU": resources.cpus_per_rank, "GPU": resources.gpus_per_rank}
    return tune.PlacementGroupFactory([bundle])


def _most_ranks(tuning: Tuning, resources: Resources) -> Callable[[], float]:
    """Asks how many ranks there may be at once.

    A trial that waits for room is drawn without the results of those before it, and no pause or limit holds it up: so
    none waits but for machines that the cluster may yet start, as many as `max_concurrent` wants of them.
    """
    if tuning.max_concurrent and not has_fixed_size():
        return lambda: math.inf
    return lambda: capacity(resources).most


def trial_ranks(problem: Problem, execution: Execution, point: Point) -> int:
    """Of the widest of a trial's nodes, which run one after another."""
    ranks = (execution.of_node(node.config, dict(node.tags)).num_ranks for node in problem.nodes(point))
    return max(ranks, default=1)


def trial_memory(problem: Problem, point: Point) -> int:
    """Bytes of a one-process trial on a CPU: the largest of its runs and the process itself."""
    runs = [node.config for node in problem.nodes(point) if node.kind == "run"]
    largest = max((needs(run, 1, MACHINES["cpu"]).memory.total for run in runs), default=0)
    return math.ceil((largest + PROCESS_BYTES) / MEMORY_STEP) * MEMORY_STEP


# ----------------------------------------------------------------------------------------------------- searcher


class _Unsaved:
    """Ray Tune stores its searcher and stopper for a restoration that we never ask for; ours stay in this process."""

    def __reduce__(self):
        return object, ()

    def __deepcopy__(self, memo):
        return self


class _Cancelled(_Unsaved, tune.Stopper):
    """Ends running trials too; their checkpoints stay."""

    def __init__(self, tuning: Tuning, searcher: "_Searcher"):
        self._decide, self._searcher = tuning.decide, searcher

    def __call__(self, trial_id: str, result: dict) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._searcher.error is not None or self._decide() == CANCEL


class _Searcher(_Unsaved, Searcher):
    """Ray Tune's view of a source."""

    def __init__(
        self,
        source: Source,
        tuning: Tuning,
        ranks_of: Callable[[Point], int],
        most_ranks: Callable[[], float],
        on_start,
        on_end,
    ):
        super().__init__(metric="outcome", mode="min")
        self._source, self._tuning, self._ranks_of, self._most_ranks = source, tuning, ranks_of, most_ranks
        self._on_start, self._on_end = on_start, on_end
        self._ranks: dict[str, int] = {}  # of running trials
        self._widest = 1  # of the trials so far: the next one's is known only when it is drawn
        self._running: dict[str, tuple[Proposal, float]] = {}
        self._most, self._ask_again = 0, 0.0
        self.error: Exception | None = None  # of the end of a trial; Ray Tune would make it text, and the trial's own

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
        """The cluster is asked now and then, because Ray Tune asks for the next trial many times a second."""
        if not self._running:
            return True
        if 0 < self._tuning.max_concurrent <= len(self._running):
            return False
        if time.monotonic() >= self._ask_again:
            self._most, self._ask_again = self._most_ranks(), time.monotonic() + ASK_CLUSTER_EVERY_S
        return sum(self._ranks.values()) + self._widest <= self._most

    def on_trial_result(self, trial_id: str, result: dict) -> None:
        """A trial reports once, at its end."""

    def on_trial_complete(self, trial_id: str, result: dict | None = None, error: bool = False) -> None:
        proposal, started = self._running.pop(trial_id)
        self._ranks.pop(trial_id)
        if result and "outcome" in result:
            outcome = told(json.loads(result["outcome"]))
        elif error:
            message = f"its process died {MAX_CRASHES} times"
            facts = {"name": proposal.name, "point": proposal.point, "state": FAILED, "message": message}
            outcome = Outcome(**facts, started=started, elapsed_s=time.time() - started)
        else:
            return  # cancelled: the next driver adopts it
        try:
            self._source.tell(proposal, outcome)
            self._on_end(outcome)
        except Exception as error:
            self.error = error  # raised when Ray Tune has ended

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the source's state is elsewhere."""
        with open(checkpoint_path, "wb"):
            pass

    def restore(self, checkpoint_path: str) -> None:
        raise NotImplementedError("a search is continued by submitting it again")
