"""Frames from MLflow equal frames from the storage, in every state a run can be in."""

import json
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import replace

import pytest
from mlflow import MlflowClient
from pandas.testing import assert_frame_equal

from gram_platform.config import Continuations, EvalPoints, Evaluation, TokenLosses, View
from gram_platform.config.identity import InvalidField, differing_fields
from gram_platform.store import Store
from gram_platform.store.checkpoints import PROGRESS, VALIDATION
from gram_platform.tracking import Tracker, TrackingUnavailable, default_tracking_uri, sender
from gram_platform.tracking.frame import (
    load_configs,
    load_curves,
    load_runs,
    load_store,
    load_store_curves,
)
from gram_platform.tracking.views import StudyLog
from tests.store import training
from tests.store.training import final_fields, record, run_config, train
from tests.tracking.servers import running_mlflow

DOMAINS = ("core", "virology")
TEXT = [
    "kind",
    "id",
    "run_id",
    "view_id",
    "status",
    "method",
    "size",
    "seed",
    "profile",
    "retained",
]


def tags(seed: int, profile: str = "all") -> dict[str, str]:
    retained = {"all": "virology", "core": ""}[profile]
    return {
        "method": "gram",
        "size": "tiny",
        "seed": str(seed),
        "profile": profile,
        "retained": retained,
    }


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A storage with complete, interrupted, failed and untouched runs and two evaluations, and its
    mirror."""
    root = str(tmp_path_factory.mktemp("study"))
    store = Store(root).open_for_writing()
    runs = [run_config(8, seed) for seed in range(5)]
    for seed, run in enumerate(runs):
        store.run(run.run_id).ensure_config(run)
        store.run(run.run_id).add_tags(tags(seed))
    train(root, runs[0])
    train(root, runs[1])
    train(root, runs[2], last=4)
    with store.run(runs[3].run_id).start_attempt("test") as attempt:
        attempt.fail("loss is not finite")
    store.run(runs[1].run_id).add_tags({"p_aux_spread": "0.5", "R&D, x": "x"})
    for profile, weights in (("core", {}), ("all", {"virology": 1.0})):
        evaluation = Evaluation(View.of(runs[0].run_id, weights), "d" * 12, DOMAINS, 4)
        directory = store.evaluation(evaluation.eval_id)
        directory.ensure_config(evaluation)
        directory.add_tags(tags(0, profile))
        directory.complete({"losses": {"core": 2.1, "virology": 1 / 3}}, {"elapsed_s": 0.25})
    uri = default_tracking_uri(root)
    Tracker(uri).sync(store)
    return store, uri, [run.run_id for run in runs]


def test_load_runs_equals_load_store(study):
    store, uri, run_ids = study
    from_mlflow, from_store = load_runs(uri), load_store(store.root)
    assert_frame_equal(from_mlflow, from_store, check_exact=True)
    assert list(from_store.columns[:10]) == TEXT
    runs = from_store[from_store["kind"] == "run"].set_index("id")
    assert runs.loc[run_ids[:4], "status"].tolist() == [
        "complete",
        "complete",
        "interrupted",
        "failed",
    ]
    assert run_ids[4] not in runs.index
    assert runs.loc[run_ids[0], "loss/core"] == 2.0 / 8
    assert runs.loc[run_ids[0], "hardware_flops"] == 7.25e12
    assert runs.loc[run_ids[2], "num_steps"] == 8
    assert runs.loc[run_ids[2], ["parameters", "elapsed_s"]].isna().all()
    assert runs.loc[run_ids[1], ["p_aux_spread", "R&D, x"]].tolist() == ["0.5", "x"]
    evaluations = from_store[from_store["kind"] == "evaluation"].set_index("profile")
    assert evaluations["loss/virology"].tolist() == [1 / 3, 1 / 3]
    assert set(evaluations["run_id"]) == {run_ids[0]}
    assert evaluations.loc["core", "retained"] == ""
    assert evaluations["view_id"].nunique() == 2


def test_evaluations_of_every_kind_are_equal_in_both(tmp_path):
    store = Store(str(tmp_path)).open_for_writing(min_free_bytes=0)
    run = run_config(8, 0)
    view, asked = View.of(run.run_id), ("d" * 12, DOMAINS)
    tokens, samples = TokenLosses(view, *asked, 4), Continuations(view, *asked, (0, 1), 4, 8)
    found = {
        tokens: {"losses": {"core": 2.5, "virology": 1 / 3}},
        samples: {"surprisals": {"core": 1 / 7}},
    }
    for evaluation, result in {
        Evaluation(view, *asked, 4): {"losses": {"core": 2.5}},
        **found,
    }.items():
        directory = store.evaluation(evaluation.eval_id)
        directory.ensure_config(evaluation)
        named = {} if evaluation.measure == "losses" else {"measure": evaluation.measure}
        directory.add_tags({**tags(0), **named})
        directory.complete(result, {"elapsed_s": 0.25})
    uri = default_tracking_uri(store.root)
    Tracker(uri).sync(store)
    frame = load_runs(uri)
    assert_frame_equal(frame, load_store(store), check_exact=True)
    rows = frame.set_index("measure")
    assert rows.loc["tokens", "loss/virology"] == 1 / 3
    assert rows.loc["samples", "surprisal/core"] == 1 / 7
    assert rows.loc[["", "tokens"], "surprisal/core"].isna().all()
    names = {run.info.run_name for run in Tracker(uri).runs().values()}
    assert names == {f"gram tiny all s0, {what}" for what in ("evaluated", "tokens", "samples")}


def test_rows_are_chosen_by_tags(study):
    store, uri, run_ids = study
    for chosen in (
        {"seed": "0"},
        {"seed": ["0", "2"], "kind": "run"},
        {"method": "none"},
        {"profile": "core"},
    ):
        assert_frame_equal(load_runs(uri, **chosen), load_store(store, **chosen), check_exact=True)
    assert load_store(store, seed=["0", "2"], kind="run")["id"].tolist() == sorted(
        [run_ids[0], run_ids[2]]
    )
    empty = load_store(store, method="none")
    assert empty.empty
    assert list(empty.columns[:10]) == TEXT


def test_a_study_has_its_nodes_though_others_share_them(study):
    store, uri, run_ids = study
    tracker = Tracker(uri)

    def submit(name: str, seeds: str, ids: list[str]) -> None:
        entries = json.dumps({"entries": [{"id": node_id} for node_id in ids]})
        files = {"study.json": entries.encode()}
        if name == "a_search":
            files = {"trials.csv": f"search,trial,runs\ns,0,{' '.join(ids)}\ns,1,\n".encode()}
        store.study_dir(name).write_whole(files)
        node_tags = {node_id: {} for node_id in ids}
        tracker.log_study(StudyLog(name, files, {}, {"seeds": seeds}, node_tags=node_tags))

    evaluation = store.list_evaluations()[0]
    submit("one", "3", [*run_ids[:3], evaluation])
    submit("two", "2", run_ids[1:3])
    submit("a_search", "2", run_ids[1:3])
    # A later submission of fewer seeds.
    submit("one", "2", [*run_ids[:2], evaluation])
    for name, ids in {
        "one": [*run_ids[:2], evaluation],
        "two": run_ids[1:3],
        "a_search": run_ids[1:3],
    }.items():
        frame = load_store(store, study=name)
        assert set(frame["id"]) == set(ids)
        assert_frame_equal(load_runs(uri, study=name), frame, check_exact=True)
    chosen = {"study": "one", "kind": "run", "seed": "1"}
    assert load_runs(uri, **chosen)["id"].tolist() == [run_ids[1]]
    assert load_store(store, **chosen)["id"].tolist() == [run_ids[1]]
    for load, place in ((load_runs, uri), (load_store, store)):
        with pytest.raises(InvalidField) as error:
            load(place, study="three")
        assert (error.value.field, error.value.value) == ("study", "three")
        assert all(name in error.value.expected for name in ("one", "two", "a_search"))


def test_configs_are_read_by_field(study):
    store, _, run_ids = study
    configs = load_configs(store.root, run_ids[:2])
    assert list(configs) == run_ids[:2]
    assert list(differing_fields(configs.values())) == ["seed"]
    with pytest.raises(InvalidField):
        load_configs(store, ["f" * 12])


def test_curves_are_equal_and_tidy(study):
    store, uri, run_ids = study
    assert_frame_equal(load_curves(uri), load_store_curves(store), check_exact=True)
    frame = load_curves(uri, [run_ids[0], run_ids[2]])
    assert_frame_equal(frame, load_store_curves(store, [run_ids[0], run_ids[2]]), check_exact=True)
    assert list(frame.columns) == ["run_id", "step", "domain", "loss"]
    assert frame.groupby(["run_id", "domain"])["step"].max().unique().tolist() in ([8, 4], [4, 8])
    assert set(frame["domain"]) == set(DOMAINS)
    one = frame[(frame["run_id"] == run_ids[0]) & (frame["domain"] == "virology")]
    assert one["loss"].tolist() == [3.0 / step for step in range(1, 9)]
    assert load_curves(uri, []).empty
    assert load_curves(uri, []).dtypes.equals(frame.dtypes)


def test_people_see_the_progress_of_a_run_without_points_and_no_frame_has_it(
    study, tmp_path, monkeypatch
):
    """Also of a run that is under way, whose curves are read point by point."""
    store = Store(shutil.copytree(study[0].root, tmp_path / "copy")).open_for_writing()
    runs = [
        replace(run_config(8, seed), eval_points=EvalPoints(0, 2, DOMAINS)) for seed in (10, 11)
    ]
    monkeypatch.setattr(training, "record", watched)
    monkeypatch.setattr(
        training, "final_fields", lambda run: {**final_fields(run), "final": {"train/loss": 0.5}}
    )
    for run, last in zip(runs, (None, 4), strict=True):
        train(store.root, run, last=last)
        store.run(run.run_id).add_tags(tags(10))
    uri = default_tracking_uri(store.root)
    tracker = Tracker(uri)
    tracker.sync(store)
    for run, last in zip(runs, (8, 4), strict=True):
        history = tracker.history(tracker.runs()["run", run.run_id], "loss/core")
        assert history == [(step, 2.0 / step) for step in range(1, last + 1)]
    frame = load_runs(uri)
    assert_frame_equal(frame, load_store(store), check_exact=True)
    assert frame.set_index("id").loc[[run.run_id for run in runs], "loss/core"].isna().all()
    assert_frame_equal(load_curves(uri), load_store_curves(store), check_exact=True)
    assert not set(load_curves(uri)["run_id"]) & {run.run_id for run in runs}


def watched(step: int) -> dict:
    """A record of a run that is evaluated for people to watch alone."""
    of_step = record(step)
    metrics = {
        name.replace(VALIDATION, PROGRESS): value for name, value in of_step["metrics"].items()
    }
    return {**of_step, "metrics": metrics}


def test_curves_of_complete_runs_come_with_the_runs(study, tmp_path, monkeypatch):
    """Only the interrupted run's need requests; so do those that were too long to be sent."""
    store, uri, _ = study
    asked: list[str] = []
    history = MlflowClient.get_metric_history

    def ask(client, run_id, key):
        asked.append(key)
        return history(client, run_id, key)

    monkeypatch.setattr(MlflowClient, "get_metric_history", ask)
    assert_frame_equal(load_curves(uri), load_store_curves(store), check_exact=True)
    assert sorted(asked) == ["loss/core", "loss/virology"]
    monkeypatch.setattr(sender, "LONGEST_TEXT", 79)  # core's has 93 characters, virology's 66
    long = f"sqlite:///{tmp_path}/long.db"
    assert Tracker(long).sync(store) == {"sent": 6, "unchanged": 0}
    asked.clear()
    assert_frame_equal(load_curves(long), load_store_curves(store), check_exact=True)
    assert sorted(asked) == ["loss/core", "loss/core", "loss/core", "loss/virology"]


