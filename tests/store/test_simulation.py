"""Seeded histories of two or three attempts and `gram gc` on one storage, with everything that can
go wrong.

A failing seed is printed; `python -m tests.store.test_simulation SEED` prints each of its file
operations.
"""

import collections
import errno
import random
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch

from gram_platform.store import LeaseHeld, Store
from tests.store.simulated_disk import NAMES_STAY_ABSENT_S
from tests.store.simulated_system import installed
from tests.store.simulated_world import HOUR, ROOT, Machine, Plan, World
from tests.store.training import record, run_config, train, weights_after
from tests.tiny import weights_of

FAULTS = ("clock", "suspension", "error", "full", "crash", "power", "stale")
RUN = run_config(6)
COUNTING_FILES = ("weights.safetensors", "complete.json", "result.json", "manifest.json")
STORAGE_ERRORS = (errno.EIO, errno.ENOSPC)
RETRY_S = 2.0  # as drivers look again, and start crashed nodes again
LONGEST_STEP_S = 4.0
EXPECTED = [record(step) for step in range(1, RUN.num_steps + 1)]


@dataclass
class History:
    """One seed's history: what its drivers met, and what is wrong in it."""

    seed: int
    faults: tuple[str, ...] = FAULTS
    trace: Callable[[str], None] | None = None
    wrong: list[str] = field(default_factory=list)
    published: float | None = None  # the time of the first result
    removes_weights: bool = False

    def run(self) -> collections.Counter[str]:
        """Lives the history; returns how often each fault happened."""
        rng = random.Random(f"history {self.seed}")
        is_mounted = rng.random() < 0.6  # by several machines; else one machine has the disk
        kinds = [
            kind for kind in self.faults if kind not in (("power",) if is_mounted else ("stale",))
        ]
        times = [rng.randint(1, rng.choice([200, 1000])) for _ in range(rng.randint(0, 5))]
        planned = [kind for kind in kinds if kind != "stale"]
        plan: Plan = {time: rng.choice(planned) for time in times}
        # Some lie about the moments at which something begins to count.
        for _ in range(rng.choice([0, 0, 1, 2])):
            plan[rng.choice(COUNTING_FILES), rng.randint(1, 20)] = rng.choice(planned)
        self.world = world = World(
            self.seed, plan, rng.choice([2, 3]) if is_mounted else 1, self.trace
        )
        world.disk.remembers_absent = "stale" in kinds and rng.random() < 0.5
        if "clock" in kinds and rng.random() < 0.3:
            rng.choice(world.machines).clock = rng.uniform(-6, 6) * HOUR
        self.removes_weights = rng.random() < 0.2
        for number in range(rng.choice([2, 2, 3])):
            self._drive(
                f"driver-{number}",
                rng.choice(world.machines),
                rng.choice([0.0, rng.uniform(0, 60)]),
            )
        if rng.random() < 0.7:
            self._collect("gc", rng.choice(world.machines), rng.uniform(0, 60))
        with installed(world), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            world.run()
            world.disk.remembers_absent, world.full_until, world.plan = False, 0.0, {}
            world.disk.absent.clear()
            for machine in world.machines:
                machine.fails_until = 0.0
            world.start("reader", world.machines[0], self._check)
            world.run()
        if world.failure:
            self.wrong.append(world.failure)
        world.counts["stale"] = world.disk.num_stale
        return world.counts

    # ------------------------------------------------------------------------------------- drivers

    def _drive(self, name: str, machine: Machine, after_s: float) -> None:
        """A driver: starts the run's process until the run has a result."""
        self.world.start(name, machine, lambda: self._execute(name, machine), after_s)

    def _execute(self, name: str, machine: Machine) -> None:
        is_over = False
        try:
            is_over = self._try_to_train(name)
        finally:
            if not is_over and not self.world.failure:
                self._drive(name, machine, self.world.rng.uniform(RETRY_S, 10 * RETRY_S))

    def _try_to_train(self, name: str) -> bool:
        """Trains in this process; True when the run has a result."""
        began = self.world.now

        def step() -> float:
            late = self.published is not None and began > self.published + NAMES_STAY_ABSENT_S
            if late and not self._recorded_loss():
                self.wrong.append(f"{name} trains a finished run again")
            return self.world.rng.uniform(0.0, LONGEST_STEP_S)

        try:
            result = train(ROOT, RUN, step_s=step)
        except LeaseHeld:
            return False
        except Exception as error:
            if is_of_the_disk(error):
                return False
            if self.trace:
                self.trace(traceback.format_exc())
            self.wrong.append(f"{name} ended with {error!r}")
            return True
        if self.published is None:
            self.published = self.world.now
        if result != REFERENCE["result"]:
            self.wrong.append(f"{name} has another result")
        return True

    def _collect(self, name: str, machine: Machine, after_s: float) -> None:
        self.world.start(name, machine, self._collect_garbage, after_s)

    def _collect_garbage(self) -> None:
        """As `gram gc`, a few times; in some histories it removes the weights of the finished
        run."""
        for _ in range(4):
            try:
                directory = Store(ROOT).open_for_writing(min_free_bytes=0).run(RUN.run_id)
                directory.remove_remains()
                if self.removes_weights and directory.result() is not None:
                    directory.drop_weights()
            except Exception as error:
                if self.trace:
                    self.trace(traceback.format_exc())
                if not is_of_the_disk(error):
                    self.wrong.append(f"gc ended with {error!r}")
            self.world.sleep(self.world.rng.uniform(1, 60))

    def _recorded_loss(self) -> bool:
        """Whether a file of the run was set aside."""
        folder = f"{ROOT}/runs/{RUN.run_id}"
        return any(".corrupt-" in name for name in self.world.disk.find(folder).names)

    # ------------------------------------------------------------------------------------- the end

    def _check(self) -> None:
        directory = Store(ROOT).run(RUN.run_id)
        if directory.result() != REFERENCE["result"]:
            self.wrong.append(f"the result is {directory.result()}")
            return
        if directory.records() != EXPECTED:
            self.wrong.append(f"records of steps {[r['step'] for r in directory.records()]}")
        if directory.weights_were_removed():
            return
        try:
            weights = weights_of(directory)["weights"]
            if not torch.equal(weights, weights_after(RUN.num_steps)):
                self.wrong.append("other weights")
        except ValueError as error:
            self.wrong.append(f"weights: {error}")


