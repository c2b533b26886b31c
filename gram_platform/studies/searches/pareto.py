"""The search for GRAM's trade-off: core and retain as high, elicited forget as low as they go together.

Searched are p_as and p_cr (the routing), d_aux (the modules' width) and the peak learning rate. With `equal_compute`
lambda keeps the training compute fixed whatever d_aux is; what p_cr adds to a core batch is not in the paper's formula
and stands in the metric `compute`. One Optuna study of three objectives with its multi-objective TPE, not NSGA-II: a
search here has tens of trials, and NSGA-II needs generations of about fifty before it learns anything from them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gram_platform.analysis.maxent_objective import HIGHEST_RATIO, references_of
from gram_platform.analysis.ratios import BASELINE
from gram_platform.config.identity import invalid, to_plain
from gram_platform.config.ladder import Size
from gram_platform.config.space import Parameter, Space
from gram_platform.engine.proposals import Objective
from gram_platform.engine.trials import Point
from gram_platform.methods.nodes import Node, method_nodes, unique
from gram_platform.store import Store
from gram_platform.studies.searches.definition import OptunaSearch, Scene, Written
from gram_platform.studies.searches.flags import OptunaFlags
from gram_platform.studies.searches.frames import baseline_frames
from gram_platform.studies.searches.pareto_problem import (
    D_AUX,
    P_AS,
    P_CR,
    PEAK_LR,
    ParetoProblem,
    default_point,
    point_nodes,
)
from gram_platform.studies.searches.pareto_report import written
from gram_platform.tracking import Tracker

GROUP = "front"
# a diverged trial: beyond everything that ratios clipped to [0, HIGHEST_RATIO] can reach
TOLD = (
    Objective("core", "maximize", -1.0),
    Objective("retain", "maximize", -1.0),
    Objective("elicited", "minimize", HIGHEST_RATIO + 1.0),
)
LIMITS = (
    Parameter(P_AS, 0.0, 1.0),
    Parameter(P_CR, 0.0, 1.0),
    Parameter(D_AUX, 1, 1_000_000, is_integer=True),
    Parameter(PEAK_LR, 1e-8, 1.0),
)


def space_around(size: Size) -> Space:
    """Both probabilities whole; the width from a quarter to four times the size's, the rate from a quarter to twice."""
    width, rate = size.d_aux, size.peak_lr
    axes = (
        Parameter(P_AS, 0.0, 1.0),
        Parameter(P_CR, 0.0, 1.0),
        Parameter(D_AUX, max(1, width // 4), 4 * width, log=True, is_integer=True),
        Parameter(PEAK_LR, rate / 4, 2 * rate, log=True),
    )
    return Space(axes, LIMITS)


@dataclass(frozen=True)
class ParetoSearch(OptunaSearch):
    """One Optuna study of three objectives at one size."""

    objectives: Sequence[Objective] = TOLD

    flags_type = OptunaFlags

    def checked(self, flags: OptunaFlags) -> OptunaFlags:
        """ValueError for several sizes, for a preset without an attack, and for a bad space."""
        if len(flags.sizes) != 1:
            raise invalid("sizes", flags.sizes, "one size: a front is of one model")
        if self.presets[flags.preset].options.elicitation is None:
            raise invalid("preset", flags.preset, "a preset with an attack: `elicited` is measured by it")
        space_around(self.presets[flags.preset].sizes[flags.sizes[0]]).with_overrides(flags.space)
        return flags

    def space(self, scene: Scene) -> Space:
        return space_around(scene.settings[0].size).with_overrides(scene.flags.space)

    def groups(self, scene: Scene) -> dict[str, Point]:
        return {GROUP: {}}

    def prerequisites(self, scene: Scene) -> list[Node]:
        """The baselines, and GRAM as the preset has it: what the front is read against."""
        baselines = [node for setting in scene.settings for node in method_nodes(BASELINE, setting)]
        return unique([*baselines, *self._default_nodes(scene)])

    def identity(self, scene: Scene) -> dict:
        """The preset's own nodes stand for data, size, seeds, budgets and attacks."""
        return {
            "prerequisites": [node.id for node in self.prerequisites(scene)],
            "space": to_plain(self.space(scene).parameters),
            "objectives": to_plain(tuple(self.objectives)),
        }

    def problem(self, scene: Scene, store: Store) -> ParetoProblem:
        baselines = [node for setting in scene.settings for node in method_nodes(BASELINE, setting)]
        references = references_of(*baseline_frames(store, baselines), scene.settings[0].size.name)
        return ParetoProblem(scene.settings, references)

    def example(self, scene: Scene) -> list[Node]:
        """As many points as there will be trials, from the low end of every range to the high one."""
        num_trials = scene.flags.trials or self.num_trials[scene.flags.preset]
        problem, space = ParetoProblem(scene.settings, {}), self.space(scene)
        points = [{p.name: _between(p, share) for p in space.parameters} for share in np.linspace(0.0, 1.0, num_trials)]
        return unique(node for point in points for node in problem.nodes(point))

    def write(self, scene: Scene, store: Store, tracker: Tracker | None, search_id: str) -> Written | None:
        return written(self, scene, store, tracker, search_id)

    def _default_nodes(self, scene: Scene) -> list[Node]:
        return [node for setting in scene.settings for node in point_nodes(setting, default_point(setting))]


def _between(parameter: Parameter, share: float) -> float | int:
    if parameter.log:
        value = parameter.low * (parameter.high / parameter.low) ** share
    else:
        value = parameter.low + share * (parameter.high - parameter.low)
    return round(value) if parameter.is_integer else float(value)
