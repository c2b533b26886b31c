"""Hundreds of nodes sent to one PostgreSQL by several processes at once: each is there once, and
nothing twice."""

import signal
import time
from collections.abc import Iterable

import pytest
from pandas.testing import assert_frame_equal

from benchmarks.many_runs import write_study
from gram_platform.store import Store
from gram_platform.tracking import Tracker, TrackingUnavailable
from gram_platform.tracking.entry import curve_metrics, node_entry, result_metrics
from gram_platform.tracking.frame import load_curves, load_runs, load_store, load_store_curves
from tests.store.training import in_process
from tests.tracking.servers import Postgres, running_mlflow

TWICE = """
    SELECT run_uuid, key, step FROM metrics JOIN runs USING (run_uuid)
    WHERE lifecycle_stage = 'active' GROUP BY run_uuid, key, step HAVING count(*) > 1
"""
POINTS = "SELECT count(*) FROM metrics JOIN runs USING (run_uuid) WHERE lifecycle_stage = 'active'"
NODES = """
    SELECT value FROM tags JOIN runs USING (run_uuid)
    WHERE lifecycle_stage = 'active' AND key IN ('gram.run_id', 'gram.eval_id') ORDER BY value
"""


def send(store: Store, uri: str, ids: Iterable[str]) -> None:
    Tracker(uri).sync(store, ids)


def send_until_done(store: Store, uri: str, ids: Iterable[str], patience_s: float = 120.0) -> None:
    """As `gram sync` submitted again whenever MLflow was away."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return send(store, uri, ids)
        except TrackingUnavailable:
            assert time.monotonic() < deadline
            time.sleep(0.5)


def overlapping(ids: list[str], num_senders: int) -> list[list[str]]:
    """The ids of each sender: of as many parts, its own and the next one's, so that every node has
    two senders."""
    parts = [ids[i::num_senders] for i in range(num_senders)]
    return [sorted([*part, *parts[(i + 1) % num_senders]]) for i, part in enumerate(parts)]


def num_points(store: Store) -> int:
    """Of the whole storage, as the mirror thins them."""
    runs = [store.run(run_id) for run_id in store.list_runs()]
    entries = [(node_entry(run), run.records()) for run in runs]
    entries += [(node_entry(store.evaluation(eval_id)), []) for eval_id in store.list_evaluations()]
    return sum(
        len(curve_metrics(r, entry, -1)) + len(result_metrics(entry, r)) for entry, r in entries
    )


def assert_mirrored(storage: str, postgres: Postgres, database: str, uri: str) -> None:
    """Every node once, every point once, the frames of both sides equal, and nothing left to
    send."""
    store = Store(storage)
    nodes = sorted([*store.list_runs(), *store.list_evaluations()])
    assert [node for (node,) in postgres.execute(NODES, database)] == nodes
    Tracker(uri).sync(store)  # a sender does not know the parents that others send
    assert postgres.execute(TWICE, database) == []
    assert postgres.execute(POINTS, database) == [(num_points(store),)]
    assert_frame_equal(load_runs(uri), load_store(store), check_exact=True)
    assert_frame_equal(load_curves(uri), load_store_curves(store), check_exact=True)
    assert Tracker(uri).sync(store) == {"sent": 0, "unchanged": len(nodes)}


@pytest.mark.slow
def test_three_machines_without_a_common_lock_send_the_same_nodes(tmp_path, postgres, new_database):
    """Twenty runs and their evaluations, straight into the database.

    No sender ever takes MLflow to be away.
    """
    storage, database = str(tmp_path), new_database()
    ids = [*write_study(storage, 20, 25)]
    store, uri = Store(storage), postgres.uri(database)
    ids = overlapping(sorted(ids[0] + ids[1]), 3)
    processes = [in_process(send, store, uri, chosen) for chosen in ids]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 3
    assert_mirrored(storage, postgres, database, uri)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_hundreds_of_runs_through_a_server_that_dies(tmp_path, postgres, new_database):
    """Four senders of 400 runs.

    One is killed, and then the server and its database are, in the middle of sending.
    """
    storage, database = str(tmp_path / "storage"), new_database()
    ids = write_study(storage, 400, 100)
    store = Store(storage)

    def wait_until_sent(share: float) -> None:
        while postgres.execute(POINTS, database)[0][0] < share * total:
            assert any(process.is_alive() for process in processes)
            time.sleep(0.05)

    total = num_points(store)
    with running_mlflow(postgres.uri(database), tmp_path) as server:
        chosen = overlapping(sorted(ids[0] + ids[1]), 4)
        processes = [in_process(send_until_done, store, server.uri, part, 900.0) for part in chosen]
        wait_until_sent(0.2)
        processes[0].kill()
        wait_until_sent(0.4)
        server.stop(signal.SIGKILL)
        server.start()
        wait_until_sent(0.6)
        postgres.stop(signal.SIGQUIT)
        postgres.start()
        for process in processes[1:]:
            process.join()
        assert [process.exitcode for process in processes] == [-signal.SIGKILL, 0, 0, 0]
        send(store, server.uri, chosen[0])
        assert_mirrored(storage, postgres, database, server.uri)
