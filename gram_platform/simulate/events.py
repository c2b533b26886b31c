"""The events of a study on a simulated cluster, in the order of time."""

import heapq
import math
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from gram_platform.planner import ranks_at_once
from gram_platform.simulate.cluster import HOUR_S, DoesNotFinish, Outcome, Progress, SimulatedCluster, Task, Timeline

# Tries of a task in a row that save nothing, after which it gets nowhere [ours]. One in e^(interruptions an hour x
# machines x hours to the next checkpoint) saves something: one in ten never meets the limit, one in a hundred soon
# does, and nearly all of its hours are lost.
MAX_TRIES = 200


@dataclass
class _Machine:
    number: int
    free: int
    asked_s: float
    is_up: bool = False
    idle_since_s: float = math.inf


@dataclass
class _Attempt:
    task: Task
    timeline: Timeline
    started_s: float
    slots: dict[int, int]  # machine number -> slots


@dataclass
class _Ledger:
    """Slot-seconds, and what is counted."""

    useful: float = 0.0
    retrained: float = 0.0
    overhead: float = 0.0
    busy: float = 0.0
    machine_s: float = 0.0
    num_interruptions: int = 0
    interruptions: dict[str, int] = field(default_factory=dict)


class Simulation:
    """Events in time order; each one may free slots or machines, then waiting work is placed."""

    def __init__(self, tasks: Sequence[Task], cluster: SimulatedCluster, done: Collection[str], replication: int):
        self.cluster, self.done, self.replication = cluster, set(done), replication
        left = (task for task in tasks if task.id not in self.done)
        self.waiting = sorted(left, key=lambda task: (not task.is_first, -task.ranks))
        self.left_s = {task.id: task.work_s for task in self.waiting}
        self.has_checkpoint: set[str] = set()
        self.not_before: dict[str, float] = {}
        self.tries: dict[str, float] = {}  # of a task since it last saved something
        self.queued: list[Task] = []  # handed to the cluster, without slots yet
        self.attempts: dict[str, _Attempt] = {}
        self.machines: dict[int, _Machine] = {}
        self.events: list[tuple[float, int, str, object]] = []
        self.now_s, self.num_events, self.num_asked = 0.0, 0, 0
        self.ledger = _Ledger()

    def run(self) -> Outcome:
        """Plays the whole; DoesNotFinish when a task needs more than MAX_TRIES for anything, as decided by the seed."""
        self._advance()
        while self.waiting or self.queued or self.attempts:
            assert self.events, "work is left that nothing will ever start"
            self.now_s, _, kind, subject = heapq.heappop(self.events)
            if getattr(self, f"_on_{kind}")(subject):
                self._advance()
        makespan_s = self.now_s
        for machine in list(self.machines.values()):
            self._give_back(machine)
        return self._outcome(makespan_s)

    def _at(self, time_s: float, kind: str, subject: object) -> None:
        self.num_events += 1
        heapq.heappush(self.events, (time_s, self.num_events, kind, subject))

    # ------------------------------------------------------------------------------------------- events

    def _on_machine_up(self, machine: _Machine) -> bool:
        machine.is_up, machine.idle_since_s = True, self.now_s
        self._at(self.now_s + self.cluster.idle_s, "idle", machine)
        if self.cluster.interruptions_per_hour:
            chance = random.Random(f"{self.cluster.seed}/{self.replication}/{machine.number}")
            life_s = chance.expovariate(self.cluster.interruptions_per_hour) * HOUR_S
            self._at(self.now_s + life_s, "interruption", machine)
        return True

    def _on_interruption(self, machine: _Machine) -> bool:
        if machine.number not in self.machines:
            return False
        lost = [attempt for attempt in self.attempts.values() if machine.number in attempt.slots]
        self.ledger.num_interruptions += bool(lost)
        for attempt in lost:
            self._cut_off(attempt)
        if self.queued and not lost:  # the next in the queue may have waited for it
            self._count_try(self.queued[0], 1 / self._num_machines(self.queued[0]))
        self._give_back(machine)
        return True

    def _on_end(self, attempt: _Attempt) -> bool:
        if self.attempts.get(attempt.task.id) is not attempt:
            return False  # it was cut off
        self._book(attempt, Progress(attempt.timeline.work_s, attempt.timeline.work_s, 0.0))
        self.done.add(attempt.task.id)
        return True

    def _on_idle(self, machine: _Machine) -> bool:
        is_due = self.now_s - machine.idle_since_s >= self.cluster.idle_s
        if machine.number in self.machines and is_due and not self.queued:
            self._give_back(machine)
        return False

    def _on_retry(self, _: object) -> bool:
        return True

    # ------------------------------------------------------------------------------------------ attempts

    def _cut_off(self, attempt: _Attempt) -> None:
        task, progress = attempt.task, attempt.timeline.after(self.now_s - attempt.started_s)
        self._book(attempt, progress)
        self.left_s[task.id] -= progress.saved_s
        if progress.saved_s:
            self.has_checkpoint.add(task.id)
            self.tries.pop(task.id, None)
        self._count_try(task)
        self.ledger.interruptions[task.id] = self.ledger.interruptions.get(task.id, 0) + 1
        self.waiting.insert(0, task)
        self.not_before[task.id] = self.now_s + self.cluster.recovery_s
        self._at(self.not_before[task.id], "retry", None)

    def _count_try(self, task: Task, share: float = 1.0) -> None:
        """A machine that is lost while its task still gathers them is a share of a try."""
        self.tries[task.id] = self.tries.get(task.id, 0.0) + share
        if self.tries[task.id] > MAX_TRIES:
            raise DoesNotFinish(f"a node was interrupted {MAX_TRIES} times in a row before it had saved anything more")

    def _num_machines(self, task: Task) -> int:
        """The fewest that hold its ranks."""
        return math.ceil(task.ranks / self.cluster.slots_per_machine)

    def _book(self, attempt: _Attempt, progress: Progress) -> None:
        """Ends an attempt: its slots are free, its time is accounted for."""
        elapsed_s, ranks = self.now_s - attempt.started_s, attempt.task.ranks
        self.ledger.busy += ranks * elapsed_s
        self.ledger.useful += ranks * progress.saved_s
        self.ledger.retrained += ranks * (progress.trained_s - progress.saved_s)
        self.ledger.overhead += ranks * (elapsed_s - progress.trained_s)
        del self.attempts[attempt.task.id]
        for number, slots in attempt.slots.items():
            machine = self.machines[number]
            machine.free += slots
            if machine.free == self.cluster.slots_per_machine:
                machine.idle_since_s = self.now_s
                self._at(self.now_s + self.cluster.idle_s, "idle", machine)

    def _start(self, task: Task, slots: dict[int, int]) -> None:
        for number, count in slots.items():
            self.machines[number].free -= count
            self.machines[number].idle_since_s = math.inf
        speed = self.cluster.storage_bytes_per_s
        read_s = task.checkpoint_bytes / speed if task.id in self.has_checkpoint else 0.0
        timeline = Timeline(
            start_s=self.cluster.group_start_s + read_s,
            work_s=self.left_s[task.id],
            interval_s=task.interval_s(self.cluster.checkpoint_every_s),
            write_s=task.checkpoint_bytes / speed,
            result_s=task.result_bytes / speed,
        )
        attempt = _Attempt(task, timeline, self.now_s, slots)
        self.attempts[task.id] = attempt
        self._at(self.now_s + timeline.duration_s, "end", attempt)

    # ------------------------------------------------------------------------------------------- placing

    def _advance(self) -> None:
        """Hands out what the engine would, starts what finds its slots, and asks for machines for the rest."""
        present = sum(m.is_up for m in self.machines.values()) * self.cluster.slots_per_machine
        most = self.cluster.num_machines * self.cluster.slots_per_machine
        handed = [t.ranks for t in self.queued] + [a.task.ranks for a in self.attempts.values()]
        num_ranks, widest = sum(handed), max(handed, default=1)
        for task in list(self.waiting):
            is_ready = task.needs <= self.done and self.not_before.get(task.id, 0.0) <= self.now_s
            wider = max(widest, task.ranks)
            if is_ready and num_ranks + task.ranks <= ranks_at_once(present, most, wider):
                self.waiting.remove(task)
                self.queued.append(task)
                num_ranks, widest = num_ranks + task.ranks, wider
        for task in list(self.queued):
            slots = self._find(task.ranks)
            if slots is None:
                break  # first come, first served
            self.queued.remove(task)
            self._start(task, slots)
        self._ask_for_machines()

    def _find(self, ranks: int) -> dict[int, int] | None:
        """Slots for all ranks at once: of the fullest machine that has them all, else of several, emptiest first."""
        up = sorted((m for m in self.machines.values() if m.is_up and m.free), key=lambda m: (m.free, m.number))
        whole = next((m for m in up if m.free >= ranks), None)
        if whole is not None:
            return {whole.number: ranks}
        if sum(m.free for m in up) < ranks:
            return None
        slots: dict[int, int] = {}
        for machine in reversed(up):
            slots[machine.number] = min(machine.free, ranks - sum(slots.values()))
            if sum(slots.values()) == ranks:
                break
        return slots

    def _ask_for_machines(self) -> None:
        free = sum(m.free for m in self.machines.values())  # those that are starting included
        short = sum(task.ranks for task in self.queued) - free
        wanted = min(math.ceil(short / self.cluster.slots_per_machine), self.cluster.num_machines - len(self.machines))
        for _ in range(max(0, wanted)):
            machine = _Machine(self.num_asked, self.cluster.slots_per_machine, self.now_s)
            self.num_asked += 1
            self.machines[machine.number] = machine
            self._at(self.now_s + self.cluster.machine_start_s, "machine_up", machine)

    def _give_back(self, machine: _Machine) -> None:
        del self.machines[machine.number]
        self.ledger.machine_s += self.now_s - machine.asked_s

    def _outcome(self, makespan_s: float) -> Outcome:
        ledger, hours = self.ledger, 1 / HOUR_S
        return Outcome(
            makespan_hours=makespan_s * hours,
            cost=ledger.machine_s * hours * self.cluster.dollars_per_machine_hour,
            paid_hours=ledger.machine_s * hours * self.cluster.slots_per_machine,
            busy_hours=ledger.busy * hours,
            useful_hours=ledger.useful * hours,
            retrained_hours=ledger.retrained * hours,
            overhead_hours=ledger.overhead * hours,
            num_interruptions=ledger.num_interruptions,
            most_interruptions=max(ledger.interruptions.values(), default=0),
        )
