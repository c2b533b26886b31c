"""Shows a submission's progress, counts its machine hours, and writes its tables."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial

from gram_platform.config.endings import DONE, FAILED, begin_work
from gram_platform.config.provenance import Provenance, Submissions, provenance
from gram_platform.engine.executor import ENDED, Event, Executor
from gram_platform.engine.life import Progress, with_stored_tags
from gram_platform.methods.nodes import Node
from gram_platform.pages.report.measurements import MEASUREMENTS, read_or_lost
from gram_platform.pages.results.record import STUDY_FILE, StudyRecord, write_or_log
from gram_platform.pages.results.results import Brief
from gram_platform.store import Folder, Store
from gram_platform.studies.live import LiveView, Mirror, message_of, post, show_results
from gram_platform.studies.plan import Plan, rung_text
from gram_platform.studies.record import begin_record, record_of
from gram_platform.studies.workplace import Workplace, machine_hours, machine_text, upload_of_job
from gram_platform.tracking import Tracker, TrackingUnavailable


class Observers:
    """Reports a submission to the terminal and MLflow, and notifies the webhook of its end."""

    # None until a submission that executes something has begun.
    provenance: Provenance | None = None
    # A search has one driver; drivers of a study share its nodes.
    lease: AbstractContextManager = nullcontext()

    def __init__(self, plan: Plan, store: Store, nodes: Sequence[Node]):
        self.plan, self.store, self.nodes = plan, store, nodes
        self.progress, self.done_before = Progress(), frozenset[str]()
        machine = plan.studies[0].machine
        self.terminal = LiveView(nodes, store, plan.name, plan.in_process, machine)
        self.say, self.tracker = self.terminal.say, Tracker(plan.tracking_uri)
        self.mirror = Mirror(self.tracker, store, self.say)
        self.mirror.prepare()
        # The ids of nodes that MLflow must have at the end.
        self.ids = {node.id for node in nodes}
        # The number of published claims of each verdict.
        self.verdicts: Counter[str] = Counter()
        self.started, self.has_begun = time.monotonic(), False

    def __enter__(self) -> "Observers":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_) -> None:
        self.terminal.stop()
        if self.has_begun:
            self.mirror.stop(kind)
            if isinstance(error, Exception):
                self.notify(FAILED, f"{type(error).__name__}: {error}")

    def begin(self, at: Workplace, executor: Executor) -> None:
        self.progress, self.done_before = executor.progress, at.done
        left = [node for node in self.nodes if node.id not in at.done]
        named = {node.id: node for node in with_stored_tags(left, self.store)}
        self.nodes = [named.get(node.id, node) for node in self.nodes]
        begin_work()
        if at.executes:
            self.provenance = provenance(machine_text(at.uses_ray), upload_of_job())
        self.has_begun, executor.look = True, self.terminal.look
        self.terminal.start(self.nodes, executor.progress)
        self.mirror.start()

    def see(self, event: Event) -> None:
        self.terminal.see(event)
        self.mirror.see(event)

    def source(self) -> Iterable[Sequence[Node]]:
        """Returns groups of nodes. Each group waits for the one before it."""
        return [self.nodes]

    def limit_reached(self) -> str:
        """Describes the limit that the machine hours have reached. If there is none, returns ""."""
        raise NotImplementedError

    def run_trials(self, at: Workplace) -> None:
        """Executes the trials of a search. Does nothing for a study."""

    def write_tables(self) -> int:
        """Writes, logs and prints all tables and reports. Returns the exit code."""
        raise NotImplementedError

    def flush(self) -> None:
        self.terminal.stop()
        self.mirror.finish(self.ids)

    def submissions(self, folder: Folder, file: str, node_hours: float) -> tuple[Mapping, ...]:
        """Returns the submissions in `file`, and this one if it executes anything.

        `node_hours` is the machine hours of the nodes that this submission executed.
        """
        rows = folder.read_spare(file, Submissions).get("submissions", ())
        if self.provenance is None:
            return tuple(rows)
        earlier = [row for row in rows if row["started"] != self.provenance.started]
        return replace(self.provenance, node_hours=node_hours).after(earlier)

    @property
    def is_unfinished(self) -> bool:
        ends = self.progress.done, self.progress.failed, self.progress.blocked
        return len(self.nodes) > sum(map(len, ends))

    def failures(self) -> list[str]:
        names = {node.id: node.name for node in self.nodes}
        failed = [f"failed: {names[i]}: {text}" for i, text in self.progress.failed.items()]
        blocked = [
            f"blocked: {names[i]} needs {', '.join(map(names.get, needed))}"
            for i, needed in self.progress.blocked.items()
        ]
        return failed + blocked

    def counts(self) -> str:
        elapsed_s = time.monotonic() - self.started
        done, before = len(self.progress.done), self.progress.reused
        text = f"{done} of {len(self.nodes)} nodes done: {done - before} now in {elapsed_s:.0f} s"
        return f"{text}, {before} before"

    def publish(
        self,
        study: str,
        write: Callable[[Tracker | None], Mapping[str, str]],
        text: str,
        brief: Callable[[bool], Brief] | None,
    ) -> None:
        """Writes a study's files, logs them if MLflow is reachable, and prints results and links.

        `text` and `brief` are as in `show_results`.
        """
        paths = write_or_log(write, self.tracker, self.say)
        show_results(self.terminal.console, f"\n{text}\n", brief)
        if brief and self.plan.notify:
            self.verdicts.update(brief(True).verdicts)
        for name, path in paths.items():
            self.say(f"{name:12} {path}")
        # Pages of a database have no address before `gram ui` opens them.
        if self.mirror.is_away or not self.plan.tracking_uri.startswith("http"):
            return
        try:
            for name, url in self.tracker.view_urls(study).items():
                self.say(f"{'MLflow ' + name:13} {url}")
        except TrackingUnavailable as error:
            self.say(f"no links to the study's pages ({error})")

    def notify(self, code: int, what: str, num_failures: int = 0) -> None:
        if self.plan.notify:
            root = str(self.store.root)
            message = message_of(self.plan.name, root, code, what, num_failures, self.verdicts)
            if reason := post(self.plan.notify, message):
                self.say(f"warning: the webhook of --notify failed: {reason}")


class StudyObservers(Observers):
    """Observes studies, counts machine hours, and writes tables whenever a size is complete."""

    def __init__(self, plan: Plan, store: Store):
        super().__init__(plan, store, plan.nodes)
        # Machine hours of ended nodes, over all submissions; empty without a limit or --through.
        self.hours: dict[str, float] = {}
        # Nodes without a result, by study and size.
        self.unwritten: dict[tuple[int, str], set[str]] = {}

    def begin(self, at: Workplace, executor: Executor) -> None:
        super().begin(at, executor)
        for node in self.nodes:
            if node.id in at.done:
                self._count_hours(node)
        self.records = [self.trace(record_of(part)) for part in self.plan.studies]
        for record in self.records:
            begin_record(self.store, record)
        for number, part in enumerate(self.plan.studies):
            for node in part.entries:
                if node.id not in at.done:
                    self.unwritten.setdefault((number, node.size), set()).add(node.id)

    def see(self, event: Event) -> None:
        super().see(event)
        if event.kind == ENDED and event.node is not None:
            self._count_hours(event.node)
            if not event.text:
                self._write_full_tables(event.node.id)

    def _count_hours(self, node: Node) -> None:
        budget = self.plan.budget
        if budget.max_hours or budget.max_cost or self.plan.through:
            self.hours[node.id] = machine_hours(self.store, node)

    def limit_reached(self) -> str:
        return self.plan.budget.name_reached_limit(sum(self.hours.values()))

    def source(self) -> Iterator[Sequence[Node]]:
        """Yields all nodes. With --through, yields one size at a time until a failure or limit."""
        if not self.plan.through:
            yield from super().source()
            return
        part = self.plan.studies[0]
        sizes = part.choice.sizes
        of_size = {size: [node for node in self.nodes if node.size == size] for size in sizes}
        for number, size in enumerate(sizes):
            yield of_size[size]
            spent = sum(self.hours.get(node.id, 0.0) for node in of_size[size])
            rungs = {rung: of_size[rung] for rung in sizes[number : number + 2]}
            has_failed = bool(self.progress.failed)
            self.say(rung_text(rungs, spent, part.machine, has_failed))
            if has_failed or self.limit_reached():
                return

    def _write_full_tables(self, done: str) -> None:
        """Writes interim tables of each study that has just completed a size.

        `done` is the id of the node that ended last.
        """
        for ids in self.unwritten.values():
            ids.discard(done)
        full = [key for key, ids in self.unwritten.items() if not ids]
        for key in full:
            del self.unwritten[key]
        # The last table is written at the end.
        for number in dict.fromkeys(number for number, _ in full if self.unwritten):
            try:
                self._write_so_far(self.records[number])
            except Exception as error:
                # A table must not stop training.
                self.say(f"no table so far: {type(error).__name__}: {error}")

    def _write_so_far(self, record: StudyRecord) -> None:
        """Writes an interim table and report. Reads the storage, since MLflow may lag behind."""
        measurement = MEASUREMENTS[record.measurement]
        results = measurement.read(record, self.store)
        if results is not None:
            paths = measurement.write(record, self.store, results, self.progress.failed, None)
            text, brief = measurement.text(record, results), measurement.brief_of(record, results)
            show_results(self.terminal.console, f"\n{text}\n", brief)
            self.say(f"so far: {paths['report.html']}\n")

    def write_tables(self) -> int:
        code = DONE
        for record in map(self.trace, self.records) if self.provenance else self.records:
            measurement = MEASUREMENTS[record.measurement]
            results, lost = read_or_lost(record, self.store, self.tracker, self.progress.done)
            for line in lost:
                self.say(f"lost: {line}")
                code = FAILED
            if results is None:
                self.say(
                    f"{record.name}: no table: no baseline is complete with its evaluation yet"
                )
                continue
            write = partial(measurement.write, record, self.store, results, self.progress.failed)
            text = f"{record.title}\n{measurement.text(record, results)}"
            self.publish(record.name, write, text, measurement.brief_of(record, results))
            if results.source != "MLflow":
                self.say(f"read from {results.source}")
        return code

    def trace(self, record: StudyRecord) -> StudyRecord:
        """Returns the record with all submissions, including this one's machine hours so far."""
        done = (self.progress.done - self.done_before) & record.ids
        hours = sum(machine_hours(self.store, node) for node in self.nodes if node.id in done)
        rows = self.submissions(self.store.study_dir(record.name), STUDY_FILE, hours)
        return replace(record, submissions=rows)
