"""Running a search: flags -> what all trials need -> trials on Ray Tune -> tables and report."""

import statistics

import optuna
import ray
from optuna.exceptions import StorageInternalError

from gram_platform.config.identity import short_hash, to_plain
from gram_platform.engine.capacity import require_room, widest_missing
from gram_platform.engine.graph import SUBMIT_AGAIN, run_graph
from gram_platform.engine.life import NodeLifecycle
from gram_platform.engine.proposals import Group, OptunaSource, PointList, Source, open_study
from gram_platform.engine.search import Tuning, run_trials
from gram_platform.engine.trials import FAILED, Outcome
from gram_platform.methods.nodes import Node, unique
from gram_platform.planner import MACHINES
from gram_platform.store import Store
from gram_platform.studies.build import Graph, resolve_corpora, settings_of
from gram_platform.studies.dry_run import described
from gram_platform.studies.flags import checked_common
from gram_platform.studies.live import LiveView
from gram_platform.studies.run import provide_data
from gram_platform.studies.searches.control import CANCELLED, LOST, RUNNING, Control, Driver, machine_hours
from gram_platform.studies.searches.databases import open_storage
from gram_platform.studies.searches.definition import SEARCH_VERSION, GridSearch, OptunaSearch, Scene, Search
from gram_platform.studies.searches.flags import SearchFlags, checked_search_flags, parse_flags
from gram_platform.studies.searches.view import SearchView, trial_overheads
from gram_platform.studies.session import (
    Mirror,
    connect,
    execution_of,
    exit_with,
    open_tracker,
    refresh_site,
    reporter,
    say,
)
from gram_platform.tracking import Tracker, TrackingUnavailable
from gram_platform.tracking.connection import first_line


def main(search: Search, arguments: list[str] | None = None) -> None:
    """The entrypoint of an experiment file."""
    exit_with(lambda: run_search(search, parse(search, arguments)))


def parse(search: Search, arguments: list[str] | None = None) -> SearchFlags:
    """The checked flags; ValueError naming the flag, the value and what is allowed."""
    return checked_flags(search, parse_flags(search.flags_type, f"{search.title}\n\n{search.question}", arguments))


def checked_flags(search: Search, flags: SearchFlags) -> SearchFlags:
    """The flags with defaults filled in; ValueError as above."""
    flags = checked_common(search.presets, search.default_preset, flags)
    return search.checked(checked_search_flags(flags))


def build_scene(search: Search, flags: SearchFlags) -> Scene:
    preset = search.presets[flags.preset]
    recipes = resolve_corpora(preset, flags, reporter())
    return Scene(flags, preset, recipes, settings_of(preset, flags, recipes))


def search_id(search: Search, scene: Scene) -> str:
    """Equal for equal questions on equal data."""
    return short_hash({"version": SEARCH_VERSION, "search": search.name, **search.identity(scene)})


def run_search(search: Search, flags: SearchFlags) -> int:
    """Runs the trials that are missing; returns the exit code. ValueError for bad input, before anything trains."""
    search = search.of_preset(flags.preset)
    scene = build_scene(search, flags)
    nodes = (*search.prerequisites(scene), *search.example(scene))
    recipes = {size: (recipe,) for size, recipe in scene.recipes.items()}
    graph = Graph(search, scene.preset, flags, recipes, scene.settings, nodes)
    if flags.dry_run:
        say(described(graph))
        return 0
    store = Store(flags.storage).open_for_writing()
    provide_data((graph,), store)
    identity = search_id(search, scene)
    say(f"search {search.name} {identity} on {flags.corpus} (data {scene.data_id})")
    say(f"storage {store.root}")
    run = _SearchRun(search, scene, store, open_tracker(flags), identity)
    if flags.report_only:
        return run.finish(0)
    with Driver(store.search_dir(identity), search.name) as driver:
        run.control.is_lost = driver.is_lost
        try:
            return run.run()
        except StorageInternalError as error:
            say(f"error: Optuna's database failed: {first_line(error.__cause__ or error)}. {SUBMIT_AGAIN}")
            return 1


