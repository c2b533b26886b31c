"""The search over MaxEnt's parameters: learning rate and retain weight of every profile, an Optuna study each.

The paper tunes them "per profile via Bayesian optimization" (`app:stories`); what is minimised is ours, see
`analysis/maxent_objective.py`. A trial unlearns from the baseline of every seed and evaluates the outcome.
"""

from dataclasses import dataclass, replace

from gram_platform.analysis.maxent_objective import MaxEntObjective, references_of
from gram_platform.analysis.ratios import BASELINE, Reference
from gram_platform.config.identity import invalid, to_plain
from gram_platform.config.space import Parameter, Space
from gram_platform.engine.proposals import Objective
from gram_platform.engine.trials import Point
from gram_platform.methods.nodes import Node, method_nodes, unique
from gram_platform.store import Store
from gram_platform.studies.searches.definition import OptunaSearch, Scene, Written
from gram_platform.studies.searches.flags import OptunaFlags
from gram_platform.studies.searches.frames import baseline_frames
from gram_platform.studies.searches.maxent_problem import (
    METRIC,
    PEAK_LR,
    PROFILE,
    RETAIN_WEIGHT,
    MaxEntProblem,
    default_values,
    searched_profiles,
)
from gram_platform.studies.searches.maxent_report import written
from gram_platform.tracking import Tracker

DEFAULT_OBJECTIVE = MaxEntObjective()
LIMITS = (Parameter(PEAK_LR, 1e-8, 1.0), Parameter(RETAIN_WEIGHT, 0.0, 1e6))


def space_of(peak_lr: tuple[float, float], retain_weight: tuple[float, float]) -> Space:
    """Both ranges on their logarithms: so the authors searched the rate; of the weight it is ours."""
    axes = (Parameter(PEAK_LR, *peak_lr, log=True), Parameter(RETAIN_WEIGHT, *retain_weight, log=True))
    return Space(axes, LIMITS)


@dataclass(frozen=True)
class MaxEntSearch(OptunaSearch):
    """One Optuna study a profile, all at once; every preset has the ranges that are searched, and a length."""

    objective: MaxEntObjective = DEFAULT_OBJECTIVE

    flags_type = OptunaFlags

    def __post_init__(self) -> None:
        told = Objective(METRIC, "minimize", self.objective.worst)
        object.__setattr__(self, "objectives", (told,))
        num_trials = {name: preset.maxent_search.num_trials for name, preset in self.presets.items()}
        object.__setattr__(self, "num_trials", num_trials)

    def of_preset(self, name: str) -> "MaxEntSearch":
        """The search under the name that the preset's ranges give it."""
        return replace(self, name=self.presets[name].maxent_search.search)

    def checked(self, flags: OptunaFlags) -> OptunaFlags:
        """ValueError for several sizes (what is best at one is not at another) and for a bad space."""
        if len(flags.sizes) != 1:
            raise invalid("sizes", flags.sizes, "one size: each size has its own best parameters")
        self._space(flags)
        return flags

    def space(self, scene: Scene) -> Space:
        return self._space(scene.flags)

    def _space(self, flags: OptunaFlags) -> Space:
        ranges = self.presets[flags.preset].maxent_search
        return space_of(ranges.peak_lr, ranges.retain_weight).with_overrides(flags.space)

    def groups(self, scene: Scene) -> dict[str, Point]:
        return {name: {PROFILE: name} for name in searched_profiles(scene.settings[0])}

    def prerequisites(self, scene: Scene) -> list[Node]:
        """The baseline of every seed and its evaluation."""
        return unique(node for setting in scene.settings for node in method_nodes(BASELINE, setting))

    def identity(self, scene: Scene) -> dict:
        """The nodes of the preset's own parameters stand for data, size, seeds and all that is not searched."""
        problem = MaxEntProblem(scene.settings, self.objective, {})
        points = [{**fixed, **default_values(scene.settings[0])} for fixed in self.groups(scene).values()]
        return {
            "data_id": scene.data_id,
            "baselines": [node.id for node in self.prerequisites(scene)],
            "unlearning": [node.id for point in points for node in problem.nodes(point)],
            "space": to_plain(self.space(scene).parameters),
            "objective": to_plain(self.objective),
        }

    def problem(self, scene: Scene, store: Store) -> MaxEntProblem:
        return MaxEntProblem(scene.settings, self.objective, stored_references(scene, store))

    def example(self, scene: Scene) -> list[Node]:
        """As many points a profile as there will be trials, stepping through the ranges."""
        problem = MaxEntProblem(scene.settings, self.objective, {})
        num_trials = scene.flags.trials or self.num_trials[scene.flags.preset]
        steps = [(index + 0.5) / num_trials for index in range(num_trials)]
        points = [
            {**fixed, **{p.name: _between(p, step) for p in self.space(scene).parameters}}
            for fixed in self.groups(scene).values()
            for step in steps
        ]
        return unique(node for point in points for node in problem.nodes(point))

    def write(self, scene: Scene, store: Store, tracker: Tracker | None, search_id: str) -> Written | None:
        return written(self, scene, store, tracker, search_id)


def stored_references(scene: Scene, store: Store) -> dict[str, Reference]:
    """The references of every domain from the baselines in the storage; ValueError while they are not complete."""
    nodes = [node for setting in scene.settings for node in method_nodes(BASELINE, setting)]
    return references_of(*baseline_frames(store, nodes), scene.settings[0].size.name)


def _between(parameter: Parameter, share: float) -> float:
    if parameter.log:
        return parameter.low * (parameter.high / parameter.low) ** share
    return parameter.low + share * (parameter.high - parameter.low)
