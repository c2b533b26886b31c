"""What MLflow has of a search: the objective and what was varied as metrics of runs, and a view of
its trials."""

import json

import pytest

from gram_platform.studies.searches.search_plan import trial_metrics
from gram_platform.tracking import Tracker
from gram_platform.tracking.frame import Frames, mlflow_frames
from gram_platform.tracking.views import StudyLog, TrialColumns, search_view
from tests.tracking.planted import RUN
from tests.tracking.test_changed_in_mlflow import mirrored_storage

GRID = TrialColumns(("lr", "batch"), ("loss",), ("tiny", "small"))
TRIALS = b"""search,trial,state,size,lr,batch,loss,runs
grid,0,complete,tiny,0.01,8,2.5,a
grid,1,complete,small,0.02,16,2.25,b
grid,2,failed,small,0.04,16,,c
grid,3,complete,tiny,0.04,8,inf,d shared
grid,4,complete,tiny,0.08,8,3.5,shared e
"""


def test_a_run_of_one_trial_has_its_finite_numbers():
    assert trial_metrics(TRIALS, GRID) == {
        "a": {"trial/lr": 0.01, "trial/batch": 8.0, "objective": 2.5, "objective/tiny": 2.5},
        "b": {"trial/lr": 0.02, "trial/batch": 16.0, "objective": 2.25, "objective/small": 2.25},
        "d": {"trial/lr": 0.04, "trial/batch": 8.0},
        "e": {"trial/lr": 0.08, "trial/batch": 8.0, "objective": 3.5, "objective/tiny": 3.5},
    }
    assert trial_metrics(b"", GRID) == {}
    assert trial_metrics(b"search,trial,runs\ns,0,a\n", TrialColumns()) == {}


@pytest.mark.parametrize(
    ("columns", "drawn", "best"),
    [
        (GRID, ["objective/tiny", "objective/small"], "metrics.`objective`"),
        (
            TrialColumns(("p", "q", "r"), ("forget", "core")),
            ["objective/forget", "objective/core"],
            None,
        ),
        (TrialColumns(), [], ""),
    ],
    ids=["a grid", "a sweep", "nothing declared"],
)
def test_the_view_has_columns_the_best_first_and_contours(columns, drawn, best):
    view = search_view("lr_bs_grid", columns)
    state = json.loads(json.loads(view.to_tag())["state"])
    charts = state.get("compareRunCharts", [])
    assert [chart["zaxis"]["key"] for chart in charts] == drawn
    assert all(chart["xaxis"]["key"] == f"trial/{columns.parameters[0]}" for chart in charts)
    assert all(chart["yaxis"]["key"] == f"trial/{columns.parameters[1]}" for chart in charts)
    assert state.get("orderByKey", "") == ("metrics.`objective/forget`" if best is None else best)
    assert {f"metrics.`trial/{name}`" for name in columns.parameters} <= set(
        state["selectedColumns"]
    )
    assert "gram.study.lr_bs_grid" in state["searchFilter"]


def test_numbers_of_trials_leave_results_as_they_were_sent(tmp_path):
    store = mirrored_storage(tmp_path / "storage")
    uri = f"sqlite:///{store.root}/mlflow.db"
    tracker, ids = Tracker(uri), {RUN.run_id}
    tracker.sync(store, ids)
    before = nodes(mlflow_frames(tracker, ids, [RUN.run_id]))
    for objective in (2.5, 2.25, 2.25):
        metrics = {RUN.run_id: {"objective": objective, "trial/lr": 0.01}}
        tracker.log_study(StudyLog("lr_bs_grid", {}, {}, {}, node_metrics=metrics))
    run = Tracker(uri).runs()["run", RUN.run_id]
    assert (run.data.metrics["objective"], run.data.metrics["trial/lr"]) == (2.25, 0.01)
    assert nodes(mlflow_frames(tracker, ids, [RUN.run_id])) == before


def nodes(frames: Frames) -> list[dict]:
    return frames.nodes.to_dict("records")
