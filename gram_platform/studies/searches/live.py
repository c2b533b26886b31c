"""Shows how a search goes: a line for each trial that ends, and a summary every few seconds."""

import threading
import time
from itertools import pairwise

from gram_platform.engine.proposals import Proposal
from gram_platform.engine.trials import COMPLETE, Outcome, Problem
from gram_platform.store import Store
from gram_platform.studies.live import PLAIN_EVERY_S
from gram_platform.studies.session import say


class SearchView:
    """Shows a search: a line for each trial that ends, and every few seconds the trials running and the time left."""

    def __init__(self, num_trials: int, store: Store, problem: Problem):
        self.num_trials, self.store, self.problem = num_trials, store, problem
        self.num_ended = 0
        self.begun = time.monotonic()
        self.running: dict[str, Proposal] = {}
        self._over = threading.Event()

    def __enter__(self) -> "SearchView":
        threading.Thread(target=self._report, name="search view", daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self._over.set()

    def started(self, proposal: Proposal) -> None:
        self.running[proposal.name] = proposal

    def ended(self, outcome: Outcome) -> None:
        self.running.pop(outcome.name, None)
        self.num_ended += 1
        say(f"[{self.num_ended:>3}/{self.num_trials}] {trial_line(outcome)}")

    def _report(self) -> None:
        while not self._over.wait(PLAIN_EVERY_S):
            say(self.state())

    def state(self) -> str:
        """Returns one line: the numbers of trials ended and running, the share that each has done, the time left."""
        elapsed_s = time.monotonic() - self.begun
        left = "?"
        if self.num_ended:
            seconds = elapsed_s * (self.num_trials - self.num_ended) / self.num_ended
            left = f"{seconds // 60:.0f}:{seconds % 60:02.0f}"
        running = list(self.running.values())
        parts = [f"{proposal.name} {self._share(proposal):.0%}" for proposal in running]
        counts = f"{self.num_ended} of {self.num_trials} trials ended, {len(running)} running, about {left} left"
        return " | ".join([counts, *parts])

    def _share(self, proposal: Proposal) -> float:
        """Returns the share of a trial's runs that is done."""
        runs = [node.id for node in self.problem.nodes(proposal.point) if node.is_run]
        done = 0.0
        for run_id in runs:
            run = self.store.run(run_id)
            if run.result() is not None:
                done += 1.0
            elif beat := run.progress():
                done += beat["step"] / max(beat["num_steps"], 1)
        return done / max(len(runs), 1)


def trial_line(outcome: Outcome) -> str:
    """Describes a trial that has ended."""
    if outcome.state != COMPLETE:
        return f"{outcome.name} {outcome.state.upper()}: {outcome.message}"
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in outcome.metrics.items())
    work = f"{outcome.trained_s:.0f} s" if outcome.num_executed else "reused"
    return f"{outcome.name}: {metrics} ({work})"


def trial_overheads(outcomes: list[Outcome]) -> list[float]:
    """Returns the seconds of each trial without training: inside it, and since the end of its process's last trial."""
    by_process: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_process.setdefault(outcome.process, []).append(outcome)
    overheads = []
    for trials in by_process.values():
        trials.sort(key=lambda outcome: outcome.started)
        ends = [(a.started + a.elapsed_s, b) for a, b in pairwise(trials)]
        overheads += [b.started - end + b.elapsed_s - b.trained_s for end, b in ends]
    return overheads
