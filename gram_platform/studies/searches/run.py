"""Runs a search, whose points come from a grid or Optuna; Ray Tune executes its trials."""

from collections.abc import Callable, Sequence
from functools import partial

from optuna.exceptions import StorageInternalError

from gram_platform.config import State
from gram_platform.config.endings import DONE, FAILED, SUBMIT_AGAIN, TIME_IS_UP, worst
from gram_platform.config.identity import to_plain
from gram_platform.config.provenance import code_text
from gram_platform.config.terminal import say
from gram_platform.engine.executor import ListedNodes
from gram_platform.engine.proposals import Proposal, Source
from gram_platform.engine.search import Tuning, run_trials
from gram_platform.engine.trials import Outcome
from gram_platform.methods.nodes import Node, unique
from gram_platform.pages.results.record import SEARCH_FILE, publish_files
from gram_platform.store import Store
from gram_platform.studies.definition import preset_params
from gram_platform.studies.device import choose_device
from gram_platform.studies.drive import approve_cost, finish
from gram_platform.studies.dry_run import describe
from gram_platform.studies.observers import Observers
from gram_platform.studies.packing import pack_corpora, require_supply
from gram_platform.studies.plan import Plan
from gram_platform.studies.searches.driver_lease import DriverLease
from gram_platform.studies.searches.report import trial_metrics, trial_tags
from gram_platform.studies.searches.work import SearchWork
from gram_platform.studies.workplace import Workplace, executor_at, open_workplace
from gram_platform.tracking.connection import first_line
from gram_platform.tracking.views import search_views


def drive_search(plan: Plan) -> int:
    """Runs the trials that are missing; returns the exit code.

    ValueError for bad input, before anything trains.
    """
    (work,) = plan.studies
    assert isinstance(work, SearchWork)
    if plan.dry_run:
        say(describe(plan))
        return DONE
    store = Store(plan.storage).open_for_writing()
    is_report = work.flags.report_only
    if not is_report:
        require_supply(plan.studies)
        plan = plan.on(choose_device(plan, store))
        approve_cost(plan, store)
    pack_corpora(plan, store)
    (work,) = plan.studies
    say(f"search {work.named} on {work.choice.corpus} (data {work.data_id})")
    say(f"storage {store.root}")
    lease = DriverLease(work.folder(store), work.study.name)
    driver = SearchDriver(plan, work, store, lease.require)
    if is_report:
        return finish(driver, driver.write())
    try:
        with lease, driver:
            code = driver.lead()
        return finish(driver, code)
    except StorageInternalError as error:
        reason = first_line(error.__cause__ or error)
        say(f"error: Optuna's database failed: {reason}. {SUBMIT_AGAIN}")
    return FAILED


