"""Runs studies: flags -> nodes -> data -> graph on Ray -> tables and reports."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from gram_platform.analysis.ratios import MEAN, VARIANT
from gram_platform.config import CORE
from gram_platform.config.flops import total_parameters
from gram_platform.config.identity import invalid, local_path
from gram_platform.engine.graph import run_graph
from gram_platform.engine.handover import missing_nodes, write_nodes
from gram_platform.engine.in_process import has_gpu, run_in_process
from gram_platform.engine.life import NodeLifecycle, Progress
from gram_platform.methods import Setting
from gram_platform.methods.nodes import Node, method_costs, unique
from gram_platform.pages.results.record import StudyRecord, study_links
from gram_platform.planner import MACHINES
from gram_platform.store import Store
from gram_platform.store.root import provide_corpus
from gram_platform.studies.build import Graph, build_graph, require_memory
from gram_platform.studies.definition import FAMILIES, NOT_REPRODUCED, OURS, Study
from gram_platform.studies.dry_run import (
    described,
    planned_hours,
    require_document_end,
    require_enough_data,
    require_supply,
)
from gram_platform.studies.flags import Flags, parse
from gram_platform.studies.live import LiveView
from gram_platform.studies.measurements import MEASUREMENTS
from gram_platform.studies.session import (
    Mirror,
    budget_of,
    execution_of,
    exit_with,
    machine_hours,
    open_tracker,
    refresh_site,
    reporter,
    say,
    start_ray,
)
from gram_platform.tracking import Tracker, TrackingUnavailable


def main(study: Study, arguments: list[str] | None = None) -> None:
    """Runs the command line of an experiment file, and ends the process."""
    exit_with(lambda: run_study(study, parse(study, arguments)))


def run_study(study: Study, flags: Flags) -> int:
    """Runs whatever is not done; returns the exit code. ValueError for bad input, before anything trains."""
    if flags.dry_run:
        say(described(build_graph(study, flags)))
        return 0
    if flags.export_nodes:
        return _export_nodes(build_graph(study, flags, reporter()))
    store = Store(flags.storage).open_for_writing()
    graph = build_graph(study, flags, reporter())
    provide_data((graph,), store)
    say(f"study {study.name}: {len(graph.nodes)} nodes on {flags.corpus} (data {', '.join(graph.data_ids)})")
    say(f"storage {store.root}")
    return GraphsRun((graph,), flags, store, open_tracker(flags)).run()


def _export_nodes(graph: Graph) -> int:
    """Writes the missing nodes to the file of --export-nodes; returns the exit code. ValueError as `provide_data`."""
    path = local_path("export_nodes", graph.flags.export_nodes)
    require_supply(graph.nodes, graph.preset, graph.flags, graph.recipes)
    nodes = missing_nodes(graph.nodes, Store(graph.flags.storage))
    try:
        write_nodes(path, nodes, graph.corpora)
    except OSError as error:
        raise invalid("export_nodes", str(path), f"a file that can be written ({error.strerror})") from error
    say(f"{path}: {len(nodes)} of {len(graph.nodes)} nodes")
    return 0


def provide_data(graphs: Sequence[Graph], store: Store) -> None:
    """Packs the corpora that are not packed yet.

    ValueError for a run that fits no number of ranks, and for a label with too little text; before fetching and packing
    where that is known by then.
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
    """Executes the graph of one or more studies, shows and mirrors it, and writes tables as they fill in."""

    def __init__(self, graphs: Sequence[Graph], flags: Flags, store: Store, tracker: Tracker):
        self.flags, self.store, self.tracker = flags, store, tracker
        self.nodes = unique(node for graph in graphs for node in graph.entries)
        self.by_id = {node.id: node for node in self.nodes}
        self.records = [record_of(graph) for graph in graphs]
        self.view = LiveView(self.nodes, store, flags.in_process)
        self.budget = budget_of(flags)
        self.hours: dict[str, float] = {}  # machine hours of nodes that have ended, over all submissions
        self.unwritten = {  # (study, size) -> ids of nodes, until the table has their rows
            (place, size): {node.id for node in graph.of_size(size)}
            for place, graph in enumerate(graphs)
            for size in graph.flags.sizes
        }

    def run(self) -> int:
        """Executes missing nodes and writes every study; returns the exit code. ValueError as `require_room`."""
        started = time.monotonic()
        execute = self._executor()
        for record in self.records:
            self.store.study_dir(record.name).write("study.json", record.to_json())
        self.mirror = Mirror(self.tracker, self.store, self.view.say)
        try:
            with self.view:
                progress = self._climb(execute)
        except (KeyboardInterrupt, SystemExit):  # Ctrl-C; SIGTERM, as by `ray job stop`
            self.mirror.leave()
            raise
        is_mirrored = self.mirror.finish(self.by_id)
        self._report(progress, time.monotonic() - started)
        for record in self.records:
            self._finish(record, is_mirrored, progress)
        if len(progress.done) > progress.reused:
            refresh_site(self.flags, self.view.say)
        self.view.say(f"{'MLflow':12} {self._mlflow_command()}")
        return 1 if progress.failed else 0

    def _climb(self, execute: Callable[..., Progress]) -> Progress:
        """Executes all nodes; with --through one size after another, while none fails and no limit is reached."""
        rungs = self.flags.sizes if self.flags.through else ("",)
        nodes, done, reused = [], set(), 0
        for number, size in enumerate(rungs):
            nodes += [node for node in self.nodes if size in ("", node.size)]
            progress = execute(nodes)
            reused += progress.reused - len(done)  # the nodes of smaller sizes count as reused in this graph
            progress.reused, done = reused, set(progress.done)
            if size:
                self._announce_rung(size, rungs[number + 1 : number + 2], progress)
            if progress.failed or not self._may_start():
                break
        return progress

    def _count_hours(self, nodes: Iterable[Node]) -> None:
        """Adds the machine hours of nodes that have ended, where a limit or a ladder asks for them."""
        if self.flags.max_hours or self.flags.max_cost or self.flags.through:
            self.hours |= {node.id: machine_hours(self.store, node) for node in nodes}

    def _may_start(self) -> bool:
        return not self.budget.reached(sum(self.hours.values()))

    def _announce_rung(self, size: str, following: Sequence[str], progress: Progress) -> None:
        """Prints the hours of a size that has ended, and what the next would take at the same ratio to the plan."""
        machine = MACHINES[self.flags.machine]
        planned = {one: planned_hours((n for n in self.nodes if n.size == one), machine) for one in (size, *following)}
        spent = sum(self.hours.get(node.id, 0.0) for node in self.nodes if node.size == size)
        line = f"{size}: {spent:.3g} {machine.name} hours spent, {planned[size]:.3g} predicted"
        for one in following:
            hours = planned[one] * spent / planned[size]
            line += f"; {one}: {planned[one]:.3g} predicted, {hours:.3g} (${hours * machine.dollars_per_hour:,.2f}) "
            line += f"at the ratio of {size}"
            if progress.failed:
                line += f"; it is not started, because nodes of {size} have failed"
        self.view.say(line)

    def _executor(self) -> Callable[[Sequence[Node]], Progress]:
        """Returns what executes nodes: this process, or Ray, which it starts unless every node is done."""
        lifecycle = NodeLifecycle(self.store)
        done = [node for node in self.nodes if lifecycle.result(node) is not None]
        self._count_hours(done)
        how = {"on_change": self._on_change, "may_start": self._may_start, "retry_diverged": self.flags.retry_failed}
        if self.flags.in_process:
            return partial(run_in_process, execution=execution_of(self.flags, has_gpu())[0], **how)
        is_done = len(done) == len(self.nodes)
        placed = execution_of(self.flags, False) if is_done else start_ray(self.flags, self.nodes, self.view.say)
        return partial(run_graph, execution=placed[0], resources=placed[1], **how)

    def _on_change(self, progress: Progress, ended: Node | None) -> None:
        self.view.update(progress, ended)
        self.mirror.watch(self.by_id[i] for i in progress.running)
        if ended is None:
            return
        self._count_hours((ended,))
        self.mirror.ended(ended)
        full = [part for part, ids in self.unwritten.items() if ended.id in ids and ids <= progress.done]
        for part in full:
            del self.unwritten[part]
        for place in dict.fromkeys(place for place, _ in full if self.unwritten):  # the last table comes at the end
            try:
                self._write_partial(self.records[place], progress)
            except Exception as error:  # a table must not stop training; it is tried again at the end
                self.view.say(f"no table so far: {type(error).__name__}: {error}")

    def _write_partial(self, record: StudyRecord, progress: Progress) -> None:
        """Writes the table and report so far from the run directories, since MLflow may be behind."""
        measurement = MEASUREMENTS[record.measurement]
        results = measurement.read(record, self.store, None, "the study is running")
        if results is not None:
            paths = measurement.write(record, self.store, results, progress.failed, None)
            self.view.say(f"\n{measurement.text(record, results)}\nso far: {paths['report.html']}\n")

    def _report(self, progress: Progress, elapsed_s: float) -> None:
        say = self.view.say
        for node_id, message in progress.failed.items():
            say(f"failed: {self.by_id[node_id].name}: {message}")
        for node_id, culprits in progress.blocked.items():
            say(f"blocked: {self.by_id[node_id].name} needs {', '.join(self.by_id[i].name for i in culprits)}")
        counts = f"{len(progress.done) - progress.reused} now in {elapsed_s:.0f} s, {progress.reused} before"
        say(f"\n{len(progress.done)} of {len(self.nodes)} nodes done: {counts}")
        if limit := self.budget.reached(sum(self.hours.values())):
            say(f"limit: {limit}; submit again with a higher one to go on")

    def _finish(self, record: StudyRecord, is_mirrored: bool, progress: Progress) -> None:
        say, uri = self.view.say, self.flags.tracking_uri if is_mirrored else None
        measurement = MEASUREMENTS[record.measurement]
        results = measurement.read(record, self.store, uri, "MLflow is away")
        if results is None:
            say(f"{record.name}: no table: no baseline is complete with its evaluation yet")
            return
        paths = self._write(record, results, progress)
        say(f"\n{record.title}\n{measurement.text(record, results)}\n")
        if results.source != "MLflow":
            say(f"read from {results.source}")
        for name, path in paths.items():
            say(f"{name:12} {path}")
        if is_mirrored:
            for name, url in study_links(self.tracker, record.name).items():
                say(f"{'MLflow ' + name:13} {url}")

    def _write(self, record: StudyRecord, results, progress: Progress) -> dict[str, str]:
        write = MEASUREMENTS[record.measurement].write
        try:
            return write(record, self.store, results, progress.failed, self.tracker)
        except TrackingUnavailable as error:
            self.view.say(f"the study is not in MLflow ({error}); submit again to log it")
            return write(record, self.store, results, progress.failed, None)

    def _mlflow_command(self) -> str:
        uri = self.flags.tracking_uri
        return uri if uri.startswith("http") else f"mlflow ui --backend-store-uri {uri}"


