"""Running studies: flags -> nodes -> data -> graph on Ray -> tables and reports."""

import time
from collections.abc import Sequence

import ray

from gram_platform.engine.capacity import require_room, widest_missing
from gram_platform.engine.execution import Execution, Resources
from gram_platform.engine.graph import Progress, run_graph
from gram_platform.engine.life import Lives
from gram_platform.methods.nodes import Node, unique
from gram_platform.pages.results.outcomes import Results, outcome_of
from gram_platform.pages.results.record import StudyRecord
from gram_platform.store import Store
from gram_platform.store.data import provide_corpus
from gram_platform.studies.build import Graph, build_graph, require_memory
from gram_platform.studies.definition import Study
from gram_platform.studies.dry_run import described
from gram_platform.studies.flags import CommonFlags, Flags, parse
from gram_platform.studies.live import LiveView
from gram_platform.studies.mirror import Mirror
from gram_platform.studies.record import record_of
from gram_platform.studies.session import connect, execution_of, exit_with, open_tracker, refresh_site, reporter, say
from gram_platform.studies.supply import require_document_end, require_enough_data, require_supply
from gram_platform.tracking import Tracker, TrackingUnavailable


def main(study: Study, arguments: list[str] | None = None) -> None:
    """The entrypoint of an experiment file."""
    exit_with(lambda: run_study(study, parse(study, arguments)))


def run_study(study: Study, flags: Flags) -> int:
    """Runs what is not done yet; returns the exit code. ValueError for bad input, before anything trains."""
    if flags.dry_run:
        say(described(build_graph(study, flags)))
        return 0
    store = Store(flags.storage).open_for_writing()
    graph = build_graph(study, flags, reporter())
    provide_data((graph,), store)
    say(f"study {study.name}: {len(graph.nodes)} nodes on {flags.corpus} (data {', '.join(graph.data_ids)})")
    say(f"storage {store.root}")
    return GraphsRun((graph,), flags, store, open_tracker(flags)).run()


def provide_data(graphs: Sequence[Graph], store: Store) -> None:
    """Packs what is not packed yet.

    ValueError for a run that no number of ranks can hold, and for a label that has too little text: before anything is
    fetched or packed, as far as that is known then.
    """
    for graph in graphs:
        require_memory(graph.nodes, graph.flags)
        require_supply(graph.nodes, graph.preset, graph.flags, graph.recipes)
    for graph in graphs:
        for recipe in graph.corpora:
            corpus = provide_corpus(recipe, store, reporter())
            for line in corpus.skipped:
                say(line)
            require_enough_data(graph.nodes, graph.preset, graph.flags, corpus)
            require_document_end(graph.nodes, corpus)


class GraphsRun:
    """One execution of one study or several: their graph, its view, its mirror, and the tables as they fill in."""

    def __init__(self, graphs: Sequence[Graph], flags: CommonFlags, store: Store, tracker: Tracker):
        self.flags, self.store, self.tracker = flags, store, tracker
        self.nodes = unique(node for graph in graphs for node in graph.entries)
        self.by_id = {node.id: node for node in self.nodes}
        self.records = [record_of(graph) for graph in graphs]
        self.view = LiveView(self.nodes, store)
        self.unwritten = {  # (study, size) -> its nodes, until its rows are in the table
            (place, size): {node.id for node in graph.of_size(size)}
            for place, graph in enumerate(graphs)
            for size in graph.flags.sizes
        }

    def run(self) -> int:
        """Executes what is missing and writes every study; returns the exit code. ValueError as `require_room`."""
        started = time.monotonic()
        execution, resources = self._placed()
        for record in self.records:
            self.store.study_dir(record.name).write("study.json", record.to_json())
        self.mirror = Mirror(self.tracker, self.store, self.view.say)
        retry = self.flags.retry_failed
        with self.view:
            progress = run_graph(self.nodes, execution, resources, self._on_change, retry_diverged=retry)
        is_mirrored = self.mirror.finish(self.by_id)
        self._report(progress, time.monotonic() - started)
        for record in self.records:
            self._finish(record, is_mirrored, progress)
        if len(progress.done) > progress.reused:
            refresh_site(self.flags, self.view.say)
        self.view.say(f"{'MLflow':12} {self._mlflow_command()}")
        return 1 if progress.failed else 0

    def _placed(self) -> tuple[Execution, Resources]:
        """How nodes are executed, on a Ray that has room for them; finished studies need no Ray."""
        lives = Lives(self.store)
        if all(lives.result(node) is not None for node in self.nodes):
            return execution_of(self.flags, has_gpu=False)
        connect()
        execution, resources = execution_of(self.flags, bool(ray.cluster_resources().get("GPU")))
        require_room(widest_missing(self.nodes, execution), resources, self.view.say)
        return execution, resources

    def _on_change(self, progress: Progress, ended: Node | None) -> None:
        self.view.update(progress, ended)
        self.mirror.watch(self.by_id[i] for i in progress.running)
        if ended is None:
            return
        self.mirror.ended(ended)
        full = [part for part, ids in self.unwritten.items() if ended.id in ids and ids <= progress.done]
        for part in full:
            del self.unwritten[part]
        for place in dict.fromkeys(place for place, _ in full if self.unwritten):  # else the end is near
            try:
                self._write_partial(self.records[place], progress)
            except Exception as error:  # what trains must not end with a table; the end tries again, and says so
                self.view.say(f"no table so far: {type(error).__name__}: {error}")

    def _write_partial(self, record: StudyRecord, progress: Progress) -> None:
        """The table and report so far, from the run directories: the mirror may be behind."""
        outcome = outcome_of(record)
        results = outcome.read(record, self.store, None, "the study is running")
        if results is not None:
            paths = outcome.write(record, self.store, results, progress.failed, None)
            self.view.say(f"\n{outcome.text(record, results)}\nso far: {paths['report.html']}\n")

    def _report(self, progress: Progress, elapsed_s: float) -> None:
        say = self.view.say
        for node_id, message in progress.failed.items():
            say(f"failed: {self.by_id[node_id].name}: {message}")
        for node_id, culprits in progress.blocked.items():
            say(f"blocked: {self.by_id[node_id].name} needs {', '.join(self.by_id[i].name for i in culprits)}")
        counts = f"{len(progress.done) - progress.reused} now in {elapsed_s:.0f} s, {progress.reused} before"
        say(f"\n{len(progress.done)} of {len(self.nodes)} nodes done: {counts}")

    def _finish(self, record: StudyRecord, is_mirrored: bool, progress: Progress) -> None:
        say, uri = self.view.say, self.flags.tracking_uri if is_mirrored else None
        outcome = outcome_of(record)
        results = outcome.read(record, self.store, uri, "MLflow is away")
        if results is None:
            say(f"{record.name}: no table: no baseline is complete with its evaluation yet")
            return
        paths = self._write(record, results, progress)
        say(f"\n{record.title}\n{outcome.text(record, results)}\n")
        if results.source != "MLflow":
            say(f"read from {results.source}")
        for name, path in paths.items():
            say(f"{name:12} {path}")

    def _write(self, record: StudyRecord, results: Results, progress: Progress) -> dict[str, str]:
        write = outcome_of(record).write
        try:
            return write(record, self.store, results, progress.failed, self.tracker)
        except TrackingUnavailable as error:
            self.view.say(f"the study is not in MLflow ({error}); submit again to log it")
            return write(record, self.store, results, progress.failed, None)

    def _mlflow_command(self) -> str:
        uri = self.flags.tracking_uri
        return uri if uri.startswith("http") else f"mlflow ui --backend-store-uri {uri}"
