"""Searches on a real Ray Tune: trials of every kind of end, killed drivers and workers, limits."""

import contextlib
import errno
import json
import signal
import sqlite3
import sys
from collections import Counter

import optuna
import psutil
import pytest

from gram_platform.corpora import prepare
from gram_platform.engine.capacity import Cordon
from gram_platform.engine.search import TrialWatch, Tuning, run_trials
from gram_platform.engine.trials import PointList
from gram_platform.store import Store
from gram_platform.studies.workplace import execution_of
from gram_platform.tracking import Tracker, default_tracking_uri
from tests.studies.processes import Submission, attempts, kill, submit, written
from tests.studies.searches.planted import GRID, NO_SCORE, SEARCH, Baselines, Heard
from tests.submitted import execute, plan_of

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]
OPTUNA_COMMAND = (sys.executable, "-m", "tests.studies.searches.planted", "optuna")
GRID_COMMAND = (sys.executable, "-m", "tests.studies.searches.planted", "grid")


def history(storage) -> list[optuna.trial.FrozenTrial]:
    """Every trial of every Optuna study."""
    url = f"sqlite:///{storage}/optuna.db"
    names = optuna.get_all_study_names(url)
    assert len(names) == 2
    return [
        trial
        for name in names
        for trial in optuna.load_study(study_name=name, storage=url).get_trials()
    ]


@pytest.mark.slow
def test_trials_end_in_every_way_and_none_stops_the_others(ray_cluster, tmp_path):
    plan = plan_of(SEARCH, ["--storage", str(tmp_path / "storage")])
    (graph,) = plan.studies
    prepare(graph.corpora[0], Store(plan.storage).data_root)
    points = [(f"{lr:g}", {"lr": lr}) for lr in (1e30, 4e-3, 1.0, 2e-3)]
    outcomes, problem, tuning = [], Baselines(graph.settings[0]), Tuning("planted", metric="loss")
    execution, resources = execution_of(plan)
    watch = Heard(outcomes)
    run_trials(PointList(points), problem, execution, Cordon(resources), tuning, watch)
    asked = watch.asked
    until_first = min(outcome.started for outcome in outcomes) - asked[0]
    # Both slots' processes start at once.
    assert asked[1] - asked[0] < until_first / 2 < asked[2] - asked[0]
    states = {outcome.name: outcome.state for outcome in outcomes}
    assert states == {"1e+30": "diverged", "0.004": "complete", "1": "failed", "0.002": "complete"}
    messages = {outcome.name: outcome.message for outcome in outcomes}
    assert "loss" in messages["1e+30"]
    assert messages["1"] == f"RuntimeError: {NO_SCORE}"

    again = []
    run_trials(PointList(points), problem, execution, Cordon(resources), tuning, Heard(again))
    # The diverged one is not trained again either.
    assert Counter(o.num_executed for o in again) == {0: 4}
    assert {o.name: o.metrics for o in again} == {o.name: o.metrics for o in outcomes}


@pytest.mark.slow
def test_what_fails_when_a_trial_is_told_is_raised_as_it_is(ray_cluster, tmp_path):
    """A full disk under Optuna's database: Ray Tune made it a KeyError of ours within a text of its
    own."""
    plan = plan_of(SEARCH, ["--storage", str(tmp_path / "storage")])
    (graph,) = plan.studies
    prepare(graph.corpora[0], Store(plan.storage).data_root)

    class FullDisk(TrialWatch):
        def trial_ended(self, outcome):
            raise OSError(errno.ENOSPC, "no room")

    points, problem = PointList([("1", {"lr": 1e30})] * 5), Baselines(graph.settings[0])
    execution, resources = execution_of(plan)
    with pytest.raises(OSError) as caught:
        run_trials(points, problem, execution, Cordon(resources), Tuning("planted"), FullDisk())
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.slow
def test_an_interrupted_search_says_so(tmp_path):
    """Ctrl-C is not an end: exit code 0 would let a campaign go on with the next search."""
    storage = tmp_path / "storage"
    with Submission(storage, (), GRID_COMMAND) as search:
        search.wait_for(lambda: written(storage), "a finished run")
        search.process.send_signal(signal.SIGINT)
        assert search.finish() == 128 + signal.SIGINT
        assert "interrupted. Submit again" in search.output
        assert "trials now" not in search.output
    assert "0 of them were" not in submit(storage, (), GRID_COMMAND)
    assert len(written(storage)) == 4


