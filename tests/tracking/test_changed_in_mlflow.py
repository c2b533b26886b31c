"""Whatever people change in MLflow, and however long a study's texts are: submissions go on, with
equal frames."""

import contextlib
import json
import shutil
import sqlite3

import pytest
from mlflow import MlflowClient
from pandas.testing import assert_frame_equal

from gram_platform.store import Store
from gram_platform.tracking import Tracker, default_tracking_uri
from gram_platform.tracking.frame import load_curves, load_runs, load_store, load_store_curves
from gram_platform.tracking.values import LONGEST_TEXT, curve_points, milliseconds, study_of
from gram_platform.tracking.views import Line, StudyLog, study_views
from tests.store.training import train
from tests.tracking.planted import RUN, TAGS, evaluate


def mirrored_storage(folder) -> Store:
    """A storage with a run and an evaluation, and its mirror."""
    store = Store(folder).open_for_writing(min_free_bytes=0)
    train(store.root, RUN)
    store.run(RUN.run_id).add_tags(TAGS)
    evaluate(store)
    tracker = Tracker(default_tracking_uri(store.root))
    tracker.sync(store)
    log(tracker)
    return store


def log(tracker: Tracker) -> None:
    line = Line("gram core", {"method": "gram", "profile": "core"}, {100: {"core": 0.9}})
    views = study_views("scaling", "0123", {"profile": "core"}, (("core",),))
    files, params = {"table.csv": b"content"}, {"preset": "smoke"}
    tracker.log_study(StudyLog("scaling", files, {}, params, [line], {RUN.run_id: {}}, views))


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return mirrored_storage(tmp_path_factory.mktemp("mirrored") / "storage")


@pytest.fixture
def database(template, tmp_path):
    """(store, URI of a copy of its mirror)."""
    shutil.copy(f"{template.root}/mlflow.db", tmp_path)
    return template, f"sqlite:///{tmp_path}/mlflow.db"


def execute(uri: str, *statements: str) -> None:
    with (
        contextlib.closing(sqlite3.connect(uri.removeprefix("sqlite:///"))) as connection,
        connection,
    ):
        for statement in statements:
            assert connection.execute(statement).rowcount > 0, statement


def set_tag(key: str, value: str) -> str:
    return f"UPDATE tags SET value = {value} WHERE key = '{key}'"


