"""A study whose storage is S3, through the real driver: killed, submitted again, equal to a local
one."""

import os
import signal

import fsspec
import pytest

from tests.object_store import running_s3
from tests.studies.mirrored import assert_mirrored_once
from tests.studies.processes import SMALL, Submission, Training, in_training, kill, results, submit

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]


def objects(root: str) -> dict[str, dict]:
    """What S3 says of every result: {its path in the storage: size, time, hash}."""
    filesystem, path = fsspec.core.url_to_fs(root)
    filesystem.invalidate_cache()
    found = filesystem.find(path, detail=True)
    return {
        name.removeprefix(f"{path}/"): info
        for name, info in found.items()
        if name.endswith("/result.json")
    }


def contents(root: str) -> dict[str, bytes]:
    filesystem, path = fsspec.core.url_to_fs(root)
    return {name: filesystem.cat_file(f"{path}/{name}") for name in objects(root)}


def next_training(submission: Submission, root: str, killed: set[str]) -> Training:
    """A run at work with a checkpoint, in an attempt that nobody killed."""

    def found() -> Training | None:
        return next((t for t in in_training(root) if t.attempt_id not in killed), None)

    return submission.wait_for(found, "a checkpoint", timeout_s=300.0)


def test_killed_and_submitted_again(finished_study, tmp_path, monkeypatch):
    """First a worker is killed, whose run goes on in the same submission; then the driver with all
    of its Ray."""
    monkeypatch.setenv("GRAM_CACHE", str(tmp_path / "cache"))
    flags = (
        *SMALL,
        "--checkpoint-every",
        "0.3",
        "--tracking-uri",
        f"sqlite:///{tmp_path}/mlflow.db",
    )
    with running_s3(monkeypatch, "gram") as bucket:
        place = {"storage": tmp_path / "s3", "flags": flags, "url": f"{bucket}/study"}
        root = place["url"]
        with Submission(**place) as first:
            worker = next_training(first, root, killed=set())
            os.kill(worker.pid, signal.SIGKILL)
            next_training(first, root, killed={worker.attempt_id})
            first.kill_driver()
            kill(first.seen.values())
        before = objects(root)
        output = submit(**place)
        assert "nodes done" in output
        assert contents(root) == results(finished_study)
        assert before.items() <= objects(root).items()  # what was finished was not written again
        assert_mirrored_once(root, f"sqlite:///{tmp_path}/mlflow.db")
        assert f"{len(contents(root))} of {len(contents(root))} nodes done" in output
    assert not (tmp_path / "s3").exists()
