"""kill -9 of ranks that train under Ray Train, which starts them again: the bytes of a run that
nobody disturbed.
"""

import dataclasses
import math
import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch.distributed as dist

from gram_platform.engine import dispatch
from gram_platform.engine.execution import Resources
from gram_platform.engine.ranks import train_rank
from gram_platform.methods import plan
from gram_platform.store import Store, attempts
from gram_platform.store.checkpoints import newest_manifest
from tests.engine.conftest import TWO_RANKS, elsewhere, longer
from tests.engine.test_node import result_bytes, strip_clock
from tests.engine.test_ranks import create, train
from tests.ranks import run_ranks
from tests.studies.processes import lost_steps

pytestmark = pytest.mark.ray

CHECKPOINT_EVERY_S = 0.3
# A record's interval of steps and one commit, on a machine that does other things too.
SLACK_S = 2.0
NUM_KILLS, STEPS_A_KILL = 10, 60


def worker_that_tells(config) -> str | None:
    """A rank under Ray Train that says where it is: its process in a file, and every step in the
    lease.
    """
    attempts.HEARTBEAT_INTERVAL_S = 0.001
    Path(f"{config['execution'].storage}-rank-{dist.get_rank()}").write_text(str(os.getpid()))
    return train_rank(dispatch.run_from_plain(config["run"]), config["execution"])


@pytest.mark.timeout(1800)
@pytest.mark.slow
def test_random_ranks_at_random_steps(ray_cluster, execution, setting, tmp_path, monkeypatch):
    """Ten kills are more than Ray Train starts again in one fit; a run that gets on is not given
    up.
    """
    run = plan("gram", setting).runs["all"]
    run = longer(run, math.ceil(STEPS_A_KILL * (NUM_KILLS + 1) / run.num_steps))
    two = dataclasses.replace(execution, placement=TWO_RANKS, checkpoint_every_s=CHECKPOINT_EVERY_S)
    straight = elsewhere(two, tmp_path, "straight")
    create(straight, run)
    run_ranks(2, train, run, straight)

    monkeypatch.setattr(dispatch, "_train_worker", worker_that_tells)
    directory = create(two, run)
    with ThreadPoolExecutor(1) as killer:
        kills = killer.submit(kill_ranks, two, run, random.Random(NUM_KILLS))
        started = time.monotonic()
        dispatch.execute_sharded_run(run, {}, two, Resources())
    lost_s, away_s = zip(*kills.result(), strict=True)
    lost = lost_steps(Path(two.storage))
    print(
        f"{NUM_KILLS} kills in {time.monotonic() - started:.0f} s; {sum(lost)} steps trained again:"
        f" {lost}"
    )
    print(f"seconds not committed {rounded(lost_s)}, without a rank at work {rounded(away_s)}")

    assert len(lost) == NUM_KILLS
    assert max(lost_s) < CHECKPOINT_EVERY_S + SLACK_S
    # The hash of the weights among them.
    assert result_bytes(two, run.run_id) == result_bytes(straight, run.run_id)
    assert strip_clock(directory.records()) == strip_clock(
        Store(straight.storage).run(run.run_id).records()
    )


def rounded(seconds) -> list[float]:
    return [round(s, 1) for s in seconds]


def kill_ranks(execution, run, dice: random.Random) -> list[tuple[float, float]]:
    """Kills either rank of the attempt at work, somewhere in the next share of what is left; for
    each kill the seconds of training since the last commit, and those until the next attempt has
    trained a step.
    """
    directory, found = Store(execution.storage).run(run.run_id), []
    began = trained(directory, 1, 1)
    for left in range(NUM_KILLS, 0, -1):
        before, number = directory.read_committed_step(), len(directory.attempts.list())
        trained(
            directory,
            number,
            before + dice.randint(1, max(1, (run.num_steps - before) // (left + 1))),
        )
        saved = max(began, (newest_manifest(directory.attempts) or {"time": 0.0})["time"])
        os.kill(
            int(Path(f"{execution.storage}-rank-{dice.randrange(2)}").read_text()), signal.SIGKILL
        )
        killed = time.time()
        began = trained(directory, number + 1, 1)
        found.append((killed - saved, began - killed))
    return found


def trained(directory, number: int, step: int) -> float:
    """Waits until the attempt of this number has trained up to the step; the hour, in seconds since
    1970.
    """
    deadline = time.monotonic() + 300
    while True:
        lease = directory.progress()
        if lease and lease["step"] >= step and len(directory.attempts.list()) >= number:
            return time.time()
        assert directory.result() is None, "ended before it was killed"
        assert time.monotonic() < deadline, f"step {step} was not reached: {lease}"
        time.sleep(0.002)