def is_of_the_disk(error: BaseException | None) -> bool:
    """Whether the error says that the disk failed or is full, in these words or in a user's."""
    return error is not None and (
        getattr(error, "errno", 0) in STORAGE_ERRORS or is_of_the_disk(error.__cause__)
    )


REFERENCE: dict[str, dict] = {}


@pytest.fixture(scope="module", autouse=True)
def reference(tmp_path_factory) -> None:
    REFERENCE["result"] = train(str(tmp_path_factory.mktemp("reference")), RUN)


def live(
    seeds: range, faults: tuple[str, ...] = FAULTS
) -> tuple[collections.Counter, dict[int, list[str]]]:
    """Lives the histories of all seeds; returns how often each fault happened, and what was wrong
    by seed."""
    counts: collections.Counter[str] = collections.Counter()
    wrong = {}
    for seed in seeds:
        history = History(seed, faults)
        counts += history.run()
        if history.wrong:
            wrong[seed] = history.wrong
    return counts, wrong


@pytest.mark.parametrize(
    "num_histories",
    [100, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])],
)
def test_no_history_breaks_a_promise(num_histories):
    counts, wrong = live(range(num_histories))
    assert not wrong, "\n".join(f"seed {seed}: {'; '.join(what)}" for seed, what in wrong.items())
    assert {*FAULTS, "lost sync"} <= counts.keys(), counts


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        REFERENCE["result"] = train(folder, RUN)
    replayed = History(int(sys.argv[1]), trace=print)
    print(replayed.run(), replayed.wrong)
