"""A final table reads MLflow while it has exactly what was sent, and the storage, saying why, at any difference."""

import contextlib
import re
import shutil
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest
from mlflow import MlflowClient
from pandas.testing import assert_frame_equal

from gram_platform.engine.life import Progress
from gram_platform.pages.results.record import StudyRecord
from gram_platform.store import Store
from gram_platform.studies.run import StudyWork
from gram_platform.studies.submission import Submission
from gram_platform.tracking import Tracker, TrackingUnavailable
from gram_platform.tracking.frame import Frames, final_frames, load_store_curves, mlflow_frames, store_frames
from tests.pages.results.test_results import study as planted_study  # noqa: F401
from tests.tracking.servers import running_mlflow
from tests.tracking.test_changed_in_mlflow import EVALUATION, RUN, execute, mirrored_storage, set_tag

LACKS = "the storage: MLflow has not what was sent of"
IDS, CURVES_OF = {RUN.run_id, EVALUATION.eval_id}, [RUN.run_id]


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    """A storage with a run and an evaluation, and its mirror."""
    return Path(mirrored_storage(tmp_path_factory.mktemp("mirrored") / "storage").root)


@pytest.fixture
def sent(template, tmp_path) -> tuple[Store, Tracker]:
    """A copy whose mirror has caught up."""
    shutil.copytree(template, tmp_path / "storage")
    store = Store(tmp_path / "storage").open_for_writing(min_free_bytes=0)
    return store, caught_up(store, f"sqlite:///{tmp_path}/storage/mlflow.db")


def caught_up(store: Store, uri: str) -> Tracker:
    tracker = Tracker(uri)
    tracker.sync(store, IDS)
    return tracker


def read(store: Store, tracker: Tracker) -> Frames:
    return final_frames(store, tracker, IDS, CURVES_OF)


def assert_equal(found: Frames, expected: Frames) -> None:
    assert_frame_equal(found.nodes, expected.nodes, check_exact=True)
    assert_frame_equal(found.curves, expected.curves, check_exact=True)


def test_mlflow_is_read_once_it_has_caught_up(sent):
    store, tracker = sent
    stored = store_frames(store, IDS, CURVES_OF)
    assert stored.source == "the storage"
    assert len(stored.nodes) == 2
    assert len(stored.curves) == 2 * RUN.num_steps
    assert_equal(read(store, tracker), stored)
    assert read(store, tracker).source == "MLflow"
    assert read(store, Tracker(tracker.tracking_uri)).source == "the storage"
    assert final_frames(store, None, IDS, CURVES_OF).source == "the storage"


DELETE = "DELETE FROM tags WHERE key = "
BOTH = "and 1 more"
CHANGES = {
    "UPDATE runs SET lifecycle_stage = 'deleted'": BOTH,
    "UPDATE runs SET lifecycle_stage = 'deleted' WHERE name LIKE '%evaluated%'": EVALUATION.eval_id,
    set_tag("gram.status", "'running'"): BOTH,
    set_tag("gram.eval_id", "'0'"): EVALUATION.eval_id,
    set_tag("gram.digest", "'0'"): BOTH,
    DELETE + "'gram.digest'": BOTH,
    set_tag("gram.result", "'0'"): BOTH,
    DELETE + "'gram.result'": BOTH,
    set_tag("gram.view_run_id", "'0'"): EVALUATION.eval_id,
    set_tag("seed", "'5'"): BOTH,
    "UPDATE latest_metrics SET value = 9.0 WHERE key = 'loss/core'": BOTH,
    "DELETE FROM latest_metrics WHERE key = 'loss/virology'": BOTH,
    "UPDATE params SET value = 'later' WHERE key = 'num_steps'": RUN.run_id,
    set_tag("mlflow.gram.curve.core", "'1:2.5 8:0.25'"): RUN.run_id,
    set_tag("gram.curves_digest", "'0'"): RUN.run_id,
    DELETE + "'gram.curves_digest'": RUN.run_id,
    "DROP TABLE tags": "no such table",
}


