"""Decides which trials of a learning-rate and batch grid are hopeless, from the losses so far [ours].

Trials are compared at the same fraction of their schedules, within one size and seed. High rates and small batches look
worse before the decay and gain most in it. So a peer that is at least as noisy (its rate no lower, its batch no larger)
and better already will stay better: a small margin suffices. Against a quieter peer the margin is wide. Ray Tune's
schedulers compare all trials of an experiment with one another, and have no margin.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gram_platform.config.identity import require_real
from gram_platform.engine.trials import VALIDATION
from gram_platform.store.files import CorruptFile, Folder
from gram_platform.store.runs import RunDirectory


@dataclass(frozen=True)
class StoppingRule:
    """When a trial is hopeless; margins are shares of the better peer's loss."""

    start: float = 0.5  # fraction of the schedule before which nothing is stopped
    margin: float = 0.03  # against a peer that is at least as noisy
    wide_margin: float = 0.10  # against a quieter peer

    def __post_init__(self) -> None:
        require_real("rule.start", self.start, 0.0, 1.0)
        require_real("rule.margin", self.margin, 0.0)
        require_real("rule.wide_margin", self.wide_margin, 0.0)


@dataclass
class Course:
    """One trial and the losses that it has reported so far."""

    group: tuple  # only trials of one group are compared: size and seed
    cell: tuple  # size, rate and batch
    lr: float
    batch: float
    fractions: list[float] = field(default_factory=list)  # of the schedule, rising
    losses: list[float] = field(default_factory=list)

    def at(self, fraction: float) -> float:
        """Returns the loss at a fraction, linear between reports; NaN beyond them."""
        return float(np.interp(fraction, self.fractions, self.losses, math.nan, math.nan)) if self.losses else math.nan

    def is_quieter(self, other: "Course") -> bool:
        """Tells whether this trial's rate is lower or its batch larger, so that it may gain less in the decay."""
        return self.lr < other.lr or self.batch > other.batch


class Board:
    """All losses that trials have reported, and the cells that were stopped.

    Fits leave out a cell of which any seed was stopped, so the other seeds of that cell are stopped too.
    """

    def __init__(self, rule: StoppingRule) -> None:
        self.rule = rule
        self.courses: dict[str, Course] = {}
        self.stopped: set[tuple] = set()  # cells

    def report(self, name: str, course: Course, fraction: float, loss: float) -> str:
        """Notes a loss; returns why the trial is hopeless, "" if it is not. `course` is kept at the first report."""
        own = self.courses.setdefault(name, course)
        if own.fractions and fraction <= own.fractions[-1]:  # a run that continues from an earlier checkpoint
            return ""
        own.fractions.append(fraction)
        own.losses.append(loss)
        if fraction < self.rule.start or fraction >= 1.0:
            return ""
        reason = f"{name.rsplit(' ', 1)[0]} was stopped at another seed" if own.cell in self.stopped else ""
        reason = reason or self._better_peer(own, fraction, loss)
        if reason:
            self.stopped.add(own.cell)
        return reason

    def _better_peer(self, own: Course, fraction: float, loss: float) -> str:
        for name, peer in self.courses.items():
            if peer is own or peer.group != own.group or peer.cell in self.stopped:
                continue  # a stopped peer stops nobody, so one cell of each size always remains
            margin = self.rule.wide_margin if peer.is_quieter(own) else self.rule.margin
            if loss > (1.0 + margin) * peer.at(fraction):  # never, if that is NaN
                return f"loss {loss:.4g} at {fraction:.0%} of the schedule, where {name} had {peer.at(fraction):.4g}"
        return ""


def course_of(run: RunDirectory, course: Course, num_steps: int, value_of: Callable[[Mapping], float]) -> Course:
    """Fills a course with the committed evaluations of a run; `value_of` makes a loss of {validation/loss/<domain>}."""
    for record in run.records():
        losses = {name: loss for name, loss in record["metrics"].items() if name.startswith(VALIDATION)}
        if losses:
            course.fractions.append(record["step"] / num_steps)
            course.losses.append(value_of(losses))
    return course


def centre_first(courses: Iterable[tuple[str, float, float]]) -> list[str]:
    """Orders trials (name, rate, batch) of one size by their distance from the middle of the grid, in log units.

    The middle is most likely good, so trials after it have a good peer to be compared with.
    """
    listed = list(courses)
    points = np.log([(lr, batch) for _, lr, batch in listed])
    distances = np.linalg.norm(points - (points.min(axis=0) + points.max(axis=0)) / 2, axis=1).round(6)
    return [listed[place][0] for place in np.argsort(distances, kind="stable")]


# ------------------------------------------------------------------------------------------------- record of a search

STOPPED_FILE = "stopped.json"  # in the search's folder; a run that another submission finishes counts as complete


def read_stopped(folder: Folder) -> dict[str, dict]:
    """Reads {run id: {"progress", "message"}} of the trials that a search has stopped."""
    try:
        return folder.read_json(STOPPED_FILE) or {}
    except CorruptFile:
        return {}


def note_stopped(folder: Folder, run_ids: Iterable[str], progress: float, message: str) -> None:
    """Notes a trial that was stopped when this share of its training was done."""
    fact = {"progress": progress, "message": message}
    folder.write_json(STOPPED_FILE, read_stopped(folder) | dict.fromkeys(run_ids, fact))


def stopped_text(saved: Sequence[float], num_trials: int) -> str:
    """Says how many trials were stopped and what it saved, as a sentence; "" for none.

    `saved`: of each stopped trial the share of all trials' training that it saved.
    """
    if not saved:
        return ""
    return f"{len(saved)} of {num_trials} trials were stopped early, which saved {sum(saved):.0%} of the training."
