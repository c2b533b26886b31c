"""kill -9 at any point leaves a run that ends with the same result, the same bytes, and every step once."""

import random
import signal
import time

import pytest

from gram_platform.store import Store
from tests.store.training import in_process, run_config, train, train_until_killed


def result_bytes(root, run) -> bytes:
    return (root / "runs" / run.run_id / "result.json").read_bytes()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """result.json of the same run without interruption, for two lengths."""
    root = tmp_path_factory.mktemp("uninterrupted")
    runs = [run_config(6), run_config(160)]
    for run in runs:
        train(str(root), run)
    return {run.run_id: result_bytes(root, run) for run in runs}


def check_ended_well(root, run, uninterrupted) -> None:
    directory = Store(root).run(run.run_id)
    assert directory.status() == "complete"
    assert result_bytes(root, run) == uninterrupted[run.run_id]
    assert [record["step"] for record in directory.records()] == list(range(1, run.num_steps + 1))
    assert len(directory.weights()) == 1


def test_kill_before_every_file_operation(tmp_path, uninterrupted):
    run = run_config(6)
    for operation in range(1, 1000):
        root = tmp_path / str(operation)
        process = in_process(train_until_killed, str(root), run, operation)
        process.join()
        killed = process.exitcode == -signal.SIGKILL
        assert killed or process.exitcode == 0
        train(str(root), run)
        check_ended_well(root, run, uninterrupted)
        if not killed:
            break
    assert operation > 40, "the run has more operations than that"


@pytest.mark.slow  # a kill before every operation is its quick relative
def test_kill_at_random_moments(tmp_path, uninterrupted):
    run, rng, num_kills = run_config(160), random.Random(0), 0
    steps = []
    while num_kills < 12:
        process = in_process(train, str(tmp_path), run, 2, None, lambda: 0.005)
        time.sleep(rng.uniform(0.01, 0.08))
        process.kill()
        process.join()
        num_kills += process.exitcode == -signal.SIGKILL
        records = Store(tmp_path).run(run.run_id).records()
        steps.append(len(records))
        assert [record["step"] for record in records] == list(range(1, len(records) + 1))
        if process.exitcode == 0:
            break
    assert steps == sorted(steps), "no commit is ever lost"
    assert num_kills >= 10
    train(str(tmp_path), run)
    check_ended_well(tmp_path, run, uninterrupted)
