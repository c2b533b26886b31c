"""A search as a value: what an experiment file declares, and what a kind of search must answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gram_platform.config.space import Space
from gram_platform.corpora import CorpusRecipe
from gram_platform.engine.proposals import Objective
from gram_platform.engine.trials import Point, Problem
from gram_platform.methods import Setting
from gram_platform.methods.nodes import Node
from gram_platform.store import Store
from gram_platform.studies import Preset
from gram_platform.studies.searches.flags import SearchFlags
from gram_platform.tracking import Tracker

SEARCH_VERSION = 1  # part of every search's id: raised when trials of before and after are not comparable


@dataclass(frozen=True)
class Scene:
    """Where a search stands: flags, each size's corpus, and the cell of every size and seed."""

    flags: SearchFlags
    preset: Preset
    recipes: Mapping[str, CorpusRecipe]
    settings: tuple[Setting, ...]

    @property
    def num_seeds(self) -> int:
        """The most seeds that a size has."""
        return len({setting.seed for setting in self.settings})

    @property
    def recipe(self) -> CorpusRecipe:
        """Of the first size; those of the others have the same domains."""
        return next(iter(self.recipes.values()))

    @property
    def data_id(self) -> str:
        """The data of all sizes; several, with commas between, where each size has its own."""
        return ", ".join(dict.fromkeys(recipe.data_id for recipe in self.recipes.values()))

    def settings_of(self, size: str) -> tuple[Setting, ...]:
        """The cells of one size, a seed each."""
        return tuple(setting for setting in self.settings if setting.size.name == size)


@dataclass(frozen=True)
class Written:
    """What a search leaves for people: files by name, figures for MLflow, and the text for the terminal."""

    files: Mapping[str, bytes]
    figures: Mapping[str, object]
    text: str


@dataclass(frozen=True)
class Search:
    """What every kind of search is declared with; kinds are subclasses of `GridSearch` or `OptunaSearch`."""

    name: str
    title: str
    question: str
    presets: Mapping[str, Preset]
    default_preset: str = "demo"

    flags_type = SearchFlags

    def of_preset(self, name: str) -> "Search":
        """The search as it is for one of its presets."""
        return self

    def checked(self, flags: SearchFlags) -> SearchFlags:
        """The flags with the kind's defaults; ValueError for what it cannot do."""
        return flags

    def prerequisites(self, scene: Scene) -> list[Node]:
        """What must be done before the first trial, such as baselines."""
        return []

    def identity(self, scene: Scene) -> Mapping:
        """What the search's id hashes: equal for equal questions on equal data; not how long it is pursued."""
        raise NotImplementedError

    def problem(self, scene: Scene, store: Store) -> Problem:
        """What the trials do; the prerequisites are complete."""
        raise NotImplementedError

    def example(self, scene: Scene) -> list[Node]:
        """The nodes of all trials as far as they are known now, for `--dry-run` and to check the data."""
        raise NotImplementedError

    def write(self, scene: Scene, store: Store, tracker: Tracker | None, search_id: str) -> Written | None:
        """Tables, figures and report of what is done; None while there is nothing."""
        raise NotImplementedError


@dataclass(frozen=True)
class GridSearch(Search):
    """Every point of a list that may grow with what is found."""

    def points(self, scene: Scene, store: Store) -> tuple[list[tuple[str, Point]], list[str]]:
        """All named points as the results so far demand them, and announcements. Called again until none are new."""
        raise NotImplementedError


@dataclass(frozen=True)
class OptunaSearch(Search):
    """Points that Optuna chooses, in one study for each group."""

    objectives: Sequence[Objective] = ()
    num_trials: Mapping[str, int] = field(default_factory=dict)  # of each preset, in each group

    def space(self, scene: Scene) -> Space:
        raise NotImplementedError

    def groups(self, scene: Scene) -> Mapping[str, Point]:
        """Names of the Optuna studies and the part of the point that each one holds."""
        raise NotImplementedError
