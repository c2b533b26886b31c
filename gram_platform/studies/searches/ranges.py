"""The ranges in which MaxEnt's rate and weight are searched."""

from typing import Any

from gram_platform.config.identity import invalid, require_int
from gram_platform.config.space import Parameter, Space
from gram_platform.studies.flags import split_list
from gram_platform.studies.plan import StudyPlan
from gram_platform.studies.searches.definition import Search
from gram_platform.studies.searches.flags import OptunaFlags

MAXENT_LIMITS = (Parameter("peak_lr", 1e-8, 1.0), Parameter("retain_weight", 0.0, 1e6))


def read_ranges(search: Search, flags: OptunaFlags, part: StudyPlan) -> dict[str, Any]:
    """Reads the fields of `MaxEntSearch`: the ranges of the preset, or those of `--space`.

    ValueError for several sizes, since each has its own best parameters, and for a bad space.
    """
    require_int("trials", flags.trials, 0)
    if len(sizes := part.sizes) != 1:
        raise invalid("sizes", sizes, "one size: each size has its own best parameters")
    ranges = part.preset.maxent_search
    space = space_of(ranges.peak_lr, ranges.retain_weight).with_overrides(split_list(flags.space))
    return {"name": ranges.search, "space": space, "target": flags.trials or ranges.num_trials}


def space_of(peak_lr: tuple[float, float], retain_weight: tuple[float, float]) -> Space:
    """Makes the space of two logarithmic ranges, as the authors searched the rate; for the weight
    it is ours."""
    axes = (
        Parameter("peak_lr", *peak_lr, log=True),
        Parameter("retain_weight", *retain_weight, log=True),
    )
    return Space(axes, MAXENT_LIMITS)
