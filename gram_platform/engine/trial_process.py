"""Executes trials in a process of Ray Tune, and defines what that process reports to the search's driver.

A process takes one trial after another until one fails or crashes in it. It reports that, and raises an error in the
next step: that is how Ray Tune ends a process.
"""

import queue
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from ray import tune

from gram_platform.config import State
from gram_platform.engine.devices import DeviceError, ProbeReport, device_errors_probed, probe_here
from gram_platform.engine.execution import Execution, Resources
from gram_platform.engine.life import failure_message
from gram_platform.engine.process import is_out_of_memory
from gram_platform.engine.proposals import Proposal
from gram_platform.engine.trials import Outcome, Problem, TrialWatch, execute_trial, trial_ranks
from gram_platform.train.data import start_thread

SCORED = "scored"  # the names of the metrics in a trial's last report
FACTS = tuple(f.name for f in fields(Outcome) if f.name not in ("name", "point", "metrics", "nodes", "runs"))
CRASH, LACKS_MEMORY = "crash", "lacks_memory"  # the facts of a crash
OF_DEVICE = "probe/"  # the prefix of the facts about the process's device
COMMIT_S = 600.0  # that a trial which was told to end may take to write its checkpoint


class Trial(tune.Trainable):
    """Executes one trial after another in one process of Ray Tune, each in a thread that reports never hold up.

    A trial reports numbers at each evaluation of its runs (`TrialWatch.see`), and at its end its metrics with the facts
    of its outcome, or its crash, beside those of the process's device. Told to stop, it ends after the current step and
    a checkpoint.
    """

    def setup(self, config: dict, **shared) -> None:
        self._shared = shared
        self._probe: ProbeReport | None = None  # of this process's device, once a trial needs it
        self._begin(config)

    def _begin(self, config: dict) -> None:
        self._prepare()
        self._thread = start_thread("trial", self._work, config)

    def _prepare(self) -> None:
        self._reports: queue.SimpleQueue[dict] = queue.SimpleQueue()
        self._watch = TrialWatch(self._reports.put)
        self._is_over = False  # a trial has failed or crashed here

    def _work(self, config: dict) -> None:
        try:
            report = plain_result(self._executed(**config, **self._shared))
        except BaseException as error:  # SystemExit too: this machine is drained
            report = plain_crash(error)
        self._reports.put(report | plain_probe(self._probe))

    def _executed(self, problem: Problem, execution: Execution, resources: Resources, cordoned, **trial) -> Outcome:
        """Executes a trial. The first on this process's device probes it before; raises DeviceError."""
        try:
            if self._probe is None and trial_ranks(trial["placements"].values()) == 1:
                self._probe = probe_here(execution)
                if self._probe.failure:
                    raise DeviceError(self._probe.failure, self._probe)
            resources = replace(resources, cordoned=tuple(cordoned))
            with device_errors_probed(execution.device):
                where = {"problem": problem, "execution": execution, "resources": resources}
                return execute_trial(**trial, **where, watch=self._watch)
        except DeviceError as error:
            self._probe = error.probe
            raise

    def step(self) -> dict:
        """Returns the newest report, waiting for one. Raises an error after that of a failure or a crash."""
        if self._is_over:
            raise RuntimeError("this process takes no more trials")
        report = self._reports.get()
        while not self._reports.empty():
            report = self._reports.get()
        self._is_over = ends_process(report)
        return report

    def reset_config(self, new_config: dict) -> bool:
        """Begins the next trial in this process, once the one before has ended. It crashes if that takes too long.

        False would lose the trial: Ray Tune does not tell the searcher.
        """
        if self._end():
            self._begin(new_config)
        else:
            self._prepare()
            self._reports.put(plain_crash(TimeoutError(f"the trial before did not end in {COMMIT_S:.0f} s")))
        return True

    def cleanup(self) -> None:
        self._end()

    def _end(self) -> bool:
        """Tells the trial to end; False if it has not within `COMMIT_S`."""
        self._watch.give()
        self._thread.join(COMMIT_S)
        return not self._thread.is_alive()


def plain_crash(error: BaseException) -> dict[str, Any]:
    """Returns the report that a process could not execute a trial to its end; another may, also after an error of its
    device or a lack of memory.
    """
    message = str(error) if isinstance(error, DeviceError) else failure_message(error)
    return {"progress": 0.0, CRASH: message, LACKS_MEMORY: is_out_of_memory(error)}


def plain_probe(probe: ProbeReport | None) -> dict[str, str]:
    """Returns what a process reports of its device; {} before it was probed."""
    return {OF_DEVICE + name: text for name, text in asdict(probe).items()} if probe else {}


def reported_probe(result: Mapping[str, Any]) -> ProbeReport | None:
    """Reads what a process reports of its device."""
    facts = {name.removeprefix(OF_DEVICE): text for name, text in result.items() if name.startswith(OF_DEVICE)}
    return ProbeReport(**facts) if facts else None


def plain_result(outcome: Outcome) -> dict[str, Any]:
    """Returns a trial's last report: its metrics as numbers, and the facts of its outcome as numbers and texts.

    Ray Tune may keep the process when `done` is true.
    """
    facts = {fact: getattr(outcome, fact) for fact in FACTS}
    lists = {"nodes": " ".join(outcome.nodes), "runs": " ".join(outcome.runs), SCORED: " ".join(outcome.metrics)}
    metrics = {name: float(value) for name, value in outcome.metrics.items()}
    return {"progress": 1.0, **facts, **lists, **metrics, "done": outcome.state != State.FAILED}


def ends_process(result: Mapping[str, Any]) -> bool:
    """Tells whether a report is of a failure or a crash, after which its process takes no further trial."""
    return CRASH in result or result.get("state") == State.FAILED


def outcome_of(proposal: Proposal, result: Mapping[str, Any]) -> Outcome:
    """Reads an outcome from a trial's last report."""
    lists = {name: tuple(result[name].split()) for name in ("nodes", "runs")}
    metrics = {name: result[name] for name in result[SCORED].split()}
    facts = {fact: result[fact] for fact in FACTS}
    return Outcome(name=proposal.name, point=dict(proposal.point), metrics=metrics, **lists, **facts)