# ------------------------------------------------------------------------------------------------------------- record


SOURCES = {  # flags that name where numbers of a study are from
    "law": "Learning rates and batches by the law {}.",
    "maxent": "MaxEnt's rate and weight of every profile from the search {}.",
    "start": "Training begins with the imported model {}.",
}


def record_of(graph: Graph) -> StudyRecord:
    """Describes a study for its tables and report, with the facts of its flags and preset."""
    flags, setting = graph.flags, graph.settings[0]
    routing, data = setting.routing, ", ".join(graph.data_ids)
    kinds = dict.fromkeys(each.routing.accumulation for each in graph.settings)
    variants = dict.fromkeys(names["variant"] for node in graph.entries if "variant" in (names := node.names))
    ranges = {size: graph.preset.seeds(size, flags.seeds, flags.first_seed) for size in flags.sizes}
    seeds = seeds_text({size: len(found) for size, found in ranges.items()})
    first = next(iter(ranges.values())).start
    facts = (
        f"Preset {flags.preset}: {FAMILIES[graph.preset.family]}.",
        f"Corpus {flags.corpus} (data {data}), {seeds} seeds from {first}.",
        f"Routing: p_as {routing.p_aux_spread}, p_cr {routing.p_core_robust}, p_af {_factors(setting)}, "
        f"{' or '.join(kinds)} accumulation; compute {'' if setting.equal_compute else 'not '}matched by lambda.",
    )
    if graph.preset.family != OURS:
        facts += (NOT_REPRODUCED,)
    params = {"preset": flags.preset, "family": graph.preset.family, "data_id": data, "seeds": seeds}
    params |= {"sizes": ",".join(flags.sizes), "methods": ",".join(flags.methods)}
    for name, sentence in SOURCES.items():
        if source := getattr(flags, name):
            facts += (sentence.format(source),)
            params[name] = source
    return StudyRecord(
        **graph.study.description,
        facts=facts,
        params=params,
        sizes=flags.sizes,
        parameters={s.size.name: total_parameters(s.size.dense()) for s in graph.settings},
        profile=graph.study.profile or _compared_profile(setting),
        entries=tuple({"id": node.id, "kind": node.kind, "tags": node.names} for node in graph.entries),
        costs=_costs(graph),
        variants=tuple(variants),
        measurement=graph.preset.measurement.name,
        probed=tuple(n.id for n in graph.nodes if n.is_run and n.config.eval_points.num_probes),
        by_modules=graph.preset.every_subset,
    )


