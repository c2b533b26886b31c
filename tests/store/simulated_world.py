"""Processes, machines and clocks in one thread at a time: a seeded scheduler switches at every file
operation.

`World.run` lets processes of the store's real code work on a simulated disk. The same seed gives
the same history.
"""

import collections
import errno
import itertools
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.store.simulated_disk import Directory, Disk, error

ROOT = "/simulated"
HOUR = 3600.0
OPERATION_S = 0.02  # mean time of one file operation
MOST_OPERATIONS = 40_000


Plan = dict[int | tuple[str, int], str]


class Killed(BaseException):
    """The process ends here: nothing that it does afterwards has an effect."""


@dataclass
class Machine:
    name: str
    clock: float = 0.0  # seconds ahead of the true time
    fails_until: float = 0.0  # every operation fails with EIO
    locks: dict[str, "Process"] = field(default_factory=dict)


@dataclass
class Process:
    name: str
    machine: Machine
    pid: int
    is_dead: bool = False
    sleeps_until: float = 0.0  # suspended


class Task:
    """One thread of a process. It runs while it holds the baton."""

    def __init__(self, process: Process, work: Callable[[], None]) -> None:
        self.process, self.work = process, work
        self.baton = threading.Semaphore(0)
        self.wakes, self.condition = 0.0, lambda: True

    def is_ready(self, now: float) -> bool:
        if self.process.is_dead:
            return True
        return now >= self.process.sleeps_until and (now >= self.wakes or self.condition())

    def next_time(self) -> float:
        return max(self.process.sleeps_until, self.wakes)


class World:
    """Machines, processes and one disk. `plan`: what goes wrong, by the number of the operation at
    which it does.

    An entry of the plan may also be (a name, a number): the operation of this number on a file of
    this name.
    """

    def __init__(
        self, seed: int, plan: Plan, num_machines: int, trace: Callable[[str], None] | None = None
    ):
        self.rng = random.Random(seed)
        self.disk = Disk(self.rng)
        self.disk.add("", ROOT, Directory())
        self.now = 1.6e9
        self.machines = [Machine(f"machine-{i}") for i in range(num_machines)]
        self.plan, self.trace = plan, trace
        self.counts: collections.Counter[str] = collections.Counter()
        # Operations by the file's name.
        self.num_on: collections.Counter[str] = collections.Counter()
        self.stickiness = self.rng.choice([0.0, 0.5, 0.9])
        self.full_until = 0.0
        self.num_operations, self.pids = 0, itertools.count(100)
        self.tasks: list[Task] = []
        self.current: Task | None = None
        self.threads: set[int] = set()
        self.ended, self.failure = threading.Semaphore(0), ""

    # ---------------------------------------------------------------------------------- scheduling

    def start(
        self, name: str, machine: Machine, work: Callable[[], None], after_s: float = 0.0
    ) -> Process:
        process = Process(name, machine, next(self.pids))
        self.spawn(process, work).wakes = self.now + after_s
        return process

    def spawn(self, process: Process, work: Callable[[], None]) -> Task:
        task = Task(process, work)
        task.condition = lambda: False
        self.tasks.append(task)
        threading.Thread(target=self._run_task, args=(task,), daemon=True).start()
        return task

    def _run_task(self, task: Task) -> None:
        self.threads.add(threading.get_ident())
        task.baton.acquire()
        try:
            task.work()
        except Killed:
            pass
        except BaseException as reason:
            self.failure = self.failure or f"{task.process.name}: {reason!r}"
        self.tasks.remove(task)
        self.threads.discard(threading.get_ident())
        self._hand_over()

    def run(self) -> None:
        """Lets all processes work until they have ended."""
        self._hand_over()
        self.ended.acquire()

    def _hand_over(self) -> None:
        if not self.tasks:
            self.current = None
            self.ended.release()
            return
        self.current = self._choose()
        self.current.baton.release()

    def _choose(self) -> Task:
        ready = [task for task in self.tasks if task.is_ready(self.now)]
        if not ready:
            self.now = self.disk.now = min(task.next_time() for task in self.tasks)
            ready = [task for task in self.tasks if task.is_ready(self.now)]
            assert ready, "nobody can go on"
        return self.rng.choice(ready)

    def pause(self, wakes: float = 0.0, condition: Callable[[], bool] = lambda: True) -> None:
        """Lets others work; goes on at the time `wakes`, or when the condition holds."""
        task = self.current
        task.wakes, task.condition = wakes, condition
        if not (task.is_ready(self.now) and self.rng.random() < self.stickiness):
            chosen = self._choose()
            if chosen is not task:
                self.current = chosen
                chosen.baton.release()
                task.baton.acquire()
        if task.process.is_dead:
            raise Killed

    def sleep(self, seconds: float) -> None:
        self.pause(self.now + seconds, lambda: False)

    def kill(self, *processes: Process) -> None:
        for process in processes:
            process.is_dead = True
            for name in [n for n, holder in process.machine.locks.items() if holder is process]:
                del process.machine.locks[name]

    # -------------------------------------------------------------------------------------- faults

    def operation(
        self, what: str, path: str, effect: Callable[[], Any], writes: bool = False
    ) -> Any:
        """One file operation of the current process: others may work before it, and something may
        go wrong."""
        self.pause()
        process = self.current.process
        self.now += self.rng.expovariate(1 / OPERATION_S)
        self.disk.now = self.now
        self.num_operations += 1
        if self.num_operations > MOST_OPERATIONS:
            self.failure = self.failure or "the history does not end"
            self.kill(*(task.process for task in self.tasks))
        if self.trace:
            self.trace(
                f"{self.now - 1.6e9:10.2f} {process.name:12} {what} {path.removeprefix(ROOT)}"
            )
        self._go_wrong(process, path.rpartition("/")[2])
        if process.is_dead:
            raise Killed
        if writes and self.now < self.full_until:
            self.counts["full"] += 1
            raise error(errno.ENOSPC, path)
        fails = self.now < process.machine.fails_until
        if not fails or self.rng.random() < 0.3:  # some take place, and their answer is lost
            result = effect()
        if fails:
            self.counts["error"] += 1
            raise error(errno.EIO, path)
        return result

    def _go_wrong(self, process: Process, name: str) -> None:
        self.num_on[name] += 1
        kind = self.plan.pop(self.num_operations, None) or self.plan.pop(
            (name, self.num_on[name]), None
        )
        rng = self.rng
        if kind is None:
            return
        if self.trace:
            self.trace(f"           {process.name:12} *** {kind}")
        if kind == "clock":
            process.machine.clock += rng.choice([-1, 1]) * rng.uniform(0.5, 6) * HOUR
        elif kind == "suspension":
            process.sleeps_until = self.now + rng.choice(
                [rng.uniform(1, 100), rng.uniform(0.5, 6) * HOUR]
            )
            self.counts[kind] += 1
            self.pause()
            return
        elif kind == "error":  # counted where it is seen
            process.machine.fails_until = self.now + rng.choice(
                [0.05, rng.uniform(0.1, 20), rng.uniform(1, 600)]
            )
            return
        elif kind == "full":
            self.full_until = self.now + rng.uniform(0.1, 100)
            return
        elif kind == "crash":
            self.kill(process)
        elif kind == "power":
            machine = process.machine
            self.kill(*(task.process for task in self.tasks if task.process.machine is machine))
            before = self.disk.num_lost
            self.disk.lose_unsynced()
            self.counts["lost sync"] += self.disk.num_lost > before
        self.counts[kind] += 1

    # ----------------------------------------------------------------------------------- questions

    def clock(self) -> float:
        return self.now + self.current.process.machine.clock
