"""Leads a submission from its first node to its last table."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

from gram_platform.config import RunConfig
from gram_platform.config.endings import DONE, FAILED, TIME_IS_UP, begin_work, worst
from gram_platform.config.flops import GIB
from gram_platform.config.provenance import Provenance, Submissions, provenance
from gram_platform.engine.capacity import Cordon, require_capacity, widest_missing
from gram_platform.engine.execution import Division, Execution, Placement, Resources
from gram_platform.engine.graph import run_graph
from gram_platform.engine.in_process import has_gpu, run_in_process
from gram_platform.engine.life import NodeLifecycle, Progress, with_stored_tags
from gram_platform.methods.nodes import Node
from gram_platform.pages.results.record import write_or_log
from gram_platform.pages.results.results import Brief
from gram_platform.planner import MACHINES, Machine, Ranks, expected_hours, passes_of
from gram_platform.store import Folder, Store
from gram_platform.store.root import HISTORY
from gram_platform.studies.build import Graph
from gram_platform.studies.device import note_device
from gram_platform.studies.live import LiveView, show_results
from gram_platform.studies.mirror import Mirror
from gram_platform.studies.session import (
    cordons_noted,
    execution_of,
    machine_text,
    refresh_site,
    start_ray,
    upload_of_job,
)
from gram_platform.studies.webhook import message_of, post
from gram_platform.tracking import Tracker, TrackingUnavailable
from gram_platform.tracking.connection import opened_by

NO_LEASE = nullcontext()


def placement_of(node: Node, ranks: Ranks, device: str, gpu_share: float = 1.0) -> Placement:
    """Returns the placement of a node on `device`, cpu or cuda; an evaluation has one rank.

    `gpu_share`: of a GPU's memory that each process has. ValueError as `Ranks.of`.
    """
    if not isinstance(node.config, RunConfig):
        return Placement()
    machine = MACHINES["cpu"]
    if device == ranks.machine.device == "cuda":
        machine = replace(ranks.machine, memory_bytes=gpu_share * ranks.machine.memory_bytes)
    choices = ranks.choices(node.config, node.size)
    divisions = (
        division_of(node.config, number, machine, device, ranks.checkpointing) for number in choices
    )
    return Placement(tuple(divisions), expected_hours(node, machine) / choices[-1])


def division_of(
    run: RunConfig, num_ranks: int, machine: Machine, device: str, checkpointing: bool = False
) -> Division:
    """Returns how a run is divided over so many ranks, by the machine's memory, with advice for
    when it lacks."""

    def gib(number: int, recomputes: bool) -> str:
        return f"{_divided(run, number, machine, device, recomputes).memory_bytes / GIB:.3g} GiB"

    division = _divided(run, num_ranks, machine, device, checkpointing)
    more = next(
        (n for n in range(num_ranks + 1, run.micro_batch + 1) if run.micro_batch % n == 0), None
    )
    remedies = [] if checkpointing else [f"--activation-checkpointing: {gib(num_ranks, True)}"]
    remedies += [f"--num-workers {more}: {gib(more, checkpointing)} each"] if more else []
    counted = f"{division.memory_bytes / GIB:.3g} GiB" + (
        f" on each of {num_ranks} ranks" if num_ranks > 1 else ""
    )
    less = f"Less with {', or '.join(remedies)}; else use" if remedies else "Use"
    advice = (
        f"The planner counts {counted}, and about 1 GiB for the process itself. {less} a machine"
        " with more memory."
    )
    return replace(division, advice=advice)


def _divided(
    run: RunConfig, num_ranks: int, machine: Machine, device: str, checkpointing: bool
) -> Division:
    """Returns the division with the memory of the fullest rank, without advice."""
    passes = passes_of(run, num_ranks, machine, device, checkpointing)
    return Division(num_ranks, passes.num_passes, passes.num_merged, passes.memory.total)


@dataclass(frozen=True)
class Workplace:
    """Where a submission's nodes are executed, decided before the first one starts."""

    execution: Execution
    resources: Resources
    cordon: Cordon
    # Places a node that a search proposes.
    place: Callable[[Node], Placement]
    # The placements of known nodes, by id.
    placements: Mapping[str, Placement]


@dataclass(frozen=True)
class Ended:
    """What a submission has done when nothing is executed any more."""

    # The counts of nodes and trials, in words.
    counts: str
    # A line for each failure.
    failures: Sequence[str]
    # True if something is left that could be executed.
    is_unfinished: bool
    # The machine hours that --max-hours limits, over all submissions.
    hours: float


