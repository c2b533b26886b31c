"""A run of two ranks under Ray Train: against one process, killed, asked to stop, and without
enough memory.
"""

import dataclasses
import json
import os
import signal
from pathlib import Path

import pytest
import ray.train
from ray.exceptions import OutOfMemoryError
from ray.util import list_named_actors

from gram_platform.engine import dispatch, ranks
from gram_platform.engine.execution import Resources
from gram_platform.engine.node import execute_run
from gram_platform.engine.process import OutOfMemory
from gram_platform.methods import plan
from gram_platform.methods.nodes import Node
from gram_platform.methods.setting import Options
from gram_platform.planner.ranks import Ranks
from gram_platform.store import LeaseHeld, Store
from gram_platform.store.checkpoints import PROBE, PROGRESS
from gram_platform.store.leases import new_lease
from gram_platform.studies.workplace import placement_of
from tests.engine.conftest import TWO_RANKS, elsewhere, longer

pytestmark = pytest.mark.ray


def test_two_ranks_under_ray_train(ray_cluster, execution, setting, tmp_path):
    """Sums in another order: losses agree to 1e-4 after ten steps, plans and data exactly."""
    from gram_platform.engine.dispatch import execute_sharded_run

    half = dataclasses.replace(setting, options=Options(unlabelled_share=0.5, probes=True))
    run = plan("gram", half).runs["all"]
    run = dataclasses.replace(run, eval_points=dataclasses.replace(run.eval_points, num_points=2))
    alone = dataclasses.replace(elsewhere(execution, tmp_path, "alone"), checkpoint_every_s=1e9)
    expected = execute_run(run, {}, alone)
    result = execute_sharded_run(
        run, {"method": "gram"}, execution.with_placement(TWO_RANKS), Resources()
    )
    exact = (
        "plan_sha256",
        "data_fingerprint",
        "num_steps",
        "num_tokens",
        "compute_units",
        "parameters",
    )
    assert {name: result[name] for name in exact} == {name: expected[name] for name in exact}
    assert result["final"] == pytest.approx(expected["final"], abs=1e-4)
    directory = Store(execution.storage).run(run.run_id)
    assert [record["step"] for record in directory.records()] == list(range(1, run.num_steps + 1))
    assert directory.status() == "complete"
    started = [actor["name"] for actor in list_named_actors(all_namespaces=True)]
    assert "AutoscalingCoordinator" not in started, (
        "Ray Train asked the autoscaler itself, beside its placement group"
    )
    there, here = (_probes(Store(each.storage).run(run.run_id)) for each in (execution, alone))
    assert len(there) == run.eval_points.num_probes
    assert there.keys() == here.keys()
    assert all(there[step] == pytest.approx(here[step], rel=1e-2) for step in there)


def _probes(directory, prefix: str = PROBE) -> dict[int, dict[str, float]]:
    """The norms of every probe by its step; with another prefix, other metrics."""
    found = {
        r["step"]: {n: v for n, v in r["metrics"].items() if n.startswith(prefix)}
        for r in directory.records()
    }
    return {step: norms for step, norms in found.items() if norms}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_group_that_loses_a_rank_or_is_asked_to_stop(ray_cluster, execution, setting, tmp_path):
    """kill -9 of rank 0, then SIGTERM to it: each time all ranks go on from one step, and the bytes
    are the same.
    """
    run = longer(plan("gram", setting).runs["all"], 10)
    two = execution.with_placement(TWO_RANKS)
    straight = dataclasses.replace(elsewhere(two, tmp_path, "straight"), checkpoint_every_s=1e9)
    train = ray_cluster.remote(num_cpus=0, max_retries=0)(execute_there)
    ray_cluster.get(train.remote(run, straight))
    directory = Store(execution.storage).run(run.run_id)
    often = dataclasses.replace(two, checkpoint_every_s=0.2)
    task, steps = train.remote(run, often), [0]
    for number, blow in enumerate((signal.SIGKILL, signal.SIGTERM), 1):
        while (
            len(directory.attempts.list()) < number or directory.read_committed_step() <= steps[-1]
        ):
            ready, _ = ray_cluster.wait([task], timeout=0.02)
            assert not ready, "ended too early"
        os.kill(directory.progress()["pid"], blow)
        steps.append(directory.read_committed_step())
        while len(directory.attempts.list()) == number:
            ray_cluster.wait([task], timeout=0.1)
    ray_cluster.get(task)
    assert len(directory.attempts.list()) == 3
    results = [
        Store(e.storage).run(run.run_id).folder.read("result.json") for e in (straight, often)
    ]
    assert results[0] == results[1]
    assert [record["step"] for record in directory.records()][-1] == run.num_steps
    progress = _probes(directory, PROGRESS)
    assert len(progress) == 6
    assert progress == _probes(Store(straight.storage).run(run.run_id), PROGRESS)


