"""Sweeps single hyperparameters: one knob moves, the others stay as in the preset.

A trial is one value of one knob at one size and seed: the whole method with its evaluations and attacks. Knobs of one
method share the run at the preset's values with one another and with the studies.

Source: the paper's "Hyperparameter Appendix" (`app:hyperparams`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gram_platform.config.identity import short_hash
from gram_platform.methods.nodes import Node, unique
from gram_platform.store import Store
from gram_platform.studies.flag_groups import Texts
from gram_platform.studies.searches.definition import GridSearch, SearchFlags, TrialFlags
from gram_platform.studies.searches.knobs import Values, chosen_values

if TYPE_CHECKING:
    from gram_platform.engine.trials import Point
    from gram_platform.studies.build import Graph
    from gram_platform.studies.searches.hyperparams_trials import SweepProblem
    from gram_platform.studies.searches.report import SearchOutput
    from gram_platform.tracking import Tracker


@dataclass(frozen=True)
class KnobFlags(TrialFlags):
    """Of this search.

    Args:
        knobs: knobs to sweep (default: all of the preset): p_cr, p_as, p_ca, or one with its values as p_cr=0:0.5:1
    """

    knobs: Texts = ()


@dataclass(frozen=True)
class SweepFlags(KnobFlags, SearchFlags):
    """The flags of sweeps."""


@dataclass(frozen=True)
class HyperparameterSweep(GridSearch):
    """Runs every value of every knob, at every size and seed."""

    # The values of each preset.
    values: Mapping[str, Values] = field(default_factory=dict)

    flags_type = SweepFlags

    def checked(self, flags: SweepFlags) -> SweepFlags:
        """ValueError for an unknown knob and for values outside its range."""
        chosen_values(flags.knobs, self.values[flags.preset])
        return flags

    def prerequisites(self, graph: Graph) -> list[Node]:
        return graph.baselines

    def identity(self, graph: Graph) -> dict:
        """Hashes the nodes, which depend on data, sizes, seeds and everything that the preset fixes."""
        ids = [node.id for node in (*self.prerequisites(graph), *self.example(graph))]
        values = {knob: list(values) for knob, values in self.sweep_values(graph).items()}
        return {"data_id": graph.data_id, "knobs": values, "nodes": short_hash(ids)}

    def sweep_values(self, graph: Graph) -> Values:
        return chosen_values(graph.flags.knobs, self.values[graph.flags.preset])

    def all_points(self, graph: Graph) -> list[Point]:
        """Returns every point, by knob, value, size and seed."""
        return [
            {"knob": knob, "value": value, "size": setting.size.name, "seed": setting.seed}
            for knob, values in self.sweep_values(graph).items()
            for value in values
            for setting in graph.settings
        ]

    def points(self, graph: Graph, store: Store) -> tuple[list[tuple[str, Point]], list[str]]:
        """Returns every point; those that share another point's runs come last and reuse them."""
        from gram_platform.studies.searches.hyperparams_trials import SweepProblem, trial_name

        problem, seen, first, again = SweepProblem(graph.settings), set(), [], []
        for point in self.all_points(graph):
            run_id = problem.nodes(point)[0].id
            (again if run_id in seen else first).append((trial_name(point), point))
            seen.add(run_id)
        return first + again, []

    def problem(self, graph: Graph, store: Store) -> SweepProblem:
        from gram_platform.studies.searches.hyperparams_trials import SweepProblem
        from gram_platform.studies.searches.report import baseline_frames

        evaluations, curves = baseline_frames(store, graph.baselines)
        return SweepProblem(graph.settings, evaluations.assign(knob=None, value=math.nan), curves)

    def example(self, graph: Graph) -> list[Node]:
        from gram_platform.studies.searches.hyperparams_trials import SweepProblem

        problem = SweepProblem(graph.settings)
        return unique(node for point in self.all_points(graph) for node in problem.nodes(point))

    def write(self, graph: Graph, store: Store, tracker: Tracker | None, search_id: str) -> SearchOutput | None:
        from gram_platform.studies.searches.hyperparams_trials import sweep_report

        values, points = self.sweep_values(graph), self.all_points(graph)
        return sweep_report(values, points, graph, store, tracker, search_id)