@pytest.mark.slow
def test_a_search_without_rays_process_on_its_machine_says_so_and_ends(tmp_path):
    storage = tmp_path / "storage"
    with Submission(storage, (), GRID_COMMAND) as search:
        search.wait_for(lambda: written(storage), "a finished run")
        kill(
            process
            for process in search.descendants()
            if process.is_running() and process.name() == "raylet"
        )
        assert search.finish() == 1
        assert "Submit again" in search.output
    submit(storage, (), GRID_COMMAND)
    assert len(written(storage)) == 4


@pytest.mark.slow
def test_a_killed_driver_loses_no_trial(tmp_path):
    storage = tmp_path / "storage"
    with Submission(storage, (), OPTUNA_COMMAND) as search:
        search.wait_for(lambda: len(written(storage)) >= 3, "three finished runs")
        search.kill_driver()
    finished_before = written(storage)
    output = submit(storage, (), OPTUNA_COMMAND)
    after = written(storage)
    assert finished_before.items() <= after.items()  # no finished run was written again
    trials = history(storage)
    assert Counter(trial.state.name for trial in trials) == {"COMPLETE": 8}
    assert len({trial.params["lr"] for trial in trials}) == 8
    assert len(after) == 8
    ids = {run_id for trial in trials for run_id in trial.user_attrs["runs"]}
    assert ids == set(attempts(storage))
    assert "trials ended before" in output


@pytest.mark.slow
@pytest.mark.timeout(900)  # two starts of Ray side by side, and the lease of a search between them
def test_a_driver_that_wakes_up_after_another_has_taken_its_search_ends(tmp_path):
    storage = tmp_path / "storage"
    with Submission(storage, (), OPTUNA_COMMAND) as first:
        first.wait_for(lambda: len(written(storage)) >= 2, "two finished runs")
        with contextlib.closing(
            sqlite3.connect(storage / "optuna.db", timeout=60.0, isolation_level=None)
        ) as database:
            # A driver that is stopped within a transaction would keep its lock.
            database.execute("BEGIN EXCLUSIVE")
            first.process.send_signal(signal.SIGSTOP)
            database.execute("ROLLBACK")
        with Submission(storage, (), OPTUNA_COMMAND) as second:
            second.wait_for(lambda: "were left running" in second.output, "a new driver")
            first.process.send_signal(signal.SIGCONT)
            assert (first.finish(), second.finish()) == (1, 0), first.output + second.output
    assert "another driver" in first.output
    trials = history(storage)
    assert Counter(trial.state.name for trial in trials) == {"COMPLETE": 8}
    assert {run_id for trial in trials for run_id in trial.user_attrs["runs"]} == set(
        attempts(storage)
    )


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_its_run_continued(tmp_path):
    storage = tmp_path / "storage"
    with Submission(storage, ("--checkpoint-every", "0.01"), GRID_COMMAND) as search:
        training = search.training()
        kill([psutil.Process(training.pid)])
        assert search.finish() == 0, search.output
    assert len(attempts(storage)[training.run_id]) == 2
    assert len(written(storage)) == 4
    of_runs = [run.data.tags for run in Tracker(default_tracking_uri(str(storage))).runs().values()]
    named = [
        value
        for tags in of_runs
        for name, value in tags.items()
        if name.startswith("gram.search.planted-")
    ]
    assert sorted(named) == ["0", "1", "2", "3"]
    assert f"gram ui --storage {storage}" in search.output
    assert "http://" not in search.output.split("MLflow  ")[1]


@pytest.mark.slow
def test_a_search_ends_at_its_limit_and_a_higher_one_continues_it(ray_cluster, tmp_path, capsys):
    storage = tmp_path / "storage"
    flags = ["--storage", str(storage), "--max-concurrent", "1"]
    assert execute(SEARCH, [*flags, "--max-hours", "0.0001"]) == 3
    assert "max_hours is 0.0001" in capsys.readouterr().out
    (began,) = storage.glob("searches/*/devices.json")
    assert list(json.loads(began.read_text()).values()) == ["cpu"]
    num_limited = len(written(storage))
    assert 0 < num_limited < 8

    assert execute(SEARCH, flags) == 0
    assert Counter(trial.state.name for trial in history(storage)) == {"COMPLETE": 8}
    assert len(written(storage)) == 8


@pytest.mark.slow
def test_a_finished_grid_starts_no_trial(ray_cluster, tmp_path, capsys):
    storage = tmp_path / "storage"
    for expected in (
        "4 trials, 0 of them were done before",
        "4 trials, 4 of them were done before",
    ):
        before = written(storage)
        assert execute(GRID, ["--storage", str(storage)]) == 0
        assert expected in capsys.readouterr().out
    assert written(storage) == before
