"""Leases by themselves: whose work goes on, whose has ended, and which lease is never renewed
again."""

import pickle
import subprocess
import sys
import time
import warnings

import pytest

from gram_platform.store import files, leases
from gram_platform.store.folders import LocalFolder
from gram_platform.store.leases import (
    GONE_AFTER_S,
    LEASE,
    SHORTEST_LEASE_S,
    Lease,
    LeaseHeld,
    LeaseLost,
    has_ended,
    is_fresh,
    new_lease,
    read_lease,
)

NOW = 1.7e9
ELSEWHERE = {"place": "another machine"}


@pytest.fixture
def gone() -> dict:
    """The fields that name a process of this machine which has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return {"pid": process.pid, "process_start": 1}


@pytest.fixture
def folder(tmp_path) -> LocalFolder:
    return LocalFolder(str(tmp_path), writable=True)


@pytest.fixture
def clocks(monkeypatch) -> list[float]:
    """The time since the machine started, which the test sets; the day's time stands still."""
    now = [100.0]
    monkeypatch.setattr(leases, "_boot_time", lambda: now[0])
    monkeypatch.setattr(leases.time, "time", lambda: NOW)
    return now


def lease_of(**fields) -> dict:
    return new_lease("host:1", 30.0) | {"time": NOW} | fields


@pytest.mark.parametrize(
    ("fields", "fresh"),
    [
        ({}, True),
        ({"time": NOW - 30.0}, True),
        ({"time": NOW - 30.1}, False),
        ({"time": NOW + 30.1}, False),
        ({"released": True}, False),
        (ELSEWHERE, True),
        (ELSEWHERE | {"time": NOW - 30.1}, False),
    ],
)
def test_a_lease_is_fresh_by_its_last_heartbeat(clocks, fields, fresh):
    assert is_fresh(lease_of(**fields)) is fresh


@pytest.mark.parametrize(
    ("fields", "ended"),
    [
        ({}, False),
        ({"time": NOW - 2 * GONE_AFTER_S}, False),  # it sleeps
        ({"released": True}, True),
        (ELSEWHERE, False),
        (ELSEWHERE | {"released": True}, True),
        (ELSEWHERE | {"time": NOW - GONE_AFTER_S}, False),
        (ELSEWHERE | {"time": NOW - GONE_AFTER_S - 0.1}, True),
    ],
)
def test_an_owner_has_ended(clocks, fields, ended):
    assert has_ended(lease_of(**fields)) is ended


def test_a_process_that_is_gone_has_ended_on_its_own_machine(clocks, gone):
    assert has_ended(lease_of(**gone))
    assert not is_fresh(lease_of(**gone))
    assert is_fresh(lease_of(**gone, **ELSEWHERE)), "its pid means nothing here"
    assert not has_ended(lease_of(**gone, **ELSEWHERE))


def test_no_lease_is_nobodys(folder):
    assert read_lease(folder) is None
    assert not is_fresh(None)
    assert has_ended(None) is False


@pytest.mark.parametrize(
    "wrong", [{"pid": True}, {"pid": 0}, {"pid": 2**31}, {"lease_seconds": 1e18}]
)
def test_a_lease_of_another_shape_or_without_end_counts_as_absent(folder, wrong):
    folder.write_json(LEASE, lease_of(pid=2**31 - 1))
    assert read_lease(folder) == lease_of(pid=2**31 - 1)
    folder.write_json(LEASE, lease_of(**wrong))
    assert read_lease(folder) is None


@pytest.mark.parametrize(("seconds", "lasts"), [(30.0, 30.0), (0.1, SHORTEST_LEASE_S)])
def test_a_lease_is_overdue_once_it_was_not_renewed_for_longer_than_it_lasts(
    folder, clocks, seconds, lasts
):
    lease = Lease(folder, "host:1", seconds, interval_s=1000.0)
    clocks[0] += lasts
    assert lease.is_overdue() is False
    clocks[0] += 0.1
    assert lease.is_overdue() is True
    lease.release()


def heartbeat(folder) -> float:
    return folder.read_json(LEASE)["time"]


