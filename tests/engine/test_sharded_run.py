"""A run of two ranks under Ray Train, against the same run in one process."""

import dataclasses

import pytest

from gram_platform.engine.execution import Resources
from gram_platform.engine.node import execute_run
from gram_platform.methods import plan
from gram_platform.store import Store

pytestmark = pytest.mark.ray


def test_two_ranks_under_ray_train(ray_cluster, execution, setting, tmp_path):
    """Sums in another order: losses agree to 1e-4 after ten steps, plans and data exactly."""
    from gram_platform.engine.sharded import execute_sharded_run

    run = plan("gram", setting).runs["all"]
    run = dataclasses.replace(run, eval_points=dataclasses.replace(run.eval_points, num_points=2))
    alone = dataclasses.replace(execution, storage=str(tmp_path / "alone"), checkpoint_every_s=1e9)
    Store(alone.storage).open_for_writing().data_root.symlink_to(Store(execution.storage).data_root.resolve())
    expected = execute_run(run, {}, alone)
    result = execute_sharded_run(run, {"method": "gram"}, dataclasses.replace(execution, num_ranks=2), Resources())
    exact = ("plan_sha256", "data_fingerprint", "num_steps", "num_tokens", "compute_units", "parameters")
    assert {name: result[name] for name in exact} == {name: expected[name] for name in exact}
    assert result["final"] == pytest.approx(expected["final"], abs=1e-4)
    directory = Store(execution.storage).run(run.run_id)
    assert [record["step"] for record in directory.records()] == list(range(1, run.num_steps + 1))
    assert directory.status() == "complete"