class Heard(ray.train.UserCallback):
    """Writes what all ranks report, a line each time; Ray Train calls it in the process that
    watches the ranks.
    """

    def __init__(self, file: Path):
        self.file = file

    def after_report(self, run_context, metrics, checkpoint) -> None:
        with self.file.open("a") as lines:
            lines.write(json.dumps(metrics) + "\n")
        assert checkpoint is None


def worker_that_reports_often(config) -> ranks.RanksStopped | None:
    ranks.REPORT_EVERY_S = 0.2
    return ranks.train_rank(
        dispatch.run_from_plain(config["run"]), config["execution"], dispatch.report_to_ray_train
    )


@pytest.mark.slow
def test_ranks_report_their_progress_to_ray_train(
    ray_cluster, execution, setting, tmp_path, monkeypatch
):
    """All of them the same step and loss.

    Ray Train takes a report every two seconds, and training waits for none.
    """
    run, file = longer(plan("baseline", setting).runs["all"], 30), tmp_path / "heard.jsonl"
    monkeypatch.setattr(dispatch, "_train_worker", worker_that_reports_often)
    plain = dispatch._trainer

    def overheard(*args):
        trainer = plain(*args)
        trainer.run_config.callbacks.append(Heard(file))
        return trainer

    monkeypatch.setattr(dispatch, "_trainer", overheard)
    two = dataclasses.replace(execution, placement=TWO_RANKS, checkpoint_every_s=1e9)
    dispatch.execute_sharded_run(run, {}, two, Resources())
    heard = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(heard) >= 2
    steps = [first["step"] for first, _ in heard]
    assert steps == sorted(set(steps))
    for first, second in heard:
        assert first["num_steps"] == run.num_steps
        assert min(each["tokens_per_second"] for each in (first, second)) > 0
        assert (first["step"], first["loss"]) == (second["step"], second["loss"])


def execute_there(run, execution):
    from gram_platform.engine.dispatch import execute_sharded_run

    return execute_sharded_run(run, {}, execution, Resources())


@pytest.mark.slow
def test_ranks_without_enough_memory_say_what_they_need(ray_cluster, execution, setting):
    """An allocation that no machine can serve fails once, and is not tried again."""
    run = plan("baseline", setting).runs["all"]
    run = dataclasses.replace(run, model=dataclasses.replace(run.model, d_mlp=2**42))
    placement = placement_of(Node.of(run, {"size": "tiny"}), Ranks(2), "cpu")
    train = ray_cluster.remote(num_cpus=0, max_retries=0)(execute_there)
    with pytest.raises(OutOfMemory):
        ray_cluster.get(train.remote(run, execution.with_placement(placement)))
    directory = Store(execution.storage).run(run.run_id)
    assert directory.failure()["details"] == {"kind": "memory"}
    assert len(directory.attempts.list()) == 1


def test_what_a_restart_would_not_change_ends_a_run(execution, setting):
    """A rank's lack of memory comes before what the others say of it; another process's lease is no
    failure.
    """
    from ray.train import WorkerGroupError
    from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError

    from gram_platform.engine.dispatch import _failures, _raise_permanent

    run = plan("baseline", setting).runs["all"]
    directory = execution.store().run(run.run_id)
    directory.ensure_config(run)
    directory.start_attempt("rank 0").release()
    lost = WorkerHealthCheckFailedError("no answer", OutOfMemoryError("node memory 98%"))
    error = WorkerGroupError(
        "", {0: RuntimeError("Connection closed by peer"), 1: OutOfMemory("too large"), 2: lost}
    )
    assert isinstance(_failures(error)[2], OutOfMemoryError)
    with pytest.raises(OutOfMemory):
        _raise_permanent(_failures(error), directory)
    assert directory.failure()["message"] == "too large"
    _raise_permanent(
        [RuntimeError("Connection closed by peer"), OutOfMemoryError("node memory 98%")], directory
    )
    directory.start_attempt("rank 0").release()
    with pytest.raises(LeaseHeld):
        _raise_permanent(
            [ValueError("a consequence"), LeaseHeld(run.run_id, new_lease("another", 30.0))],
            directory,
        )
    assert directory.failure() is None
