"""Runs a search, whose points come from a grid or Optuna; Ray Tune executes its trials."""

from collections.abc import Callable, Sequence
from functools import partial

from optuna.exceptions import StorageInternalError

from gram_platform.config import State
from gram_platform.config.endings import SUBMIT_AGAIN
from gram_platform.config.identity import to_plain
from gram_platform.config.provenance import code_text
from gram_platform.config.terminal import say
from gram_platform.engine.proposals import Proposal, Source
from gram_platform.engine.search import Tuning, run_trials
from gram_platform.engine.trials import Outcome
from gram_platform.methods.nodes import Node, unique
from gram_platform.pages.results.record import SEARCH_FILE, publish_files
from gram_platform.store import Store
from gram_platform.studies.build import resolve_corpora, settings_of
from gram_platform.studies.definition import preset_params, with_changes
from gram_platform.studies.device import settled
from gram_platform.studies.dry_run import describe
from gram_platform.studies.mirror import open_tracker
from gram_platform.studies.packing import provide_data, reporter
from gram_platform.studies.searches.definition import Search, SearchFlags
from gram_platform.studies.searches.driver_lease import DriverLease
from gram_platform.studies.searches.report import trial_metrics, trial_tags
from gram_platform.studies.searches.work import SearchWork
from gram_platform.studies.submission import Ended, Submission, Workplace, finish, lead
from gram_platform.tracking import Tracker
from gram_platform.tracking.connection import first_line
from gram_platform.tracking.views import StudyLog, search_view


def build_search(search: Search, flags: SearchFlags) -> SearchWork:
    """Returns the search on its corpora with the setting of every size and seed, without nodes."""
    search = with_changes(search.of_preset(flags.preset), flags.preset, flags.changes)
    preset = search.presets[flags.preset]
    recipes = resolve_corpora(preset, flags.choice, reporter())
    settings = settings_of(preset, flags.choice, recipes)
    return search.work_type()(
        search, preset, flags, {size: (recipe,) for size, recipe in recipes.items()}, settings
    )


def run_search(search: Search, flags: SearchFlags) -> int:
    """Runs the trials that are missing; returns the exit code.

    ValueError for bad input, before anything trains.
    """
    work = build_search(search, flags).planned()
    if flags.dry_run:
        say(describe(work))
        return 0
    store = Store(flags.storage).open_for_writing()
    if not flags.report_only:
        (work,) = settled((work,), store)
    provide_data((work,), store)
    say(f"search {work.named} on {flags.corpus} (data {work.data_id})")
    say(f"storage {store.root}")
    lease = DriverLease(work.folder(store), work.study.name)
    driver = SearchDriver(work, store, open_tracker(flags.tracking_uri), lease.require)
    if flags.report_only:
        return finish(driver.submission, driver.write())
    try:
        return lead(driver.submission, driver.start, driver.execute, driver.write, lease)
    except StorageInternalError as error:
        say(
            f"error: Optuna's database failed: {first_line(error.__cause__ or error)}."
            f" {SUBMIT_AGAIN}"
        )
    return 1


