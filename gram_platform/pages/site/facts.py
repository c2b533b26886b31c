"""Reads the state of every run and evaluation of a storage, once for all pages, without their histories."""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass

from gram_platform.config import State
from gram_platform.planner import MACHINES
from gram_platform.store import CorruptFile, EvaluationDirectory, RunDirectory, Store
from gram_platform.store.leases import is_fresh, read_lease

STATES = (State.COMPLETE, State.RUNNING, State.FAILED, State.INTERRUPTED, State.MISSING)
CORRUPT = {"message": "its config.json is corrupted: submit again"}


@dataclass(frozen=True)
class AttemptFacts:
    """One attempt at a run."""

    attempt_id: str
    started: str  # UTC
    host: str
    step: int  # of the last heartbeat
    outcome: str  # finished, at work, failed with the reason, or interrupted


@dataclass(frozen=True)
class NodeFacts:
    """The stored state of a run or an evaluation."""

    kind: str
    node_id: str
    status: State  # of STATES, never missing
    tags: Mapping[str, str]
    config: Mapping  # {} if it is corrupted
    result: Mapping | None
    timing: Mapping
    failure: Mapping | None = None
    progress: Mapping | None = None  # of runs: the last heartbeat
    last_step: int = -1  # of runs: the last step with a committed record
    attempts: tuple[AttemptFacts, ...] = ()

    @property
    def seconds(self) -> float:
        """Seconds of work in the committed history; NaN if unknown."""
        return float(self.timing.get("elapsed_s", float("nan")))

    @property
    def rank_hours(self) -> float:
        return self.seconds / 3600 * self.timing.get("num_ranks", 1)

    @property
    def dollars_per_hour(self) -> float | None:
        """Price of all ranks, by the planner's price of the machine with this device; None if unknown."""
        device = str(self.timing.get("device", "")).lower()
        machine = next((machine for name, machine in MACHINES.items() if name in device), None)
        if machine is None:
            return None
        slots = self.timing.get("num_threads", 1) if machine.name == "cpu" else 1  # CPUs are priced by core
        return machine.dollars_per_hour * slots * self.timing.get("num_ranks", 1)

    @property
    def changed(self) -> float:
        """The time of the last event, in seconds of the epoch; 0 if unknown."""
        beat = (self.progress or {}).get("time", 0.0)
        return max(self.timing.get("ended", 0.0), (self.failure or {}).get("time", 0.0), beat)


@dataclass(frozen=True)
class Facts:
    """The nodes of a storage by id."""

    runs: Mapping[str, NodeFacts]
    evaluations: Mapping[str, NodeFacts]

    def node(self, node_id: str) -> NodeFacts | None:
        return self.runs.get(node_id) or self.evaluations.get(node_id)


def read_facts(store: Store) -> Facts:
    """Reads every run with an attempt, and every evaluation with a result."""
    runs = (_run_facts(store.run(run_id)) for run_id in store.list_runs())
    evaluations = (_evaluation_facts(store.evaluation(eval_id)) for eval_id in store.list_evaluations())
    found = [{node.node_id: node for node in nodes if node is not None} for nodes in (runs, evaluations)]
    return Facts(*found)


def _run_facts(run: RunDirectory) -> NodeFacts | None:
    status = run.status()
    if status == State.ABSENT:
        return None
    timing = run.timing()
    config = _config(run)
    return NodeFacts(
        kind="run",
        node_id=run.run_id,
        status=status if config else State.FAILED,
        tags=run.tags(),
        config=config,
        result=run.result(),
        timing=timing,
        failure=(run.failure() if status == State.FAILED else None) if config else CORRUPT,
        progress=run.progress(),
        last_step=run.last_step(),
        attempts=tuple(_attempt_facts(run, name, timing.get("attempt", "")) for name in run.attempts.list()),
    )


def _attempt_facts(run: RunDirectory, attempt_id: str, winner: str) -> AttemptFacts:
    folder = run.attempts.child(attempt_id)
    lease = read_lease(folder)
    try:
        failure = folder.read_json("failure.json")
    except CorruptFile as error:
        failure = {"message": str(error)}
    outcome = str(State.INTERRUPTED)
    if attempt_id == winner:
        outcome = "finished"
    elif is_fresh(lease):
        outcome = "at work"
    elif failure:
        outcome = f"failed: {failure['message']}"
    lease = lease or {}
    return AttemptFacts(attempt_id, _started(attempt_id), lease.get("host", ""), lease.get("step", 0), outcome)


def _started(attempt_id: str) -> str:
    """Reads the start time in an attempt's name."""
    moment = datetime.datetime.strptime(attempt_id.split("-")[1], "%Y%m%dT%H%M%S")
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def _evaluation_facts(evaluation: EvaluationDirectory) -> NodeFacts | None:
    result = evaluation.result()
    if result is None:
        return None
    config = _config(evaluation)
    return NodeFacts(
        kind="evaluation",
        node_id=evaluation.eval_id,
        status=State.COMPLETE if config else State.FAILED,
        tags=evaluation.tags(),
        config=config,
        result=result,
        timing=evaluation.timing(),
        failure=None if config else CORRUPT,
    )


def _config(node: RunDirectory | EvaluationDirectory) -> Mapping:
    try:
        return node.config()
    except (CorruptFile, ValueError):
        return {}
