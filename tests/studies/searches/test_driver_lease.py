"""A search's limits, and that it has one driver, without Ray."""

import re
import time

import pytest
import torch

from gram_platform.config import State
from gram_platform.config.endings import Stopped
from gram_platform.engine.capacity import Cordon
from gram_platform.engine.execution import ON_ONE_RANK
from gram_platform.engine.trials import Outcome
from gram_platform.store import Store
from gram_platform.store.leases import read_lease
from gram_platform.studies.searches.driver_lease import DriverLease, search_lines
from gram_platform.studies.searches.trials import SearchObservers
from gram_platform.studies.workplace import Workplace, execution_of
from tests.refused import refused
from tests.studies.searches.planted import GRID, SEARCH
from tests.submitted import plan_of, study_plan


def driver_of(tmp_path, *flags: str) -> SearchObservers:
    plan = plan_of(GRID, ["--storage", str(tmp_path / "storage"), *flags])
    return SearchObservers(plan, Store(plan.storage).open_for_writing())


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "storage").open_for_writing()


def test_limits_end_a_search(tmp_path):
    driver = driver_of(tmp_path, "--max-hours", "2")
    driver.hours_before = 1.5
    assert not driver.limit_reached()
    driver.outcomes["0"] = Outcome(
        "0", {}, State.COMPLETE, started=0.0, elapsed_s=900.0, rank_s=1800.0
    )
    assert driver.limit_reached()


def test_hours_of_runs_that_were_done_before_are_those_of_all_their_ranks(tmp_path):
    driver = driver_of(tmp_path)
    work, store = driver.search, driver.store
    problem = work.kind.problem(work, store)
    (node,) = problem.nodes({"lr": 1e-3})
    with store.run(node.id).start_attempt("test") as attempt:
        attempt.complete({}, {"weight": torch.zeros(1)}, measured={"num_ranks": 4})
    first = next(work.kind.rounds(work, store, problem))
    assert [int(n) for n in re.findall(r"\d+", first.text)] == [4, 1]
    assert first.source.num_left == 3
    driver.hours_before += first.hours_before
    elapsed_s = store.run(node.id).timing()["elapsed_s"]
    assert driver.hours_before + driver.hours_now() == pytest.approx(4 * elapsed_s / 3600)


def test_one_driver_at_a_time(store, monkeypatch):
    monkeypatch.setattr("gram_platform.studies.searches.driver_lease.DRIVER_LEASE_S", 0.5)
    folder = store.search_dir("s1")
    folder.write_json("search.json", {"name": "planted", "preset": "demo"})
    with DriverLease(folder, "planted"):
        with refused("search", "planted"):
            DriverLease(folder, "planted").__enter__()
        assert "planted" in next(search_lines(store))
        assert "led by" in next(search_lines(store))
    with DriverLease(folder, "planted"):
        pass
    assert next(search_lines(store)).endswith("no driver")


def test_a_driver_that_was_suspended_for_too_long_has_lost_its_search(store, monkeypatch):
    monkeypatch.setattr("gram_platform.studies.searches.driver_lease.DRIVER_LEASE_S", 0.2)
    folder = store.search_dir("s1")
    with DriverLease(folder, "planted") as lease:
        lease.require()
        taken = {**read_lease(folder), "pid": 1}  # by another process
        folder.write_json("lease.json", taken)
        time.sleep(0.3)  # several heartbeats
        monkeypatch.setattr(lease, "_next_look", 0.0)
        with pytest.raises(Stopped):
            lease.require()
    assert read_lease(folder) == taken


def test_what_earlier_submissions_left_unsent_is_sent(tmp_path):
    """A killed driver leaves trials that MLflow lacks; the next submission has only other trials to
    run."""
    driver = driver_of(tmp_path)
    work, store = driver.search, driver.store
    problem = work.kind.problem(work, store)
    nodes = [node for _, point in work.kind.points()[0] for node in problem.nodes(point)]
    for node in nodes:
        store.run(node.id).ensure_config(node.config)
        with store.run(node.id).start_attempt("test") as attempt:
            attempt.complete({}, {"weight": torch.zeros(1)})
    execution, resources = execution_of(driver.plan)
    at = Workplace(
        execution,
        Cordon(resources),
        True,
        False,
        lambda node: ON_ONE_RANK,
        {},
        frozenset(),
    )
    driver.mirror.start()
    driver.run_trials(at)
    driver.flush()
    assert not driver.mirror.is_away
    assert {run_id for _, run_id in driver.tracker.runs()} == {node.id for node in nodes}


def test_ended_trials_of_optuna_name_their_nodes(tmp_path):
    work = study_plan(SEARCH, ["--storage", str(tmp_path / "storage")])
    store = Store(work.choice.storage).open_for_writing()
    for group, nodes in zip(work.kind.groups(work), (["r1", "r2"], "no list"), strict=True):
        trial = group.study.ask()
        trial.set_user_attr("nodes", nodes)
        group.study.tell(trial, 1.0)
    (first,) = work.kind.rounds(work, store, work.kind.problem(work, store))
    assert first.ids_before == {"r1", "r2"}
