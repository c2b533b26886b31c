"""MLflow has a row for each trial of a search: the best of each group first, and none twice."""

import json
from dataclasses import replace

import pytest
from mlflow import MlflowClient

from gram_platform.cli import main
from gram_platform.config.identity import to_plain
from gram_platform.config.space import TrialColumns
from gram_platform.pages.results.trials import trials_log
from gram_platform.tracking import Tracker
from gram_platform.tracking.frame import load_runs
from tests.tracking.planted import RUN
from tests.tracking.test_changed_in_mlflow import mirrored_storage

GRID = TrialColumns(("lr", "batch"), ("loss",), ("size",))
TRIALS = f"""search,trial,state,size,seed,lr,batch,loss,runs,elapsed_s
grid,0,complete,tiny,0,0.01,8,2.5,{RUN.run_id},1.5
grid,1,complete,small,0,0.0123456789,16,2.25,b,
grid,2,failed,small,0,0.04,16,,c,
grid,3,waiting,tiny,0,0.08,8,,,
grid,4,complete,tiny,0,0.04,8,2.25,d,
""".encode()
PARAMS = {"search_id": "0123", "preset": "smoke", "data_id": "4567"}
LOG = trials_log("lr_bs_grid", PARAMS, TRIALS, GRID)
STATE = json.loads(json.loads(next(iter(LOG.views.values())))["state"])


@pytest.fixture
def tracker(tmp_path):
    return Tracker(f"sqlite:///{mirrored_storage(tmp_path).root}/mlflow.db")


def shown(tracker: Tracker) -> list:
    """The runs of the saved view, in its order."""
    order = f"{STATE['orderByKey']} {'ASC' if STATE['orderByAsc'] else 'DESC'}"
    client = MlflowClient(tracker.tracking_uri)
    by_name = "attributes.run_name"
    return client.search_runs(["1"], STATE["searchFilter"], order_by=[order, by_name])


def test_the_view_lists_trials_with_what_they_vary_the_best_of_each_size_first(tracker):
    tracker.log_study(replace(LOG, colours={"gram": "#123456"}))
    runs = shown(tracker)
    assert [run.info.run_name for run in runs] == [
        "small lr 0.0123 batch 16",
        "tiny lr 0.04 batch 8",
        "tiny lr 0.01 batch 8",
        "small lr 0.04 batch 16",
    ]
    best, *_, failed = runs
    assert best.data.params == {"size": "small", "lr": "0.0123457", "batch": "16", "seed": "0"}
    assert best.data.metrics == {"rank": 1.0, "loss": 2.25, "loss at size small": 2.25}
    assert (failed.info.status, failed.data.metrics) == ("FAILED", {})
    (first,) = (run for run in runs if run.data.tags["gram.trial"] == "0")
    node = Tracker(tracker.tracking_uri).runs()["run", RUN.run_id]
    assert first.data.tags["gram.runs"] == RUN.run_id
    assert f"runs/{node.info.run_id}" in first.data.tags["mlflow.note.content"]
    assert node.data.tags["gram.search.grid"] == "0"
    assert node.data.tags["mlflow.runColor"] == "#123456"
    assert first.info.end_time - first.info.start_time == 1500
    assert {"metrics.`rank`", "params.`lr`", "params.`batch`"} <= {*STATE["selectedColumns"]}
    first_places = "tags.gram.kind = 'trial' and metrics.rank = 1"
    client = MlflowClient(tracker.tracking_uri)
    assert len(client.search_runs(["1"], first_places)) == 2
    assert set(load_runs(tracker.tracking_uri)["kind"]) == {"run", "evaluation"}


def test_the_view_draws_what_was_varied_against_the_objective():
    parallel, *contours = STATE["compareRunCharts"]
    assert parallel["type"] == "PARALLEL"
    assert (parallel["selectedParams"], parallel["selectedMetrics"]) == (
        ["size", "lr", "batch"],
        ["loss"],
    )
    axes = [[chart[axis]["key"] for axis in ("xaxis", "yaxis", "zaxis")] for chart in contours]
    assert axes == [["lr", "batch", "loss at size tiny"], ["lr", "batch", "loss at size small"]]


def test_sending_again_keeps_each_trial_and_adds_what_has_changed(tracker):
    head, first, *others = TRIALS.replace(b"16,,c", b"16,1.5,c").splitlines(keepends=True)
    text = b"".join([head, *others, first]).replace(b"failed", b"complete")
    grown = trials_log("lr_bs_grid", PARAMS, text.replace(b"grid,2", b"grid,7"), GRID)
    tracker.log_study(LOG)
    before = {run.info.run_id: run.to_dictionary() for run in shown(tracker)}
    tracker.log_study(LOG)
    assert {run.info.run_id: run.to_dictionary() for run in shown(tracker)} == before
    tracker.log_study(grown)
    after = shown(tracker)
    assert {run.info.run_id for run in after} == before.keys()
    assert [run.data.metrics["loss"] for run in after[:2]] == [1.5, 2.25]
    assert [run.data.metrics["rank"] for run in after] == [1.0, 1.0, 2.0, 2.0]
    assert after[0].data.tags["gram.trial"] == "7"


def test_a_killed_sender_leaves_no_trial_without_its_values_and_none_twice(tracker, monkeypatch):
    calls, log_batch = [], MlflowClient.log_batch

    def fail(self, *arguments, **named):
        calls.append(arguments)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return log_batch(self, *arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(MlflowClient, "log_batch", fail)
        with pytest.raises(KeyboardInterrupt):
            tracker.log_study(LOG)
    begun = {run.info.run_id for run in shown(tracker)}
    assert 0 < len(begun) < 4
    client = MlflowClient(tracker.tracking_uri)
    copied = client.get_run(next(iter(begun)))
    client.create_run("1", tags=copied.data.tags)
    Tracker(tracker.tracking_uri).log_study(LOG)
    runs = shown(tracker)
    assert len(runs) == 4
    assert begun <= {run.info.run_id for run in runs}
    assert [run.info.status for run in runs] == ["FINISHED"] * 3 + ["FAILED"]
    assert [run.data.metrics.get("loss") for run in runs] == [2.25, 2.25, 2.5, None]


def test_gram_sync_sends_the_trials_of_a_storage(tmp_path, capsys):
    store = mirrored_storage(tmp_path)
    folder, facts = store.study_dir("lr_bs_grid"), {**PARAMS, "columns": to_plain(GRID)}
    folder.write("search.json", json.dumps(facts).encode())
    folder.write("trials.csv", TRIALS)
    store.study_dir("old").write("search.json", json.dumps(PARAMS).encode())
    store.study_dir("bad").write("search.json", json.dumps({**facts, "name": "bad"}).encode())
    for _ in range(2):
        main(["sync", "--storage", str(store.root)])
        assert "4 trials" in capsys.readouterr().out
    assert len(shown(Tracker(f"sqlite:///{store.root}/mlflow.db"))) == 4