def seeds_text(of_size: Mapping[str, int]) -> str:
    """Returns the most common number of seeds, then those of other sizes: `3 (2B 1, 5B 1)`."""
    counts = list(of_size.values())
    common = max(counts, key=counts.count)
    others = ", ".join(f"{size} {number}" for size, number in of_size.items() if number != common)
    return f"{common} ({others})" if others else str(common)


def _factors(setting: Setting) -> str:
    exceptions = "".join(f" ({domain} {factor:.3g})" for domain, factor in setting.aux_factor_of)
    return f"{setting.aux_factor:.3g}{exceptions}"


def _compared_profile(setting: Setting) -> str:
    """Returns the first compared profile, or `mean` if core alone is one of several."""
    if () in setting.profiles and len(setting.profiles) > 1:
        return MEAN
    return "+".join((CORE, *setting.profiles[0]))


def _costs(graph: Graph) -> tuple[dict, ...]:
    """Returns the cost of every method at every size, one row for all variants of equal cost; seeds cost the same."""
    cells = {(setting.size.name, setting.variant): setting for setting in graph.settings}
    variants_of: dict[tuple, list[str]] = {}  # by size and cost
    for (size, name), setting in cells.items():
        for cost in method_costs(setting, graph.methods_of(setting)):
            variants_of.setdefault((("size", size), *cost.items()), []).append(name)
    named = [(dict(row), ", ".join(names)) for row, names in variants_of.items()]
    sizes, methods = graph.flags.sizes, graph.flags.methods
    named.sort(key=lambda pair: (sizes.index(pair[0]["size"]), methods.index(pair[0]["method"])))
    return tuple({**row, VARIANT: names} if names else row for row, names in named)
