"""Whatever is killed, whenever: submitting again ends with the very bytes of a study that nobody
disturbed."""

import errno
import os
import pickle
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from gram_platform.config.endings import exit_with
from gram_platform.engine.machine import free_port
from gram_platform.store import LeaseHeld, Store
from gram_platform.tracking import Tracker
from tests.studies.mirrored import assert_mirrored_once
from tests.studies.processes import (
    EXPERIMENT,
    ROOT,
    SMALL,
    Submission,
    assert_little_is_lost,
    attempts,
    kill,
    lost_steps,
    num_trained_twice,
    results,
    submit,
    table,
    written,
)

pytestmark = pytest.mark.ray

CHECKPOINT_EVERY_S = 0.01
OFTEN = (*SMALL, "--checkpoint-every", str(CHECKPOINT_EVERY_S))
MOST_STEPS = 48  # of one run


@pytest.mark.slow
@pytest.mark.timeout(600)  # three starts of Ray, which a busy machine draws out
def test_kill_the_driver_then_the_cluster_then_a_worker(finished_study, prepared_storage):
    """The driver's orphans are left to themselves; a checkpoint is corrupted on the way."""
    storage, unhurt = prepared_storage, []
    with Submission(storage, OFTEN) as first:
        first.training()
        assert_little_is_lost(first, CHECKPOINT_EVERY_S)
        first.kill_driver()

        with Submission(storage, OFTEN) as second:
            victim = second.stopped()
            assert_little_is_lost(second, CHECKPOINT_EVERY_S)
            unhurt.append((written(storage), attempts(storage)))
            second.kill_driver()
            kill([*second.seen.values(), *first.seen.values()])

    spoilt = victim.checkpoints(storage)[-1]
    flip_byte(spoilt / "tensors.safetensors")

    with Submission(storage, OFTEN) as third:
        worker = third.stopped()
        assert_little_is_lost(third, CHECKPOINT_EVERY_S)
        unhurt.append((written(storage), attempts(storage)))
        os.kill(worker.pid, signal.SIGKILL)
        assert third.finish() == 0, third.output
    # The worker that set it aside may be the one that was killed, so its warning need not have come
    # through
    assert list(spoilt.parent.glob(f"{spoilt.name}.corrupt-*"))

    assert results(storage) == results(finished_study)
    assert table(storage) == table(finished_study)
    for earlier, tried in unhurt:
        # What was finished was not written again.
        assert earlier.items() <= written(storage).items()
        finished = [name.split("/")[1] for name in earlier if name.startswith("runs/")]
        assert {i: tried[i] for i in finished} == {i: attempts(storage)[i] for i in finished}
    assert_mirrored_once(storage)


@pytest.mark.slow
def test_two_drivers_at_once(finished_study, tmp_path):
    """Each with a Ray of its own, from an empty storage: both end complete, and leases keep them
    apart."""
    storage = tmp_path / "storage"
    with Submission(storage, OFTEN) as first, Submission(storage, OFTEN) as second:
        codes = [submission.finish() for submission in (first, second)]
        assert codes == [0, 0], first.output + second.output
    assert results(storage) == results(finished_study)
    assert table(storage) == table(finished_study)
    assert num_trained_twice(storage) == 0
    assert lost_steps(storage) == [0] * len(lost_steps(storage))
    for run_id, tried in attempts(storage).items():
        segments = [
            storage / "runs" / run_id / "attempts" / attempt_id / "segments" for attempt_id in tried
        ]
        assert sum(folder.exists() for folder in segments) == 1  # all was trained in one attempt
    assert_mirrored_once(storage)


def test_a_held_lease_crosses_processes():
    """As an exception that Ray cannot unpickle it would count as a crash of the run's process."""
    held = LeaseHeld("0123456789ab", {"owner": "somebody", "pid": 1, "host": "elsewhere"})
    again = pickle.loads(pickle.dumps(held))
    assert (str(again), again.lease) == (str(held), held.lease)


