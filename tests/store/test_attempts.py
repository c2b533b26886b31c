"""Attempts: leases, corruption, failures, two at once."""

import json
import os
import time
import types
from pathlib import Path

import pytest
import torch

from gram_platform.store import LeaseHeld, Store, attempts, leases, shards
from tests.refused import refused
from tests.store.training import final_fields, record, run_config, train
from tests.tiny import weights_of

RUN = run_config(8)
WEIGHTS = {"weights": torch.ones(2)}


@pytest.fixture
def directory(tmp_path):
    return Store(tmp_path).open_for_writing().run(RUN.run_id)


def checkpoint_folders(tmp_path):
    return sorted(
        (tmp_path / "runs" / RUN.run_id).glob("attempts/*/checkpoints/*"),
        key=lambda path: path.name,
    )


def wait_until(condition, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_status_through_a_life(directory):
    directory.ensure_config(RUN)
    assert directory.status() == "absent"
    assert directory.progress() is None
    assert directory.timing() == {}
    with directory.start_attempt("one") as attempt:
        assert directory.status() == "running"
        attempt.heartbeat(3, 8, 50.0)
        wait_until(lambda: directory.progress()["step"] == 3)
        attempt.heartbeat(4, 8, 60.0)
        attempt.heartbeat(5, 8, 70.0)
        wait_until(lambda: directory.progress()["step"] == 5)
        attempt.commit(4, WEIGHTS, {}, [record(step) for step in range(1, 5)])
        assert directory.timing()["elapsed_s"] > 0
    assert directory.status() == "interrupted"
    with directory.start_attempt("two") as attempt:
        attempt.fail("loss is not finite", {"step": 5, "domain": "core"})
    assert directory.status() == "failed"
    assert directory.failure()["details"] == {"step": 5, "domain": "core"}
    with directory.start_attempt("three") as attempt:
        assert attempt.resume().step == 4
        assert directory.status() == "running"
        assert directory.failure() is None
        result = attempt.complete(final_fields(RUN), WEIGHTS)
    assert directory.status() == "complete"
    assert directory.result() == result
    assert directory.timing()["tokens_per_second"] == pytest.approx(
        RUN.num_tokens / directory.timing()["elapsed_s"]
    )


def test_elapsed_time_adds_up_the_attempts(directory, monkeypatch):
    """Each from its start to the commit that the next one continued from."""
    directory.ensure_config(RUN)
    with monkeypatch.context() as patch:
        clock = types.SimpleNamespace(**vars(time))
        clock.monotonic = lambda: 1e5 * time.monotonic()
        patch.setattr(attempts, "time", clock)
        with directory.start_attempt("one") as attempt:
            time.sleep(0.1)
            attempt.commit(4, WEIGHTS, {}, [record(step) for step in range(1, 5)])
    committed = directory.timing()["elapsed_s"]
    assert committed > 1e4
    with directory.start_attempt("two") as attempt:
        attempt.resume()
        attempt.complete(final_fields(RUN), WEIGHTS)
    assert directory.timing()["elapsed_s"] >= committed


def test_reading_a_checkpoint_is_no_time_of_work(directory):
    directory.ensure_config(RUN)
    with directory.start_attempt("one") as attempt:
        attempt.commit(1, WEIGHTS, {}, [record(1)])

    def slowly(*place):
        found = shards.read_checkpoint(*place)
        time.sleep(0.1)
        ended.append(time.monotonic())
        return found

    ended = []
    with directory.start_attempt("two") as attempt:
        earlier_s = attempt.resume(slowly).manifest["elapsed_s"]
        assert attempt.elapsed_s - earlier_s <= time.monotonic() - ended[0] + 1e-6


def test_resumed_tensors_are_bit_identical_in_every_dtype(directory):
    buffer = torch.arange(20.0)
    tensors = {
        "bf16": torch.randn(3, 4).bfloat16(),
        "state": torch.get_rng_state(),
        "scalar": torch.tensor(3, dtype=torch.int64),
        "empty": torch.zeros(0, 5),
        "slice": buffer[4:8],
        "transposed": torch.randn(3, 4).T,
        "flags": torch.tensor([True, False]),
    }
    state = {"position": 7, "nested": {"list": [1, 2.5, None, "x"]}}
    with directory.start_attempt("a") as attempt:
        attempt.commit(1, tensors, state)
    with directory.start_attempt("b") as attempt:
        resumed = attempt.resume()
    assert resumed.state == state
    for name, tensor in tensors.items():
        assert resumed.pieces[name].rows.dtype == tensor.dtype
        assert torch.equal(resumed.pieces[name].rows, tensor)


def test_newest_two_checkpoints_are_kept_and_none_after_the_end(tmp_path, directory):
    train(str(tmp_path), RUN, commit_every=1, last=5)
    assert [path.name for path in checkpoint_folders(tmp_path)] == ["000000004", "000000005"]
    train(str(tmp_path), RUN, commit_every=1)
    assert checkpoint_folders(tmp_path) == []


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["truncate", "flip", "remove"])
def test_corrupted_checkpoint_is_set_aside_and_the_older_one_used(
    tmp_path, directory, name, damage
):
    train(str(tmp_path), RUN, last=4)
    newest = checkpoint_folders(tmp_path)[-1]
    path = newest / name
    data = path.read_bytes()
    if damage == "remove":
        path.unlink()
    else:
        path.write_bytes(
            data[:-3] if damage == "truncate" else data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]
        )
    # A checkpoint without a manifest was never there.
    if (name, damage) == ("manifest.json", "remove"):
        train(str(tmp_path), RUN)
    else:
        with pytest.warns(RuntimeWarning, match=newest.name):
            train(str(tmp_path), RUN)
        assert (newest.parent / f"{newest.name}.corrupt-1").is_dir()
    assert [r["step"] for r in directory.records()] == list(range(1, 9))
    train(str(tmp_path / "other"), RUN)
    other = Store(tmp_path / "other").run(RUN.run_id)
    assert directory.result() == other.result()


