"""Sweeps single hyperparameters: one knob moves, the others stay as in the preset.

A trial is one value of one knob at one size and seed: the whole method with its evaluations and
attacks. Knobs of one method share the run at the preset's values with one another and with the
studies.

Source: the paper's "Hyperparameter Appendix" (`app:hyperparams`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gram_platform.studies.flags import Texts
from gram_platform.studies.plan import StudyPlan
from gram_platform.studies.searches.definition import Search
from gram_platform.studies.searches.knobs import Values, chosen_values
from gram_platform.studies.searches.trial_flags import TrialFlags

if TYPE_CHECKING:
    from gram_platform.studies.searches.hyperparams_trials import SweepWork


@dataclass(frozen=True)
class SweepFlags(TrialFlags):
    """Of this search.

    Args:
        knobs: knobs to sweep (default: all of the preset): p_cr, p_as, p_ca, or one with its values
            as p_cr=0:0.5:1
    """

    knobs: Texts = ()


@dataclass(frozen=True)
class HyperparameterSweep(Search):
    """Runs every value of every knob, at every size and seed."""

    # The values of each preset.
    values: Mapping[str, Values] = field(default_factory=dict)

    flags_type = SweepFlags

    def checked(self, flags: SweepFlags, part: StudyPlan) -> SweepFlags:
        """ValueError for an unknown knob and for values outside its range."""
        chosen_values(flags.knobs, self.values[part.preset_name])
        return flags

    def work_type(self) -> type[SweepWork]:
        from gram_platform.studies.searches.hyperparams_trials import SweepWork

        return SweepWork
