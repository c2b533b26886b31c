"""A study in processes of its own, to be killed: starting it, finding its parts, reading what its
storage says."""

import contextlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from gram_platform.methods import METHODS
from gram_platform.store import Store
from gram_platform.store.checkpoints import last_step, newest_manifest
from gram_platform.store.leases import is_fresh, read_lease

ROOT = Path(__file__).resolve().parents[2]
# `shelf.py` is an object store.
PYTHONPATH = os.pathsep.join((str(ROOT), str(ROOT / "tests/shelf")))
EXPERIMENT = (sys.executable, "experiments/scaling.py")
TINY = ("--preset", "smoke", "--sizes", "tiny")
# 2 runs of 2 s, 3 short attacks and 7 evaluations.
SMALL = (*TINY, "--seeds", "1", "--methods", "baseline", "gram")


@dataclass
class Submission:
    """A submitted study. Leaving the block kills whatever of it is left."""

    storage: Path
    flags: tuple[str, ...] = SMALL
    command: tuple[str, ...] = EXPERIMENT
    # Of the storage, if it is an object store; `storage` is then the folder behind it.
    url: str = ""
    ray_address: str = "local"  # a Ray of its own, whatever else runs on this machine
    # Every process that it was ever seen with.
    seen: dict[int, psutil.Process] = field(default_factory=dict)

    def __enter__(self) -> "Submission":
        self.output_path = self.storage.with_name(f"{self.storage.name}-{time.time_ns()}.txt")
        self.earlier = {attempt_id for ids in attempts(self.storage).values() for attempt_id in ids}
        with open(self.output_path, "w") as file:
            self.process = subprocess.Popen(
                [*self.command, *self.flags, "--storage", self.url or str(self.storage)],
                cwd=ROOT,
                env=os.environ
                | {
                    "RAY_ADDRESS": self.ray_address,
                    "PYTHONUNBUFFERED": "1",
                    "PYTHONPATH": PYTHONPATH,
                },
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_) -> None:
        self.kill_driver()
        kill(self.seen.values())

    @property
    def output(self) -> str:
        return self.output_path.read_text()

    def finish(self, timeout_s: float = 180.0) -> int:
        """The exit code."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(timeout_s)
        raise AssertionError(f"did not end within {timeout_s} s:\n{self.output}")

    def kill_driver(self) -> None:
        """SIGKILL to the command alone, not to its Ray."""
        self.descendants()
        self.process.kill()
        self.process.wait()

    def descendants(self) -> list[psutil.Process]:
        """Every process of its Ray: daemons and workers."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                if not removes_a_folder(child):
                    self.seen[child.pid] = child
        return list(self.seen.values())

    def wait_for(self, condition, what: str, timeout_s: float = 120.0):
        """The first true value of `condition()`, looked at a hundred times a second."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if value := condition():
                self.descendants()
                return value
            assert self.process.poll() is None, f"ended before {what}:\n{self.output}"
            time.sleep(0.01)
        raise AssertionError(f"no {what} within {timeout_s} s:\n{self.output}")

    def training(self) -> "Training":
        """A run that it trains, after its first commit."""
        return self.wait_for(lambda: next(iter(self.in_training()), None), "a checkpoint")

    def stopped(self) -> "Training":
        """A run that it trains, after its first commit, its process stopped: it cannot end before
        it is killed."""

        def stop() -> Training | None:
            for training in self.in_training():
                worker = psutil.Process(training.pid)
                worker.suspend()
                if training.run_id in {still.run_id for still in self.in_training()}:
                    return training
                worker.resume()
            return None

        return self.wait_for(stop, "a checkpoint")

    def in_training(self) -> list["Training"]:
        """The runs at work in attempts that it started, once each has committed."""
        found = [
            training
            for training in in_training(self.storage)
            if training.attempt_id not in self.earlier
        ]
        return [training for training in found if training.checkpoints(self.storage)]


def removes_a_folder(process: psutil.Process) -> bool:
    """Whether a process waits for the end of its Ray to remove the files: whoever kills it leaves
    them."""
    with contextlib.suppress(psutil.Error):
        return any(word.endswith("machine.py") for word in process.cmdline())
    return False


SLACK_S = 2.0  # one step and one commit, on a machine that does other things too


def assert_little_is_lost(submission: Submission, checkpoint_every_s: float) -> None:
    """Of every run at work, what is not committed is at most one checkpoint interval."""
    now = time.time()
    for training in submission.in_training():
        assert now - training.committed < checkpoint_every_s + SLACK_S, training


def is_training(process: psutil.Process) -> bool:
    """Whether a Ray worker executes a node: its title is then the node's name."""
    with contextlib.suppress(psutil.Error, IndexError):
        return process.cmdline()[0].startswith(tuple(f"ray::{method}" for method in METHODS))
    return False


