"""Computes the objective of the search for MaxEnt's hyperparameters.

The paper tunes learning rate and retain weight for each profile "via Bayesian optimization" and
does not give the objective. Ours is

    forget + penalty_weight (max(0, floor - core) + max(0, floor - retain)).

Forget, core and retain are mean compute ratios over the domains of their class and over seeds. The
floor applies to these means, since in a single seed even a baseline may be below it.

Every ratio is clipped to [0, HIGHEST_RATIO]. Otherwise one extreme ratio could outweigh all others:
a loss above an untrained model's has a negative ratio, and on a flat curve a slightly lower loss
can have a huge one. The tables of studies do not clip.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import pandas as pd

from gram_platform.analysis.ratios import Reference, baseline_references
from gram_platform.config import CORE
from gram_platform.config.identity import invalid, require_real

HIGHEST_RATIO = 4.0
METRIC = "objective"


@dataclass(frozen=True)
class MaxEntObjective:
    """The forget ratio plus a penalty if core or retain is low, in [0, worst). Lower is better."""

    # At 10, a fall of forget from 1 to 0 makes up for a shortfall of 0.1.
    penalty_weight: float = 10.0
    # The lowest compute ratio of core or retain without a penalty.
    floor: float = 0.95

    def __post_init__(self) -> None:
        require_real("maxent_objective.penalty_weight", self.penalty_weight, 0.0, open_low=True)
        require_real("maxent_objective.floor", self.floor, 0.0, HIGHEST_RATIO)

    @property
    def worst(self) -> float:
        """The objective of a diverged trial, 1 above the highest that `score` can return."""
        return HIGHEST_RATIO + 2.0 * self.penalty_weight * self.floor + 1.0

    def score_losses(
        self,
        references: Mapping[str, Reference],
        losses: Sequence[Mapping[str, float]],
        retained: Sequence[str],
    ) -> dict[str, float]:
        """Returns the `score` of losses, given as {domain: nats per token} for each seed."""
        rated = {
            d: [reference.ratio(of_seed[d]) for of_seed in losses]
            for d, reference in references.items()
        }
        return self.score(rated, retained)

    def score(
        self, ratios: Mapping[str, Sequence[float]], retained: Sequence[str]
    ) -> dict[str, float]:
        """Returns `objective, forget, penalty, core`, and `retain` if the profile retains a domain.

        `ratios` has one compute ratio per seed for every domain, including core. Raises ValueError
        if a ratio is NaN.
        """
        means = {d: fmean(_clip(d, ratio) for ratio in rated) for d, rated in ratios.items()}
        forget = fmean(means[d] for d in means if d != CORE and d not in retained)
        kept = {"core": means[CORE]}
        if retained:
            kept["retain"] = fmean(means[d] for d in retained)
        penalty = self.penalty_weight * sum(max(0.0, self.floor - ratio) for ratio in kept.values())
        return {METRIC: forget + penalty, "forget": forget, "penalty": penalty, **kept}


def references_of(
    evaluations: pd.DataFrame, curves: pd.DataFrame, size: str
) -> dict[str, Reference]:
    """Returns {domain: Reference} for a size, from frames of `tables.StudyLosses`.

    Raises ValueError if there is no baseline, if a baseline lacks its curve or final losses, or if
    a curve cannot be fitted.
    """
    of_size = (frame[frame["size"] == size] for frame in (evaluations, curves))
    fitted, notes = baseline_references(*of_size)
    references = {domain: reference for (_, domain), reference in fitted.items()}
    if notes or CORE not in references:
        reasons = "; ".join(f"{what}: {why}" for what, why in notes) or "no baselines"
        allowed = f"a size with complete baselines whose curves can be fitted ({reasons})"
        raise invalid("baselines", size, allowed)
    return references


def _clip(domain: str, ratio: float) -> float:
    if math.isnan(ratio):
        raise invalid(f"ratios[{domain}]", ratio, "a compute ratio")
    return min(max(float(ratio), 0.0), HIGHEST_RATIO)