@pytest.mark.parametrize("statement", CHANGES)
def test_the_storage_is_read_when_anything_that_was_sent_is_gone(sent, statement):
    store, tracker = sent
    with contextlib.closing(sqlite3.connect(tracker.tracking_uri.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute(statement)
    found = read(store, tracker)
    assert found.source.startswith("the storage: MLflow ")
    assert CHANGES[statement] in found.source
    assert "\n" not in found.source
    assert_equal(found, store_frames(store, IDS, CURVES_OF))


def test_what_tables_do_not_show_may_be_changed(sent):
    store, tracker = sent
    execute(tracker.tracking_uri, set_tag("mlflow.note.content", "'mine'"), "UPDATE runs SET name = 'mine'")
    execute(tracker.tracking_uri, "UPDATE latest_metrics SET value = 9.0 WHERE key IN ('train/loss', 'elapsed_s')")
    assert read(store, tracker).source == "MLflow"


def test_the_storage_is_read_when_either_side_has_a_node_that_the_other_lacks(sent, tmp_path):
    store, tracker = sent
    assert final_frames(store, tracker, {*IDS, "0" * 12}, CURVES_OF).source == f"{LACKS} 000000000000"
    shutil.rmtree(store.evaluation(EVALUATION.eval_id).folder.path)
    tracker.sync(store, IDS)
    assert read(store, tracker).source == f"{LACKS} {EVALUATION.eval_id}"


def test_the_storage_is_read_when_the_database_goes_between_sending_and_reading(sent):
    store, tracker = sent
    Path(store.root, "mlflow.db").rename(Path(store.root, "away.db"))
    found = read(store, tracker)
    assert re.match("the storage: .*sqlite:///.*there is no", found.source)
    assert_equal(found, store_frames(store, IDS, CURVES_OF))
    assert not Path(store.root, "mlflow.db").exists()


@pytest.mark.slow
def test_the_storage_is_read_when_the_server_goes_between_sending_and_reading(sent, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    store, tracker = sent
    with running_mlflow(tracker.tracking_uri, tmp_path) as server:
        served = caught_up(store, server.uri)
        assert read(store, served).source == "MLflow"
    found = read(store, served)
    assert re.match(f"the storage: .*{server.uri} .*available: ", found.source)
    assert_equal(found, store_frames(store, IDS, CURVES_OF))


def dump(uri: str, *tables: str) -> list[tuple]:
    with contextlib.closing(sqlite3.connect(uri.removeprefix("sqlite:///"))) as connection:
        return [row for table in tables for row in sorted(connection.execute(f"SELECT * FROM {table}"), key=repr)]


def test_a_mirror_from_before_the_digests_gets_them_and_nothing_else(sent):
    store, tracker = sent
    uri = tracker.tracking_uri
    before, values = dump(uri, "tags"), dump(uri, "metrics", "latest_metrics", "params", "runs")
    execute(uri, DELETE + "'gram.digest'", DELETE + "'gram.curves_digest'")
    assert_equal(mlflow_frames(Tracker(uri), IDS, CURVES_OF), store_frames(store, IDS, CURVES_OF))
    tracker = Tracker(uri)
    assert tracker.sync(store) == {"sent": 2, "unchanged": 0}
    assert (dump(uri, "tags"), dump(uri, "metrics", "latest_metrics", "params", "runs")) == (before, values)
    assert read(store, tracker).source == "MLflow"
    assert Tracker(uri).sync(store) == {"sent": 0, "unchanged": 2}


@pytest.mark.filterwarnings("ignore:run .* is missing:RuntimeWarning")
def test_a_curve_that_the_storage_has_lost_stays_in_mlflow(sent):
    """Also when its run is sent again."""
    store, tracker = sent
    whole = load_store_curves(store)
    for segment in Path(store.root).glob(f"runs/{RUN.run_id}/attempts/*/segments/*"):
        segment.unlink()
    store.run(RUN.run_id).add_tags({"study": "another"})
    assert tracker.sync(store, IDS) == {"sent": 1, "unchanged": 1}
    found = read(store, tracker)
    assert found.source == "MLflow"
    assert_frame_equal(found.curves, whole, check_exact=True)
    emptied = Tracker(f"sqlite:///{store.root}/new.db")
    emptied.sync(store, IDS)
    assert read(store, emptied).source == f"{LACKS} {RUN.run_id}"


def test_an_explicit_reading_of_mlflow_is_an_error_where_there_is_none(tmp_path):
    with pytest.raises(TrackingUnavailable, match="there is no"):
        mlflow_frames(Tracker(f"sqlite:///{tmp_path}/none/mlflow.db"), IDS, CURVES_OF)


def written(record: StudyRecord, store: Store, tracker: Tracker) -> list[str]:
    """What a driver says that writes the tables of a study whose nodes are done."""
    said: list[str] = []
    submission, work = object.__new__(Submission), object.__new__(StudyWork)
    submission.view = SimpleNamespace(say=said.append, show=lambda text, brief: said.append(text))
    submission.mirror, submission.flags = SimpleNamespace(is_away=False), SimpleNamespace(notify="", tracking_uri="")
    submission.tracker, submission.progress = tracker, Progress([], done=record.ids)
    work.submission, work.say, work.store, work.tracker, work.records = (
        submission,
        said.append,
        store,
        tracker,
        [record],
    )
    assert work.write() == 0
    return said


def test_a_driver_says_once_why_it_read_the_storage(planted_study, tmp_path):  # noqa: F811
    planted, record, _ = planted_study
    shutil.copytree(planted.root, tmp_path / "storage")
    store = Store(tmp_path / "storage").open_for_writing(min_free_bytes=0)
    tracker = Tracker(f"sqlite:///{store.root}/mlflow.db")
    tracker.sync(store, record.ids)
    folder, name = Path(store.root, "studies", record.name), record.baseline_runs[0]
    assert not [line for line in written(record, store, tracker) if line.startswith("read from")]
    assert "Read from MLflow." in (folder / "report.html").read_text()
    table = (folder / "table.csv").read_bytes()
    client = MlflowClient(tracker.tracking_uri)
    client.delete_run(tracker.runs()["run", name].info.run_id)
    lines = [line for line in written(record, store, tracker) if line.startswith("read from")]
    assert lines == [f"read from {LACKS} {name}"]
    assert f"Read from {LACKS}" in (folder / "report.html").read_text()
    assert (folder / "table.csv").read_bytes() == table