STEPS = ("'later'", "'-3'", "'1_0'", f"'{'9' * 5000}'")
CHANGES = {
    "the step that was sent": [set_tag("gram.mirrored_step", step) for step in STEPS],
    "both steps": [
        f"{set_tag('gram.mirrored_step', step)} OR key = 'gram.sending_step'" for step in STEPS[:1]
    ],
    "a tag of the study": [set_tag("seed", "'5'"), "DELETE FROM tags WHERE key = 'profile'"],
    "the names of the tags": [set_tag("gram.tags", "'a,,b'")],
    "the number of parts": [
        set_tag("gram.mirrored_step", "'x'"),
        "UPDATE tags SET key = 'gram.num_parts' WHERE key = 'gram.command'",
    ],
    "the view": ["DELETE FROM tags WHERE key IN ('gram.view_run_id', 'gram.view_id')"],
    "the status": [
        set_tag("gram.status", "'done'"),
        "UPDATE runs SET status = 'RUNNING'",
        "UPDATE runs SET status = 'FAILED'",
    ],
    "the result": [set_tag("gram.result", "'0'"), "DELETE FROM tags WHERE key = 'gram.result'"],
    "times and name": ["UPDATE runs SET start_time = 0, end_time = NULL, name = NULL"],
    "every run": ["UPDATE runs SET lifecycle_stage = 'deleted'"],
    "the kind": ["DELETE FROM tags WHERE key = 'gram.kind'"],
    "the experiment": ["UPDATE experiments SET lifecycle_stage = 'deleted' WHERE name = 'gram'"],
    "its name": ["UPDATE experiments SET name = 'mine' WHERE name = 'gram'"],
    "its tags": ["DELETE FROM experiment_tags"],
    "the views": [
        "UPDATE experiment_tags SET value = '{\"name\": 1}' WHERE key LIKE '%gram.scaling%'"
    ],
    "the study's run": ["DELETE FROM tags WHERE key LIKE 'gram.study%'"],
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_undone_by_the_next_submission(database, what):
    store, uri = database
    for statement in CHANGES[what]:
        execute(uri, statement)
        load_runs(uri), load_curves(uri)
        tracker = Tracker(uri)
        tracker.sync(store)
        log(tracker)
        assert set(tracker.view_urls("scaling")) == {"evaluations", "ratios", "runs"}
        assert_frame_equal(load_runs(uri), load_store(store), check_exact=True)
        assert_frame_equal(load_curves(uri), load_store_curves(store), check_exact=True)
        assert Tracker(uri).sync(store) == {"sent": 0, "unchanged": 2}
    client = MlflowClient(uri)
    runs = client.search_runs(
        [client.get_experiment_by_name("gram").experiment_id], "tags.gram.kind = 'run'"
    )
    for key in runs[0].data.metrics:
        steps = [
            point.step for run in runs for point in client.get_metric_history(run.info.run_id, key)
        ]
        assert len(steps) == len(set(steps)), key


@pytest.mark.parametrize("text", ["nonsense", "1:2 x", "1:2:3 4:5"])
def test_a_curve_of_somebody_else_is_asked_for_point_by_point(database, text):
    store, uri = database
    assert curve_points(text) is None
    execute(uri, set_tag("mlflow.gram.curve.core", f"'{text}'"))
    assert_frame_equal(load_curves(uri), load_store_curves(store), check_exact=True)


LABELS = ",".join(f"a label of some thirty letter {number:03d}" for number in range(300))
STUDIES = {
    "many labels": {"retained": LABELS, "profile": f"core+{LABELS}"},
    "just too long": {"retained": "x" * (LONGEST_TEXT + 1), "profile": "x" * LONGEST_TEXT},
    "many tags": {f"tag {number}": "x" for number in range(300)},
    "a long name": {"n" * 260: "x", "ü" * 60: "y"},
    "names of MLflow's own": {
        "gram.kind": "x",
        "mlflow.runName": "y",
        "gram.mirrored_step": "99",
        "mlflow.parentRunId": "z",
    },
    "names of columns": {
        "num_steps": "x",
        "loss/core": "y",
        "status": "z",
        "id": "0",
        "run_id": "1",
        "surprisal/a": "b",
    },
    "names that are paths": {
        "../a": "1",
        "/b": "2",
        "c//d": "3",
        "..": "6",
        "": "8",
    },
    "names like escaped ones": {":2e:": "1", ".": "2", "a:2e:": "3", "a.": "4", ":3a:2e:": "5"},
    "control characters": {
        "method": "a\0b",
        "size": "\x1b[31m\r\n\t",
        "profile": "\ud800",
        "\udfff\0": "x",
    },
    "texts like ours": {
        "method": "…",
        "size": "[]",
        "gram": "{}",
        "mlflow.gram.part.0": "{}",
        "variant": "a,b",
    },
}


@pytest.mark.parametrize("names", STUDIES)
def test_texts_beyond_the_limits_are_kept_whole(template, tmp_path, monkeypatch, names):
    monkeypatch.setenv("MLFLOW_TRUNCATE_LONG_VALUES", "false")  # so that nothing is cut in silence
    shutil.copytree(template.root, tmp_path / "storage")
    store, tags = (
        Store(tmp_path / "storage"),
        tmp_path / "storage" / "runs" / RUN.run_id / "tags.json",
    )
    tags.write_text(json.dumps({**TAGS, **STUDIES[names]}))
    uri = default_tracking_uri(store.root)
    Tracker(uri).sync(store)
    assert_frame_equal(load_runs(uri), load_store(store), check_exact=True)
    assert Tracker(uri).sync(store) == {"sent": 0, "unchanged": 2}
    tags.write_text(json.dumps(TAGS))
    assert Tracker(uri).sync(store)["unchanged"] == 1
    assert study_of(Tracker(uri).runs()["run", RUN.run_id].data.tags) == TAGS


def test_long_studies_are_logged(database, monkeypatch):
    """Parameters, lines, views and tags of a study with hundreds of labels, and hundreds of
    studies."""
    monkeypatch.setenv("MLFLOW_TRUNCATE_LONG_VALUES", "false")
    _, uri = database
    tracker = Tracker(uri)
    profile = f"core+{LABELS}+o'brien"
    line = Line(f"gram {profile}", {"profile": profile}, {100: {"core": 0.9}})
    views = study_views("long", "0123", {"profile": profile}, (("core",),))
    arguments = (
        {"table.csv": b"content"},
        {},
        {"recipe": LABELS},
        [line],
        {RUN.run_id: {"gram.search.a": LABELS}},
        views,
    )
    tracker.log_study(StudyLog("long", *arguments))
    for number in range(60):
        tracker._mlflow.set_experiment_tags(
            {f"mlflow.sharedViewState.gram.{number}{'n' * 90}.runs": list(views.values())[1]}
        )
    tracker.log_study(StudyLog("long", *arguments))
    assert len(tracker._mlflow.experiment_tags()["mlflow.note.content"]) <= LONGEST_TEXT
    assert tracker.study_file("long", "table.csv") == "content"
    assert tracker.study_file("o'brien", "table.csv") is None


def test_times_stay_within_what_databases_hold():
    assert milliseconds(1.5e9) == 1_500_000_000_000
    assert -(2**63) < milliseconds(-1e300) < milliseconds(1e300) < 2**63
