"""Errors of devices under Ray Tune: they end processes, and no trial. The machines are pretended,
as their GPUs."""

import os
import shutil
import time
from dataclasses import astuple, dataclass
from pathlib import Path

import pytest
from ray.tune.utils import flatten_dict

from gram_platform.corpora import prepare
from gram_platform.engine import search
from gram_platform.engine.capacity import Cordon
from gram_platform.engine.devices import ProbeReport
from gram_platform.engine.execution import Resources
from gram_platform.engine.life import FAILED, MAX_CRASHES, CrashPolicy
from gram_platform.engine.process import OutOfMemory
from gram_platform.engine.search import Tuning, machines_for, run_trials
from gram_platform.engine.trial_process import KIND, PROBE, crash_report, probe_in
from gram_platform.engine.trials import PointList
from gram_platform.store import Store
from gram_platform.studies.library import lr_bs_grid
from gram_platform.studies.workplace import execution_of
from tests.engine.test_broken_devices import (
    assert_little_is_trained_twice,
    events,
    machines,
    plan_for,
)
from tests.engine.test_drained import in_own_process
from tests.studies.processes import results
from tests.studies.searches.planted import SEARCH, Baselines, Heard
from tests.submitted import execute, plan_of

ILLEGAL = "CUDA error: an illegal memory access was encountered"
_is_poisoned = False  # this process, by the error of one trial


@dataclass(frozen=True)
class Poisoned(Baselines):
    """All points share a run. A rate of 2 poisons the first process that scores it: all later
    trials fail there."""

    folder: Path = Path()

    def nodes(self, point):
        return super().nodes({"lr": 1e-3})

    def score(self, point, results):
        global _is_poisoned
        with (self.folder / str(os.getpid())).open("a") as lines:
            lines.write(f"{point['lr']:g} ")
        if point["lr"] == 2.0 and not (self.folder / "poisoned").exists():
            (self.folder / "poisoned").touch()
            _is_poisoned = True
        if _is_poisoned:
            raise RuntimeError(ILLEGAL)
        return super().score(point, results)


@pytest.fixture
def planted(tmp_path):
    """(problem, execution, resources) of trials that may poison their process."""
    plan = plan_of(SEARCH, ["--storage", str(tmp_path / "storage")])
    (graph,) = plan.studies
    prepare(graph.corpora[0], Store(plan.storage).data_root)
    (tmp_path / "seen").mkdir()
    return Poisoned(graph.settings[0], tmp_path / "seen"), *execution_of(plan)


@pytest.mark.ray
@pytest.mark.slow  # test_crashes_count_where_devices_work is the quick relative
def test_a_poisoned_process_fails_no_trial(ray_cluster, planted):
    (problem, execution, resources), outcomes = planted, []
    points, tuning = PointList([("a", {"lr": 2.0}), ("b", {"lr": 3.0})]), Tuning("planted", 1)
    run_trials(points, problem, execution, Cordon(resources), tuning, Heard(outcomes))
    assert {o.name: o.state for o in outcomes} == {"a": "complete", "b": "complete"}
    processes = sorted(
        path.read_text() for path in problem.folder.iterdir() if path.name != "poisoned"
    )
    assert processes == ["2 ", "2 3 "]


def report(machine: str, failure: str = "") -> ProbeReport:
    return ProbeReport(machine, f"host {machine}", "10.0.0.1", "cuda 0", failure)


def crash(machine: str, failure: str = "", error: Exception | None = None) -> dict:
    """A report as Ray Tune hands it to a scheduler."""
    probe = astuple(report(machine, failure))
    return flatten_dict(crash_report(error or RuntimeError(ILLEGAL)) | {PROBE: probe})