class _SearchRun:
    """One driver's time with a search."""

    def __init__(self, search: Search, scene: Scene, store: Store, tracker: Tracker, identity: str):
        self.search, self.scene, self.store, self.tracker, self.identity = search, scene, store, tracker, identity
        self.folder = store.search_dir(identity)
        self.outcomes: dict[str, Outcome] = {}
        self.before_hours = 0.0
        flags, machine = scene.flags, MACHINES[scene.flags.machine]
        limits = (flags.max_hours, flags.max_cost, machine.dollars_per_hour)
        self.control = Control(self.folder, self.spent_hours, *limits)

    def run(self) -> int:
        plain = {"name": self.search.name, "identity": to_plain(self.search.identity(self.scene))}
        self.folder.write_json("search.json", {**plain, "preset": self.scene.flags.preset})
        if (was := self.control.resume()) != RUNNING:
            say(f"was {was}; submitting again resumes it")
        self.mirror = Mirror(self.tracker, self.store, say)
        connect()
        self.execution, self.resources = execution_of(self.scene.flags, bool(ray.cluster_resources().get("GPU")))
        nodes = (*self.search.prerequisites(self.scene), *self.search.example(self.scene))
        require_room(widest_missing(nodes, self.execution), self.resources, say)
        if not self._prepared():
            return 1
        self.problem = self.search.problem(self.scene, self.store)
        if isinstance(self.search, GridSearch):
            self._run_grid(self.search)
        else:
            self._run_optuna(self.search)
        if self.control.state == LOST:
            say("another driver leads this search since this one was suspended, which ends; nothing is lost")
            return 1
        self.mirror.finish({i for outcome in self.outcomes.values() for i in outcome.nodes})
        return self.finish(self._count())

    def spent_hours(self) -> float:
        """Machine hours of this search's trials, over all submissions."""
        return self.before_hours + sum(o.rank_s for o in self.outcomes.values()) / 3600

    def _prepared(self) -> bool:
        """Whether everything that all trials need is done; says what failed otherwise."""
        nodes = unique(self.search.prerequisites(self.scene))
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

    # ------------------------------------------------------------------------------------------------- trials

    def _run_grid(self, search: GridSearch) -> None:
        seen: set[str] = set()
        said: set[str] = set()
        while True:
            points, announcements = search.points(self.scene, self.store)
            new = [(name, point) for name, point in points if name not in seen]
            for text in announcements:
                if text not in said:
                    say(text)
            said |= set(announcements)
            if not new or not self.control.may_go_on():
                return
            seen |= {name for name, _ in new}
            missing = [(name, point) for name, point in new if not self._is_done(point)]
            say(f"{len(new)} trials, {len(new) - len(missing)} of them were done before")
            if missing:
                self._run_trials(PointList(missing), len(missing))

    def _is_done(self, point) -> bool:
        nodes, lifecycle = self.problem.nodes(point), NodeLifecycle(self.store)
        if any(lifecycle.result(node) is None for node in nodes):
            return False
        directories = [self.store.node(node.kind, node.id) for node in nodes]
        self.before_hours += sum(machine_hours(directory.timing()) for directory in directories)
        return True

    def _run_optuna(self, search: OptunaSearch) -> None:
        flags = self.scene.flags
        groups = open_groups(search, self.scene, open_storage(flags.optuna_uri), self.identity)
        source = OptunaSource(groups, search.space(self.scene), search.objectives)
        done = [t for g in groups for t in g.study.get_trials(deepcopy=False) if t.state.is_finished()]
        self.before_hours = sum(t.user_attrs.get("rank_s", 0.0) for t in done) / 3600
        num_adopted = sum(len(group.adopted) for group in groups)
        say(f"{len(done)} trials ended before, {num_adopted} were left running and are taken up again")
        if source.num_left:
            self._run_trials(source, source.num_left)

    def _run_trials(self, source: Source, num_trials: int) -> None:
        view = SearchView(num_trials, self.store, self.problem)
        flags, name = self.scene.flags, f"{self.search.name}-{self.identity}"
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
        """Says what was done; the exit code."""
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
        written = self.search.write(self.scene, self.store, self.tracker, self.identity)
        if written is None:
            say("no table: no trial is complete yet")
            return code or 1
        folder = self.store.study_dir(self.search.name)
        for name, data in written.files.items():
            folder.write(name, data)
        say(f"\n{written.text}\n")
        for name in written.files:
            say(f"{name:12} {folder.file(name)}")
        self._log(folder, written.figures)
        refresh_site(self.scene.flags, say)
        return code

    def _log(self, folder, figures) -> None:
        flags = self.scene.flags
        params = {"search_id": self.identity, "preset": flags.preset, "data_id": self.scene.data_id}
        try:
            with folder.local_copy("table.csv") as table, folder.local_copy("report.html") as report:
                self.tracker.log_study(self.search.name, table, report, figures, params)
        except TrackingUnavailable as error:
            say(f"the search is not in MLflow ({error}); submit again to log it")


def open_groups(search: OptunaSearch, scene: Scene, storage: optuna.storages.BaseStorage, identity: str) -> list[Group]:
    """The Optuna studies of a search, named by its id and the group."""
    target = scene.flags.trials or search.num_trials[scene.flags.preset]
    groups = search.groups(scene)
    return [
        Group(name, fixed, open_study(storage, f"{search.name}-{identity}-{name}", search.objectives), target)
        for name, fixed in groups.items()
    ]
