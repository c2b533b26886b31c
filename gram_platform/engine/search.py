"""Runs the trials of a search on Ray Tune, as many at once as fit on the cluster.

Ray Tune places trials, and reuses and restarts their processes. `_Searcher` proposes trials and
enforces limits. A search resumes from Optuna's database and the storage, never from Tune's own
results in `<storage>/tune`.
"""

import logging
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher

from gram_platform.config import State
from gram_platform.config.endings import Stopped
from gram_platform.config.terminal import one_line, say
from gram_platform.engine.capacity import Admission, Cordon, count_slots, usable_machines
from gram_platform.engine.cluster import require_ray
from gram_platform.engine.execution import (
    NODE_ID,
    ON_ONE_RANK,
    Execution,
    Placement,
    results_place,
)
from gram_platform.engine.life import FAILED, LACKS_MEMORY, CrashPolicy
from gram_platform.engine.ray_private import error_of_trial, treat_memory_kill_as_crash
from gram_platform.engine.trial_process import (
    KIND,
    SCORED,
    crash_report,
    ends_process,
    outcome_in,
    probe_in,
    trial_class,
)
from gram_platform.engine.trials import (
    Outcome,
    Problem,
    Proposal,
    Source,
    count_committed_steps,
    reservation,
    trial_ranks,
)
from gram_platform.methods.nodes import Node

TUNE = {
    # The most processes that start at once, by default 1. Tune gives a waiting trial the next free
    # process and cancels its pending start. If processes started one by one, trials shorter than a
    # start would never use more than one process.
    "TUNE_MAX_PENDING_TRIALS_PG": "64",
    # With Tune's handler an interrupted search would look as if it had ended.
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    # The most seconds of Tune's results that a killed driver may lose.
    "TUNE_GLOBAL_CHECKPOINT_S": "30",
    # Turned off, because the driver prints progress itself.
    "RAY_AIR_NEW_OUTPUT": "0",
    # Turned off, because a trial that diverged or crashed reports no metric.
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    # Turned off, because every process ends with an error.
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
}
TUNE_FOLDER = "tune"
treat_memory_kill_as_crash()


@dataclass(frozen=True)
class Tuning:
    """The settings with which Ray Tune runs the trials of a search."""

    # The name of the folder of Tune's files.
    name: str
    # The most trials at once, or 0 for as many as the cluster may hold.
    max_concurrent: int = 0
    retry_diverged: bool = False
    # The metric that `get_best_result()` of Tune's results minimises, or "".
    metric: str = ""


class TrialWatch:
    """Observes trials and decides whether another may start. Errors raised here end the search."""

    def may_start(self) -> bool:
        """Returns True if another trial may start, that is, if no limit has been reached."""
        return True

    def require_lead(self) -> None:
        """Raises Stopped if another driver has taken over the search."""

    def trial_started(self, proposal: Proposal) -> None:
        pass

    def trial_ended(self, outcome: Outcome) -> None:
        pass


def run_trials(
    source: Source,
    problem: Problem,
    execution: Execution,
    cordon: Cordon,
    tuning: Tuning,
    watch: TrialWatch,
    place: Callable[[Node], Placement] = lambda node: ON_ONE_RANK,
) -> None:
    """Runs all trials of `source` on an initialised Ray cluster, except on cordoned machines.

    `place` returns the placement of a trial's node. An error raised by `source` or `watch` stops
    the trials and propagates. Raises ClusterLost if no machine has a working device.
    """
    for name, value in TUNE.items():
        os.environ.setdefault(name, value)
    logging.getLogger("ray.tune").setLevel(logging.ERROR)
    searcher = _Searcher(source, problem, execution, cordon, tuning, watch, place)
    trial = trial_class(problem, execution, cordon.resources, tuning.retry_diverged)
    path, filesystem = results_place(execution.storage, TUNE_FOLDER, tuning.name)
    tune.Tuner(
        trial,
        tune_config=tune.TuneConfig(
            metric=tuning.metric or None,
            mode="min" if tuning.metric else None,
            search_alg=searcher,
            scheduler=_Scheduler(searcher, cordon),
            # The searcher ends the search.
            num_samples=sys.maxsize,
            reuse_actors=True,
            trial_dirname_creator=_folder_name,
        ),
        run_config=tune.RunConfig(
            name=time.strftime("%Y%m%dT%H%M%S", time.gmtime()) + f"-{os.getpid()}",
            storage_path=path,
            storage_filesystem=filesystem,
            # Checkpoints of runs are in the storage.
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            # Tune always restarts a trial, and the scheduler stops a trial that has failed.
            failure_config=tune.FailureConfig(max_failures=-1),
            stop=searcher,
            verbose=0,
        ),
    ).fit()
    if searcher.error is not None:
        raise searcher.error


