"""The loop that starts nodes waits for no request of the storage, however many runs it watches."""

import statistics
import threading
import time
from collections import Counter

import fsspec
import pytest

from benchmarks.many_runs import run_config
from gram_platform.engine import heartbeats, ray_executor
from gram_platform.engine.capacity import Cordon
from gram_platform.engine.execution import Execution, Resources
from gram_platform.engine.heartbeats import Heartbeats
from gram_platform.methods.nodes import Node
from gram_platform.store import Store
from gram_platform.store.leases import LEASE, new_lease
from gram_platform.studies import live
from gram_platform.studies.live import LiveView
from tests import executed

REQUEST_S, NUM_RUNS, PATIENCE_S = 0.025, 256, 60.0


@pytest.fixture
def requests(monkeypatch):
    """(kind, thread) of every request to a storage in memory, which takes each `REQUEST_S`."""
    made, filesystem = [], type(fsspec.filesystem("memory"))

    def slow(name: str):
        plain = getattr(filesystem, name)

        def request(self, *args, **kwargs):
            made.append((name, threading.current_thread()))
            time.sleep(REQUEST_S)
            return plain(self, *args, **kwargs)

        return request

    for name in ("ls", "find", "cat_file"):
        monkeypatch.setattr(filesystem, name, slow(name))
    return made


@pytest.fixture
def store(monkeypatch, tmp_path):
    monkeypatch.setattr(heartbeats, "SHORTEST_PAUSE_S", 0.05)
    return Store(f"memory://{tmp_path.name}").open_for_writing(min_free_bytes=0)


def beat(store: Store, node: Node, step: int, attempt: str = "0") -> None:
    lease = new_lease("a test", 30.0)
    lease |= {"step": step, "num_steps": 20, "tokens_per_second": 10.0}
    store.run(node.id).attempt(attempt).write_json(LEASE, lease, durable=False)


def planted(number: int) -> list[Node]:
    names = {"method": "gram", "size": "tiny", "profile": "all"}
    return [Node.of(run_config(seed, 4), {**names, "seed": str(seed)}) for seed in range(number)]


def executor_of(store: Store, nodes: list[Node], monkeypatch, stall_timeout_s: float = 60.0):
    """A Ray executor whose slots execute the nodes, as it believes."""
    monkeypatch.setattr(ray_executor, "require_ray", lambda: None)
    execution = Execution(store.root, stall_timeout_s=stall_timeout_s)
    executor = executed.ray_executor(nodes, execution, Cordon(Resources()))
    for node in nodes:
        executor._note(node.id, (node,))
        executor.slots.busy[node.id] = node.id
    return executor


def until(is_true, turn) -> list[float]:
    """Turns until something is true; returns the seconds of each turn."""
    times, deadline = [], time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < deadline
        started = time.monotonic()
        turn()
        times.append(time.monotonic() - started)
        time.sleep(0.01)
    return times


def test_gauges_and_the_log_have_all_runs_and_the_loop_waits_for_none(
    store, monkeypatch, requests, capsys
):
    nodes, seen = planted(NUM_RUNS), []
    executor = executor_of(store, nodes, monkeypatch)
    for node in nodes:
        beat(store, node, 5)
    monkeypatch.setattr(live, "LINES_EVERY_S", 0.0)
    view = LiveView(nodes, store, "s")
    view.progress, view.set_gauges = executor.progress, lambda *shown: seen.append(shown)
    executor.look = view.look
    requests.clear()
    times = until(lambda: seen and seen[-1][0]["training"] == NUM_RUNS, executor.advance)
    assert threading.main_thread() not in {thread for _, thread in requests}
    assert statistics.median(times) <= 0.1
    assert sum(beat["tokens_per_second"] for _, beat in seen[-1][1]) == 10.0 * NUM_RUNS
    assert f"{NUM_RUNS} training" in capsys.readouterr().out


def test_a_known_attempt_costs_one_request_and_a_new_one_is_found(store, requests):
    (node,) = planted(1)
    found = Heartbeats(store)

    def looked(step: int, attempt: str = "0") -> Counter:
        beat(store, node, step, attempt)
        until(lambda: found.look([node.id]), lambda: None)
        requests.clear()
        beat(store, node, step + 1, attempt)
        until(lambda: found.look([node.id]), lambda: None)
        assert found.latest[node.id]["step"] == step + 1
        return Counter(name for name, _ in requests)

    assert looked(1) == {"cat_file": 1}
    assert looked(2, "1") == {"cat_file": 1}
    assert found.latest[node.id]["attempt"] == "1"


def test_a_stall_is_found_by_what_the_thread_reads(store, monkeypatch, requests):
    nodes, killed = planted(3), []
    executor = executor_of(store, nodes, monkeypatch, stall_timeout_s=2.0)
    monkeypatch.setattr(executor.slots, "kill", killed.append)
    steps = iter(range(1, 10**6))

    def turn() -> None:
        for node in nodes[1:]:
            beat(store, node, next(steps))
        executor.advance()

    beat(store, nodes[0], 7)
    until(lambda: killed, turn)
    assert killed == [nodes[0].id] == list(executor.stalls)


def test_a_reading_that_fails_ends_the_loop(store, monkeypatch):
    def fail(run):
        raise PermissionError("not yours")

    executor = executor_of(store, planted(2), monkeypatch)
    monkeypatch.setattr(type(store.run("0" * 16)), "progress", fail)
    with pytest.raises(PermissionError):
        until(lambda: False, executor.advance)


def test_a_reading_that_does_not_end_is_reported_once(store, monkeypatch):
    monkeypatch.setattr(heartbeats, "LATE_S", 0.1)
    answer, reports = threading.Event(), []
    monkeypatch.setattr(heartbeats, "warn", reports.append)
    monkeypatch.setattr(type(store.run("0" * 16)), "progress", lambda run: answer.wait())
    found = Heartbeats(store)
    until(lambda: reports, lambda: found.look(["0" * 16]))
    for _ in range(3):
        assert not found.look(["0" * 16])
    answer.set()
    assert len(reports) == 1
