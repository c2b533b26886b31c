"""A study, or a search, under a seeded killer of its driver, its workers, all parts of Ray and
MLflow, submitted again until done.

However it is disturbed, it ends with the bytes of the undisturbed study: no finished node is done
again, none is missing, MLflow shows every node once, and each kill costs a run at most one
checkpoint interval.
"""

import contextlib
import random
import signal
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.studies.mirrored import assert_mirrored_once
from tests.studies.processes import (
    EXPERIMENT,
    SMALL,
    TINY,
    Submission,
    assert_little_is_lost,
    attempts,
    is_training,
    kill,
    lost_steps,
    num_trained_twice,
    results,
    submit,
    table,
    written,
)
from tests.tracking.servers import MlflowServer, running_mlflow

pytestmark = pytest.mark.ray

CHECKPOINT_EVERY_S = 0.2
OFTEN = ("--checkpoint-every", str(CHECKPOINT_EVERY_S))
MANY = (*TINY, "--seeds", "2")  # 28 runs, 18 of them short attacks, and 20 evaluations
LONGEST_WAIT_S = 6.0
RECONNECT_S = 10  # in which a Ray without its head ends itself; by default it is a minute
HEAD_TIMEOUT_S = 90.0


@dataclass
class Killer:
    """Kills the victims, first to last, at seeded times; the clock of the machine does the rest."""

    victims: list[str]
    dice: random.Random
    longest_wait_s: float = LONGEST_WAIT_S
    killed: Counter = field(default_factory=Counter)

    def disturb(self, submission: Submission, server: MlflowServer) -> None:
        """Kills until the study ends, well or not."""
        while self.victims and self.is_due(submission):
            found = TARGETS[self.victims[0]](submission)
            if not found:
                continue
            assert_little_is_lost(submission, CHECKPOINT_EVERY_S)
            victim = self.victims.pop(0)
            self.killed[victim] += 1
            print(f"{time.strftime('%H:%M:%S')} kill {victim}")
            KILLERS[victim](submission, server, self.dice, found)
        submission.finish(300)

    def is_due(self, submission: Submission) -> bool:
        """Waits for the time of the next kill; False if the study ends before."""
        with contextlib.suppress(subprocess.TimeoutExpired, AssertionError):  # it may end first
            if self.victims[0] == "worker" or self.dice.random() < 0.5:
                submission.training()
            submission.process.wait(self.dice.uniform(0.0, self.longest_wait_s))
        return submission.process.poll() is None


def kill_driver(submission: Submission, *_) -> None:
    submission.kill_driver()


def kill_worker(
    submission: Submission, _, dice: random.Random, found: list[psutil.Process]
) -> None:
    kill([dice.choice(found)])


def kill_cluster(submission: Submission, *_) -> None:
    """Every process of Ray, and the driver."""
    submission.kill_driver()
    kill(submission.seen.values())


def kill_part(
    submission: Submission, server: MlflowServer, dice: random.Random, found: list[psutil.Process]
) -> None:
    """Ray's head, its process on this machine, or an agent; the driver and the workers must end by
    themselves.

    A driver that only has tables to write when that happens ends well. While Ray starts, Ray may
    end the driver with its own words.
    """
    done = written(submission.storage)
    kill(found)
    code = submission.finish(HEAD_TIMEOUT_S)
    if code == 0:
        assert written(submission.storage) == done, "it went on without its Ray"
    else:
        assert code == 1, f"exit code {code}:\n{submission.output}"
        if "started a Ray on this machine" in submission.output:
            assert "Submit again" in submission.output
    _, left = psutil.wait_procs(training(submission), timeout=HEAD_TIMEOUT_S)
    assert not left


