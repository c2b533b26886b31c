"""A study under a seeded killer of its driver, its workers, Ray, Ray's head and MLflow, submitted again until done.

However it is disturbed, it ends with the bytes of the undisturbed study: no finished node is done again, none is
missing, MLflow shows every node once, and each kill costs a run at most one checkpoint interval.
"""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from gram_platform.local_cluster.head import free_port
from gram_platform.store import Store
from gram_platform.tracking import Tracker
from tests.study.mirrored import assert_mirrored_once
from tests.study.processes import (
    SMALL,
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

pytestmark = pytest.mark.ray

CHECKPOINT_EVERY_S = 0.2
OFTEN = ("--checkpoint-every", str(CHECKPOINT_EVERY_S))
TWELVE = ("--preset", "smoke", "--sizes", "tiny", "--seeds", "4")  # 12 runs of 2 s and 32 evaluations
LONGEST_WAIT_S = 6.0
RECONNECT_S = 10  # in which a Ray without its head ends itself; by default it is a minute
HEAD_TIMEOUT_S = 90.0


class Server:
    """An MLflow server that can be killed and comes back with what it had committed."""

    def __init__(self, folder: Path):
        folder.mkdir()
        self.folder, self.port = folder, free_port()
        self.uri = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "Server":
        self.start()
        return self

    def __exit__(self, *_) -> None:
        self.kill()

    def start(self) -> None:
        options = ["--backend-store-uri", f"sqlite:///{self.folder}/server.db", "--workers", "1"]
        options += ["--host", "127.0.0.1", "--port", str(self.port)]
        options += ["--artifacts-destination", f"{self.folder}/artifacts"]
        with open(self.folder / "server.log", "a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "server", *options],
                stdout=log,
                stderr=log,
                env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
                start_new_session=True,
            )

    def wait(self) -> None:
        """Until it answers."""
        deadline = time.monotonic() + 90
        while not self.answers():
            assert self.process.poll() is None, (self.folder / "server.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.2)

    def answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        """SIGKILL to it and its workers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@dataclass
class Killer:
    """Draws victims in a seeded order and kills them at seeded times; the clock of the machine does the rest."""

    victims: list[str]
    dice: random.Random
    longest_wait_s: float = LONGEST_WAIT_S
    killed: Counter = field(default_factory=Counter)

    def __post_init__(self):
        self.dice.shuffle(self.victims)

    def disturb(self, submission: Submission, server: Server) -> None:
        """Kills until the study ends, well or not."""
        while self.victims and self.is_due(submission):
            if self.victims[-1] in ALIVE and not ALIVE[self.victims[-1]](submission):
                continue
            assert_little_is_lost(submission, CHECKPOINT_EVERY_S)
            victim = self.victims.pop()
            self.killed[victim] += 1
            print(f"{time.strftime('%H:%M:%S')} kill {victim}")
            KILLERS[victim](submission, server, self.dice)
        submission.finish(300)

    def is_due(self, submission: Submission) -> bool:
        """Waits for the time of the next kill; False if the study ends before."""
        with contextlib.suppress(subprocess.TimeoutExpired, AssertionError):  # it may end first
            if self.victims[-1] == "worker" or self.dice.random() < 0.5:
                submission.training()
            submission.process.wait(self.dice.uniform(0.0, self.longest_wait_s))
        return submission.process.poll() is None


def kill_driver(submission: Submission, server: Server, dice: random.Random) -> None:
    submission.kill_driver()


def kill_worker(submission: Submission, server: Server, dice: random.Random) -> None:
    kill([dice.choice(training(submission))])


def kill_cluster(submission: Submission, server: Server, dice: random.Random) -> None:
    """Every process of Ray, and the driver."""
    submission.kill_driver()
    kill(submission.seen.values())


def kill_head(submission: Submission, server: Server, dice: random.Random) -> None:
    """Ray's head alone; the driver and the workers must end by themselves."""
    kill(heads(submission))
    code = submission.finish(HEAD_TIMEOUT_S)
    assert code == 1, f"exit code {code}:\n{submission.output}"
    _, left = psutil.wait_procs(training(submission), timeout=HEAD_TIMEOUT_S)
    assert not left


def kill_mlflow(submission: Submission, server: Server, dice: random.Random) -> None:
    """Away for a while, then back."""
    server.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        submission.process.wait(dice.uniform(0.0, LONGEST_WAIT_S))
    server.start()


KILLERS = {
    "driver": kill_driver,
    "worker": kill_worker,
    "cluster": kill_cluster,
    "head": kill_head,
    "mlflow": kill_mlflow,
}


def training(submission: Submission) -> list[psutil.Process]:
    return [process for process in submission.descendants() if is_training(process)]


def heads(submission: Submission) -> list[psutil.Process]:
    return [process for process in submission.descendants() if is_head(process)]


def is_head(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error, IndexError):
        return process.cmdline()[0].endswith("gcs_server")
    return False


ALIVE = {"worker": training, "head": heads}  # what must be there before it can be killed


@pytest.mark.timeout(600)  # a busy machine takes several times what a quiet one does
def test_one_of_each(finished_study, prepared_storage, tmp_path, monkeypatch):
    """A worker, the head and the MLflow server of the smallest study; `test_faults.py` kills the driver and Ray."""
    killer = Killer(["worker", "head", "mlflow"], random.Random(1), longest_wait_s=1.0)
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "2")
    disturbed_study(prepared_storage, (*SMALL, *OFTEN), killer, tmp_path / "server", finished_study)
    assert killer.killed.total() == 3


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    """Twelve runs and their evaluations."""
    storage = tmp_path_factory.mktemp("undisturbed") / "storage"
    submit(storage, TWELVE)
    return storage


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [20, 21])
def test_kill_anything_at_any_time(undisturbed, tmp_path, monkeypatch, seed):
    """Fifteen kills, three of each kind, of studies of twelve runs."""
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", str(RECONNECT_S))
    killer = Killer([victim for victim in KILLERS for _ in range(3)], random.Random(seed))
    rounds = 0
    while killer.victims:
        rounds += 1
        folder = tmp_path / f"round-{rounds}"
        folder.mkdir()
        disturbed_study(folder / "storage", (*TWELVE, *OFTEN), killer, folder / "server", undisturbed)
    assert killer.killed.total() >= 15