class SearchDriver(Observers):
    """Executes the nodes that all trials need, then trials that the search's source proposes, and
    writes its report."""

    def __init__(
        self,
        plan: Plan,
        work: SearchWork,
        store: Store,
        require_lead: Callable[[], None] = lambda: None,
    ):
        """`require_lead`: raises Stopped when another driver leads the search."""
        super().__init__(plan, store, unique(work.prerequisites()))
        self.work, self.folder, self.require_lead = work, work.folder(store), require_lead
        self.outcomes: dict[str, Outcome] = {}
        # The nodes of each running trial.
        self.running: dict[str, Sequence[Node]] = {}
        # Machine hours of the trials of earlier submissions.
        self.hours_before = 0.0
        # True if trials are left.
        self.is_cut = False

    def lead(self) -> int:
        """Executes what is missing, until a limit is reached, and writes the report; returns the
        exit code."""
        at = open_workplace(self.plan, self.store, self.say, has_more=True)
        with executor_at(at, self.plan.options.retry_failed) as executor:
            self.begin(at, executor, executes=True)
            self._write_record()
            for event in executor.events(ListedNodes(self.nodes)):
                self.see(event)
        if not super().failures():
            self.execute_trials(at)
        self.flush()
        failures = self.failures()
        for line in failures:
            self.say(line)
        self.say(f"\n{self.counts()}")
        is_unfinished = self.is_cut or self.num_left > 0
        limit = self.limit_reached() if is_unfinished else ""
        if limit:
            self.say(f"limit: {limit}; submit again with a higher one to go on")
        return worst(TIME_IS_UP if limit else DONE, self.write(), FAILED if failures else DONE)

    def limit_reached(self) -> str:
        """Returns the limit that the machine hours of the trials reach, over all submissions."""
        return self.plan.limits.budget.reached(self.spent_hours())

    def spent_hours(self) -> float:
        return self.hours_before + sum(o.rank_s for o in self.outcomes.values()) / 3600

    def _write_record(self) -> None:
        study, identity = self.work.study, to_plain(self.work.identity())
        plain = {
            "name": study.name,
            "title": study.title,
            "question": study.question,
            "identity": identity,
        }
        plain |= preset_params(self.work.preset_name, self.work.changes)
        trials_s = sum(outcome.rank_s for outcome in self.outcomes.values())
        rows = self.submissions(self.folder, SEARCH_FILE, trials_s / 3600)
        self.folder.write_json(SEARCH_FILE, {**plain, "submissions": rows})

    def execute_trials(self, at: Workplace) -> None:
        """Executes the trials that are missing, until a limit is reached."""
        self.problem = self.work.problem(self.store)
        for following in self.work.rounds(self.store, self.problem):
            self.hours_before += following.hours_before
            self.ids.update(following.ids_before)
            if following.text:
                self.say(following.text)
            self.is_cut = bool(self.limit_reached())
            if self.is_cut:
                # Later rounds may have results too, which MLflow shall have.
                continue
            if following.source.num_left:
                self._draw_from(following.source, at)
                self.is_cut = following.source.num_left > 0

    def _draw_from(self, source: Source, at: Workplace) -> None:
        tuning = Tuning(
            self.work.full_name,
            self.work.flags.max_concurrent,
            lambda: not self.limit_reached(),
            self.require_lead,
            self.plan.options.retry_failed,
            self.work.minimised.metric if self.work.minimised else "",
        )
        self.terminal.begin_trials(source.num_left)
        where = (at.execution, at.resources)
        run_trials(
            source, self.problem, *where, tuning, self._on_start, self._on_end, at.cordon, at.place
        )

    def _on_start(self, proposal: Proposal) -> None:
        self.running[proposal.name] = self.problem.nodes(proposal.point)
        self.terminal.trial_started(proposal.name)
        self._watch_running()

    def _on_end(self, outcome: Outcome) -> None:
        self.outcomes[outcome.name] = outcome
        self.ids.update(outcome.nodes)
        self.terminal.trial_ended(outcome.name, trial_line(outcome))
        for node in self.running.pop(outcome.name):
            self.mirror.ended(node)
        self._watch_running()

    def _watch_running(self) -> None:
        self.mirror.watch([node for nodes in self.running.values() for node in nodes])

    def failures(self) -> list[str]:
        """Returns a line for each node and each trial that has failed."""
        failed = [one for one in self.outcomes.values() if one.state == State.FAILED]
        return super().failures() + [f"failed: {one.name}: {one.message}" for one in failed]

    def counts(self) -> str:
        """Returns how many nodes that all need and how many trials were done, as a text."""
        ended = list(self.outcomes.values())
        executed, reused = sum(o.num_executed for o in ended), sum(o.num_reused for o in ended)
        lines = [super().counts()] if self.nodes else []
        lines.append(f"{len(ended)} trials now: {executed} nodes executed, {reused} reused")
        return "\n".join(lines)

    def write(self) -> int:
        """Writes, logs and prints the report; returns 0, or 1 without a complete trial."""
        self._write_record()
        output = self.work.write(self.store, self.tracker)
        if output is None:
            self.say("no table: no trial is complete yet")
            return FAILED
        params = {
            "search_id": self.work.search_id,
            "preset": self.work.preset_name,
            "data_id": self.work.data_id,
        }
        name, trials = self.work.name, output.files["trials.csv"]
        shown = {
            "node_tags": trial_tags(trials),
            "node_metrics": trial_metrics(trials, output.columns),
        }
        shown["views"] = search_views(name, output.columns)
        write = partial(publish_files, name, self.store, output.files, output.figures, params)
        code = code_text(self.submissions(self.folder, SEARCH_FILE))
        self.publish(name, partial(write, **shown, code=code), output.text, lambda _: output.brief)
        return DONE


def trial_line(outcome: Outcome) -> str:
    """Describes a trial that has ended."""
    if outcome.state != State.COMPLETE:
        return f"{outcome.name} {outcome.state.upper()}: {outcome.message}"
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in outcome.metrics.items())
    work = f"{outcome.trained_s:.0f} s" if outcome.num_executed else "reused"
    return f"{outcome.name}: {metrics} ({work})"