def test_server_that_is_down_is_an_error_of_its_own():
    for load in (load_runs, load_curves):
        with pytest.raises(TrackingUnavailable):
            load("http://127.0.0.1:9")


def test_a_database_that_is_not_there_is_not_made(tmp_path):
    for load in (load_runs, load_curves):
        with pytest.raises(TrackingUnavailable):
            load(f"sqlite:///{tmp_path}/typo/mlflow.db")
    assert not list(tmp_path.iterdir())


def test_the_same_through_a_server(study, tmp_path):
    """A real MLflow server over HTTP, without any run: the mirror, the frames and the curves."""
    store, _, run_ids = study
    # Making the schema takes MLflow seconds.
    shutil.copy(f"{store.root}/mlflow.db", tmp_path / "server.db")
    with sqlite3.connect(tmp_path / "server.db") as connection:
        connection.execute("UPDATE runs SET lifecycle_stage = 'deleted'")
    with running_mlflow(f"sqlite:///{tmp_path}/server.db", tmp_path) as server:
        uri = server.uri
        assert Tracker(uri).sync(store) == {"sent": 6, "unchanged": 0}
        assert Tracker(uri).sync(store) == {"sent": 0, "unchanged": 6}
        assert_frame_equal(load_runs(uri), load_store(store), check_exact=True)
        assert_frame_equal(load_curves(uri), load_store_curves(store), check_exact=True)
        assert load_curves(uri, run_ids[:1])["run_id"].unique().tolist() == run_ids[:1]


def test_frames_import_no_ray():
    code = (
        "import sys, gram_platform.tracking.frame; assert not {'ray', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
