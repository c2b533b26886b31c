"""kill -9 at any point leaves a run that ends with the same result, the same bytes, and every step
once."""

import signal

from gram_platform.store import Store
from tests.store.training import in_process, run_config, train, train_until_killed
from tests.tiny import weights_of


def result_bytes(root, run) -> bytes:
    return (root / "runs" / run.run_id / "result.json").read_bytes()


def test_kill_before_every_file_operation(tmp_path):
    run = run_config(4)
    train(str(tmp_path / "uninterrupted"), run)
    expected = result_bytes(tmp_path / "uninterrupted", run)
    for operation in range(1, 1000):
        root = tmp_path / str(operation)
        process = in_process(train_until_killed, str(root), run, operation)
        process.join()
        killed = process.exitcode == -signal.SIGKILL
        assert killed or process.exitcode == 0
        train(str(root), run)
        directory = Store(root).run(run.run_id)
        assert directory.status() == "complete"
        assert result_bytes(root, run) == expected
        assert [record["step"] for record in directory.records()] == list(
            range(1, run.num_steps + 1)
        )
        assert len(weights_of(directory)) == 1
        if not killed:
            break
    assert operation > 40, "the run has more operations than that"
