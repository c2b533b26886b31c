"""Plans a search on its corpora, and proposes its trials in rounds.

A kind of search is a frozen class. Its fields are `settings`, one for each size and seed, and what
`Search.read` returned. It has one property, and methods that take the `SearchPlan` of the kind:

- `minimised`, the property: the metric of the best trial; None where trials have no best one
- `identity(search)`: the content of the search's id, equal for equal questions on equal data,
  however many trials
- `prerequisites(search)`: the nodes that all trials need, such as baselines
- `example(search)`: the nodes of all trials, as far as they are known before any result
- `problem(search, store)`: the nodes and score of trials, as `engine.trials.Problem`; the
  prerequisites are complete
- `rounds(search, store, problem)`: the trials that are missing, as `Round`s
- `share_left(search)`: the share of the trials that is not complete
- `write(search, store, tracker)`: tables, figures and report of the trials so far, or None
"""

import io
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import pandas as pd

from gram_platform.config.identity import short_hash
from gram_platform.config.provenance import Submissions, submissions_text
from gram_platform.engine.life import NodeLifecycle
from gram_platform.engine.trials import OptunaSource, Point, PointList, Problem, Source
from gram_platform.methods import Setting
from gram_platform.methods.nodes import Node
from gram_platform.pages.index import PICTURE_FILE, describe_trials
from gram_platform.pages.report.page import Page, Section
from gram_platform.pages.results.record import SEARCH_FILE, Card, sizes_text
from gram_platform.pages.results.results import Brief, count_verdicts
from gram_platform.planner import Machine, expected_hours
from gram_platform.store import Folder, Store
from gram_platform.store.root import cordoned_lines
from gram_platform.studies.definition import preset_params
from gram_platform.studies.plan import StudyPlan
from gram_platform.studies.searches.optuna_studies import attributes
from gram_platform.studies.searches.report import (
    counts_text,
    json_file,
    trial_metrics,
    trial_tags,
)
from gram_platform.studies.workplace import machine_hours
from gram_platform.tracking.views import StudyLog, TrialColumns, search_view

# Part of every search's id: raised when trials of before and after are not comparable.
SEARCH_VERSION = 1


@dataclass(frozen=True)
class Round:
    """Trials to run before the search looks at results again."""

    source: Source
    # Machine hours of its trials that have ended before.
    hours_before: float
    # Ids of the nodes that earlier submissions may have left unsent.
    ids_before: Collection[str]
    # What is announced; "" if there is nothing to say.
    text: str


@dataclass(frozen=True, kw_only=True)
class SearchPlan(StudyPlan):
    """A search on its corpora, with the setting of every size and seed."""

    # The head of this module lists what a kind has.
    kind: Any
    optuna_uri: str = ""
    # A dry run asks no database server.
    is_dry: bool = False

    has_trials = True
    observers = "gram_platform.studies.searches.trials:SearchObservers"

    @property
    def head(self) -> str:
        return f"search {self.named}"

    @cached_property
    def search_id(self) -> str:
        """The search's id: equal for equal questions on equal data."""
        plain = {"version": SEARCH_VERSION, "search": self.name, **self.kind.identity(self)}
        return short_hash(plain)

    @property
    def named(self) -> str:
        """The search's name and id, for people."""
        return f"{self.name} {self.search_id}"

    @property
    def full_name(self) -> str:
        """The search's name and id in tables, and in the names of Optuna's studies."""
        return f"{self.name}-{self.search_id}"

    def folder(self, store: Store) -> Folder:
        return store.search_dir(self.search_id)

    def planned(self) -> Self:
        """Returns the search with the nodes of its trials, as far as they are known."""
        entries = (*self.kind.prerequisites(self), *self.kind.example(self))
        return replace(self, entries=entries)

    def share_left(self) -> float:
        return self.kind.share_left(self)

    def record(self, submissions: Sequence[Mapping]) -> dict:
        """Returns the content of search.json: what is searched, and the submissions that did it."""
        about = {"name": self.name, "title": self.study.title, "question": self.study.question}
        about |= preset_params(self.preset_name, self.changes)
        about |= {"search_id": self.search_id, "data_id": self.data_id}
        return {**about, "identity": self.kind.identity(self), "submissions": submissions}

    def log(
        self,
        facts: str,
        sections: list[Section],
        tables: Mapping[str, bytes],
        record: Mapping,
        columns: TrialColumns,
        figures: Mapping[str, object],
        claims: pd.DataFrame | None = None,
    ) -> StudyLog:
        """Returns the search's files, for MLflow too: its tables, report.html, claims.csv if it
        judges claims, and search.json.

        The report begins with the question and `facts`, how it was searched; `record` goes into
        search.json; `columns` of trials.csv are shown by MLflow.
        """
        store = Store(self.storage)
        facts = " ".join([facts, sizes_text(self.parameters), *cordoned_lines(store, self.name)])
        rows = self.folder(store).read_spare(SEARCH_FILE, Submissions).get("submissions", [])
        about = f"{self.study.question}\n\n{facts}"
        source = submissions_text(rows)
        page = Page(self.study.title, about, sections, claims=claims, source=source)
        trials = pd.read_csv(io.BytesIO(tables["trials.csv"]))
        headline, picture = describe_trials(trials, columns.parameters, columns.objectives)
        card = Card(headline, counts_text(trials), count_verdicts(claims))
        known = {**record, **self.record(rows), "card": card}
        files = {**tables, **page.files, SEARCH_FILE: json_file(known)}
        if picture:
            files[PICTURE_FILE] = picture.encode()
        return StudyLog(
            self.name,
            files,
            figures,
            {name: known[name] for name in ("search_id", "preset", "data_id")},
            node_tags=trial_tags(tables["trials.csv"]),
            views=(search_view(self.name, columns),),
            node_metrics=trial_metrics(tables["trials.csv"], columns),
        )