def kill_mlflow(submission: Submission, server: MlflowServer, dice: random.Random, _) -> None:
    """Away for a while, then back."""
    server.stop(signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        submission.process.wait(dice.uniform(0.0, LONGEST_WAIT_S))
    server.start()


def training(submission: Submission) -> list[psutil.Process]:
    """Ray's workers that execute a node, of a study or of a search's trial."""
    ids = {training.pid for training in submission.in_training()}
    return [p for p in submission.descendants() if p.pid in ids or is_training(p)]


def command(submission: Submission) -> list[psutil.Process]:
    return [psutil.Process(submission.process.pid)]


def parts(submission: Submission, ending: str) -> list[psutil.Process]:
    """Ray's processes whose command ends so."""
    return [process for process in submission.descendants() if is_part(process, ending)]


def is_part(process: psutil.Process, ending: str) -> bool:
    with contextlib.suppress(psutil.Error, IndexError):
        return process.is_running() and process.cmdline()[0].endswith(ending)
    return False


KILLERS = {
    "driver": kill_driver,
    "worker": kill_worker,
    "cluster": kill_cluster,
    "head": kill_part,
    "raylet": kill_part,
    "agent": kill_part,
    "mlflow": kill_mlflow,
}
PARTS = {"head": "gcs_server", "raylet": "/raylet", "agent": "Agent"}
TARGETS = dict.fromkeys(KILLERS, command) | {"worker": training}  # who must be there
TARGETS |= {name: partial(parts, ending=ending) for name, ending in PARTS.items()}


@pytest.mark.slow
@pytest.mark.timeout(600)  # a busy machine takes several times what a quiet one does
def test_one_of_each(finished_study, prepared_storage, tmp_path, monkeypatch):
    """A worker, the head and the MLflow server of the smallest study; `test_faults.py` kills the
    driver and Ray."""
    killer = Killer(["worker", "head", "mlflow"], random.Random(1), longest_wait_s=1.0)
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "2")
    disturbed_study(prepared_storage, (*SMALL, *OFTEN), killer, tmp_path / "server", finished_study)
    assert killer.killed.total() == 3


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    """28 runs and their evaluations."""
    storage = tmp_path_factory.mktemp("undisturbed") / "storage"
    submit(storage, MANY)
    return storage


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [20, 21])
def test_kill_anything_at_any_time(undisturbed, tmp_path, monkeypatch, seed):
    """Three kills of each kind, of studies of 28 runs."""
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", str(RECONNECT_S))
    victims, dice, rounds = [victim for victim in KILLERS for _ in range(3)], random.Random(seed), 0
    dice.shuffle(victims)
    killer = Killer(victims, dice)
    while killer.victims:
        rounds += 1
        folder = tmp_path / f"round-{rounds}"
        folder.mkdir()
        disturbed_study(folder / "storage", (*MANY, *OFTEN), killer, folder / "server", undisturbed)
    assert killer.killed.total() == 3 * len(KILLERS)


def disturbed_study(
    storage: Path, flags: tuple[str, ...], killer: Killer, folder: Path, undisturbed: Path
) -> None:
    """Submits until the study ends well, and compares it with the undisturbed one."""
    started, num_before = time.monotonic(), killer.killed.total()
    folder.mkdir()
    with running_mlflow(f"sqlite:///{folder}/server.db", folder) as server:
        flags = (*flags, "--tracking-uri", server.uri)
        submissions, output = submit_until_done(storage, flags, killer, server)
        assert results(storage) == results(undisturbed)
        assert table(storage) == table(undisturbed)
        # At its end too, perhaps; the next submission sends the rest.
        if "MLflow is away" in output:
            submit(storage, flags)
        assert_mirrored_once(storage, server.uri)
    kills, lost = killer.killed.total() - num_before, lost_steps(storage)
    print(
        f"{kills} kills {dict(killer.killed)}, {submissions} submissions,"
        f" {time.monotonic() - started:.0f} s"
    )
    print(
        f"steps trained again: {sum(lost)} {sorted(lost)}; written twice:"
        f" {num_trained_twice(storage)}"
    )


def submit_until_done(
    storage: Path,
    flags: tuple[str, ...],
    killer: Killer,
    server: MlflowServer,
    command: tuple[str, ...] = EXPERIMENT,
) -> tuple[int, str]:
    """The number of submissions, and what the last one printed; none did again what was finished
    before it."""
    for number in range(1, 100):
        finished, tried = written(storage), attempts(storage)
        with Submission(storage, flags, command) as submission:
            killer.disturb(submission, server)
            code = submission.process.returncode
        assert code in (0, 1, -signal.SIGKILL), submission.output
        assert finished.items() <= written(storage).items()  # nothing finished was written again
        ids = [name.split("/")[1] for name in finished if name.startswith("runs/")]
        # Nor trained again.
        assert {i: tried[i] for i in ids} == {i: attempts(storage)[i] for i in ids}
        if code == 0:
            return number, submission.output
    raise AssertionError("a hundred submissions were not enough")
