"""The MaxEnt searches: those of `experiments/maxent_search.py`, and the one that a study's preset begins with.

A search's preset is the study's own with one seed, so that trials start from the very baselines of the study, and the
best trial of a profile is the study's run of that seed.
"""

from dataclasses import dataclass, fields, replace

from gram_platform.searches.definition import Scene
from gram_platform.searches.flags import OptunaFlags
from gram_platform.searches.maxent import MaxEntSearch
from gram_platform.searches.maxent_problem import METHOD
from gram_platform.searches.run import build_scene, checked_flags, search_id
from gram_platform.store import Store
from gram_platform.study import Preset, Study, dual_use, stories
from gram_platform.study.best_trials import is_complete
from gram_platform.study.build import preset_of
from gram_platform.study.definition import MaxEntRanges
from gram_platform.study.flags import CommonFlags, Flags

NUM_SEEDS = 1  # of a search, however many its study has [ours]: the authors searched for every seed


def _searched(preset: Preset, ranges: MaxEntRanges | None = None) -> Preset:
    return replace(preset, num_seeds=NUM_SEEDS, maxent_search=ranges or preset.maxent_search)


SEARCH = MaxEntSearch(
    name="maxent_search",
    title="MaxEnt's learning rate and retain weight",
    question="Which learning rate and retain weight let MaxEnt forget most without losing more than 5% of core's and "
    "the retained domains' compute, for each profile?",
    presets={
        # the demo's 500 steps stand for 2,000: rates up to the baseline's, not the paper's 1 to 4% of it [ours]
        "smoke": _searched(stories.SMOKE, MaxEntRanges((5e-4, 4e-3), (2.0, 200.0), num_trials=2)),
        "demo": _searched(stories.DEMO, MaxEntRanges((5e-4, 4e-3), (2.0, 200.0), num_trials=16)),
        "paper": _searched(stories.PAPER),
        "dual_use": _searched(dual_use.PAPER),
    },
)


@dataclass(frozen=True)
class NeededSearch:
    """A search whose best trials a study takes as MaxEnt's parameters."""

    search: MaxEntSearch
    scene: Scene

    @property
    def flags(self) -> OptunaFlags:
        return self.scene.flags

    @property
    def search_id(self) -> str:
        return search_id(self.search, self.scene)

    def is_complete(self) -> bool:
        """Whether the storage has all its trials."""
        return is_complete(Store(self.flags.storage), self.search_id, self.search.num_trials[self.flags.preset])


def needed_search(study: Study, flags: Flags) -> NeededSearch | None:
    """The search that the study's preset begins with; None where the preset has fixed parameters, --maxent names a
    search, or MaxEnt is not among the methods.

    ValueError for several sizes: what is best at one is not at another.
    """
    preset, flags = preset_of(study, flags)
    if preset.maxent_search is None or flags.maxent or METHOD not in flags.methods:
        return None
    search = replace(SEARCH, presets={flags.preset: _searched(preset)}).of_preset(flags.preset)
    common = {field.name: getattr(flags, field.name) for field in fields(CommonFlags)}
    own = checked_flags(search, OptunaFlags(**{**common, "seeds": NUM_SEEDS}))
    return NeededSearch(search, build_scene(search, own))
