"""Defines a search: a study whose points come from a source, with the flags and questions of each kind of search.

What executes trials (Ray, Optuna, MLflow) is imported on first use: a declaration and its `--help` need none of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gram_platform.config.identity import invalid, require_int, short_hash
from gram_platform.config.space import SearchObjective, Space
from gram_platform.methods import Setting
from gram_platform.methods.nodes import Node
from gram_platform.planner import Machine, expected_hours
from gram_platform.store import Folder, Store
from gram_platform.studies.definition import Study, with_changes
from gram_platform.studies.flag_groups import FlagGroup, Number, Switch, Texts
from gram_platform.studies.flag_values import split_list
from gram_platform.studies.flags import CommonFlags, checked_common, parse_flags

if TYPE_CHECKING:
    from gram_platform.engine.proposals import Group, Source
    from gram_platform.engine.trials import Point, Problem
    from gram_platform.studies.build import Graph
    from gram_platform.studies.searches.report import SearchOutput
    from gram_platform.tracking import Tracker

# Part of every search's id: raised when trials of before and after are not comparable.
SEARCH_VERSION = 1


# ---------------------------------------------------------------------------------------------------------------- flags


@dataclass(frozen=True)
class TrialFlags(FlagGroup):
    """Of this search.

    Args:
        max_concurrent: at most so many trials at once (default: what the cluster holds; on one that can grow also the
            trials that depend on no result: all of a grid, the first ten of an Optuna study)
        report_only: build tables and report again from what is stored; start no trial
    """

    title = "search"

    max_concurrent: Number = 0
    report_only: Switch = False


@dataclass(frozen=True)
class SearchFlags(TrialFlags, CommonFlags):
    """The flags of every search."""

    def checked(self) -> SearchFlags:
        """Returns the flags that studies do not have with defaults filled in, after `checked_common`.

        ValueError naming flag and value.
        """
        require_int("max_concurrent", self.max_concurrent, 0)
        return self


@dataclass(frozen=True)
class OptunaTrialFlags(TrialFlags):
    """Of this search.

    Args:
        trials: trials to be complete, in each Optuna study of the search (default: the preset's)
        space: ranges in place of the preset's: name=low:high, name=log:low:high, or name=value to hold one
    """

    trials: Number = 0
    space: Texts = ()


@dataclass(frozen=True)
class OptunaFlags(OptunaTrialFlags, SearchFlags):
    """The flags of searches with Optuna."""

    def checked(self) -> OptunaFlags:
        require_int("trials", self.trials, 0)
        uri = _optuna_uri(self.optuna_uri, self.storage)
        return replace(super().checked(), space=split_list(self.space), optuna_uri=uri)


def _optuna_uri(uri: str, storage: str) -> str:
    """Returns the URL of a database, by default SQLite in a local storage; a SQLite path is made absolute."""
    from gram_platform.tracking.database import database_path, database_uri, with_absolute_path

    store = Store(storage)
    if not (uri or store.is_local):
        raise invalid("optuna_uri", None, f"the URL of a database for the search's trials: {storage} cannot hold one")
    uri = uri or database_uri(f"{store.root}/optuna.db")
    if database_path(uri) is not None:
        return with_absolute_path("optuna_uri", uri)
    if "://" not in uri:
        expected = "a database's URL such as postgresql://host/optuna or sqlite:////path/optuna.db"
        raise invalid("optuna_uri", uri, expected)
    return uri


# ------------------------------------------------------------------------------------------------------------- searches


@dataclass(frozen=True)
class Round:
    """Trials to run before the search looks at results again."""

    source: Source
    # Machine hours of its trials that have ended before.
    hours_before: float
    # Ids of the nodes of these trials.
    ids_before: Collection[str]
    # What is announced; "" if there is nothing to say.
    text: str


@dataclass(frozen=True)
class Search(Study):
    """The declaration of a search; kinds are subclasses of `GridSearch` or `OptunaSearch`.

    `graph` is the search on its corpora; `search_id` what `identify` returns.
    """

    # The metric of the best trial; None where trials are compared in other ways.
    minimised: SearchObjective | None = None

    flags_type = SearchFlags

    def of_preset(self, name: str) -> Search:
        """Returns the search as one of its presets changes it."""
        return self

    def checked(self, flags: SearchFlags) -> SearchFlags:
        """Returns the flags with the kind's defaults; ValueError for flags that it cannot serve."""
        return flags

    def prerequisites(self, graph: Graph) -> list[Node]:
        """Returns the nodes that all trials need, such as baselines."""
        return []

    def identity(self, graph: Graph) -> Mapping:
        """Returns the content of the search's id: equal for equal questions on equal data, however many trials."""
        raise NotImplementedError

    def identify(self, graph: Graph) -> str:
        """Returns the search's id: equal for equal questions on equal data."""
        return short_hash({"version": SEARCH_VERSION, "search": self.name, **self.identity(graph)})

    def folder(self, graph: Graph, store: Store) -> Folder:
        return store.search_dir(self.identify(graph))

    def problem(self, graph: Graph, store: Store) -> Problem:
        """Returns the nodes and score of trials; the prerequisites must be complete."""
        raise NotImplementedError

    def example(self, graph: Graph) -> list[Node]:
        """Returns the nodes of all trials, as far as they are known now, for `--dry-run` and to check the data."""
        raise NotImplementedError

    def rounds(self, graph: Graph, store: Store, problem: Problem, search_id: str) -> Iterator[Round]:
        """Yields sources of the trials that are missing; the next one is made when those of the last have ended."""
        raise NotImplementedError

    def write(self, graph: Graph, store: Store, tracker: Tracker | None, search_id: str) -> SearchOutput | None:
        """Returns tables, figures and report of the trials so far; None while there is nothing to report."""
        raise NotImplementedError


def parse_search(search: Search, arguments: list[str] | None = None, prog: str | None = None) -> SearchFlags:
    """Returns the checked flags of a search; ValueError as `checked_flags`."""
    return checked_flags(search, parse_flags(search.flags_type, search.about, arguments, prog))


def checked_flags(search: Search, flags: SearchFlags) -> SearchFlags:
    """Returns the flags with defaults filled in; ValueError naming the flag, the value and what is expected."""
    common = checked_common(search, flags)
    return with_changes(search, common.preset, common.changes).checked(common.checked())


@dataclass(frozen=True)
class GridSearch(Search):
    """Runs every point of a list, which may grow with the results."""

    def points(self, graph: Graph, store: Store) -> tuple[list[tuple[str, Point]], list[str]]:
        """Returns all named points, as far as the results demand them now, and announcements.

        Called again after each round of trials, until no point is new.
        """
        raise NotImplementedError

    def rounds(self, graph: Graph, store: Store, problem: Problem, search_id: str) -> Iterator[Round]:
        from gram_platform.engine.proposals import PointList
        from gram_platform.studies.session import machine_hours

        seen, said = set(), set()
        while True:
            points, announcements = self.points(graph, store)
            lines = [text for text in dict.fromkeys(announcements) if text not in said]
            new = [(name, point) for name, point in points if name not in seen]
            done = {name: nodes for name, point in new if (nodes := _done(problem.nodes(point), store))}
            if new:
                lines.append(f"{len(new)} trials, {len(done)} of them were done before")
            hours = sum(machine_hours(store, node) for nodes in done.values() for node in nodes)
            ids = {node.id for nodes in done.values() for node in nodes}
            left = [(name, point) for name, point in new if name not in done]
            source = PointList(longest_first(left, problem, graph.flags.hardware))
            yield Round(source, hours, ids, "\n".join(lines))
            if not new:
                return
            seen |= {name for name, _ in new}
            said |= set(announcements)


def _done(nodes: Sequence[Node], store: Store) -> Sequence[Node]:
    """Returns the nodes if all of them have results, else ()."""
    from gram_platform.engine.life import NodeLifecycle

    lifecycle = NodeLifecycle(store)
    return nodes if all(lifecycle.result(node) is not None for node in nodes) else ()


def longest_first(points: Sequence[tuple[str, Point]], problem: Problem, machine: Machine) -> list[tuple[str, Point]]:
    """Orders named points by the predicted hours of their runs, so that no long trial starts when the others end.

    Hours count to two digits: trials of about one length keep their order.
    """

    def hours(pair: tuple[str, Point]) -> float:
        return float(f"{sum(expected_hours(node, machine) for node in problem.nodes(pair[1])):.2g}")

    return sorted(points, key=hours, reverse=True)


@dataclass(frozen=True)
class OptunaSearch(Search):
    """Runs points that Optuna chooses, in one Optuna study for each group."""

    # Trials of each preset, in each group.
    num_trials: Mapping[str, int] = field(default_factory=dict)

    flags_type = OptunaFlags

    def space(self, graph: Graph) -> Space:
        """Returns the ranges of the preset, or those of `--space`; ValueError for a bad one."""
        raise NotImplementedError

    def target(self, graph: Graph) -> int:
        """Returns the number of trials to complete in each group."""
        return graph.flags.trials or self.num_trials[graph.flags.preset]

    def groups(self, graph: Graph) -> Mapping[str, Point]:
        """Returns the names of the Optuna studies, and the part of the point that each one holds fixed."""
        raise NotImplementedError

    def open(self, graph: Graph, search_id: str) -> list[Group]:
        """Opens the Optuna studies, named by the search's id and the group."""
        from gram_platform.engine.proposals import Group, open_study
        from gram_platform.studies.searches.optuna_studies import open_storage

        storage, target = open_storage(graph.flags.optuna_uri), self.target(graph)
        return [
            Group(
                name,
                fixed,
                open_study(storage, self._study_name(search_id, name), self.minimised.metric),
                target,
                storage,
            )
            for name, fixed in self.groups(graph).items()
        ]

    def _study_name(self, search_id: str, group: str) -> str:
        return f"{self.name}-{search_id}-{group}"

    def share_left(self, graph: Graph) -> float:
        """Returns the share of the trials that are not complete; creates nothing, and a dry run asks no server."""
        from gram_platform.studies.searches.optuna_studies import num_complete, open_storage
        from gram_platform.tracking.database import database_path

        path = database_path(graph.flags.optuna_uri)
        if not (path.exists() if path else not graph.flags.dry_run):
            return 1.0
        storage, target, search_id = open_storage(graph.flags.optuna_uri), self.target(graph), self.identify(graph)
        complete = [num_complete(storage, self._study_name(search_id, group)) for group in self.groups(graph)]
        return sum(max(0, target - number) for number in complete) / (target * len(complete))

    def rounds(self, graph: Graph, store: Store, problem: Problem, search_id: str) -> Iterator[Round]:
        from gram_platform.engine.proposals import OptunaSource
        from gram_platform.studies.searches.optuna_studies import attributes

        groups = self.open(graph, search_id)
        source = OptunaSource(groups, self.space(graph), self.minimised)
        ended = [t for g in groups for t in g.study.get_trials(deepcopy=False) if t.state.is_finished()]
        num_resumed = sum(len(group.resumable) for group in groups)
        facts = [attributes(trial) for trial in ended]
        hours = sum(found.get("rank_s", 0.0) for found in facts) / 3600
        ids = {node_id for found in facts for node_id in found.get("nodes", ())}
        text = f"{len(ended)} trials ended before, {num_resumed} were left running and are resumed"
        yield Round(source, hours, ids, text)


def setting_at(settings: Sequence[Setting], point: Point) -> Setting:
    """Returns the setting of a point's size and seed."""
    return next(s for s in settings if (s.size.name, s.seed) == (point["size"], point["seed"]))