def test_crashes_count_where_devices_work_and_since_the_last_checkpoint():
    step, cordoned = [0], []
    cordon = Cordon(Resources(), cordoned.append)
    policy = CrashPolicy(cordon)

    def failure(*how, trial: str = "a", **error) -> str:
        """Returns why a trial has failed by a reported crash, or ""."""
        reported = crash(*how, **error)
        text, probe = reported["message"], probe_in(reported)
        following = policy.after(trial, reported[KIND], text, step[0], probe)
        return following.text if following.action == FAILED else ""

    assert [failure("m1") for _ in range(MAX_CRASHES - 1)] == [""] * (MAX_CRASHES - 1)
    assert failure("m1", "no answer") == ""  # it was the machine, each time
    assert [found.machine for found in cordoned] == ["m1"]
    assert cordon.resources.cordoned == ("m1",)
    assert [failure("m2") for _ in range(MAX_CRASHES - 1)] == [""] * (MAX_CRASHES - 1)
    step[0] = 8
    assert [failure("m2") for _ in range(MAX_CRASHES - 1)] == [""] * (MAX_CRASHES - 1)
    assert ILLEGAL in failure("m3")

    lacks = OutOfMemory("out of memory. The planner counts 2 GiB")
    assert failure("m2", error=lacks, trial="b") == ""
    assert failure("m3", error=lacks, trial="b") == str(lacks)


def test_a_trial_avoids_a_machine_where_there_is_another(monkeypatch):
    alive = [{"NodeID": "m1", "Alive": True, "Resources": {"CPU": 4.0}}]
    monkeypatch.setattr(search.ray, "nodes", lambda: alive)
    cordon, bundle = Cordon(Resources()), {"CPU": 1.0}
    assert machines_for(bundle, cordon, "m1") == machines_for(bundle, cordon) == {}
    alive.append(alive[0] | {"NodeID": "m2"})
    assert machines_for(bundle, cordon, "m1") == {"ray.io/node-id": "!in(m1)"}


def test_after_three_broken_replacements_trials_wait_for_machines_that_are_there(monkeypatch):
    places, cordon = [], Cordon(Resources())
    monkeypatch.setattr(
        search.ray, "nodes", lambda: [{"NodeID": f"m{n}", "Alive": n != 5} for n in range(7)]
    )
    for number in range(4):
        places.append(machines_for({"CPU": 1.0}, cordon))
        cordon.note(report(f"m{number}", "no answer"))
    places.append(machines_for({"CPU": 1.0}, cordon))
    assert places[0] == {}
    assert places[3:] == [{"ray.io/node-id": "!in(m0,m1,m2)"}, {"ray.io/node-id": "in(m4,m6)"}]


# ------------------------------------------------------------------------------- pretended machines

NUM_SEEDS = 20
MEAN_S = 6.0  # between two errors of a process: ten times as many as one a minute
FLAGS = ("--preset", "smoke", "--sizes", "tiny", "--checkpoint-every", "0.1", "--device", "cpu")


def run_grid(storage: Path) -> int:
    return execute(lr_bs_grid.SEARCH, [*FLAGS, "--storage", str(storage)])


def grids_under_errors(folder: Path) -> None:
    num_errors = 0
    with machines(folder, good=2, broken=0):
        plan_for(folder)
        assert run_grid(folder.with_name("straight")) == 0
    expected = results(folder.with_name("straight"))
    assert len(expected) == 9
    with machines(folder, good=2, broken=1):
        for seed in range(NUM_SEEDS):
            plan_for(folder, seed=seed, mean_s=MEAN_S)
            storage = folder.with_name(f"seed{seed}")
            shutil.copytree(folder.with_name("straight") / "data", storage / "data")
            began = time.monotonic()
            assert run_grid(storage) == 0
            happened = events(folder)
            errors = sum(event["event"] == "device" for event in happened)
            print(f"seed {seed}: {errors} errors, {time.monotonic() - began:.0f} s", flush=True)
            assert results(storage) == expected
            assert_little_is_trained_twice(happened)
            assert {event["machine"] for event in happened} <= {"good0", "good1"}
            (study,) = storage.glob("studies/*/cordoned.json")
            assert study.read_text().count("on cpu failed") == 1
            num_errors += errors
            shutil.rmtree(storage)
    assert num_errors > NUM_SEEDS


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(3600)
def test_a_grid_under_errors_of_devices_beside_a_broken_machine(tmp_path):
    in_own_process(grids_under_errors, tmp_path / "pretended")


def grid_on_broken_machines(folder: Path) -> None:
    from gram_platform.engine.cluster import ClusterLost

    with machines(folder, good=0, broken=2):
        plan_for(folder)
        with pytest.raises(ClusterLost):
            run_grid(folder.with_name("storage"))
        assert events(folder) == []


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(300)
def test_a_grid_ends_where_no_device_works(tmp_path):
    in_own_process(grid_on_broken_machines, tmp_path / "pretended")
