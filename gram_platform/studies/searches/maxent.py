"""Searches MaxEnt's learning rate and retain weight, with one Optuna study for each profile.

The paper tunes them "per profile via Bayesian optimization" (`app:stories`); the objective is ours,
see `analysis/maxent_objective.py`. A trial unlearns from the baseline of every seed and evaluates
the result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gram_platform.analysis.maxent_objective import MaxEntObjective
from gram_platform.config.identity import invalid
from gram_platform.config.space import Parameter, Space
from gram_platform.studies.definition import Preset
from gram_platform.studies.plan import StudyPlan
from gram_platform.studies.searches.definition import Search
from gram_platform.studies.searches.trial_flags import OptunaFlags

if TYPE_CHECKING:
    from gram_platform.studies.searches.maxent_trials import MaxEntWork

DEFAULT_OBJECTIVE = MaxEntObjective()
MAXENT_LIMITS = (Parameter("peak_lr", 1e-8, 1.0), Parameter("retain_weight", 0.0, 1e6))


def space_of(peak_lr: tuple[float, float], retain_weight: tuple[float, float]) -> Space:
    """Makes the space of two logarithmic ranges, as the authors searched the rate; for the weight
    it is ours."""
    axes = (
        Parameter("peak_lr", *peak_lr, log=True),
        Parameter("retain_weight", *retain_weight, log=True),
    )
    return Space(axes, MAXENT_LIMITS)


@dataclass(frozen=True)
class MaxEntSearch(Search):
    """Runs one Optuna study for each profile, all at once; each preset has its ranges and number of
    trials."""

    objective: MaxEntObjective = DEFAULT_OBJECTIVE

    flags_type = OptunaFlags
    needs_optuna = True

    def of_preset(self, name: str) -> MaxEntSearch:
        """Returns the search under the name that the preset's ranges give it."""
        return replace(self, name=self.presets[name].maxent_search.search)

    def checked(self, flags: OptunaFlags, part: StudyPlan) -> OptunaFlags:
        """ValueError for several sizes, since each has its own best parameters, and for a bad
        space."""
        if len(sizes := part.choice.sizes) != 1:
            raise invalid("sizes", sizes, "one size: each size has its own best parameters")
        self.space(flags, part.preset)
        return flags

    def space(self, flags: OptunaFlags, preset: Preset) -> Space:
        """Returns the ranges of the preset, or those of `--space`; ValueError for a bad one."""
        ranges = preset.maxent_search
        return space_of(ranges.peak_lr, ranges.retain_weight).with_overrides(flags.space)

    def work_type(self) -> type[MaxEntWork]:
        from gram_platform.studies.searches.maxent_trials import MaxEntWork

        return MaxEntWork
