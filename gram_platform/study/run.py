"""Running a study: flags -> nodes -> data -> graph on Ray -> table and report."""

import time

import ray

from gram_platform.engine.graph import Progress, run_graph
from gram_platform.nodes import Node
from gram_platform.store import Store
from gram_platform.store.data import provide_corpus
from gram_platform.study.build import Graph, build_graph, require_enough_data
from gram_platform.study.definition import Study
from gram_platform.study.dry_run import described
from gram_platform.study.flags import Flags, parse
from gram_platform.study.live import LiveView
from gram_platform.study.mirror import Mirror
from gram_platform.study.record import record_of
from gram_platform.study.results import Results, read_results, summary_text, write_results
from gram_platform.study.session import connect, execution_of, exit_with, open_tracker, reporter, say
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
    for recipe in graph.recipes:
        require_enough_data(graph.nodes, graph.preset, flags, provide_corpus(recipe, store, reporter()))
    data = ", ".join(recipe.data_id for recipe in graph.recipes)
    say(f"study {study.name}: {len(graph.nodes)} nodes on {flags.corpus} (data {data})")
    say(f"storage {store.root}")
    return _StudyRun(graph, store, open_tracker(flags)).run()


class _StudyRun:
    """One execution: the graph, its view, its mirror, and the table as it fills in."""

    def __init__(self, graph: Graph, store: Store, tracker: Tracker):
        self.graph, self.store, self.tracker = graph, store, tracker
        self.view = LiveView(graph.nodes, store)
        self.record = record_of(graph)
        self.written_sizes: set[str] = set()
        self.by_id = {node.id: node for node in graph.nodes}

    def run(self) -> int:
        flags, started = self.graph.flags, time.monotonic()
        has_gpu = False
        if not self._is_done():  # a finished study needs no Ray
            connect()
            has_gpu = bool(ray.cluster_resources().get("GPU"))
        execution, resources = execution_of(flags, has_gpu)
        self.store.study_dir(self.record.name).write("study.json", self.record.to_json())
        self.mirror = Mirror(self.tracker, self.store, self.view.say)
        with self.view:
            progress = run_graph(
                self.graph.nodes, execution, resources, self._on_change, retry_diverged=flags.retry_failed
            )
        is_mirrored = self.mirror.finish(self.by_id)
        self._finish(is_mirrored, progress, time.monotonic() - started)
        return 1 if progress.failed else 0

    def _is_done(self) -> bool:
        """Whether every node has its result."""
        directory = {"run": self.store.run, "evaluation": self.store.evaluation}
        return all(directory[node.kind](node.id).result() is not None for node in self.by_id.values())

    def _on_change(self, progress: Progress, ended: Node | None) -> None:
        self.view.update(progress, ended)
        self.mirror.watch(self.by_id[i] for i in progress.running)
        if ended is None:
            return
        self.mirror.ended(ended)
        size = dict(ended.tags)["size"]
        if all(node.id in progress.done for node in self.graph.of_size(size)) and size not in self.written_sizes:
            self.written_sizes.add(size)
            self._write_partial(progress)

    def _write_partial(self, progress: Progress) -> None:
        """The table and report so far, from the run directories: the mirror may be behind."""
        if len(self.written_sizes) == len(self.graph.flags.sizes):
            return  # the end is near
        results = read_results(self.record, self.store, None, "the study is running")
        if results is not None:
            paths = write_results(self.record, self.store, results, progress.failed, None)
            self.view.say(f"\n{summary_text(self.record, results)}\nso far: {paths['report.html']}\n")

    def _finish(self, is_mirrored: bool, progress: Progress, elapsed_s: float) -> None:
        say = self.view.say
        for node_id, message in progress.failed.items():
            say(f"failed: {self.by_id[node_id].name}: {message}")
        for node_id, culprits in progress.blocked.items():
            say(f"blocked: {self.by_id[node_id].name} needs {', '.join(self.by_id[i].name for i in culprits)}")
        counts = f"{len(progress.done) - progress.reused} now in {elapsed_s:.0f} s, {progress.reused} before"
        say(f"\n{len(progress.done)} of {len(self.by_id)} nodes done: {counts}")
        uri = self.graph.flags.tracking_uri if is_mirrored else None
        results = read_results(self.record, self.store, uri, "MLflow is away")
        if results is None:
            say("no table: no baseline is complete with its evaluation yet")
            return
        paths = self._write(results, progress)
        say(f"\n{summary_text(self.record, results)}\n")
        if results.source != "MLflow":
            say(f"read from {results.source}")
        for name, path in paths.items():
            say(f"{name:12} {path}")
        say(f"{'MLflow':12} {self._mlflow_command()}")

    def _write(self, results: Results, progress: Progress) -> dict[str, str]:
        try:
            return write_results(self.record, self.store, results, progress.failed, self.tracker)
        except TrackingUnavailable as error:
            self.view.say(f"the study is not in MLflow ({error}); submit again to log it")
            return write_results(self.record, self.store, results, progress.failed, None)

    def _mlflow_command(self) -> str:
        uri = self.graph.flags.tracking_uri
        return uri if uri.startswith("http") else f"mlflow ui --backend-store-uri {uri}"
