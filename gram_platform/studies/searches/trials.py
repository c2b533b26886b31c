"""Executes a search's trials, shows their progress, and writes the report."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from optuna.exceptions import StorageInternalError

from gram_platform.config import State
from gram_platform.config.endings import DONE, FAILED, SUBMIT_AGAIN, Stopped
from gram_platform.config.provenance import code_text
from gram_platform.engine.executor import Executor
from gram_platform.engine.search import TrialWatch, Tuning, run_trials
from gram_platform.engine.trials import Outcome, Proposal
from gram_platform.methods.nodes import Node, unique
from gram_platform.pages.results.record import SEARCH_FILE, publish_files
from gram_platform.store import Store
from gram_platform.studies.observers import Observers
from gram_platform.studies.plan import Plan
from gram_platform.studies.searches.driver_lease import DriverLease
from gram_platform.studies.searches.search_plan import SearchPlan, json_file
from gram_platform.studies.workplace import Workplace
from gram_platform.tracking.connection import first_line


class SearchObservers(Observers, TrialWatch):
    """Executes and observes the trials of one search."""

    def __init__(self, plan: Plan, store: Store):
        (search,) = plan.studies
        assert isinstance(search, SearchPlan)
        super().__init__(plan, store, unique(search.kind.prerequisites(search)))
        self.search, self.folder = search, search.folder(store)
        self.lease = DriverLease(self.folder, search.name)
        self.outcomes: dict[str, Outcome] = {}
        self.running: dict[str, Sequence[Node]] = {}
        self.hours_before = 0.0
        # Whether trials remain because of a limit.
        self.is_cut = False

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_) -> None:
        super().__exit__(kind, error)
        if isinstance(error, StorageInternalError):
            reason = first_line(error.__cause__ or error)
            raise Stopped(f"Optuna's database failed: {reason}. {SUBMIT_AGAIN}") from error

    def begin(self, at: Workplace, executor: Executor) -> None:
        super().begin(at, executor)
        self._write_record()

    @property
    def is_unfinished(self) -> bool:
        return self.is_cut or super().is_unfinished

    def limit_reached(self) -> str:
        return self.plan.budget.name_reached_limit(self.hours_before + self.hours_now())

    def hours_now(self) -> float:
        return sum(outcome.rank_s for outcome in self.outcomes.values()) / 3600

    def _write_record(self) -> Sequence[Mapping]:
        rows = self.submissions(self.folder, SEARCH_FILE, self.hours_now())
        self.folder.write(SEARCH_FILE, json_file(self.search.record(rows)))
        return rows

    def run_trials(self, at: Workplace) -> None:
        """If no prerequisite failed, executes missing trials up to the limit of hours or cost."""
        if super().failures():
            return
        search, kind = self.search, self.search.kind
        self.problem = kind.problem(search, self.store)
        tuning = Tuning(
            search.full_name,
            self.plan.max_concurrent,
            self.plan.retry_failed,
            kind.best_by.metric if kind.best_by else "",
        )
        # Rounds beyond a limit may have results for MLflow.
        for step in kind.rounds(search, self.store, self.problem):
            self.hours_before += step.hours_before
            self.ids.update(step.ids_before)
            if step.text:
                self.say(step.text)
            source, self.is_cut = step.source, not self.may_start()
            if source.num_left and not self.is_cut:
                self.terminal.begin_trials(source.num_left)
                run_trials(source, self.problem, at.execution, at.cordon, tuning, self, at.place)
                self.is_cut = source.num_left > 0

    def may_start(self) -> bool:
        return not self.limit_reached()

    def require_lead(self) -> None:
        self.lease.require()

    def trial_started(self, proposal: Proposal) -> None:
        self.running[proposal.name] = self.problem.nodes(proposal.point)
        self._watch_running()

    def trial_ended(self, outcome: Outcome) -> None:
        self.outcomes[outcome.name] = outcome
        self.ids.update(outcome.nodes)
        self.terminal.say_trial(trial_line(outcome))
        for node in self.running.pop(outcome.name):
            self.mirror.send_later(node)
        self._watch_running()

    def _watch_running(self) -> None:
        self.terminal.show_trials(self.running)
        self.mirror.watch([node for nodes in self.running.values() for node in nodes])

    def failures(self) -> list[str]:
        failed = [o for o in self.outcomes.values() if o.state == State.FAILED]
        return super().failures() + [f"failed: {o.name}: {o.message}" for o in failed]

    def counts(self) -> str:
        ended = self.outcomes.values()
        executed, reused = sum(o.num_executed for o in ended), sum(o.num_reused for o in ended)
        lines = [super().counts()] if self.nodes else []
        lines.append(f"{len(ended)} trials now: {executed} nodes executed, {reused} reused")
        return "\n".join(lines)

    def write_tables(self) -> int:
        code = code_text(self._write_record())
        report = self.search.kind.write(self.search, self.store, self.tracker)
        if report is None:
            self.say("no table: no trial is complete yet")
            return FAILED
        log, text, brief = report
        write = partial(publish_files, replace(log, code=code), self.store)
        best = "\n".join(log.answers)
        brief = brief._replace(text=f"{brief.text}\n{best}".strip())
        self.publish(log.name, write, f"{text}\n\n{best}".strip(), lambda _: brief)
        return DONE


def trial_line(outcome: Outcome) -> str:
    if outcome.state != State.COMPLETE:
        return f"{outcome.name} {outcome.state.upper()}: {outcome.message}"
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in outcome.metrics.items())
    work = f"{outcome.trained_s:.0f} s" if outcome.num_executed else "reused"
    return f"{outcome.name}: {metrics} ({work})"
