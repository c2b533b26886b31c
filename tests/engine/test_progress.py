"""Progress evaluations: curves for people, which no result, frame or fit has."""

import dataclasses
import json

import pytest

from gram_platform.config import CORE, EvalPoints
from gram_platform.config.flops import hardware_flops
from gram_platform.engine import evaluation, node
from gram_platform.engine.evaluation import PROGRESS_SHARE, progress_of
from gram_platform.engine.node import execute_run
from gram_platform.engine.process import SYSTEM
from gram_platform.methods import plan
from gram_platform.methods.budgets import run_flops
from gram_platform.store import Store
from gram_platform.store.checkpoints import PROGRESS
from tests.engine.conftest import elsewhere
from tests.engine.test_node import Stopped, stop_after


def points_of(directory) -> dict[int, dict[str, float]]:
    """The losses of every progress evaluation, by step."""
    found = {
        r["step"]: {k: v for k, v in r["metrics"].items() if k.startswith(PROGRESS)}
        for r in directory.records()
    }
    return {step: losses for step, losses in found.items() if losses}


def rest_of(directory) -> list:
    """The other metrics, without what depends on the machine and the hour."""
    left_out = (PROGRESS, SYSTEM, "train/tokens_per_second")
    rest = [
        (r["step"], {k: v for k, v in r["metrics"].items() if not k.startswith(left_out)})
        for r in directory.records()
    ]
    return json.loads(json.dumps([(step, metrics) for step, metrics in rest if metrics]))


@pytest.fixture
def setting(setting):
    """With few enough domains for six points."""
    auxiliary = setting.auxiliary[0]
    return dataclasses.replace(
        setting, num_sequences={CORE: 192, auxiliary: setting.num_sequences[auxiliary]}
    )


@pytest.fixture
def progress_run(setting, execution, tmp_path, monkeypatch):
    """A function that executes a run of GRAM in a new storage and returns its directory."""
    run = plan("gram", setting).runs["all"]
    monkeypatch.setattr(node, "NUM_TRAIN_RECORDS", 4)

    def execute(name: str, num_points: int, kill_after: int = 0):
        chosen = elsewhere(execution, tmp_path, name)
        monkeypatch.setattr(evaluation, "NUM_PROGRESS_POINTS", num_points)
        if kill_after:
            with monkeypatch.context() as patch:
                stop_after(patch, kill_after)
                with pytest.raises(Stopped):
                    execute_run(run, {}, chosen)
        execute_run(run, {}, dataclasses.replace(chosen, checkpoint_every_s=1e9))
        return Store(chosen.storage).run(run.run_id)

    return execute


def test_a_method_has_six_points_that_change_no_byte_and_survive_kills(setting, progress_run):
    without, straight, killed = (
        progress_run("without", 0),
        progress_run("straight", 6),
        progress_run("killed", 6, 7),
    )
    results = [directory.folder.read("result.json") for directory in (without, straight, killed)]
    assert results[0] == results[1] == results[2]
    assert rest_of(without) == rest_of(straight) == rest_of(killed)
    points = points_of(straight)
    assert list(points) == [3, 5, 7, 9, 11, 13]
    assert all(
        set(losses) == {PROGRESS + domain for domain in setting.domains}
        for losses in points.values()
    )
    assert points[13][PROGRESS + CORE] < points[3][PROGRESS + CORE]
    assert points_of(killed) == points
    assert points_of(without) == {}


def test_the_plan_stays_within_its_share(setting):
    run = plan("gram", setting).runs["all"]
    for num_available in (1, 3, 99):
        steps, num_sequences = progress_of(run, num_available)
        forward = len(setting.domains) * hardware_flops(
            run.model, num_sequences, setting.auxiliary, backward=False
        )
        assert 0 < len(steps) * forward <= PROGRESS_SHARE * run_flops(run)
        assert num_sequences <= min(num_available, run.eval_points.num_sequences)


def test_runs_with_points_and_runs_too_short_have_none(setting):
    run = plan("gram", setting).runs["all"]
    nothing = (frozenset(), 0)
    assert progress_of(plan("baseline", setting).runs["all"], 99) == nothing
    assert progress_of(run, 0) == nothing
    assert progress_of(dataclasses.replace(run, eval_points=EvalPoints(0, 4, ())), 99) == nothing
    short = tuple(dataclasses.replace(b, num_draws=16) for b in run.data.domains if b.name == CORE)
    assert (
        progress_of(dataclasses.replace(run, data=dataclasses.replace(run.data, domains=short)), 99)
        == nothing
    )
