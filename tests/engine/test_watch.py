"""A trial's watch: what it reports, and that looking and stopping change nothing of a run's result."""

import dataclasses
import shutil

import pytest

from gram_platform.engine.node import execute_run
from gram_platform.engine.trials import JUDGE_AT, TrialWatch
from gram_platform.store import Store


def test_measuring_beside_the_evaluation_points_changes_no_byte_of_the_result(run, execution, packed_root, tmp_path):
    silent = dataclasses.replace(run, eval_points=dataclasses.replace(run.eval_points, num_points=0))
    plain = execute_run(silent, {}, execution)
    seen: list[dict] = []
    watch = TrialWatch(seen.append, is_judged=True)
    watch.begin(silent)
    store = Store(tmp_path / "other").open_for_writing()
    shutil.copytree(packed_root[1], store.data_root)
    other = dataclasses.replace(execution, storage=store.root)
    assert execute_run(silent, {}, other, watch) == plain
    assert [numbers["progress"] for numbers in seen] == pytest.approx(JUDGE_AT, abs=1 / silent.num_steps)


def test_progress_is_over_all_runs_of_a_trial(run):
    seen: list[dict] = []
    watch = TrialWatch(seen.append)
    watch.num_runs = 2
    watch.begin(run)
    watch.see(run.num_steps, {"core": 2.0})
    watch.end()
    watch.begin(run)
    watch.see(run.num_steps // 2, {"core": 1.5})
    assert [numbers["progress"] for numbers in seen] == [0.5, pytest.approx(0.75, abs=1 / run.num_steps)]
    assert seen[0]["validation/loss/core"] == 2.0
