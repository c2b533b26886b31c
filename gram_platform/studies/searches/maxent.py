"""Searches MaxEnt's learning rate and retain weight, with one Optuna study for each profile.

The paper tunes them "per profile via Bayesian optimization" (`app:stories`); the objective is ours, see
`analysis/maxent_objective.py`. A trial unlearns from the baseline of every seed and evaluates the result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gram_platform.analysis.maxent_objective import METRIC, MaxEntObjective
from gram_platform.config.identity import invalid, to_plain
from gram_platform.config.space import Parameter, SearchObjective, Space
from gram_platform.methods.nodes import Node, unique
from gram_platform.store import Store
from gram_platform.studies.searches.definition import OptunaFlags, OptunaSearch

if TYPE_CHECKING:
    from gram_platform.engine.trials import Point
    from gram_platform.studies.build import Graph
    from gram_platform.studies.searches.maxent_trials import MaxEntProblem
    from gram_platform.studies.searches.report import SearchOutput
    from gram_platform.tracking import Tracker

DEFAULT_OBJECTIVE = MaxEntObjective()


def space_of(peak_lr: tuple[float, float], retain_weight: tuple[float, float]) -> Space:
    """Makes the space of two logarithmic ranges, as the authors searched the rate; for the weight it is ours."""
    from gram_platform.studies.searches.maxent_trials import MAXENT_LIMITS, PEAK_LR, RETAIN_WEIGHT

    axes = (Parameter(PEAK_LR, *peak_lr, log=True), Parameter(RETAIN_WEIGHT, *retain_weight, log=True))
    return Space(axes, MAXENT_LIMITS)


@dataclass(frozen=True)
class MaxEntSearch(OptunaSearch):
    """Runs one Optuna study for each profile, all at once; each preset has its ranges and number of trials."""

    objective: MaxEntObjective = DEFAULT_OBJECTIVE

    def __post_init__(self) -> None:
        object.__setattr__(self, "minimised", SearchObjective(METRIC, self.objective.worst))
        num_trials = {name: preset.maxent_search.num_trials for name, preset in self.presets.items()}
        object.__setattr__(self, "num_trials", num_trials)

    def of_preset(self, name: str) -> MaxEntSearch:
        """Returns the search under the name that the preset's ranges give it."""
        return replace(self, name=self.presets[name].maxent_search.search)

    def checked(self, flags: OptunaFlags) -> OptunaFlags:
        """ValueError for several sizes, since each has its own best parameters, and for a bad space."""
        if len(flags.sizes) != 1:
            raise invalid("sizes", flags.sizes, "one size: each size has its own best parameters")
        self._space(flags)
        return flags

    def space(self, graph: Graph) -> Space:
        return self._space(graph.flags)

    def _space(self, flags: OptunaFlags) -> Space:
        ranges = self.presets[flags.preset].maxent_search
        return space_of(ranges.peak_lr, ranges.retain_weight).with_overrides(flags.space)

    def groups(self, graph: Graph) -> dict[str, Point]:
        from gram_platform.studies.searches.maxent_trials import PROFILE, searched_profiles

        return {name: {PROFILE: name} for name in searched_profiles(graph.settings[0])}

    def prerequisites(self, graph: Graph) -> list[Node]:
        return graph.baselines

    def identity(self, graph: Graph) -> dict:
        """Hashes the nodes of the preset's parameters, which depend on data, size, seeds and what is not searched."""
        from gram_platform.studies.searches.maxent_trials import MaxEntProblem, default_values, plain_space

        problem = MaxEntProblem(graph.settings, self.objective, {})
        points = [{**fixed, **default_values(graph.settings[0])} for fixed in self.groups(graph).values()]
        return {
            "data_id": graph.data_id,
            "baselines": [node.id for node in graph.baselines],
            "unlearning": [node.id for point in points for node in problem.nodes(point)],
            "space": plain_space(self.space(graph)),
            "objective": to_plain(self.objective),
        }

    def problem(self, graph: Graph, store: Store) -> MaxEntProblem:
        from gram_platform.studies.searches.maxent_trials import MaxEntProblem
        from gram_platform.studies.searches.report import stored_references

        return MaxEntProblem(graph.settings, self.objective, stored_references(graph, store))

    def example(self, graph: Graph) -> list[Node]:
        """Returns the nodes of as many points for each profile as there will be trials, spread over the ranges."""
        from gram_platform.studies.searches.maxent_trials import MaxEntProblem
        from gram_platform.studies.searches.optuna_studies import spread_points

        problem = MaxEntProblem(graph.settings, self.objective, {})
        num_trials = self.target(graph)
        spread = spread_points(self.space(graph), [(index + 0.5) / num_trials for index in range(num_trials)])
        points = [{**fixed, **point} for fixed in self.groups(graph).values() for point in spread]
        return unique(node for point in points for node in problem.nodes(point))

    def write(self, graph: Graph, store: Store, tracker: Tracker | None, search_id: str) -> SearchOutput | None:
        from gram_platform.studies.searches.maxent_trials import maxent_report

        return maxent_report(graph, store, tracker, search_id)