# The files of a search, the text for a log, and what a terminal shows instead.
Written = tuple[StudyLog, str, Brief]


def list_rounds(
    search: SearchPlan,
    store: Store,
    problem: Problem,
    points: Callable[[], tuple[list[tuple[str, Point]], list[str]]],
) -> Iterator[Round]:
    """Yields the points of a list, which may grow with the results.

    `points`: returns all named points, as far as the results demand them now, and announcements. It
    is called again after each round, until no point is new.
    """
    seen, said = set(), set()
    while True:
        named, announcements = points()
        lines = [text for text in dict.fromkeys(announcements) if text not in said]
        new = [(name, point) for name, point in named if name not in seen]
        nodes_of = {name: problem.nodes(point) for name, point in new}
        done = {name: nodes for name, nodes in nodes_of.items() if _are_done(nodes, store)}
        if new:
            lines.append(f"{len(new)} trials, {len(done)} of them were done before")
        hours = sum(machine_hours(store, node) for nodes in done.values() for node in nodes)
        ids = {node.id for nodes in nodes_of.values() for node in nodes}
        left = [(name, point) for name, point in new if name not in done]
        source = PointList(longest_first(left, problem, search.machine))
        yield Round(source, hours, ids, "\n".join(lines))
        if not new:
            return
        seen |= {name for name, _ in new}
        said |= set(announcements)


def _are_done(nodes: Sequence[Node], store: Store) -> bool:
    lifecycle = NodeLifecycle(store)
    return all(lifecycle.result(node) is not None for node in nodes)


def longest_first(
    points: Sequence[tuple[str, Point]], problem: Problem, machine: Machine
) -> list[tuple[str, Point]]:
    """Orders named points by the predicted hours of their runs, so that no long trial starts when
    the others end.

    Hours count to two digits: trials of about one length keep their order.
    """

    def hours(pair: tuple[str, Point]) -> float:
        return float(f"{sum(expected_hours(node, machine) for node in problem.nodes(pair[1])):.2g}")

    return sorted(points, key=hours, reverse=True)


def setting_at(settings: Sequence[Setting], point: Point) -> Setting:
    """Returns the setting of a point's size and seed."""
    return next(s for s in settings if (s.size.name, s.seed) == (point["size"], point["seed"]))


def optuna_round(source: OptunaSource) -> Round:
    """Returns the round of trials that Optuna chooses."""
    ended = [
        t
        for group in source.groups
        for t in group.study.get_trials(deepcopy=False)
        if t.state.is_finished()
    ]
    num_resumed = sum(len(group.resumable) for group in source.groups)
    facts = [attributes(trial) for trial in ended]
    hours = sum(found.get("rank_s", 0.0) for found in facts) / 3600
    ids = {node_id for found in facts for node_id in found.get("nodes", ())}
    text = f"{len(ended)} trials ended before, {num_resumed} were left running and are resumed"
    return Round(source, hours, ids, text)