def test_lease_of_a_living_process_refuses_a_second_attempt(tmp_path, directory):
    with directory.start_attempt("one"), pytest.raises(LeaseHeld) as held:
        directory.start_attempt("two")
    assert (held.value.lease["owner"], held.value.lease["pid"]) == ("one", os.getpid())
    directory.start_attempt("three").release()


def test_the_lease_of_an_earlier_attempt_refuses_too(directory):
    """It was taken for ended, a second attempt has come and gone, and the first is at work
    again."""
    first = directory.start_attempt("first")
    path = Path(directory.attempts.path) / first.attempt_id / "lease.json"
    fields = json.loads(path.read_text())
    path.write_text(json.dumps(fields | {"released": True}))
    directory.start_attempt("second").release()
    path.write_text(json.dumps(fields))
    with pytest.raises(LeaseHeld) as held:
        directory.start_attempt("third")
    assert held.value.lease["owner"] == "first"
    first.release()


def test_a_step_may_take_longer_than_the_lease(directory, monkeypatch):
    """The lease is renewed beside the work, and left to expire when the work is silent for an hour.

    The owner may come back then, and goes on.
    """
    monkeypatch.setattr(leases, "SHORTEST_LEASE_S", 1.0)
    with directory.start_attempt("slow", lease_seconds=0.6) as attempt:
        time.sleep(1.5)
        assert directory.status() == "running"
        with pytest.raises(LeaseHeld):
            directory.start_attempt("hasty")
        monkeypatch.setattr(attempts, "LONGEST_STEP_S", 1.0)
        time.sleep(1.5)
        assert directory.status() == "interrupted"
        attempt.heartbeat(1, 8, 1.0)
    assert directory.progress()["released"]