@pytest.mark.parametrize("contested", [False, True])
def test_only_a_contested_lease_is_renewed_after_it_was_overdue(folder, monkeypatch, contested):
    """An attempt ends then; the leader of a search asks who leads now."""
    now = [100.0]
    monkeypatch.setattr(leases, "_boot_time", lambda: now[0])
    lease = Lease(folder, "host:1", 0.06, interval_s=0.01, contested=contested)
    first = heartbeat(folder)
    until = time.monotonic() + 30.0
    while heartbeat(folder) == first and time.monotonic() < until:
        time.sleep(0.01)
    assert heartbeat(folder) > first
    now[0] += SHORTEST_LEASE_S + 1.0
    time.sleep(0.2)  # a write may have been under way
    late = heartbeat(folder)
    time.sleep(0.3)
    assert (heartbeat(folder) > late) is contested
    lease.release()


def test_a_slow_write_renews_from_its_beginning(folder, clocks, monkeypatch):
    """What others read says the time before it."""
    lease, write = Lease(folder, "host:1", 30.0, interval_s=0.01), LocalFolder.write_json

    def slow(self, *arguments, **options) -> None:
        write(self, *arguments, **options)
        clocks[0] += 31.0

    with monkeypatch.context() as patch:
        patch.setattr(LocalFolder, "write_json", slow)
        lease.report({"step": 1})
        until = time.monotonic() + 30.0
        while clocks[0] == 100.0 and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.2)  # the thread counts it
        assert lease.is_overdue() is True
    lease.release()


class ReadTimeoutError(Exception):
    """As botocore raises it: no OSError."""


def test_a_lease_outlives_errors_of_an_object_store_that_are_no_oserrors(folder, monkeypatch):
    """With one warning."""
    monkeypatch.setattr(files, "PATIENCE_S", 0.0)
    lease, calls = (
        Lease(folder, "host:1", 0.03, interval_s=0.01, warning="no lease can be written"),
        [],
    )

    def write() -> None:
        calls.append(1)
        raise ReadTimeoutError("endpoint URL")

    def write_json(*_, **__) -> None:
        files.keep_trying(write, "here")

    with monkeypatch.context() as patch, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        patch.setattr(LocalFolder, "write_json", write_json)
        with pytest.raises(files.StorageAway):
            write_json()
        until = time.monotonic() + 30.0
        while len(calls) < 4 and time.monotonic() < until:
            time.sleep(0.01)
        assert len(calls) >= 4, "the thread goes on"
        lease.release()
    assert sum("no lease can be written" in str(warning.message) for warning in caught) == 1
    assert read_lease(folder)["released"] is False


@pytest.mark.parametrize("field", ["place", "pid", "process_start"])
def test_a_lease_that_another_process_has_taken_over_writes_nothing_more(folder, field):
    lease = Lease(folder, "host:1", 30.0, interval_s=1000.0, contested=True)
    assert lease.is_lost() is False
    others = lease.fields | {field: {"place": "another", "pid": 7, "process_start": 7}[field]}
    folder.write_json(LEASE, others)
    assert lease.is_lost() is True
    lease.release()
    assert read_lease(folder) == others


def test_releasing_twice_writes_once(folder):
    lease = Lease(folder, "host:1", 30.0, interval_s=1000.0)
    lease.report({"step": 3, "num_steps": 8, "tokens_per_second": 2.5})
    lease.release()
    assert (read_lease(folder)["step"], read_lease(folder)["released"]) == (3, True)
    folder.write_json(LEASE, lease_of(owner="the next"))
    lease.release()
    assert read_lease(folder)["owner"] == "the next"


@pytest.mark.parametrize("kind", [LeaseHeld, LeaseLost])
def test_errors_come_back_from_a_worker_with_their_lease(kind):
    error = pickle.loads(pickle.dumps(kind("a run", lease_of(pid=12))))
    assert type(error) is kind
    assert (error.run_id, error.lease["pid"]) == ("a run", 12)
    assert "a run" in str(error)
    assert "pid 12" in str(error)
