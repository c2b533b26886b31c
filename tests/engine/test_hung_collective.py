"""A rank that stops answering: the others give up after a time limit, and the run continues from
its checkpoint.
"""

import contextlib
import dataclasses
import os
import signal
import time

import psutil
import pytest

from gram_platform.engine import ray_executor
from gram_platform.engine.execution import Resources
from gram_platform.methods import plan
from gram_platform.methods.nodes import Node
from gram_platform.store import Store
from tests.engine.conftest import TWO_RANKS, longer

pytestmark = [pytest.mark.ray, pytest.mark.slow]

TIMEOUT_S = 15.0


@pytest.mark.timeout(900)
def test_a_rank_that_hangs(ray_cluster, execution, setting):
    run = longer(plan("gram", setting).runs["all"], 20)
    two = dataclasses.replace(
        execution, placement=TWO_RANKS, checkpoint_every_s=0.5, collective_timeout_s=TIMEOUT_S
    )
    directory = Store(execution.storage).run(run.run_id)
    task = ray_executor._execute_gang.options(num_cpus=0).remote((Node(run, ()),), two, Resources())
    deadline = time.monotonic() + 120
    while directory.read_committed_step() == 0:
        assert time.monotonic() < deadline, "no checkpoint"
        ready, _ = ray_cluster.wait([task], timeout=0.01)
        assert not ready, "ended before its first checkpoint"
    first, hung = directory.read_committed_step(), directory.progress()["pid"]
    os.kill(hung, signal.SIGSTOP)
    stopped = time.monotonic()
    try:
        ray_cluster.get(task, timeout=600)
        print(
            f"continued from step {first}, {time.monotonic() - stopped:.0f} s after the rank hung"
        )
        assert directory.result()["num_steps"] == run.num_steps
        assert [r["step"] for r in directory.records()][-1] == run.num_steps
        assert len(directory.attempts.list()) == 2
        assert not psutil.pid_exists(hung), "the stopped process is still there"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(hung, signal.SIGKILL)