def disturbed_study(storage: Path, flags: tuple[str, ...], killer: Killer, folder: Path, undisturbed: Path) -> None:
    """Submits until the study ends well, and compares it with the undisturbed one."""
    started, num_before = time.monotonic(), killer.killed.total()
    with Server(folder) as server:
        server.wait()
        submissions = submit_until_done(storage, (*flags, "--tracking-uri", server.uri), killer, server)
        assert results(storage) == results(undisturbed)
        assert table(storage) == table(undisturbed)
        server.wait()
        Tracker(server.uri).sync(Store(storage))
        assert_mirrored_once(storage, server.uri)
    kills, lost = killer.killed.total() - num_before, lost_steps(storage)
    print(f"{kills} kills {dict(killer.killed)}, {submissions} submissions, {time.monotonic() - started:.0f} s")
    print(f"steps trained again: {sum(lost)} {sorted(lost)}; written twice: {num_trained_twice(storage)}")


def submit_until_done(storage: Path, flags: tuple[str, ...], killer: Killer, server: Server) -> int:
    """The number of submissions; none did again what was finished before it."""
    for number in range(1, 100):
        finished, tried = written(storage), attempts(storage)
        with Submission(storage, flags) as submission:
            killer.disturb(submission, server)
            code = submission.process.returncode
        assert code in (0, 1, -signal.SIGKILL), submission.output
        assert finished.items() <= written(storage).items()  # nothing finished was written again
        ids = [name.split("/")[1] for name in finished if name.startswith("runs/")]
        assert {i: tried[i] for i in ids} == {i: attempts(storage)[i] for i in ids}  # nor trained again
        if code == 0:
            return number
    raise AssertionError("a hundred submissions were not enough")
