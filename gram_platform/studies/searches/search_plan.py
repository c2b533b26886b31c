"""Plans a search on its corpora, proposes its trials in rounds, and writes its files.

A kind of search is a frozen dataclass. Its fields are `settings`, one for each size and seed, and
those that `Search.read` returns. It has these members, where `search` is its `SearchPlan`:

- `best_by`: the metric by which the best trial is chosen, or None
- `identity(search)`: the values hashed into the search's id, without the number of trials
- `prerequisites(search)`: the nodes that all trials need, such as baselines
- `example(search)`: nodes of likely trials, for predicting hours and price
- `problem(search, store)`: an `engine.trials.Problem`; needs complete prerequisites
- `rounds(search, store, problem)`: the missing trials
- `share_left(search)`, only with Optuna: the share of incomplete trials
- `write(search, store, tracker)`: tables, figures and report of current trials, or None
"""

import io
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import pandas as pd

from gram_platform.analysis.ratios import PREFIX
from gram_platform.analysis.trials import RUNS, STATE
from gram_platform.config import State
from gram_platform.config.identity import short_hash, to_plain
from gram_platform.config.provenance import Submissions, submissions_text
from gram_platform.config.space import TrialColumns
from gram_platform.engine.life import NodeLifecycle, is_divergence
from gram_platform.engine.trials import OptunaSource, Point, PointList, Problem, Source
from gram_platform.methods import Setting
from gram_platform.methods.nodes import Node
from gram_platform.pages.index import PICTURE_FILE, draw_trials
from gram_platform.pages.report.page import Page, Section
from gram_platform.pages.results.record import SEARCH_FILE, Card, entries_of, sizes_text, tags_frame
from gram_platform.pages.results.results import Brief, count_verdicts, join_attacks, join_tags
from gram_platform.pages.results.trials import MLFLOW_PARAMS, TRIALS_FILE, trials_log
from gram_platform.planner import estimate_hours
from gram_platform.store import Folder, Store
from gram_platform.store.root import describe_cordoned
from gram_platform.studies.definition import mask_place, preset_params
from gram_platform.studies.plan import StudyPlan
from gram_platform.studies.searches.optuna_studies import attributes
from gram_platform.studies.workplace import machine_hours
from gram_platform.tracking.entry import run_metrics
from gram_platform.tracking.frame import load_store_curves
from gram_platform.tracking.views import StudyLog

# Part of search ids. Increased when new trials are not comparable with old ones.
SEARCH_VERSION = 1


@dataclass(frozen=True)
class Round:
    """A batch of trials that runs before the search reads new results."""

    source: Source
    # Machine hours of earlier submissions' trials.
    hours_before: float
    # Ids of earlier submissions' nodes, which MLflow may lack.
    ids_before: Collection[str]
    text: str


