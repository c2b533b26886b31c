"""Executes trials in a Ray Tune process, and defines its reports to the driver.

A process executes one trial after another. If a trial fails or crashes, the process reports this
and raises an error in the next step, because Ray Tune ends a process only after an error.
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

# Keys of a trial's report, for the names of its metrics, the kind of a crash (`life.kind_of`), and
# the probe of the device.
SCORED, KIND, PROBE = "scored", "kind", "probe"
# The fields of an outcome that a report contains under their own names.
FACTS = tuple(f.name for f in fields(Outcome) if f.name not in ("name", "point", "metrics"))


class Trial(tune.Trainable):
    """Executes trials in one Ray Tune process. Each trial reports once, at its end."""

    problem: Problem
    execution: Execution
    resources: Resources
    retry_diverged: bool

    def setup(self, config: dict) -> None:
        self._config = config
        # The last probe of this process's device, or None before a trial needs one.
        self._probe: ProbeReport | None = None
        self._is_over = False

    def step(self) -> dict:
        if self._is_over:
            raise RuntimeError("this process takes no more trials")
        try:
            report = outcome_report(self._execute())
        except BaseException as error:
            # This includes SystemExit, with which a process on a drained machine exits.
            report = crash_report(error)
        self._is_over = ends_process(report)
        # The probe is a tuple, because Ray Tune flattens a dict.
        return report | {PROBE: astuple(self._probe) if self._probe else ()}

    def reset_config(self, new_config: dict) -> bool:
        self._config = new_config
        return True

    def _execute(self) -> Outcome:
        name, point, placements = (self._config[key] for key in ("name", "point", "placements"))
        resources = replace(self.resources, cordoned=tuple(self._config["cordoned"]))
        try:
            if self._probe is None and trial_ranks(placements.values()) == 1:
                self._probe = probe_here(self.execution)
                if self._probe.failure:
                    raise DeviceError(self._probe.failure, self._probe)
            with probe_after_error(self.execution.device):
                executed = self.problem, self.execution, resources, self.retry_diverged, placements
                return execute_trial(name, point, *executed)
        except DeviceError as error:
            self._probe = error.probe
            raise


def trial_class(
    problem: Problem, execution: Execution, resources: Resources, retry_diverged: bool
) -> type[Trial]:
    """Returns a subclass of `Trial` with the arguments as attributes, shared by all trials.

    `tune.with_parameters` would put the values into Ray's object store. If the Ray process on this
    machine then died, Ray would end the driver without a message.
    """
    shared = {"problem": problem, "execution": execution, "resources": resources}
    # The name is `Trial`, because users who read Tune's results name this class.
    return type(Trial.__name__, (Trial,), shared | {"retry_diverged": retry_diverged})


def crash_report(error: BaseException) -> dict[str, Any]:
    """Returns the report of a crash. Another process may then execute the trial."""
    kind = LACKS_MEMORY if kind_of(error) == LACKS_MEMORY else CRASHED
    return {KIND: kind, "message": failure_message(error)}


def outcome_report(outcome: Outcome) -> dict[str, Any]:
    """Returns the report of a trial's outcome.

    Metrics come first, because TensorBoard shows only five numbers by default. If the field `done`
    is true, Tune may reuse the process for another trial.
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
