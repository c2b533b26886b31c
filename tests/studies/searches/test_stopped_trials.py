"""Trials that are stopped early on a real Ray Tune, and Tune's results after the driver has gone."""

import shutil
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import fsspec
import pytest
from ray import tune

from gram_platform.config import run_from_plain
from gram_platform.engine.capacity import Admission
from gram_platform.engine.cordon import Cordon
from gram_platform.engine.execution import Resources, results_place
from gram_platform.engine.node import execute_run
from gram_platform.engine.proposals import PointList
from gram_platform.engine.search import Tuning, _Searcher
from gram_platform.engine.trial_process import Trial
from gram_platform.engine.trial_restarts import Patience
from gram_platform.store import Store
from gram_platform.studies.library import hyperparams, pareto
from gram_platform.studies.searches.run import parse, run_search
from gram_platform.studies.searches.stopping import read_stopped
from gram_platform.studies.session import execution_of
from tests.engine.conftest import on_ranks
from tests.engine.test_ranks import train
from tests.ranks import run_ranks
from tests.studies.searches.planted import PRESET, TINY, PlantedGrid

HOPELESS, RATES = 1e-3, (1e-3, 2e-3, 4e-3)


@dataclass(frozen=True)
class JudgedGrid(PlantedGrid):
    """Finds one rate hopeless at the half of its training."""

    can_stop = True

    def points(self, graph, store):
        return [(f"lr {lr:g}", {"lr": lr}) for lr in RATES], []

    def judge(self, graph, store, search_id):
        return lambda name, point, progress, losses: "planted" * (point["lr"] == HOPELESS and 0.5 <= progress < 0.75)


def judged(num_ranks: int) -> JudgedGrid:
    """Ranks train longer: a quarter of it must be longer than Ray Train waits for a report, two seconds."""
    size = replace(TINY, core_tokens=TINY.core_tokens * (16 if num_ranks == 1 else 31), micro_batch=4 // num_ranks)
    return JudgedGrid("judged", "Judged", "?", {"demo": replace(PRESET, sizes={"tiny": size}, num_eval_points=8)})


def states(storage: Path) -> Counter:
    store = Store(storage)
    return Counter(str(store.run(run_id).status()) for run_id in store.list_runs())


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_hopeless_trial_keeps_its_checkpoint_and_a_submission_without_the_flag_finishes_it(
    ray_cluster, tmp_path, capsys, num_ranks
):
    storage, search = tmp_path / "storage", judged(num_ranks)
    flags = ["--storage", str(storage), "--num-workers", str(num_ranks)]
    assert run_search(search, parse(search, [*flags, "--early-stopping"])) == 0
    assert "1 trials were stopped early" in capsys.readouterr().out
    assert states(storage) == {"complete": 2, "interrupted": 1}
    store = Store(storage)
    (search_id,) = store.list_searches()
    ((run_id, fact),) = read_stopped(store.search_dir(search_id)).items()
    run = run_from_plain(store.run(run_id).config())
    step, num_steps = store.run(run_id).committed_step(), run.num_steps
    assert fact["message"] == "planted"
    assert num_steps / 2 <= step < num_steps
    assert store.run(run_id).result() is None

    require_readable_results(storage / "tune" / f"judged-{search_id}")

    assert run_search(search, parse(search, [*flags, "--early-stopping"])) == 0
    assert "1 were stopped before" in capsys.readouterr().out
    assert states(storage) == {"complete": 2, "interrupted": 1}  # it is not begun again

    assert run_search(search, parse(search, flags)) == 0
    assert states(storage) == {"complete": 3}
    assert store.run(run_id).attempts.list()[0] != store.run(run_id).attempts.list()[-1]
    assert len(store.run(run_id).attempts.list()) == 2  # continued, not begun again
    assert store.run(run_id).records()[0]["step"] < step
    assert store.run(run_id).timing()["num_ranks"] == num_ranks

    straight = Store(tmp_path / "straight").open_for_writing()
    shutil.copytree(store.data_root, straight.data_root)
    execution, _ = execution_of(replace(parse(search, flags), storage=straight.root), has_gpu=False)
    if num_ranks == 1:
        execute_run(run, {}, execution)
    else:
        straight.run(run_id).ensure_config(run)
        run_ranks(num_ranks, train, run, execution)
    results = [each.run(run_id).folder.read("result.json") for each in (store, straight)]
    assert results[0] == results[1]


def require_readable_results(folder: Path) -> None:
    """Reads Tune's results as its users do: numbers at the evaluation points and at the end."""
    (submission,) = folder.iterdir()
    grid = tune.Tuner.restore(str(submission), trainable=Trial).get_results()
    ends = {result.config["point"]["lr"]: result for result in grid}
    assert set(ends) == set(RATES)
    for lr, result in ends.items():
        history = result.metrics_dataframe
        during = history[history["progress"] < 1.0]
        assert during["validation/loss/core"].between(0.0, 20.0).all()
        assert len(during) >= 1
        assert result.metrics["progress"] < 1.0 if lr == HOPELESS else isinstance(result.metrics["loss"], float)
    assert grid.get_best_result("loss", "min").metrics["state"] == "complete"
    assert len(list(submission.glob("*/events.out.tfevents.*"))) == len(RATES)
    assert len(list(submission.glob("*/progress.csv"))) == len(RATES)


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_a_stopped_trials_cost_counts_its_ranks(num_ranks):
    told = []
    source = PointList([("a", {"lr": HOPELESS})], lambda *running: "planted")
    searcher = _Searcher(
        source,
        Tuning("a"),
        lambda point: {"run": on_ranks(num_ranks)},
        Admission(Resources()),
        Patience(Cordon(Resources()), lambda point: 0),
        lambda proposal: None,
        told.append,
    )
    searcher.suggest("0")
    report = {"progress": 0.5, "validation/loss/core": 2.0, "time_total_s": 7.0, "hostname": "host", "pid": 1}
    assert searcher.is_hopeless("0", report)
    searcher.on_trial_complete("0", report)
    (outcome,) = told
    assert (outcome.state, outcome.elapsed_s, outcome.rank_s) == ("stopped", 7.0, 7.0 * num_ranks)


@pytest.mark.parametrize("search", [hyperparams.SEARCH, pareto.SEARCH])
def test_searches_that_need_every_trial_refuse_the_flag(search, tmp_path):
    with pytest.raises(ValueError, match=r"^early_stopping=True"):
        parse(search, ["--early-stopping", "--storage", str(tmp_path), "--preset", "smoke", "--sizes", "tiny"])


def test_results_lie_in_the_storages_own_file_system(tmp_path):
    assert results_place(str(tmp_path), "tune", "a-1") == (f"{tmp_path}/tune/a-1", None)
    place, filesystem = results_place(f"memory://{tmp_path.name}", "tune", "a-1")
    filesystem.create_dir(place)
    with filesystem.open_output_stream(f"{place}/result.json") as file:
        file.write(b"{}")
    assert fsspec.filesystem("memory").cat_file(f"/{tmp_path.name}/tune/a-1/result.json") == b"{}"