def test_corrupted_files_and_no_mlflow(finished_study, finished_copy):
    """A result is restored from its attempt or trained again, an evaluation done again; the mirror
    catches up."""
    spoilt_result, spoilt_run = sorted((finished_copy / "runs").iterdir())[:2]
    spoilt_evaluation = min((finished_copy / "evaluations").iterdir())
    flip_byte(spoilt_result / "result.json")
    flip_byte(spoilt_run / "result.json")
    flip_byte(next(spoilt_run.glob("attempts/*/weights.safetensors")))
    flip_byte(spoilt_evaluation / "result.json")
    before = attempts(finished_copy)
    output = submit(
        finished_copy, (*SMALL, "--in-process", "--tracking-uri", f"http://127.0.0.1:{free_port()}")
    )
    assert results(finished_copy) == results(finished_study)
    assert table(finished_copy) == table(finished_study)
    assert re.search(r"12 of 12 .*: 2 now", output)
    assert "MLflow is away" in output
    for folder in (spoilt_result, spoilt_run, spoilt_evaluation):
        assert (folder / "result.json.corrupt-1").exists()
        assert re.search(f"{folder}/result.json .*set aside", output)
    tries = {
        run_id: len(ids) - len(before[run_id]) for run_id, ids in attempts(finished_copy).items()
    }
    assert tries == {**dict.fromkeys(before, 0), spoilt_run.name: 1}

    uri = f"sqlite:///{finished_copy}/later.db"
    Tracker(uri).sync(Store(finished_copy))
    assert_mirrored_once(finished_copy, uri)


@pytest.mark.parametrize("options", ["size=8m", "size=512m,ro"])
def test_a_storage_that_is_full_or_read_only(options, tmp_path):
    """A clear error before anything trains, without a traceback."""
    mount = [
        "unshare",
        "--map-root-user",
        "--mount",
        "sh",
        "-ec",
        'mount -t tmpfs -o "$1" tmpfs "$2"; shift 2; "$@"',
    ]
    if subprocess.run(
        [*mount, "sh", options, tmp_path, "true"], capture_output=True, check=False
    ).returncode:
        pytest.skip("this machine lets nobody mount a tmpfs in a namespace of his own")
    command = [*mount, "sh", options, tmp_path, *EXPERIMENT, *SMALL, "--storage", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: --storage {tmp_path}: expected ")
    assert ("MiB free" if "8m" in options else "Read-only file system") in line


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (OSError(errno.ENOSPC, "no space"), 1, "error: a disk "),
        (KeyboardInterrupt(), 130, "interrupted. Submit again"),
        (ValueError("seeds=0"), 2, "error: seeds=0"),
    ],
)
def test_ends_that_a_user_can_mend_have_a_line_and_no_traceback(capsys, error, code, text):
    def work():
        raise error

    with pytest.raises(SystemExit) as ended:
        exit_with(work)
    assert ended.value.code == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(text)


def flip_byte(path: Path) -> None:
    """Changes one byte in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kill_a_worker_of_two_ranks(finished_study, tmp_path):
    """Under Ray Train: a rank is killed, then the whole cluster; the same bytes as two ranks
    undisturbed."""
    ranks = (
        "--preset",
        "smoke",
        "--sizes",
        "tiny",
        "--seeds",
        "1",
        "--methods",
        "baseline",
        "--num-workers",
        "2",
    )
    undisturbed, storage = tmp_path / "undisturbed", tmp_path / "storage"
    for folder in (undisturbed, storage):
        shutil.copytree(finished_study / "data", folder / "data")
    submit(undisturbed, ranks)
    often = (*ranks, "--checkpoint-every", str(CHECKPOINT_EVERY_S))
    with Submission(storage, often) as first:
        os.kill(first.stopped().pid, signal.SIGKILL)
        first.earlier = {attempt_id for ids in attempts(storage).values() for attempt_id in ids}
        first.training()
        first.kill_driver()
        kill(first.seen.values())
    submit(storage, often)
    assert results(storage) == results(undisturbed)
    (tries,) = attempts(storage).values()
    assert len(tries) >= 3
    assert num_trained_twice(storage) <= MOST_STEPS
    assert_mirrored_once(storage)
