"""Defines a search: the declaration in an experiment file, and the questions that each kind of search answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gram_platform.analysis.ratios import BASELINE
from gram_platform.config.space import Space
from gram_platform.corpora import CorpusRecipe
from gram_platform.engine.proposals import SearchObjective
from gram_platform.engine.trials import Point, Problem
from gram_platform.methods import Setting
from gram_platform.methods.nodes import Node, method_nodes, unique
from gram_platform.store import Store
from gram_platform.studies import Preset
from gram_platform.studies.searches.flags import OptunaFlags, SearchFlags
from gram_platform.studies.searches.report import SearchOutput
from gram_platform.tracking import Tracker

SEARCH_VERSION = 1  # part of every search's id: raised when trials of before and after are not comparable


@dataclass(frozen=True)
class SearchSetup:
    """The flags and preset of a search, the corpus of each size, and the setting of every size and seed."""

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
        """The corpus of the first size; those of other sizes have the same domains."""
        return next(iter(self.recipes.values()))

    @property
    def data_id(self) -> str:
        """The data of all sizes, joined by commas."""
        return ", ".join(dict.fromkeys(recipe.data_id for recipe in self.recipes.values()))

    @property
    def baselines(self) -> list[Node]:
        """The baseline of every size and seed, and its evaluation."""
        return unique(node for setting in self.settings for node in method_nodes(BASELINE, setting))

    def settings_of(self, size: str) -> tuple[Setting, ...]:
        """Returns the settings of one size, one for each seed."""
        return tuple(setting for setting in self.settings if setting.size.name == size)


def setting_at(settings: Sequence[Setting], point: Point) -> Setting:
    """Returns the setting of a point's size and seed."""
    return next(s for s in settings if (s.size.name, s.seed) == (point["size"], point["seed"]))


@dataclass(frozen=True)
class Search:
    """The declaration of a search; kinds are subclasses of `GridSearch` or `OptunaSearch`."""

    name: str
    title: str
    question: str
    presets: Mapping[str, Preset]
    default_preset: str = "demo"

    flags_type = SearchFlags

    def of_preset(self, name: str) -> "Search":
        """Returns the search as one of its presets changes it."""
        return self

    def checked(self, flags: SearchFlags) -> SearchFlags:
        """Returns the flags with the kind's defaults; ValueError for flags that it cannot serve."""
        return flags

    def prerequisites(self, setup: SearchSetup) -> list[Node]:
        """Returns the nodes that all trials need, such as baselines."""
        return []

    def identity(self, setup: SearchSetup) -> Mapping:
        """Returns the content of the search's id: equal for equal questions on equal data, however many trials."""
        raise NotImplementedError

    def problem(self, setup: SearchSetup, store: Store) -> Problem:
        """Returns the nodes and score of trials; the prerequisites must be complete."""
        raise NotImplementedError

    def example(self, setup: SearchSetup) -> list[Node]:
        """Returns the nodes of all trials, as far as they are known now, for `--dry-run` and to check the data."""
        raise NotImplementedError

    def write(self, setup: SearchSetup, store: Store, tracker: Tracker | None, search_id: str) -> SearchOutput | None:
        """Returns tables, figures and report of the trials so far; None while there is nothing to report."""
        raise NotImplementedError


@dataclass(frozen=True)
class GridSearch(Search):
    """Runs every point of a list, which may grow with the results."""

    def points(self, setup: SearchSetup, store: Store) -> tuple[list[tuple[str, Point]], list[str]]:
        """Returns all named points, as far as the results demand them now, and announcements.

        Called again after each round of trials, until no point is new.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class OptunaSearch(Search):
    """Runs points that Optuna chooses, in one Optuna study for each group."""

    objectives: Sequence[SearchObjective] = ()
    num_trials: Mapping[str, int] = field(default_factory=dict)  # of each preset, in each group

    flags_type = OptunaFlags

    def space(self, setup: SearchSetup) -> Space:
        """Returns the ranges of the preset, or those of `--space`; ValueError for a bad one."""
        raise NotImplementedError

    def target(self, setup: SearchSetup) -> int:
        """Returns the number of trials to complete in each group."""
        return setup.flags.trials or self.num_trials[setup.flags.preset]

    def groups(self, setup: SearchSetup) -> Mapping[str, Point]:
        """Returns the names of the Optuna studies, and the part of the point that each one holds fixed."""
        raise NotImplementedError
