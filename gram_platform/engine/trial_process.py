"""Executes trials in a process of Ray Tune, and defines what it reports to the driver.

A process takes one trial after another until one fails or crashes in it. It reports that, and
raises an error in the next step, which is how Ray Tune ends a process.
"""

from collections.abc import Mapping
from dataclasses import astuple, fields, replace
from typing import Any

from ray import tune

from gram_platform.config import State
from gram_platform.engine.devices import DeviceError, ProbeReport, probe_after_error, probe_here
from gram_platform.engine.execution import Execution, Resources
from gram_platform.engine.life import CRASHED, LACKS_MEMORY, failure_message, kind_of
from gram_platform.engine.trials import Outcome, Problem, Proposal, execute_trial, trial_ranks

# Keys of a trial's report: its metrics' names, a crash's kind (`life.kind_of`), the device's probe.
SCORED, KIND, PROBE = "scored", "kind", "probe"
FACTS = tuple(f.name for f in fields(Outcome) if f.name not in ("name", "point", "metrics"))


class Trial(tune.Trainable):
    """Executes trials in one process of Ray Tune, each of which reports once, at its end."""

    # What all trials share; see `trial_class`.
    problem: Problem
    execution: Execution
    resources: Resources
    retry_diverged: bool

    def setup(self, config: dict) -> None:
        self._config = config
        # The report about this process's device, once a trial needs it.
        self._probe: ProbeReport | None = None
        self._is_over = False

    def step(self) -> dict:
        """Executes the trial; returns its report. Raises an error after a failure or a crash."""
        if self._is_over:
            raise RuntimeError("this process takes no more trials")
        try:
            report = outcome_report(self._execute())
        except BaseException as error:
            # SystemExit, too: Ray drains this machine.
            report = crash_report(error)
        self._is_over = ends_process(report)
        # Ray Tune would make each key of a dict one of the report.
        return report | {PROBE: astuple(self._probe) if self._probe else ()}

    def reset_config(self, new_config: dict) -> bool:
        self._config = new_config
        return True

    def _execute(self) -> Outcome:
        """Executes a trial, after a probe of this process's device if it is the first on it."""
        name, point, placements = (self._config[key] for key in ("name", "point", "placements"))
        resources = replace(self.resources, cordoned=tuple(self._config["cordoned"]))
        try:
            if self._probe is None and trial_ranks(placements.values()) == 1:
                self._probe = probe_here(self.execution)
                if self._probe.failure:
                    raise DeviceError(self._probe.failure, self._probe)
            with probe_after_error(self.execution.device):
                return execute_trial(
                    name,
                    point,
                    self.problem,
                    self.execution,
                    resources,
                    self.retry_diverged,
                    placements,
                )
        except DeviceError as error:
            self._probe = error.probe
            raise


def trial_class(
    problem: Problem, execution: Execution, resources: Resources, retry_diverged: bool
) -> type[Trial]:
    """Returns the class of a search's trials, which carries what they share.

    `tune.with_parameters` would put that into Ray's object store. There it is lost when Ray's
    process on this machine dies, and Ray then ends the driver without a message.
    """
    shared = {"problem": problem, "execution": execution, "resources": resources}
    # Ray Tune compares the class's name when a user reads its results with `Trial`.
    return type(Trial.__name__, (Trial,), shared | {"retry_diverged": retry_diverged})


def crash_report(error: BaseException) -> dict[str, Any]:
    """Reports that this process cannot execute a trial to its end, though another one may."""
    kind = LACKS_MEMORY if kind_of(error) == LACKS_MEMORY else CRASHED
    return {KIND: kind, "message": failure_message(error)}


def outcome_report(outcome: Outcome) -> dict[str, Any]:
    """Reports how a trial ended.

    The metrics come first for TensorBoard. Ray Tune may keep the process if `done` is true.
    """
    metrics = {name: float(value) for name, value in outcome.metrics.items()}
    facts = {fact: getattr(outcome, fact) for fact in FACTS}
    return {**metrics, **facts, SCORED: list(metrics), "done": outcome.state != State.FAILED}


def ends_process(report: Mapping[str, Any]) -> bool:
    return KIND in report or report.get("state") == State.FAILED


def probe_in(report: Mapping[str, Any]) -> ProbeReport | None:
    return ProbeReport(*report[PROBE]) if report.get(PROBE) else None


def outcome_in(proposal: Proposal, report: Mapping[str, Any]) -> Outcome:
    metrics = {name: report[name] for name in report[SCORED]}
    facts = {fact: report[fact] for fact in FACTS}
    return Outcome(proposal.name, dict(proposal.point), metrics=metrics, **facts)
