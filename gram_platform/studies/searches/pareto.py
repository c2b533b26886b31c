"""Searches GRAM's trade-off: high core and retain together with low elicited forget.

It varies p_as and p_cr (the routing), d_aux (the modules' width) and the peak learning rate. With `equal_compute`,
lambda keeps the training compute fixed at every d_aux; the paper's formula leaves out what p_cr adds to a core batch,
which the metric `compute` includes. Optuna's multi-objective TPE proposes points for three objectives. NSGA-II would
need generations of about fifty trials, and a search here has tens of trials in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gram_platform.analysis.maxent_objective import HIGHEST_RATIO
from gram_platform.config.identity import invalid, to_plain
from gram_platform.config.ladder import Size
from gram_platform.config.space import Parameter, SearchObjective, Space
from gram_platform.methods.nodes import Node, unique
from gram_platform.store import Store
from gram_platform.studies.searches.definition import OptunaFlags, OptunaSearch

if TYPE_CHECKING:
    from gram_platform.engine.trials import Point
    from gram_platform.studies.build import Graph
    from gram_platform.studies.searches.pareto_trials import ParetoProblem
    from gram_platform.studies.searches.report import SearchOutput
    from gram_platform.tracking import Tracker

GROUP = "front"
# a diverged trial: beyond everything that ratios clipped to [0, HIGHEST_RATIO] can reach
SEARCH_OBJECTIVES = (
    SearchObjective("core", "maximize", -1.0),
    SearchObjective("retain", "maximize", -1.0),
    SearchObjective("elicited", "minimize", HIGHEST_RATIO + 1.0),
)


def space_around(size: Size) -> Space:
    """Makes the space: both probabilities from 0 to 1, the width times 1/4 to 4, the rate times 1/4 to 2."""
    from gram_platform.studies.searches.pareto_trials import D_AUX, P_AS, P_CR, PARETO_LIMITS, PEAK_LR

    width, rate = size.d_aux, size.peak_lr
    axes = (
        Parameter(P_AS, 0.0, 1.0),
        Parameter(P_CR, 0.0, 1.0),
        Parameter(D_AUX, max(1, width // 4), 4 * width, log=True, is_integer=True),
        Parameter(PEAK_LR, rate / 4, 2 * rate, log=True),
    )
    return Space(axes, PARETO_LIMITS)


@dataclass(frozen=True)
class ParetoSearch(OptunaSearch):
    """Runs one Optuna study of three objectives at one size."""

    objectives: Sequence[SearchObjective] = SEARCH_OBJECTIVES

    def checked(self, flags: OptunaFlags) -> OptunaFlags:
        """ValueError for several sizes, for a preset without an attack, and for a bad space."""
        if len(flags.sizes) != 1:
            raise invalid("sizes", flags.sizes, "one size: a front is of one model")
        if self.presets[flags.preset].options.elicitation is None:
            raise invalid("preset", flags.preset, "a preset with an attack: `elicited` is measured by it")
        space_around(self.presets[flags.preset].sizes[flags.sizes[0]]).with_overrides(flags.space)
        return flags

    def space(self, graph: Graph) -> Space:
        return space_around(graph.settings[0].size).with_overrides(graph.flags.space)

    def groups(self, graph: Graph) -> dict[str, Point]:
        return {GROUP: {}}

    def prerequisites(self, graph: Graph) -> list[Node]:
        """Returns the baselines, and GRAM with the preset's parameters for comparison with the front."""
        from gram_platform.studies.searches.pareto_trials import default_point, point_nodes

        preset_nodes = [node for s in graph.settings for node in point_nodes(s, default_point(s))]
        return unique([*graph.baselines, *preset_nodes])

    def identity(self, graph: Graph) -> dict:
        """Hashes the preset's nodes, which depend on data, size, seeds, budgets and attacks."""
        return {
            "prerequisites": [node.id for node in self.prerequisites(graph)],
            "space": to_plain(self.space(graph).parameters),
            "objectives": to_plain(tuple(self.objectives)),
        }

    def problem(self, graph: Graph, store: Store) -> ParetoProblem:
        from gram_platform.studies.searches.pareto_trials import ParetoProblem
        from gram_platform.studies.searches.report import stored_references

        return ParetoProblem(graph.settings, stored_references(graph, store))

    def example(self, graph: Graph) -> list[Node]:
        """Returns the nodes of as many points as there will be trials, from the low ends of all ranges to the high."""
        from gram_platform.studies.searches.optuna_studies import spread_points
        from gram_platform.studies.searches.pareto_trials import ParetoProblem

        problem = ParetoProblem(graph.settings, {})
        points = spread_points(self.space(graph), np.linspace(0.0, 1.0, self.target(graph)))
        return unique(node for point in points for node in problem.nodes(point))

    def write(self, graph: Graph, store: Store, tracker: Tracker | None, search_id: str) -> SearchOutput | None:
        from gram_platform.studies.searches.pareto_trials import pareto_report

        return pareto_report(graph, store, tracker, search_id)