def _folder_name(trial) -> str:
    """Names a trial's results folder after the trial, because TensorBoard shows this name."""
    return re.sub(r"[^\w.+-]+", "_", trial.config["name"])[:100] + f"-{trial.trial_id}"


class _StaysHere:
    """Keeps an object's state out of Ray Tune's checkpoints, which are never restored."""

    def __getstate__(self) -> dict:
        return {}

    def __deepcopy__(self, memo):
        return self


class _Scheduler(_StaysHere, FIFOScheduler):
    """Places trials, tells the searcher why their processes exited, and stops failed trials.

    Ray Tune itself would restart every trial whose process exited.
    """

    def __init__(self, searcher: "_Searcher", cordon: Cordon):
        super().__init__()
        self._searcher, self._cordon = searcher, cordon
        self._last_reports: dict[str, Mapping[str, Any]] = {}
        self._avoided: dict[str, str] = {}

    def on_trial_result(self, tune_controller, trial, result: dict) -> str:
        if ends_process(result):
            self._last_reports[trial.trial_id] = result
        return self.CONTINUE

    def on_trial_error(self, tune_controller, trial) -> None:
        report = self._last_reports.pop(trial.trial_id, None) or crash_report(error_of_trial(trial))
        self._searcher.note_end_of_process(trial.trial_id, report)
        if report.get(KIND) == LACKS_MEMORY and (probe := probe_in(report)):
            self._avoided[trial.trial_id] = probe.machine

    def on_trial_add(self, tune_controller, trial) -> None:
        if trial.trial_id in self._searcher.over:
            tune_controller.stop_trial(trial)
            return
        resources = self._cordon.resources
        bundle = reservation(trial.config["placements"].values(), resources)
        selector = machines_for(bundle, self._cordon, self._avoided.get(trial.trial_id, ""))
        options = {"bundle_label_selector": [selector]} if selector else {}
        trial.update_resources(tune.PlacementGroupFactory([bundle], **options))
        # A multi-rank trial requests its ranks itself.
        trial.config["cordoned"] = list(resources.cordoned)


def machines_for(bundle: Mapping[str, float], cordon: Cordon, avoided: str = "") -> dict[str, str]:
    """Returns Ray's label selector for the machines that may execute a trial, or {} for all.

    If the cluster must not grow, the selector lists only present machines. The process of a
    multi-rank trial only waits for the ranks, so it runs on the driver's machine, which is not
    preempted. `avoided` is the id of a machine to use only if no other machine is large enough.
    """
    if not {"CPU", "GPU"} & bundle.keys():
        return {NODE_ID: ray.get_runtime_context().get_node_id()}
    resources = cordon.resources
    if avoided:
        others = replace(resources, cordoned=(*resources.cordoned, avoided))
        if any(count_slots(others, machine) for machine in usable_machines(others)):
            resources = others
    if cordon.may_grow:
        return resources.label_selector
    alive = (node["NodeID"] for node in ray.nodes() if node["Alive"])
    return {NODE_ID: f"in({','.join(i for i in alive if i not in resources.cordoned)})"}


