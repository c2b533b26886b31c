"""Decides whether a trial starts again after the end of its process, and on which machines."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import ray
from ray import tune
from ray.util.placement_group import PlacementGroup, placement_group

from gram_platform.engine.capacity import slots, usable_machines
from gram_platform.engine.cordon import Cordon
from gram_platform.engine.execution import NODE_ID
from gram_platform.engine.life import MAX_CRASHES, Crashes
from gram_platform.engine.trial_process import CRASH, LACKS_MEMORY, reported_probe
from gram_platform.engine.trials import Point


class Patience:
    """Counts each trial's crashes since its last checkpoint. Those on machines that turn out not to work do not count.

    A trial has failed after `MAX_CRASHES`, or when it lacks memory in a second process.
    """

    def __init__(self, cordon: Cordon, committed_of: Callable[[Point], int]):
        """`committed_of`: counts the steps of a point's runs that are saved."""
        self.cordon, self._committed_of = cordon, committed_of
        self._crashes: dict[str, Crashes] = {}
        self._lacked_memory: set[str] = set()

    def failure(self, trial: str, point: Point, report: Mapping[str, Any]) -> str:
        """Counts a reported crash; returns why the trial has failed by it, or "": then it starts again."""
        probe = reported_probe(report)
        if probe is not None and not self.cordon.note(probe):
            return ""
        if report[LACKS_MEMORY]:
            is_second = trial in self._lacked_memory
            self._lacked_memory.add(trial)
            return report[CRASH] if is_second else ""
        before = self._crashes.get(trial, Crashes())
        crashes = before.another(self._committed_of(point), probe.machine if probe else "")
        self._crashes[trial] = crashes = crashes.without(*self.cordon.resources.cordoned)
        if crashes.number < MAX_CRASHES:
            return ""
        return f"{report[CRASH]} ({MAX_CRASHES} crashes without a checkpoint in between)"


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
        """Names the machines that may be chosen: those that are there, when the cluster shall not grow any more.

        A trial of several ranks only waits for them: it has the driver's machine, which is not preempted.
        """
        if not {"CPU", "GPU"} & self.bundles[0].keys():
            return {NODE_ID: ray.get_runtime_context().get_node_id()}
        resources = self._cordon.resources
        if self._avoided:
            others = replace(resources, cordoned=(*resources.cordoned, self._avoided))
            resources = others if any(slots(others, machine) for machine in usable_machines(others)) else resources
        if self._cordon.may_grow:
            return resources.label_selector
        there = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] not in resources.cordoned]
        return {NODE_ID: f"in({','.join(there)})"}

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) and getattr(other, "_avoided", "") == self._avoided

    def __hash__(self) -> int:
        return super().__hash__()

    def __getstate__(self) -> dict:
        """Leaves the cordon in this process: Ray Tune pickles its trials for a restore that is never used."""
        return super().__getstate__() | {"_cordon": None}
