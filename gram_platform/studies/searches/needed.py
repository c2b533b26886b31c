"""The MaxEnt search that a study's preset begins with."""

from dataclasses import dataclass, fields, replace

from gram_platform.store import Store
from gram_platform.studies import Study
from gram_platform.studies.build import is_complete, preset_of
from gram_platform.studies.flags import CommonFlags, Flags
from gram_platform.studies.library.maxent_search import NUM_SEEDS, SEARCH, searched
from gram_platform.studies.searches.definition import Scene
from gram_platform.studies.searches.flags import OptunaFlags
from gram_platform.studies.searches.maxent import MaxEntSearch
from gram_platform.studies.searches.maxent_problem import METHOD
from gram_platform.studies.searches.run import build_scene, checked_flags, search_id


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
    search = replace(SEARCH, presets={flags.preset: searched(preset)}).of_preset(flags.preset)
    common = {field.name: getattr(flags, field.name) for field in fields(CommonFlags)}
    own = checked_flags(search, OptunaFlags(**{**common, "seeds": NUM_SEEDS}))
    return NeededSearch(search, build_scene(search, own))
