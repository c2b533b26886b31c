"""Executes trials in a process of Ray Tune, and defines what it reports to the driver.

A process takes one trial after another until one fails or crashes in it. It reports that, and
raises an error in the next step: that is how Ray Tune ends a process. Where the next one starts is
decided here too.
"""

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

import ray
from ray import tune
from ray.util.placement_group import PlacementGroup, placement_group

from gram_platform.config import State
from gram_platform.engine.capacity import Cordon, slots, usable_machines
from gram_platform.engine.devices import DeviceError, ProbeReport, device_errors_probed, probe_here
from gram_platform.engine.execution import NODE_ID, Execution, Resources
from gram_platform.engine.life import CRASHED, LACKS_MEMORY, failure_message, kind_of
from gram_platform.engine.proposals import Proposal
from gram_platform.engine.trials import Outcome, Problem, execute_trial, trial_ranks

# The names of the metrics in a trial's last report.
SCORED = "scored"
FACTS = tuple(
    f.name for f in fields(Outcome) if f.name not in ("name", "point", "metrics", "nodes", "runs")
)
# The facts of a crash: its text, and its kind (`life.kind_of`).
CRASH, KIND = "crash", "kind"
# The prefix of the facts about the process's device.
OF_DEVICE = "probe/"


class Trial(tune.Trainable):
    """Executes one trial after another in one process of Ray Tune.

    A trial reports once, at its end: its metrics with the facts of its outcome, or its crash, and
    the facts of the process's device.
    """

    def setup(self, config: dict, **shared) -> None:
        self._shared, self._config = shared, config
        # The report about this process's device, once a trial needs it.
        self._probe: ProbeReport | None = None
        # True once a trial has failed or crashed here.
        self._is_over = False

    def _executed(
        self, problem: Problem, execution: Execution, resources: Resources, cordoned, **trial
    ) -> Outcome:
        """Executes a trial.

        The first on this process's device probes it before; raises DeviceError.
        """
        try:
            if self._probe is None and trial_ranks(trial["placements"].values()) == 1:
                self._probe = probe_here(execution)
                if self._probe.failure:
                    raise DeviceError(self._probe.failure, self._probe)
            resources = replace(resources, cordoned=tuple(cordoned))
            with device_errors_probed(execution.device):
                where = {"problem": problem, "execution": execution, "resources": resources}
                return execute_trial(**trial, **where)
        except DeviceError as error:
            self._probe = error.probe
            raise

    def step(self) -> dict:
        """Executes the trial; returns its report.

        Raises an error after that of a failure or a crash.
        """
        if self._is_over:
            raise RuntimeError("this process takes no more trials")
        try:
            report = plain_result(self._executed(**self._config, **self._shared))
        except BaseException as error:
            # SystemExit, too: Ray drains this machine.
            report = plain_crash(error)
        self._is_over = ends_process(report)
        return report | plain_probe(self._probe)

    def reset_config(self, new_config: dict) -> bool:
        """Takes the next trial in this process."""
        self._config = new_config
        return True


def plain_crash(error: BaseException) -> dict[str, Any]:
    """Reports that a process could not execute a trial to its end; another may.

    That holds after an error of its device or a lack of memory too.
    """
    kind = LACKS_MEMORY if kind_of(error) == LACKS_MEMORY else CRASHED
    return {CRASH: failure_message(error), KIND: kind}


def plain_probe(probe: ProbeReport | None) -> dict[str, str]:
    """Returns what a process reports of its device; {} before it was probed."""
    return {OF_DEVICE + name: text for name, text in asdict(probe).items()} if probe else {}


def reported_probe(result: Mapping[str, Any]) -> ProbeReport | None:
    """Reads what a process reports of its device."""
    facts = {
        name.removeprefix(OF_DEVICE): text
        for name, text in result.items()
        if name.startswith(OF_DEVICE)
    }
    return ProbeReport(**facts) if facts else None


def plain_result(outcome: Outcome) -> dict[str, Any]:
    """Returns a trial's last report: metrics as numbers, facts as numbers and texts.

    The metrics come first, as TensorBoard then shows them. Ray Tune may keep the process when
    `done` is true.
    """
    facts = {fact: getattr(outcome, fact) for fact in FACTS}
    lists = {
        "nodes": " ".join(outcome.nodes),
        "runs": " ".join(outcome.runs),
        SCORED: " ".join(outcome.metrics),
    }
    metrics = {name: float(value) for name, value in outcome.metrics.items()}
    return {**metrics, **facts, **lists, "done": outcome.state != State.FAILED}


def ends_process(result: Mapping[str, Any]) -> bool:
    """Returns whether a report is of a failure or a crash, which ends its process."""
    return CRASH in result or result.get("state") == State.FAILED


def outcome_of(proposal: Proposal, result: Mapping[str, Any]) -> Outcome:
    """Reads an outcome from a trial's last report."""
    lists = {name: tuple(result[name].split()) for name in ("nodes", "runs")}
    metrics = {name: result[name] for name in result[SCORED].split()}
    facts = {fact: result[fact] for fact in FACTS}
    return Outcome(
        name=proposal.name, point=dict(proposal.point), metrics=metrics, **lists, **facts
    )


class TrialResources(tune.PlacementGroupFactory):
    """Places a trial's process each time on a machine that is not cordoned then."""

    def __init__(self, bundle: Mapping[str, float], cordon: Cordon, avoided: str = ""):
        """`avoided`: the id of a machine that shall not be chosen where there is another.

        A trial that avoids a machine shares no process with others, so it gets a new one.
        """
        super().__init__([dict(bundle)])
        self._cordon, self._avoided = cordon, avoided

    def to_placement_group(self) -> PlacementGroup:
        selector = self._selector()
        return placement_group(self.bundles, bundle_label_selector=[selector] if selector else None)

    def _selector(self) -> dict[str, str]:
        """Names the machines that may be chosen.

        If the cluster shall not grow any more, these are the machines that are there. A trial of
        several ranks only waits for them: it has the driver's machine, which is not preempted.
        """
        if not {"CPU", "GPU"} & self.bundles[0].keys():
            return {NODE_ID: ray.get_runtime_context().get_node_id()}
        resources = self._cordon.resources
        if self._avoided:
            others = replace(resources, cordoned=(*resources.cordoned, self._avoided))
            resources = (
                others
                if any(slots(others, machine) for machine in usable_machines(others))
                else resources
            )
        if self._cordon.may_grow:
            return resources.label_selector
        there = [
            node["NodeID"]
            for node in ray.nodes()
            if node["Alive"] and node["NodeID"] not in resources.cordoned
        ]
        return {NODE_ID: f"in({','.join(there)})"}

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) and getattr(other, "_avoided", "") == self._avoided

    def __hash__(self) -> int:
        return super().__hash__()

    def __getstate__(self) -> dict:
        """Leaves the cordon here: Ray Tune pickles its trials for a restore that is never used."""
        return super().__getstate__() | {"_cordon": None}
