"""Runs studies: flags -> nodes -> data -> graph on Ray -> tables and reports."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from gram_platform.config.identity import invalid, local_path
from gram_platform.config.terminal import say
from gram_platform.engine.handover import missing_nodes, write_nodes
from gram_platform.engine.life import Progress
from gram_platform.methods.nodes import Node, unique
from gram_platform.pages.report.measurements import MEASUREMENTS, read_or_lost
from gram_platform.pages.results.history import begin_record
from gram_platform.pages.results.record import STUDY_FILE, StudyRecord
from gram_platform.store import Store
from gram_platform.studies.build import Graph, build_graph
from gram_platform.studies.definition import Study
from gram_platform.studies.device import settled
from gram_platform.studies.dry_run import describe
from gram_platform.studies.flags import Flags
from gram_platform.studies.live import show_results
from gram_platform.studies.mirror import open_tracker
from gram_platform.studies.packing import provide_data, reporter, require_supply
from gram_platform.studies.price import rung_text
from gram_platform.studies.record import record_of
from gram_platform.studies.session import machine_hours
from gram_platform.studies.submission import Ended, Submission, Workplace, lead
from gram_platform.tracking import Tracker


def run_study(study: Study, flags: Flags) -> int:
    """Runs whatever is not done; returns the exit code.

    ValueError for bad input, before anything trains.
    """
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
    return lead_studies((graph,), store, open_tracker(flags.tracking_uri))


def _export_nodes(graph: Graph) -> int:
    """Writes the missing nodes to the file of --export-nodes; returns the exit code.

    ValueError as `provide_data`.
    """
    path = local_path("export_nodes", graph.flags.export_nodes)
    require_supply((graph,))
    nodes = missing_nodes(graph.nodes, Store(graph.flags.storage))
    try:
        write_nodes(path, nodes, graph.corpora)
    except OSError as error:
        raise invalid(
            "export_nodes", str(path), f"a file that can be written ({error.strerror})"
        ) from error
    say(f"{path}: {len(nodes)} of {len(graph.nodes)} nodes")
    return 0


def lead_studies(graphs: Sequence[Graph], store: Store, tracker: Tracker) -> int:
    """Executes and reports studies in one submission; returns the exit code.

    ValueError as `lead`.
    """
    work = StudyWork(graphs, store, tracker)
    return lead(work.submission, work.start, work.execute, work.write)


class StudyWork:
    """Executes the nodes of one or more studies, and writes their tables as they fill in."""

    def __init__(self, graphs: Sequence[Graph], store: Store, tracker: Tracker):
        nodes = unique(node for graph in graphs for node in graph.entries)
        self.submission, self.store, self.tracker = (
            Submission(graphs, nodes, store, tracker),
            store,
            tracker,
        )
        self.graphs, self.flags, self.say = graphs, graphs[0].flags, self.submission.view.say
        # Machine hours of nodes that have ended, over all submissions.
        self.hours: dict[str, float] = {}
        self.records: list[StudyRecord] = []
        # Nodes without a result by (study, size); an entry goes when none is left.
        self.unwritten: dict[tuple[int, str], set[str]] = {}

    def start(self) -> Workplace:
        """Starts the submission, and writes the record of every study."""
        at, done = self.submission.start(self.submission.nodes), self.submission.done_before
        self._count_hours(node for node in self.submission.nodes if node.id in done)
        self.records = [self._traced(record_of(graph)) for graph in self.graphs]
        for record in self.records:
            begin_record(self.store, record)
        for number, graph in enumerate(self.graphs):
            for size in graph.flags.sizes:
                if missing := {node.id for node in graph.of_size(size)} - done:
                    self.unwritten[number, size] = missing
        return at

    def _traced(self, record: StudyRecord) -> StudyRecord:
        """Returns the record with the submissions that it is from, and the hours of this one so
        far."""
        done = self.submission.progress.done - self.submission.done_before
        nodes = [node for node in self.submission.nodes if node.id in done & record.ids]
        hours = sum(machine_hours(self.store, node) for node in nodes)
        rows = self.submission.submissions(self.store.study_dir(record.name), STUDY_FILE, hours)
        return replace(record, submissions=rows)

    def execute(self, at: Workplace) -> Ended:
        """Executes all nodes; with --through one size after another, while none fails and no limit
        is reached."""
        rungs = self.flags.sizes if self.flags.through else ("",)
        all_nodes, nodes, done, reused = self.submission.nodes, [], set(), 0
        for number, size in enumerate(rungs):
            nodes += [node for node in all_nodes if size in ("", node.size)]
            progress = self.submission.execute(nodes, at, self._on_end, self._may_start)
            # Nodes of smaller sizes count as reused in this graph.
            reused += progress.reused - len(done)
            progress.reused, done = reused, set(progress.done)
            if size:
                of_size = {
                    one: [n for n in all_nodes if n.size == one]
                    for one in rungs[number : number + 2]
                }
                spent = sum(self.hours.get(node.id, 0.0) for node in of_size[size])
                self.say(rung_text(of_size, spent, self.flags.hardware, bool(progress.failed)))
            if progress.failed or not self._may_start():
                break
        one, hours = self.submission, sum(self.hours.values())
        return Ended(one.counts(), one.failures(), one.num_left > 0, hours)

    def _may_start(self) -> bool:
        return not self.flags.limits.budget.reached(sum(self.hours.values()))

    def _count_hours(self, nodes: Iterable[Node]) -> None:
        """Adds the machine hours of nodes that have ended, where a limit or a ladder asks for
        them."""
        if self.flags.max_hours or self.flags.max_cost or self.flags.through:
            self.hours |= {node.id: machine_hours(self.store, node) for node in nodes}

    def _on_end(self, ended: Node, progress: Progress) -> None:
        """Counts the hours of a node; writes the tables so far of studies that have all results of
        a size by it."""
        self._count_hours((ended,))
        full = []
        for part, ids in self.unwritten.items():
            if ended.id in ids and ended.id in progress.done:
                ids.remove(ended.id)
                full += [] if ids else [part]
        for part in full:
            del self.unwritten[part]
        # The last table is written at the end.
        for number in dict.fromkeys(number for number, _ in full if self.unwritten):
            try:
                self._write_partial(self.records[number], progress)
            except Exception as error:
                # A table must not stop training; it is tried again at the end.
                self.say(f"no table so far: {type(error).__name__}: {error}")

    def _write_partial(self, record: StudyRecord, progress: Progress) -> None:
        """Writes the table and report so far from the storage, since MLflow may be behind."""
        measurement = MEASUREMENTS[record.measurement]
        results = measurement.read(record, self.store)
        if results is not None:
            paths = measurement.write(record, self.store, results, progress.failed, None)
            text, brief = measurement.text(record, results), measurement.brief_of(record, results)
            show_results(self.submission.view.console, f"\n{text}\n", brief)
            self.say(f"so far: {paths['report.html']}\n")

    def write(self) -> int:
        """Writes, logs and prints every study's table and report; returns 0, or 1 if one lacks what
        is lost."""
        code, progress = 0, self.submission.progress
        for record in (
            map(self._traced, self.records) if self.submission.provenance else self.records
        ):
            measurement = MEASUREMENTS[record.measurement]
            results, lost = read_or_lost(record, self.store, self.tracker, progress.done)
            for line in lost:
                self.say(f"lost: {line}")
                code = 1
            if results is None:
                self.say(
                    f"{record.name}: no table: no baseline is complete with its evaluation yet"
                )
                continue
            write = partial(measurement.write, record, self.store, results, progress.failed)
            text = f"{record.title}\n{measurement.text(record, results)}"
            self.submission.publish(record.name, write, text, measurement.brief_of(record, results))
            if results.source != "MLflow":
                self.say(f"read from {results.source}")
        return code
