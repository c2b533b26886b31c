"""Runs a search: flags -> prerequisites -> trials on Ray Tune, from a grid or Optuna -> tables and report."""

import statistics
from collections.abc import Callable, Iterator

from optuna.exceptions import StorageInternalError

from gram_platform.config.identity import short_hash, to_plain
from gram_platform.engine.graph import run_graph
from gram_platform.engine.life import SUBMIT_AGAIN, NodeLifecycle
from gram_platform.engine.proposals import OptunaSource, PointList, Source
from gram_platform.engine.search import Tuning, run_trials
from gram_platform.engine.trials import FAILED, Outcome
from gram_platform.methods.nodes import Node, unique
from gram_platform.store import Store
from gram_platform.studies.build import Graph, resolve_corpora, settings_of
from gram_platform.studies.dry_run import described
from gram_platform.studies.flags import checked_common, parse_flags
from gram_platform.studies.live import LiveView
from gram_platform.studies.run import provide_data
from gram_platform.studies.searches.control import CANCELLED, LOST, RUNNING, Control, Driver
from gram_platform.studies.searches.definition import SEARCH_VERSION, GridSearch, OptunaSearch, Search, SearchSetup
from gram_platform.studies.searches.flags import SearchFlags, checked_search_flags
from gram_platform.studies.searches.live import SearchView, trial_overheads
from gram_platform.studies.searches.optuna_studies import open_groups, open_storage
from gram_platform.studies.session import (
    Mirror,
    budget_of,
    exit_with,
    machine_hours,
    open_tracker,
    refresh_site,
    reporter,
    say,
    start_ray,
)
from gram_platform.tracking import Tracker, TrackingUnavailable
from gram_platform.tracking.connection import first_line


def main(search: Search, arguments: list[str] | None = None) -> None:
    """Runs the command line of a search's experiment file and ends the process."""
    exit_with(lambda: run_search(search, parse(search, arguments)))


def parse(search: Search, arguments: list[str] | None = None) -> SearchFlags:
    """Returns the checked flags; ValueError naming the flag, the value and what is expected."""
    return checked_flags(search, parse_flags(search.flags_type, f"{search.title}\n\n{search.question}", arguments))


def checked_flags(search: Search, flags: SearchFlags) -> SearchFlags:
    """Returns the flags with defaults filled in; ValueError as `parse`."""
    flags = checked_common(search.presets, search.default_preset, flags)
    return search.checked(checked_search_flags(flags))


def build_setup(search: Search, flags: SearchFlags) -> SearchSetup:
    """Resolves the corpora and makes the settings of a search."""
    preset = search.presets[flags.preset]
    recipes = resolve_corpora(preset, flags, reporter())
    return SearchSetup(flags, preset, recipes, settings_of(preset, flags, recipes))


def search_id(search: Search, setup: SearchSetup) -> str:
    """Returns the search's id: equal for equal questions on equal data."""
    return short_hash({"version": SEARCH_VERSION, "search": search.name, **search.identity(setup)})


def run_search(search: Search, flags: SearchFlags) -> int:
    """Runs the trials that are missing; returns the exit code. ValueError for bad input, before anything trains."""
    search = search.of_preset(flags.preset)
    setup = build_setup(search, flags)
    nodes = (*search.prerequisites(setup), *search.example(setup))
    recipes = {size: (recipe,) for size, recipe in setup.recipes.items()}
    graph = Graph(search, setup.preset, flags, recipes, setup.settings, nodes)
    if flags.dry_run:
        say(described(graph))
        return 0
    store = Store(flags.storage).open_for_writing()
    provide_data((graph,), store)
    identity = search_id(search, setup)
    say(f"search {search.name} {identity} on {flags.corpus} (data {setup.data_id})")
    say(f"storage {store.root}")
    tracker = open_tracker(flags)
    if flags.report_only:
        return SearchRun(search, setup, store, tracker, identity).finish(0)
    with Driver(store.search_dir(identity), search.name) as driver:
        try:
            return SearchRun(search, setup, store, tracker, identity, driver.is_lost).run(nodes)
        except StorageInternalError as error:
            say(f"error: Optuna's database failed: {first_line(error.__cause__ or error)}. {SUBMIT_AGAIN}")
            return 1