@dataclass(frozen=True, kw_only=True)
class SearchPlan(StudyPlan):
    """The plan of a search, with a setting for each size and seed."""

    kind: Any
    optuna_uri: str = ""
    is_dry: bool = False

    has_trials = True
    observers = "gram_platform.studies.searches.trials:SearchObservers"

    @property
    def head(self) -> str:
        return f"search {self.label}"

    @cached_property
    def identity(self) -> dict:
        return self.kind.identity(self)

    @cached_property
    def search_id(self) -> str:
        """The search's id. Searches with equal definitions and data have equal ids."""
        return short_hash({"version": SEARCH_VERSION, "search": self.name, **self.identity})

    @property
    def label(self) -> str:
        return f"{self.name} {self.search_id}"

    @property
    def full_name(self) -> str:
        """The search's name and id, as in tables and in Optuna's database."""
        return f"{self.name}-{self.search_id}"

    @property
    def data_text(self) -> str:
        return f"corpus {mask_place(self.choice.corpus)} (data {self.data_id})"

    def folder(self, store: Store) -> Folder:
        return store.search_dir(self.search_id)

    def with_nodes(self) -> Self:
        entries = (*self.kind.prerequisites(self), *self.kind.example(self))
        return replace(self, entries=entries)

    def share_left(self) -> float:
        return self.kind.share_left(self) if self.study.needs_optuna else 1.0

    def record(self, submissions: Sequence[Mapping]) -> dict:
        return {
            "name": self.name,
            "title": self.study.title,
            "question": self.study.question,
            **preset_params(self.preset_name, self.changes),
            "search_id": self.search_id,
            "data_id": self.data_id,
            "identity": self.identity,
            "submissions": submissions,
        }

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
        """Returns a log with the search's tables, report.html, claims.csv and search.json.

        The report shows `facts` below the search's question. `record` is added to search.json.
        MLflow shows the `columns` of trials.csv.
        """
        store = Store(self.choice.storage)
        facts = " ".join([facts, sizes_text(self.parameters), *describe_cordoned(store, self.name)])
        rows = self.folder(store).read_spare(SEARCH_FILE, Submissions).get("submissions", [])
        about, trials = self.record(rows), pd.read_csv(io.BytesIO(tables[TRIALS_FILE]))
        params = {name: about[name] for name in MLFLOW_PARAMS}
        log = trials_log(self.name, params, tables[TRIALS_FILE], columns)
        source = submissions_text(rows)
        page = Page(
            self.study.title, self.study.question, sections, claims, source, facts, log.answers
        )
        card = Card("\n\n".join(log.answers), counts_text(trials), count_verdicts(claims))
        known = {**record, **about, "card": card, "columns": columns}
        files = {**tables, **page.files, SEARCH_FILE: json_file(known)}
        if picture := draw_trials(trials, columns):
            files[PICTURE_FILE] = picture.encode()
        return replace(log, files=files, figures=figures)


# A search's files, and its texts for a log and a terminal.
Written = tuple[StudyLog, str, Brief]


def list_rounds(
    search: SearchPlan,
    store: Store,
    problem: Problem,
    points: Callable[[], tuple[list[tuple[str, Point]], list[str]]],
) -> Iterator[Round]:
    """Yields rounds of missing trials until there are no new points. Long trials come first.

    `points` is called before each round, and returns (all points with their names, messages).
    """
    seen = set()
    while True:
        points_so_far, announcements = points()
        lines = [text for text in dict.fromkeys(announcements) if text not in seen]
        new = {name: point for name, point in points_so_far if name not in seen}
        nodes_of = {name: problem.nodes(point) for name, point in new.items()}
        result_of = NodeLifecycle(store).result
        done = {n for n, nodes in nodes_of.items() if None not in map(result_of, nodes)}
        if new:
            lines.append(f"{len(new)} trials, {len(done)} of them were done before")
        hours = sum(machine_hours(store, node) for name in done for node in nodes_of[name])
        ids = {node.id for nodes in nodes_of.values() for node in nodes}
        # No long trial may run alone at the end. Trials of similar length keep their order.
        predicted = {
            name: float(f"{sum(estimate_hours(node, search.machine) for node in nodes):.2g}")
            for name, nodes in nodes_of.items()
        }
        left = [(name, point) for name, point in new.items() if name not in done]
        left.sort(key=lambda pair: predicted[pair[0]], reverse=True)
        yield Round(PointList(left), hours, ids, "\n".join(lines))
        if not new:
            return
        seen |= {*new, *announcements}


def setting_at(settings: Sequence[Setting], point: Point) -> Setting:
    return next(s for s in settings if (s.size.name, s.seed) == (point["size"], point["seed"]))


def optuna_round(source: OptunaSource) -> Round:
    ended = [
        attributes(trial)
        for group in source.groups
        for trial in group.study.get_trials(deepcopy=False)
        if trial.state.is_finished()
    ]
    num_resumed = sum(len(group.resumable) for group in source.groups)
    hours = sum(trial.get("rank_s", 0.0) for trial in ended) / 3600
    ids = {node_id for trial in ended for node_id in trial.get("nodes", ())}
    text = f"{len(ended)} trials ended before, {num_resumed} were interrupted and are resumed"
    return Round(source, hours, ids, text)