def test_two_attempts_at_once_are_harmless(tmp_path, directory):
    """The first one's lease has expired while it goes on: both finish, nothing is lost, no step
    appears twice."""
    first = directory.start_attempt("slow", lease_seconds=0.0)
    second = directory.start_attempt("fast", lease_seconds=0.0)
    weights = dict(WEIGHTS)
    first.commit(2, weights, {}, [record(1), record(2)])
    second.commit(3, weights, {}, [record(1), record(2), record(3)])
    first.commit(6, weights, {}, [record(step) for step in range(3, 7)])
    second.commit(5, weights, {}, [record(4), record(5)])
    assert [r["step"] for r in directory.records()] == list(range(1, 7))
    third = directory.start_attempt("third", lease_seconds=0.0)
    assert third.resume().step == 6
    results = [
        a.complete(final_fields(RUN), weights, [record(s) for s in steps])
        for a, steps in ((second, (6, 7, 8)), (first, (7, 8)))
    ]
    third.commit(7, weights, {}, [record(7)])
    results.append(third.complete(final_fields(RUN), weights, [record(8)]))
    assert results[0] == results[1] == results[2]
    assert [r["step"] for r in directory.records()] == list(range(1, 9))
    assert len(list(tmp_path.glob("runs/*/attempts/*/weights.safetensors"))) == 1
    assert checkpoint_folders(tmp_path) == []


def test_a_second_result_that_differs_is_reported_and_the_first_stays(directory):
    first, second = (directory.start_attempt(owner, lease_seconds=0.0) for owner in "ab")
    result = first.complete(final_fields(RUN), WEIGHTS)
    with pytest.warns(RuntimeWarning):
        assert second.complete(final_fields(RUN), {"weights": torch.zeros(2)}) == result
    assert torch.equal(weights_of(directory)["weights"], WEIGHTS["weights"])


@pytest.mark.parametrize("content", [b'{"num_steps": 9, "sha256": "0"}', b"\xff\xfe"])
def test_corrupted_result_is_set_aside_and_restored(tmp_path, directory, content):
    train(str(tmp_path), RUN)
    path = tmp_path / "runs" / RUN.run_id / "result.json"
    before = path.read_bytes()
    path.write_bytes(content)
    with pytest.warns(RuntimeWarning, match="result.json"):
        assert Store(tmp_path).run(RUN.run_id).result() is None  # reading changes nothing
    assert path.read_bytes() == content
    with pytest.warns(RuntimeWarning, match="result.json"):
        train(str(tmp_path), RUN)
    assert path.read_bytes() == before
    assert path.with_name("result.json.corrupt-1").read_bytes() == content


def test_corrupted_weights_make_the_run_train_again(tmp_path, directory):
    result = train(str(tmp_path), RUN)
    (weights,) = tmp_path.glob("runs/*/attempts/*/weights.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    with pytest.warns(RuntimeWarning), refused("run_id", RUN.run_id):
        weights_of(directory)
    assert directory.status() == "interrupted"
    assert train(str(tmp_path), RUN) == result
    assert len(weights_of(directory)) == 1


def test_steps_must_rise(directory):
    with directory.start_attempt("a") as attempt:
        attempt.commit(4, WEIGHTS, {}, [record(3), record(4)])
        for step, records, field in (
            (4, (), "step"),
            (5, (record(4),), "records"),
            (6, (record(6), record(5)), "records"),
        ):
            with refused(field):
                attempt.commit(step, WEIGHTS, {}, records)


def test_a_commit_that_failed_can_be_repeated(directory):
    with directory.start_attempt("a") as attempt:
        with pytest.raises(TypeError):
            attempt.commit(2, WEIGHTS, {"position": object()}, [record(1), record(2)])
        assert directory.records() == []
        attempt.commit(2, WEIGHTS, {}, [record(1), record(2)])
    assert [r["step"] for r in directory.records()] == [1, 2]
