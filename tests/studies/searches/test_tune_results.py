"""Tune's results after the driver has gone, on a real Ray Tune."""

from pathlib import Path

import fsspec
import pytest
from ray import tune

from gram_platform.engine.execution import results_place
from gram_platform.engine.trial_process import Trial
from gram_platform.store import Store
from tests.studies.searches.planted import GRID
from tests.submitted import execute


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(400)
def test_tunes_results_are_read_as_its_users_do(ray_cluster, tmp_path):
    assert execute(GRID, ["--storage", str(tmp_path)]) == 0
    (search_id,) = Store(tmp_path).list_searches()
    (submission,) = Path(tmp_path, "tune", f"planted-{search_id}").iterdir()
    grid = tune.Tuner.restore(str(submission), trainable=Trial).get_results()
    ends = {result.config["point"]["lr"]: result for result in grid}
    assert set(ends) == {1e-3, 2e-3, 4e-3, 8e-3}
    for result in ends.values():
        assert isinstance(result.metrics["loss"], float)
    best = grid.get_best_result()
    assert best.metrics["state"] == "complete"
    assert best.metrics["loss"] == min(result.metrics["loss"] for result in ends.values())
    folders = {path.name.rpartition("-")[0] for path in submission.iterdir() if path.is_dir()}
    assert folders == {"lr_0.001", "lr_0.002", "lr_0.004", "lr_0.008"}
    assert len(list(submission.glob("*/events.out.tfevents.*"))) == len(ends)
    assert len(list(submission.glob("*/progress.csv"))) == len(ends)


def test_results_lie_in_the_storages_own_file_system(tmp_path):
    assert results_place(str(tmp_path), "tune", "a-1") == (f"{tmp_path}/tune/a-1", None)
    place, filesystem = results_place(f"memory://{tmp_path.name}", "tune", "a-1")
    filesystem.create_dir(place)
    with filesystem.open_output_stream(f"{place}/result.json") as file:
        file.write(b"{}")
    assert fsspec.filesystem("memory").cat_file(f"/{tmp_path.name}/tune/a-1/result.json") == b"{}"