def submit(
    storage: Path,
    flags: tuple[str, ...] = SMALL,
    command: tuple[str, ...] = EXPERIMENT,
    code: int = 0,
    **place: str,
) -> str:
    """Runs a study to its end, checks its exit code, and returns what it printed; `place`: fields
    of Submission."""
    with Submission(storage, flags, command, **place) as submission:
        assert submission.finish() == code, submission.output
        return submission.output


def kill(processes) -> None:
    """SIGKILL, and wait until they are gone."""
    processes = list(processes)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=10)


# ---------------------------------------------------------------------------- what the storage says


@dataclass(frozen=True)
class Training:
    """A run at work: whose process it is and since when its work is not committed."""

    run_id: str
    attempt_id: str
    pid: int
    step: int  # committed
    committed: float  # when, in seconds since 1970

    def checkpoints(self, storage: Path) -> list[Path]:
        """The folders of the attempt's own checkpoints, oldest first."""
        folder = storage / "runs" / self.run_id / "attempts" / self.attempt_id / "checkpoints"
        return sorted(manifest.parent for manifest in folder.glob("*/manifest.json"))


def in_training(storage: Path) -> list[Training]:
    """Runs without a result whose last attempt is at work."""
    store, found = Store(storage), []
    for run_id in store.list_runs():
        run = store.run(run_id)
        attempt_ids = run.attempts.list()
        if run.folder.exists("result.json") or not attempt_ids:
            continue
        lease = read_lease(run.attempts.child(attempt_ids[-1]))
        manifest = newest_manifest(run.attempts)
        if is_fresh(lease) and manifest:
            found.append(
                Training(run_id, attempt_ids[-1], lease["pid"], manifest["step"], manifest["time"])
            )
    return found


def results(storage: Path) -> dict[str, bytes]:
    """Every `result.json` under its path in the storage."""
    paths = [*storage.glob("runs/*/result.json"), *storage.glob("evaluations/*/result.json")]
    return {str(path.relative_to(storage)): path.read_bytes() for path in paths}


def table(storage: Path) -> bytes:
    return (storage / "studies/scaling/table.csv").read_bytes()


def written(storage: Path) -> dict[str, tuple[int, int]]:
    """{path of a result: (inode, time)}: changes when it is written again, even with the same
    bytes."""
    stats = {name: (storage / name).stat() for name in results(storage)}
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in stats.items()}


def attempts(storage: Path) -> dict[str, list[str]]:
    """{run_id: its attempts, oldest first}."""
    store = Store(storage)
    return {run_id: store.run(run_id).attempts.list() for run_id in store.list_runs()}


def segments_written(storage: Path, run_id: str) -> list[tuple[int, int]]:
    """(first, last step) of every segment that any attempt wrote: committed steps that were trained
    twice overlap."""
    # Without a file that a killed process was still writing.
    files = (storage / "runs" / run_id).glob("attempts/*/segments/[0-9]*.jsonl")
    return sorted(tuple(int(step) for step in file.stem.split("-")) for file in files)


def num_trained_twice(storage: Path) -> int:
    """Steps whose records were written more than once, over all runs."""
    total = 0
    for run_id in Store(storage).list_runs():
        steps = [
            step
            for first, last in segments_written(storage, run_id)
            for step in range(first, last + 1)
        ]
        total += len(steps) - len(set(steps))
    return total


def lost_steps(storage: Path) -> list[int]:
    """For each attempt at a complete run that did not finish it: its steps that a later one trained
    again.

    Those after its last commit in the run's history, as far as its last heartbeat or segment tells:
    a second at most lies between two heartbeats.
    """
    found = []
    for run_id in Store(storage).list_runs():
        run = Store(storage).run(run_id)
        winner, finish = run.list_finished_attempts(run.result())[0]
        for attempt_id in run.attempts.list():
            if attempt_id != winner:
                told = (read_lease(run.attempts.child(attempt_id)) or {"step": 0})["step"]
                files = run.attempts.child(attempt_id, "segments").list()
                told = max([told, *(int(Path(name).stem.split("-")[1]) for name in files)])
                kept = [entry for entry in finish["segments"] if entry["attempt"] <= attempt_id]
                found.append(max(0, told - max(0, last_step(kept))))
    return found