class SearchRun:
    """Runs one submission of a search: its prerequisites, its trials, its report."""

    def __init__(
        self,
        search: Search,
        setup: SearchSetup,
        store: Store,
        tracker: Tracker | None,
        identity: str,
        is_lost: Callable[[], bool] = lambda: False,
    ):
        self.search, self.setup, self.store, self.tracker, self.identity = search, setup, store, tracker, identity
        self.folder = store.search_dir(identity)
        self.outcomes: dict[str, Outcome] = {}
        self.before_hours = 0.0
        self.control = Control(self.folder, self.spent_hours, budget_of(setup.flags), is_lost)

    def run(self, nodes: tuple[Node, ...]) -> int:
        """Runs what is missing and reports; returns the exit code. `nodes`: prerequisites and examples of trials."""
        plain = {"name": self.search.name, "identity": to_plain(self.search.identity(self.setup))}
        self.folder.write_json("search.json", {**plain, "preset": self.setup.flags.preset})
        if (was := self.control.resume()) != RUNNING:
            say(f"was {was}; submitting again resumes it")
        self.mirror = Mirror(self.tracker, self.store, say)
        self.execution, self.resources = start_ray(self.setup.flags, nodes, say)
        if not self._prepared():
            return 1
        self.problem = self.search.problem(self.setup, self.store)
        for source, num_trials in self._grid() if isinstance(self.search, GridSearch) else self._optuna():
            self._run_trials(source, num_trials)
        if self.control.state == LOST:
            say("another driver leads this search since this one was suspended: stopping, nothing is lost")
            return 1
        self.mirror.finish({i for outcome in self.outcomes.values() for i in outcome.nodes})
        return self.finish(self._count())

    def spent_hours(self) -> float:
        """Returns the machine hours of this search's trials, over all submissions."""
        return self.before_hours + sum(o.rank_s for o in self.outcomes.values()) / 3600

    def _prepared(self) -> bool:
        """Runs the prerequisites of all trials; announces failures and returns whether there were none."""
        nodes = unique(self.search.prerequisites(self.setup))
        if not nodes:
            return True
        with LiveView(nodes, self.store) as view:

            def on_change(progress, ended: Node | None) -> None:
                view.update(progress, ended)
                if ended is not None:
                    self.mirror.ended(ended)

            progress = run_graph(nodes, self.execution, self.resources, on_change)
        for message in progress.failed.values():
            say(f"failed: {message}")
        say(f"{len(progress.done)} nodes that every trial needs are done, {progress.reused} were before")
        return not progress.failed

    # ------------------------------------------------------------------------------------------------ sources

    def _grid(self) -> Iterator[tuple[Source, int]]:
        """Yields the missing trials of a grid, round after round while it grows."""
        seen, said = set(), set()
        while True:
            points, announcements = self.search.points(self.setup, self.store)
            new = [(name, point) for name, point in points if name not in seen]
            for text in dict.fromkeys(announcements):
                if text not in said:
                    say(text)
            said |= set(announcements)
            if not new or not self.control.may_go_on():
                return
            seen |= {name for name, _ in new}
            missing = [(name, point) for name, point in new if not self._is_done(point)]
            say(f"{len(new)} trials, {len(new) - len(missing)} of them were done before")
            if missing:
                yield PointList(missing), len(missing)

    def _is_done(self, point) -> bool:
        """Tells whether a trial's nodes have results; counts their machine hours."""
        nodes, lifecycle = self.problem.nodes(point), NodeLifecycle(self.store)
        if any(lifecycle.result(node) is None for node in nodes):
            return False
        self.before_hours += sum(machine_hours(self.store, node) for node in nodes)
        return True

    def _optuna(self) -> Iterator[tuple[Source, int]]:
        """Yields the missing trials of the search's Optuna studies."""
        search: OptunaSearch = self.search
        groups = open_groups(search, self.setup, open_storage(self.setup.flags.optuna_uri), self.identity)
        source = OptunaSource(groups, search.space(self.setup), search.objectives)
        done = [t for g in groups for t in g.study.get_trials(deepcopy=False) if t.state.is_finished()]
        self.before_hours = sum(t.user_attrs.get("rank_s", 0.0) for t in done) / 3600
        num_adopted = sum(len(group.adopted) for group in groups)
        say(f"{len(done)} trials ended before, {num_adopted} were left running and are taken up again")
        if source.num_left:
            yield source, source.num_left

    def _run_trials(self, source: Source, num_trials: int) -> None:
        view = SearchView(num_trials, self.store, self.problem)
        flags, name = self.setup.flags, f"{self.search.name}-{self.identity}"
        tuning = Tuning(name, flags.max_concurrent, self.control.decide, flags.retry_failed)

        def on_end(outcome: Outcome) -> None:
            self.outcomes[outcome.name] = outcome
            view.ended(outcome)
            for node in self.problem.nodes(outcome.point):
                self.mirror.ended(node)

        with view:
            run_trials(source, self.problem, self.execution, self.resources, tuning, view.started, on_end)

    # ------------------------------------------------------------------------------------------------ the end

    def _count(self) -> int:
        """Announces what was done; returns the exit code."""
        ended = list(self.outcomes.values())
        executed, reused = sum(o.num_executed for o in ended), sum(o.num_reused for o in ended)
        say(f"\n{len(ended)} trials now: {executed} nodes executed, {reused} reused")
        overheads = trial_overheads(ended)
        if overheads:
            say(f"a trial took {statistics.median(overheads):.2f} s beyond its training (median of {len(overheads)})")
        if self.control.state == CANCELLED:
            say("cancelled; submit again to go on")
        elif limit := self.control.limit_reached():
            say(f"limit: {limit}; submit again with a higher one to go on")
        return int(any(o.state == FAILED for o in ended))

    def finish(self, code: int) -> int:
        """Writes tables and report from what is stored; returns the exit code."""
        written = self.search.write(self.setup, self.store, self.tracker, self.identity)
        if written is None:
            say("no table: no trial is complete yet")
            return code or 1
        folder = self.store.study_dir(self.search.name)
        for name, data in written.files.items():
            folder.write(name, data)
        say(f"\n{written.text}\n")
        for name in written.files:
            say(f"{name:12} {folder.file(name)}")
        params = {"search_id": self.identity, "preset": self.setup.flags.preset, "data_id": self.setup.data_id}
        try:
            self.tracker.log_study(self.search.name, written.files, written.figures, params)
        except TrackingUnavailable as error:
            say(f"the search is not in MLflow ({error}); submit again to log it")
        refresh_site(self.setup.flags, say)
        return code