class Submission:
    """Executes nodes of studies or of a search, in this process or on Ray; shows and mirrors
    them."""

    # None until a submission that executes something has started.
    provenance: Provenance | None = None

    def __init__(
        self, graphs: Sequence[Graph], nodes: Sequence[Node], store: Store, tracker: Tracker
    ):
        self.graphs, self.nodes, self.store, self.tracker = graphs, nodes, store, tracker
        self.flags = graphs[0].flags
        self.names = [graph.study.name for graph in graphs]
        self.view = LiveView(nodes, store, "+".join(self.names), not self.flags.needs_ray)
        self.mirror = Mirror(tracker, store, self.view.say)
        self.progress, self.done_before = Progress(nodes), set[str]()
        # The ids that MLflow shall have.
        self.ids = {node.id for node in nodes}
        # The number of claims of each verdict in what was published.
        self.verdicts: Counter[str] = Counter()
        self.started = time.monotonic()

    def start(self, planned: Sequence[Node], has_more: bool = False) -> Workplace:
        """Decides where each node that is left is executed; starts Ray if it is needed.

        `planned`: the nodes, and others that may be executed; `has_more`: whether there may be
        nodes that nobody knows yet. ValueError as `require_capacity` and `note_device`,
        PermissionError for a folder that is written later.
        """
        ends = NodeLifecycle(self.store).ends(self.nodes)
        self.done_before = {node_id for node_id, end in ends.items() if end == ""}
        left = [node for node in self.nodes if node.id not in self.done_before]
        self.view.nodes |= {node.id: node for node in with_stored_tags(left, self.store)}
        self.nodes = list(self.view.nodes.values())
        executes = has_more or bool(left)
        on_cordon = cordons_noted(self.store, self.names, self.view.say)
        if executes and self.flags.needs_ray:
            execution, resources = start_ray(self.flags, self.view.say)
        else:
            execution, resources = execution_of(self.flags, not self.flags.needs_ray and has_gpu())
        how = {
            "ranks": self.flags.ranks,
            "device": execution.device,
            "gpu_share": self.flags.gpus_per_run,
        }
        missing, place = (
            [n for n in planned if n.id not in self.done_before],
            partial(placement_of, **how),
        )
        placements = {node.id: place(node) for node in missing}
        if executes and self.flags.needs_ray:
            require_capacity(
                widest_missing(missing, placements, self.store), resources, self.view.say
            )
        for graph in self.graphs if executes else ():
            note_device(graph, self.store, execution.device)
        for name in self.names:
            self.store.study_dir(name).child(HISTORY).require_rights()
        for node in left:
            self.store.node(node.kind, node.id).folder.require_rights()
        begin_work()
        uses_ray = executes and self.flags.needs_ray
        self.provenance = provenance(machine_text(uses_ray), upload_of_job()) if executes else None
        return Workplace(execution, resources, Cordon(resources, on_cordon), place, placements)

    def execute(
        self,
        nodes: Sequence[Node],
        at: Workplace,
        on_end: Callable[[Node, Progress], None] = lambda node, progress: None,
        may_start: Callable[[], bool] = lambda: True,
    ) -> Progress:
        """Executes the nodes that are not done, while `may_start()`; `on_end` is called for each
        that ends."""

        def on_change(progress: Progress, ended: Node | None) -> None:
            self.view.update(progress, ended)
            self.mirror.watch(self.view.nodes[i] for i in progress.running)
            if ended is not None:
                self.mirror.ended(ended)
                on_end(ended, progress)

        how = {"retry_diverged": self.flags.retry_failed, "done": self.done_before}
        how |= {"on_change": on_change, "may_start": may_start}
        if self.flags.needs_ray:
            self.progress = run_graph(
                nodes, at.execution, at.resources, at.placements, cordon=at.cordon, **how
            )
        else:
            self.progress = run_in_process(nodes, at.execution, placements=at.placements, **how)
        return self.progress

    def submissions(
        self, folder: Folder, file: str, node_hours: float = 0.0
    ) -> tuple[Mapping, ...]:
        """Returns the rows of a record in a folder about submissions, with this one if it executes
        something.

        `node_hours`: of the nodes that it has executed.
        """
        rows = folder.read_spare(file, Submissions).get("submissions", ())
        if self.provenance is None:
            return tuple(rows)
        earlier = [row for row in rows if row["started"] != self.provenance.started]
        return replace(self.provenance, node_hours=node_hours).after(earlier)

    @property
    def num_left(self) -> int:
        """The nodes that could still be executed."""
        return len(self.nodes) - sum(
            map(len, (self.progress.done, self.progress.failed, self.progress.blocked))
        )

    def failures(self) -> list[str]:
        """Returns a line for each node that has failed or is blocked."""
        name = lambda node_id: self.view.nodes[node_id].name  # noqa: E731
        failed = [f"failed: {name(i)}: {message}" for i, message in self.progress.failed.items()]
        blocked = [
            f"blocked: {name(i)} needs {', '.join(map(name, of))}"
            for i, of in self.progress.blocked.items()
        ]
        return failed + blocked

    def counts(self) -> str:
        """Returns how many nodes were done now and before, as a text."""
        elapsed_s = time.monotonic() - self.started
        done, reused = len(self.progress.done), self.progress.reused
        return (
            f"{done} of {len(self.nodes)} nodes done: {done - reused} now in {elapsed_s:.0f} s,"
            f" {reused} before"
        )

    def publish(
        self,
        study: str,
        write: Callable[[Tracker | None], Mapping[str, str]],
        text: str,
        brief: Callable[[bool], Brief] | None,
    ) -> None:
        """Writes a study's files and logs them to MLflow, or only writes them while it is away;
        prints text and paths.

        Then the study's pages on an MLflow server, if it answers. A terminal shows `brief` in place
        of the text.
        """
        paths = write_or_log(write, self.tracker, self.view.say)
        show_results(self.view.console, f"\n{text}\n", brief)
        if brief and self.flags.notify:
            self.verdicts.update(brief(True).verdicts)
        for name, path in paths.items():
            self.view.say(f"{name:12} {path}")
        # The pages of a database have no address before `gram ui` opens them.
        if self.mirror.is_away or not self.flags.tracking_uri.startswith("http"):
            return
        try:
            for name, url in self.tracker.view_urls(study).items():
                self.view.say(f"{'MLflow ' + name:13} {url}")
        except TrackingUnavailable as error:
            self.view.say(f"no links to the study's pages ({error})")

    def notify(self, code: int, what: str, num_failures: int = 0) -> None:
        """Tells the webhook of --notify how the submission ended, and says so if that fails; see
        `message_of`."""
        if self.flags.notify:
            name, root = "+".join(self.names), str(self.store.root)
            reason = post(
                self.flags.notify, message_of(name, root, code, what, num_failures, self.verdicts)
            )
            if reason:
                self.view.say(
                    f"warning: the webhook of --notify did not take the message: {reason}"
                )