def with_run_links(frame: pd.DataFrame, links: Mapping[str, str]) -> pd.DataFrame:
    pages = [links.get(next(iter(str(runs).split()), ""), "") for runs in frame[RUNS].fillna("")]
    return frame.assign(**{f"{RUNS}_url": pages})


def counts_text(trials: pd.DataFrame) -> str:
    states = trials[STATE].value_counts().items()
    return f"{len(trials)} trials: {', '.join(f'{count} {state}' for state, count in states)}."


def json_file(content: Mapping) -> bytes:
    """Serialises content as JSON. Equal content gives equal bytes."""
    text = json.dumps(to_plain(content), indent=1, sort_keys=True, allow_nan=False)
    return f"{text}\n".encode()


def result_frame(nodes: Iterable[Node], results: Mapping[str, Mapping]) -> pd.DataFrame:
    """Returns the nodes' results as the frame that `view_frame` and `attack_frame` take."""
    rows = []
    for node in nodes:
        row = {"id": node.id, "run_id": node.id, "status": State.COMPLETE}
        if node.is_run:
            row |= run_metrics(results[node.id], {})
        else:
            row["run_id"] = node.config.view.run_id
            row |= {PREFIX + domain: x for domain, x in results[node.id]["losses"].items()}
        rows.append(row)
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=["id", "run_id", "status"])


def name_views(nodes: Iterable[Node]) -> pd.DataFrame:
    return tags_frame(entries_of(nodes), "evaluation")


# `tables.analyse` takes the next three frames.


def view_frame(nodes: Iterable[Node], frame: pd.DataFrame) -> pd.DataFrame:
    """Returns the complete evaluations of `nodes` in `frame`, with the tags of the nodes."""
    return join_tags(name_views(nodes), frame[frame["status"] == State.COMPLETE])


def attack_frame(nodes: Iterable[Node], frame: pd.DataFrame) -> pd.DataFrame:
    """Returns a row for each attack among `nodes`. The loss is NaN if the attack has no result."""
    complete = frame[frame["status"] == State.COMPLETE]
    return join_attacks(tags_frame(entries_of(nodes), "attack"), complete)


def curve_frame(nodes: Iterable[Node], curves: pd.DataFrame) -> pd.DataFrame:
    """Adds the columns `method, size, seed` to the validation curves of these runs."""
    runs = tags_frame(entries_of(nodes), "run").rename(columns={"id": "run_id"})
    return curves.merge(runs[["run_id", "method", "size", "seed"]], on="run_id")


def baseline_frames(store: Store, nodes: Sequence[Node]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns (evaluations, learning curves) of the stored baselines, for compute ratios."""
    results = {n.id: store.evaluation(n.id).result() for n in nodes if not n.is_run}
    done = [node for node in nodes if results.get(node.id) is not None]
    curves = load_store_curves(store, [n.id for n in nodes if n.is_run])
    return view_frame(done, result_frame(done, results)), curve_frame(nodes, curves)


def trial_state(nodes: Iterable[Node], frame: pd.DataFrame, store: Store) -> tuple[str, str]:
    """Returns (a trial's state, its error message if it diverged or failed)."""
    complete = set(frame.loc[frame["status"] == State.COMPLETE, "id"])
    left = [node for node in nodes if node.id not in complete]
    if not left:
        return State.COMPLETE, ""
    runs = [store.run(node.id) for node in left if node.is_run]
    states = [run.status() for run in runs]
    if State.FAILED in states:
        failure = runs[states.index(State.FAILED)].failure() or {}
        state = State.DIVERGED if is_divergence(failure) else State.FAILED
        return state, str(failure.get("message", ""))
    return State.RUNNING if State.RUNNING in states else State.WAITING, ""
