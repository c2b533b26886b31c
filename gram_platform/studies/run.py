"""Runs studies: flags -> nodes -> data -> graph on Ray -> tables and reports."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from gram_platform.config.endings import DONE, FAILED, TIME_IS_UP, begin_work, worst
from gram_platform.config.identity import invalid, local_path
from gram_platform.config.terminal import say
from gram_platform.engine.capacity import require_room, widest_missing
from gram_platform.engine.cordon import Cordon
from gram_platform.engine.execution import Placement
from gram_platform.engine.graph import run_graph
from gram_platform.engine.handover import missing_nodes, write_nodes
from gram_platform.engine.in_process import has_gpu, run_in_process
from gram_platform.engine.life import NodeLifecycle, Progress, with_stored_tags
from gram_platform.methods.nodes import Node, unique
from gram_platform.pages.report.measurements import MEASUREMENTS, read_or_lost
from gram_platform.pages.results.record import StudyRecord, write_or_log
from gram_platform.store import Store
from gram_platform.studies.build import Graph, build_graph
from gram_platform.studies.definition import Study
from gram_platform.studies.device import note_device, settled
from gram_platform.studies.dry_run import describe
from gram_platform.studies.flags import Flags, parse
from gram_platform.studies.live import LiveView
from gram_platform.studies.mirror import Mirror, open_tracker
from gram_platform.studies.packing import provide_data, reporter
from gram_platform.studies.placement import placement_of
from gram_platform.studies.price import rung_text
from gram_platform.studies.record import record_of
from gram_platform.studies.session import (
    cordons_noted,
    execution_of,
    exit_with,
    machine_hours,
    refresh_site,
    start_ray,
)
from gram_platform.studies.supply import require_supply
from gram_platform.tracking import Tracker, TrackingUnavailable
from gram_platform.tracking.connection import opened_by


def main(study: Study, arguments: list[str] | None = None) -> None:
    """Runs the command line of an experiment file, and ends the process."""
    exit_with(lambda: run_study(study, parse(study, arguments)))


def run_study(study: Study, flags: Flags) -> int:
    """Runs whatever is not done; returns the exit code. ValueError for bad input, before anything trains."""
    if flags.dry_run:
        say(describe(build_graph(study, flags)))
        return 0
    if flags.export_nodes:
        return _export_nodes(build_graph(study, flags, reporter()))
    store = Store(flags.storage).open_for_writing()
    (graph,) = settled((build_graph(study, flags, reporter()),), store)
    provide_data((graph,), store)
    say(f"study {study.name}: {len(graph.nodes)} nodes on {flags.corpus} (data {graph.data_id})")
    say(f"storage {store.root}")
    for doubt in graph.law_doubts:
        say(f"law {flags.law}, against its evidence: {doubt}")
    return Driver((graph,), store, open_tracker(flags)).run()


def _export_nodes(graph: Graph) -> int:
    """Writes the missing nodes to the file of --export-nodes; returns the exit code. ValueError as `provide_data`."""
    path = local_path("export_nodes", graph.flags.export_nodes)
    require_supply((graph,))
    nodes = missing_nodes(graph.nodes, Store(graph.flags.storage))
    try:
        write_nodes(path, nodes, graph.corpora)
    except OSError as error:
        raise invalid("export_nodes", str(path), f"a file that can be written ({error.strerror})") from error
    say(f"{path}: {len(nodes)} of {len(graph.nodes)} nodes")
    return 0


class Driver:
    """Executes the nodes of one or more studies, shows and mirrors them, and writes tables as they fill in.

    A search's driver, in `studies/searches/run.py`, also draws trials from a source.
    """

    draws_trials = False

    def __init__(self, graphs: Sequence[Graph], store: Store, tracker: Tracker, nodes: Sequence[Node] | None = None):
        """`nodes`: to execute; by default all nodes of the graphs."""
        self.graphs, self.store, self.tracker, self.flags = graphs, store, tracker, graphs[0].flags
        self.planned = unique(node for graph in graphs for node in graph.entries)
        self.nodes = self.planned if nodes is None else nodes
        self.view = LiveView(self.nodes, store, "+".join(graph.study.name for graph in graphs), self.flags.in_process)
        self.mirror = Mirror(tracker, store, self.view.say)
        self.hours: dict[str, float] = {}  # machine hours of nodes that have ended, over all submissions
        self.records: list[StudyRecord] = []
        self.unwritten: dict[tuple[int, str], set[str]] = {}  # (study, size) -> nodes without a result; gone when none
        self.progress, self.done_before = Progress(self.nodes), set[str]()
        self.ids = {node.id for node in self.nodes}  # that MLflow shall have

    def run(self) -> int:
        """Executes what is missing and writes every table; returns the exit code. ValueError as `require_room`."""
        started = time.monotonic()
        execute = self._executor()
        for graph in self.graphs if self._executes() else ():
            note_device(graph, self.store, self.execution.device)
        begin_work()
        self._begin()
        with self.view, self.mirror:
            self._execute(execute)
        self.mirror.finish(self.ids)
        for line in self._failures():
            self.view.say(line)
        self.view.say(f"\n{self._counts(time.monotonic() - started)}")
        limit = self.flags.budget.reached(self.spent_hours()) if self._has_work() else ""
        if limit:
            self.view.say(f"limit: {limit}; submit again with a higher one to go on")
        return worst(TIME_IS_UP if limit else DONE, self.finish())

    def _has_work(self) -> bool:
        """Tells whether nodes are left that could be executed."""
        return len(self.nodes) > sum(map(len, (self.progress.done, self.progress.failed, self.progress.blocked)))

    def finish(self) -> int:
        """Writes and logs all tables and reports, and updates the site; returns the exit code."""
        code = worst(self._write_tables(), FAILED if self._failures() else DONE)
        if self.draws_trials or len(self.progress.done) > self.progress.reused:
            refresh_site(self.flags, self.view.say)
        self.view.say(f"{'MLflow':12} {opened_by(self.flags.tracking_uri)}")
        return code

    # --------------------------------------------------------------------------------------------------- execution

    def _executor(self) -> Callable[[Sequence[Node]], Progress]:
        """Returns what executes nodes: this process, or Ray, which it starts if it is needed."""
        ends = NodeLifecycle(self.store).ends(self.nodes)
        self.done_before = {node_id for node_id, end in ends.items() if end == ""}
        self._count_hours(node for node in self.nodes if node.id in self.done_before)
        left = [node for node in self.nodes if node.id not in self.done_before]
        self.view.nodes |= {node.id: node for node in with_stored_tags(left, self.store)}
        self.nodes = list(self.view.nodes.values())
        how = {"on_change": self._on_change, "may_start": self._may_start, "done": self.done_before}
        how["retry_diverged"] = self.flags.retry_failed
        on_cordon = cordons_noted(self.store, [graph.study.name for graph in self.graphs], self.view.say)
        missing = [node for node in self.planned if node.id not in self.done_before]
        if self.flags.in_process:
            self.execution, _ = execution_of(self.flags, has_gpu())
        elif self._executes():
            self.execution, self.resources = start_ray(self.flags, self.view.say)
        else:
            self.execution, self.resources = execution_of(self.flags, False)
        how["placements"] = placements = {node.id: self.place(node) for node in missing}
        if self.flags.in_process:
            return partial(run_in_process, execution=self.execution, **how)
        if self._executes():
            require_room(widest_missing(missing, placements, self.store), self.resources, self.view.say)
        how["cordon"] = self.cordon = Cordon(self.resources, on_cordon)
        return partial(run_graph, execution=self.execution, resources=self.resources, **how)

    def place(self, node: Node) -> Placement:
        """Decides where a node is executed, on the device of this submission."""
        return placement_of(node, self.flags.ranks, self.execution.device, self.flags.gpus_per_run)

    def _executes(self) -> bool:
        """Tells whether this submission may execute a node."""
        return self.draws_trials or len(self.done_before) < len(self.nodes)

    def _begin(self) -> None:
        """Writes the record of every study."""
        self.records = [record_of(graph) for graph in self.graphs]
        for record in self.records:
            self.store.study_dir(record.name).write("study.json", record.to_json())
        for place, graph in enumerate(self.graphs):
            for size in graph.flags.sizes:
                if missing := {node.id for node in graph.of_size(size)} - self.done_before:
                    self.unwritten[place, size] = missing

    def _execute(self, execute: Callable[[Sequence[Node]], Progress]) -> None:
        """Executes all nodes; with --through one size after another, while none fails and no limit is reached."""
        rungs = self.flags.sizes if self.flags.through else ("",)
        nodes, done, reused = [], set(), 0
        for number, size in enumerate(rungs):
            nodes += [node for node in self.nodes if size in ("", node.size)]
            self.progress = execute(nodes)
            reused += self.progress.reused - len(done)  # nodes of smaller sizes count as reused in this graph
            self.progress.reused, done = reused, set(self.progress.done)
            if size:
                of_size = {one: [n for n in self.nodes if n.size == one] for one in rungs[number : number + 2]}
                spent = sum(self.hours.get(node.id, 0.0) for node in of_size[size])
                self.view.say(rung_text(of_size, spent, self.flags.hardware, bool(self.progress.failed)))
            if self.progress.failed or not self._may_start():
                break

    def _count_hours(self, nodes: Iterable[Node]) -> None:
        """Adds the machine hours of nodes that have ended, where a limit or a ladder asks for them."""
        if self.flags.max_hours or self.flags.max_cost or self.flags.through:
            self.hours |= {node.id: machine_hours(self.store, node) for node in nodes}

    def spent_hours(self) -> float:
        """Returns the machine hours that --max-hours limits."""
        return sum(self.hours.values())

    def _may_start(self) -> bool:
        return not self.flags.budget.reached(self.spent_hours())

    def _on_change(self, progress: Progress, ended: Node | None) -> None:
        self.view.update(progress, ended)
        self.mirror.watch(self.view.nodes[i] for i in progress.running)
        if ended is None:
            return
        self._count_hours((ended,))
        self.mirror.ended(ended)
        full = []
        for part, ids in self.unwritten.items():
            if ended.id in ids and ended.id in progress.done:
                ids.remove(ended.id)
                full += [] if ids else [part]
        for part in full:
            del self.unwritten[part]
        for place in dict.fromkeys(place for place, _ in full if self.unwritten):  # the last table comes at the end
            try:
                self._write_partial(self.records[place], progress)
            except Exception as error:  # a table must not stop training; it is tried again at the end
                self.view.say(f"no table so far: {type(error).__name__}: {error}")

    def _write_partial(self, record: StudyRecord, progress: Progress) -> None:
        """Writes the table and report so far from the storage, since MLflow may be behind."""
        measurement = MEASUREMENTS[record.measurement]
        results = measurement.read(record, self.store)
        if results is not None:
            paths = measurement.write(record, self.store, results, progress.failed, None)
            self.view.say(f"\n{measurement.text(record, results)}\nso far: {paths['report.html']}\n")

    # ----------------------------------------------------------------------------------------------------- the end

    def _failures(self) -> list[str]:
        """Returns a line for each node that has failed or is blocked."""
        name = lambda node_id: self.view.nodes[node_id].name  # noqa: E731
        failed = [f"failed: {name(i)}: {message}" for i, message in self.progress.failed.items()]
        blocked = [f"blocked: {name(i)} needs {', '.join(map(name, of))}" for i, of in self.progress.blocked.items()]
        return failed + blocked

    def _counts(self, elapsed_s: float) -> str:
        """Returns what was done now and before, as a text."""
        done, reused = len(self.progress.done), self.progress.reused
        return f"{done} of {len(self.nodes)} nodes done: {done - reused} now in {elapsed_s:.0f} s, {reused} before"

    def _write_tables(self) -> int:
        """Writes, logs and prints every study's table and report; returns 0, or 1 if one lacks what is lost."""
        code = 0
        for record in self.records:
            measurement = MEASUREMENTS[record.measurement]
            results, lost = read_or_lost(record, self.store, self.tracker, self.progress.done)
            for line in lost:
                self.view.say(f"lost: {line}")
                code = 1
            if results is None:
                self.view.say(f"{record.name}: no table: no baseline is complete with its evaluation yet")
                continue
            write = partial(measurement.write, record, self.store, results, self.progress.failed)
            self._publish(write, f"{record.title}\n{measurement.text(record, results)}")
            if results.source != "MLflow":
                self.view.say(f"read from {results.source}")
            self._say_links(record.name)
        return code

    def _say_links(self, study: str) -> None:
        """Prints the study's pages in MLflow, if it answers."""
        if self.mirror.is_away:
            return
        try:
            for name, url in self.tracker.view_urls(study).items():
                self.view.say(f"{'MLflow ' + name:13} {url}")
        except TrackingUnavailable as error:
            self.view.say(f"no links to the study's pages ({error})")

    def _publish(self, write: Callable[[Tracker | None], Mapping[str, str]], text: str) -> None:
        """Writes files and logs them to MLflow, or only writes them while it is away; prints text and paths."""
        paths = write_or_log(write, self.tracker, self.view.say)
        self.view.say(f"\n{text}\n")
        for name, path in paths.items():
            self.view.say(f"{name:12} {path}")
