"""Checkpoints into a storage that is slower than the time between them: training waits for none,
one is under way.
"""

import dataclasses
import time
from pathlib import Path

import pytest

from gram_platform.engine import node
from gram_platform.engine.node import RunExecution, execute_run
from gram_platform.store import Store
from gram_platform.store.attempts import Attempt
from tests.engine.conftest import slow_steps
from tests.engine.test_faults import in_fork
from tests.engine.test_node import result_bytes, strip_clock

STEP_S, WRITE_S = 0.02, 0.5


@pytest.fixture
def slow(execution, monkeypatch, tmp_path):
    """The execution; every step takes `STEP_S` and every checkpoint `WRITE_S`.

    `writing-<step>` says which began.
    """
    commit = Attempt.commit

    def commit_slowly(self, step, *rest):
        (tmp_path / f"writing-{step}").touch()
        time.sleep(WRITE_S)
        commit(self, step, *rest)

    monkeypatch.setattr(node, "training_steps", slow_steps(STEP_S))
    monkeypatch.setattr(Attempt, "commit", commit_slowly)
    return dataclasses.replace(execution, checkpoint_every_s=2 * STEP_S)


def begun(tmp_path: Path) -> list[int]:
    return sorted(int(file.name.removeprefix("writing-")) for file in tmp_path.glob("writing-*"))


def test_training_does_not_wait_and_the_last_one_is_waited_for(
    slow, run, undisturbed, tmp_path, monkeypatch
):
    commit, waited_s = RunExecution.commit, []

    def timed(self, step):
        started = time.monotonic()
        commit(self, step)
        waited_s.append(time.monotonic() - started)

    monkeypatch.setattr(RunExecution, "commit", timed)
    execute_run(run, {}, slow)
    assert len(waited_s) == len(begun(tmp_path)) >= 2
    assert max(waited_s) < WRITE_S / 2
    straight, records = undisturbed
    assert result_bytes(slow, run.run_id) == result_bytes(straight, run.run_id)
    assert strip_clock(Store(slow.storage).run(run.run_id).records()) == strip_clock(records)


def test_a_checkpoint_that_was_not_written_whole_does_not_count(slow, run, tmp_path):
    """kill -9 while the second one is written."""
    process = in_fork(execute_run, run, {}, slow)
    while len(steps := begun(tmp_path)) < 2:
        assert process.is_alive()
        time.sleep(0.001)
    process.kill()
    process.join()
    directory = Store(slow.storage).run(run.run_id)
    assert directory.read_committed_step() == steps[0] > 0
    execute_run(run, {}, dataclasses.replace(slow, checkpoint_every_s=1e9))
    assert [record["step"] for record in directory.records()][-1] == run.num_steps