class _Searcher(_StaysHere, Searcher, tune.Stopper):
    """Proposes a source's trials to Ray Tune, and reports their outcomes to the source.

    If the search has an error, stops all running trials. The checkpoints of their runs remain.
    """

    def __init__(
        self,
        source: Source,
        problem: Problem,
        execution: Execution,
        cordon: Cordon,
        tuning: Tuning,
        watch: TrialWatch,
        place: Callable[[Node], Placement],
    ):
        super().__init__()
        self._source, self._tuning, self._watch = source, tuning, watch
        self._problem, self._execution, self._place = problem, execution, place
        self._cordon, self._admission = cordon, Admission(cordon.resources)
        self._policy = CrashPolicy(cordon)
        self._ranks: dict[str, int] = {}
        # The most ranks of any trial so far, as a guess for the next trial.
        self._widest = 1
        self._running: dict[str, tuple[Proposal, float]] = {}
        # The outcomes of failed trials, which Ray Tune must not restart.
        self.over: dict[str, Outcome] = {}
        # Kept here, because Ray Tune would turn the error into text and blame the trial.
        self.error: Exception | None = None

    def has_failed(self) -> bool:
        """Returns True if the search has an error, for example because Ray has died."""
        try:
            require_ray()
            self._watch.require_lead()
            self._cordon.require_machines(min(self._ranks.values(), default=1))
        except Stopped as error:
            self.error = error
        return self.error is not None

    def __call__(self, trial_id: str, result: dict) -> bool:
        return False

    def stop_all(self) -> bool:
        return self.has_failed()

    def suggest(self, trial_id: str) -> dict | str | None:
        if self.has_failed() or not self._watch.may_start():
            return Searcher.FINISHED
        if not self._fits():
            return None
        proposal = self._source.next()
        if proposal is None:
            return Searcher.FINISHED
        self._running[trial_id] = (proposal, time.time())
        placements = {node.id: self._place(node) for node in self._problem.nodes(proposal.point)}
        self._ranks[trial_id] = trial_ranks(placements.values())
        self._admission.in_flight[self._ranks[trial_id]] += 1
        self._widest = max(self._widest, self._ranks[trial_id])
        self._watch.trial_started(proposal)
        return {"name": proposal.name, "point": dict(proposal.point), "placements": placements}

    def _fits(self) -> bool:
        """Returns True if another trial may be proposed.

        Normally, a trial is proposed only when it can start, so that Optuna knows as many results
        as possible. If the proposal does not depend on results, or if `max_concurrent` is set, the
        trial may be proposed earlier on a cluster that can grow. The trial then waits in Ray's
        queue, so that the autoscaler starts machines.
        """
        max_concurrent = self._tuning.max_concurrent
        if not self._running:
            return True
        if 0 < max_concurrent <= len(self._running):
            return False
        may_wait = (bool(max_concurrent) or self._source.is_independent) and self._cordon.may_grow
        return self._admission.free_resources(may_wait).take(self._widest)

    def note_end_of_process(self, trial_id: str, report: Mapping[str, Any]) -> None:
        proposal, started = self._running[trial_id]
        try:
            if KIND not in report:
                self.over[trial_id] = outcome_in(proposal, report)
            elif reason := self._why_failed(proposal, report):
                point, elapsed_s = dict(proposal.point), time.time() - started
                self.over[trial_id] = Outcome(
                    proposal.name, point, State.FAILED, started, elapsed_s, message=reason
                )
            self._admission.resources = self._cordon.resources
        except Exception as error:
            self.error = error

    def _why_failed(self, proposal: Proposal, report: Mapping[str, Any]) -> str:
        text, store, probe = report["message"], self._execution.store(), probe_in(report)
        saved_steps = count_committed_steps(self._problem, proposal.point, store)
        next_step = self._policy.after(proposal.name, report[KIND], text, saved_steps, probe)
        if next_step.action == FAILED:
            return next_step.text
        start = "it starts again from its last checkpoint"
        say(f"warning: {proposal.name}: {one_line(text)}; {start}")
        return ""

    def on_trial_complete(
        self, trial_id: str, result: dict | None = None, error: bool = False
    ) -> None:
        proposal, _ = self._running.pop(trial_id)
        self._admission.in_flight[self._ranks.pop(trial_id)] -= 1
        outcome = self.over.pop(trial_id, None)
        if outcome is None and result and SCORED in result:
            outcome = outcome_in(proposal, result)
            if probe := probe_in(result):
                self._cordon.note(probe)
        # A trial without an outcome was stopped with the search, and the next driver resumes it.
        if outcome is None:
            return
        try:
            self._source.tell(proposal, outcome)
            self._watch.trial_ended(outcome)
        except Exception as error:
            # `run_trials` raises it after Ray Tune has ended.
            self.error = error

    def save(self, checkpoint_path: str) -> None:
        """Writes an empty file, because Ray Tune expects one. The search's state is elsewhere."""
        with open(checkpoint_path, "wb"):
            pass