class SearchDriver:
    """Executes the nodes that all trials need, then trials that the search's source proposes, and
    writes its report."""

    def __init__(
        self,
        work: SearchWork,
        store: Store,
        tracker: Tracker | None,
        require_lead: Callable[[], None] = lambda: None,
    ):
        """`require_lead`: raises Stopped when another driver leads the search."""
        self.submission = Submission((work,), unique(work.prerequisites()), store, tracker)
        self.work, self.store, self.tracker, self.flags = work, store, tracker, work.flags
        self.view, self.folder = self.submission.view, work.folder(store)
        self.outcomes: dict[str, Outcome] = {}
        # The nodes of each running trial.
        self.running: dict[str, Sequence[Node]] = {}
        # Machine hours of the trials of earlier submissions.
        self.hours_before = 0.0
        # True if trials are left.
        self.is_cut = False
        self.require_lead = require_lead

    def spent_hours(self) -> float:
        """Returns the machine hours of this search's trials, over all submissions."""
        return self.hours_before + sum(o.rank_s for o in self.outcomes.values()) / 3600

    def _may_start(self) -> bool:
        return not self.flags.limits.budget.reached(self.spent_hours())

    def start(self) -> Workplace:
        """Starts the submission, and writes the record of the search."""
        at = self.submission.start(self.work.nodes, has_more=True)
        self._write_record()
        return at

    def _write_record(self) -> None:
        study, identity = self.work.study, to_plain(self.work.identity())
        plain = {
            "name": study.name,
            "title": study.title,
            "question": study.question,
            "identity": identity,
        }
        plain |= preset_params(self.flags.preset, self.flags.changes)
        trials_s = sum(outcome.rank_s for outcome in self.outcomes.values())
        rows = self.submission.submissions(self.folder, SEARCH_FILE, trials_s / 3600)
        self.folder.write_json(SEARCH_FILE, {**plain, "submissions": rows})

    def execute(self, at: Workplace) -> Ended:
        """Executes what all trials need, then the trials that are missing, until a limit is
        reached."""
        self.submission.execute(self.submission.nodes, at)
        if self.submission.failures():
            return self._ended()
        self.problem = self.work.problem(self.store)
        for following in self.work.rounds(self.store, self.problem):
            self.hours_before += following.hours_before
            self.submission.ids.update(following.ids_before)
            if following.text:
                self.view.say(following.text)
            self.is_cut = not self._may_start()
            if self.is_cut:
                # Later rounds may have results too, which MLflow shall have.
                continue
            if following.source.num_left:
                self._draw_from(following.source, at)
                self.is_cut = following.source.num_left > 0
        return self._ended()

    def _draw_from(self, source: Source, at: Workplace) -> None:
        metric = self.work.minimised.metric if self.work.minimised else ""
        how = (
            self.flags.max_concurrent,
            self._may_start,
            self.require_lead,
            self.flags.retry_failed,
        )
        tuning = Tuning(self.work.full_name, *how, metric)
        self.view.begin_trials(source.num_left)
        where = (at.execution, at.resources)
        run_trials(
            source, self.problem, *where, tuning, self._on_start, self._on_end, at.cordon, at.place
        )

    def _on_start(self, proposal: Proposal) -> None:
        self.running[proposal.name] = self.problem.nodes(proposal.point)
        self.view.trial_started(proposal.name)
        self._watch_running()

    def _on_end(self, outcome: Outcome) -> None:
        self.outcomes[outcome.name] = outcome
        self.submission.ids.update(outcome.nodes)
        self.view.trial_ended(outcome.name, trial_line(outcome))
        for node in self.running.pop(outcome.name):
            self.submission.mirror.ended(node)
        self._watch_running()

    def _watch_running(self) -> None:
        self.submission.mirror.watch([node for nodes in self.running.values() for node in nodes])

    def _ended(self) -> Ended:
        """Returns a sentence about the trials of this submission and of earlier ones."""
        one = self.submission
        failed = [
            f"failed: {o.name}: {o.message}"
            for o in self.outcomes.values()
            if o.state == State.FAILED
        ]
        ended = list(self.outcomes.values())
        executed, reused = sum(o.num_executed for o in ended), sum(o.num_reused for o in ended)
        lines = [one.counts()] if one.nodes else []
        lines.append(f"{len(ended)} trials now: {executed} nodes executed, {reused} reused")
        is_unfinished = self.is_cut or one.num_left > 0
        return Ended("\n".join(lines), one.failures() + failed, is_unfinished, self.spent_hours())

    def write(self) -> int:
        """Writes, logs and prints the report; returns 0, or 1 without a complete trial."""
        self._write_record()
        output = self.work.write(self.store, self.tracker)
        if output is None:
            self.view.say("no table: no trial is complete yet")
            return 1
        params = {
            "search_id": self.work.search_id,
            "preset": self.flags.preset,
            "data_id": self.work.data_id,
        }
        name, trials = self.work.study.name, output.files["trials.csv"]
        log = StudyLog(
            name,
            output.files,
            output.figures,
            params,
            node_tags=trial_tags(trials),
            views=(search_view(name, output.columns),),
            code=code_text(self.submission.submissions(self.folder, SEARCH_FILE)),
            node_metrics=trial_metrics(trials, output.columns),
        )
        write = partial(publish_files, log, self.store)
        self.submission.publish(name, write, output.text, lambda _: output.brief)
        return 0


def trial_line(outcome: Outcome) -> str:
    """Describes a trial that has ended."""
    if outcome.state != State.COMPLETE:
        return f"{outcome.name} {outcome.state.upper()}: {outcome.message}"
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in outcome.metrics.items())
    work = f"{outcome.trained_s:.0f} s" if outcome.num_executed else "reused"
    return f"{outcome.name}: {metrics} ({work})"