def lead(
    submission: Submission,
    start: Callable[[], Workplace],
    execute: Callable[[Workplace], Ended],
    write: Callable[[], int],
    lease: AbstractContextManager[object] = NO_LEASE,
) -> int:
    """Executes what is missing and writes every table; returns the exit code.

    ValueError as `Submission.start`. `start`: starts the submission and writes the record of what
    is submitted. `execute`: executes what is missing, until a limit is reached. `write`: publishes
    all tables and reports, and returns an exit code. `lease`: of all this, released before the site
    is built.
    """
    with lease:
        at = start()
        try:
            code, ended = _led(submission, at, execute, write)
        except Exception as error:
            submission.notify(FAILED, f"{type(error).__name__}: {error}")
            raise
    code = finish(submission, code)
    submission.notify(code, ended.counts, len(ended.failures))
    return code


def _led(
    submission: Submission,
    at: Workplace,
    execute: Callable[[Workplace], Ended],
    write: Callable[[], int],
) -> tuple[int, Ended]:
    """Does what `lead` does between the start and the site; returns the exit code, and what was
    done."""
    say = submission.view.say
    with submission.view, submission.mirror:
        ended = execute(at)
    submission.mirror.finish(submission.ids)
    for line in ended.failures:
        say(line)
    say(f"\n{ended.counts}")
    limit = submission.flags.limits.budget.reached(ended.hours) if ended.is_unfinished else ""
    if limit:
        say(f"limit: {limit}; submit again with a higher one to go on")
    return worst(TIME_IS_UP if limit else DONE, write(), FAILED if ended.failures else DONE), ended


def finish(submission: Submission, code: int) -> int:
    """Updates the site; returns the exit code."""
    refresh_site(submission.store, submission.flags.tracking_uri, submission.view.say)
    submission.view.say(f"{'MLflow':12} {opened_by(submission.flags.tracking_uri)}")
    return code
