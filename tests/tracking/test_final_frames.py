"""A final table reads MLflow once everything was sent, and the storage otherwise.

Both give the same table.
"""

import contextlib
import shutil
import socket
import sqlite3
import time
from pathlib import Path

import pytest
from pandas.testing import assert_frame_equal

from gram_platform.pages.report.measurements import LOSSES_PRESENTATION, read_or_lost
from gram_platform.store import Store
from gram_platform.studies.live import Mirror
from gram_platform.tracking import Tracker, TrackingUnavailable
from gram_platform.tracking.frame import (
    Frames,
    final_frames,
    load_curves,
    load_runs,
    load_store,
    load_store_curves,
    store_frames,
)
from tests.pages.results.test_results import study as planted_study  # noqa: F401
from tests.store import training
from tests.store.training import record, train
from tests.tracking.planted import EVALUATION, RUN, evaluate
from tests.tracking.test_changed_in_mlflow import execute, mirrored_storage

IDS, CURVES_OF = {RUN.run_id, EVALUATION.eval_id}, [RUN.run_id]


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    """A storage with a run and an evaluation, and its mirror."""
    return Path(mirrored_storage(tmp_path_factory.mktemp("mirrored") / "storage").root)


@pytest.fixture
def sent(template, tmp_path) -> tuple[Store, Tracker]:
    """A copy whose mirror has sent everything."""
    shutil.copytree(template, tmp_path / "storage")
    store = Store(tmp_path / "storage").open_for_writing(min_free_bytes=0)
    return store, synced(store, f"sqlite:///{tmp_path}/storage/mlflow.db")


def synced(store: Store, uri: str) -> Tracker:
    tracker = Tracker(uri)
    tracker.sync(store, IDS)
    return tracker


def read(store: Store, tracker: Tracker | None) -> Frames:
    return final_frames(store, tracker, IDS, CURVES_OF)


def assert_equal(found: Frames, expected: Frames) -> None:
    assert_frame_equal(found.nodes, expected.nodes, check_exact=True)
    assert_frame_equal(found.curves, expected.curves, check_exact=True)


def assert_mirror_equals(store: Store, uri: str) -> None:
    assert_frame_equal(load_runs(uri), load_store(store), check_exact=True)
    assert_frame_equal(load_curves(uri), load_store_curves(store), check_exact=True)


def unused_address() -> str:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}"


def test_mlflow_is_read_once_everything_was_sent(sent):
    store, tracker = sent
    stored = store_frames(store, IDS, CURVES_OF)
    assert stored.source == "the storage"
    assert len(stored.nodes) == 2
    assert len(stored.curves) == 2 * RUN.num_steps
    assert read(store, tracker).source == "MLflow"
    assert_equal(read(store, tracker), stored)


def test_the_storage_is_read_when_not_everything_was_sent(sent):
    store, tracker = sent
    assert read(store, None).source == "the storage"
    assert read(store, Tracker(tracker.tracking_uri)).source == "the storage"
    # The newest sending decides.
    with contextlib.closing(sqlite3.connect(f"{store.root}/mlflow.db")) as connection:
        connection.execute("ALTER TABLE tags RENAME TO other")
    with pytest.raises(TrackingUnavailable):
        tracker.sync(store, IDS)
    assert_equal(read(store, tracker), store_frames(store, IDS, CURVES_OF))
    assert read(store, tracker).source == "the storage"


def test_an_edit_in_mlflow_reaches_the_table(sent):
    store, tracker = sent
    execute(
        tracker.tracking_uri, "UPDATE latest_metrics SET value = 9.0 WHERE key = 'loss/virology'"
    )
    found = read(store, tracker)
    assert found.source == "MLflow"
    assert found.nodes["loss/virology"].tolist() == [9.0, 9.0]


def test_the_storage_is_read_when_the_database_goes_between_sending_and_reading(sent):
    store, tracker = sent
    Path(store.root, "mlflow.db").rename(Path(store.root, "away.db"))
    found = read(store, tracker)
    assert found.source.startswith("the storage: ")
    assert_equal(found, store_frames(store, IDS, CURVES_OF))
    assert not Path(store.root, "mlflow.db").exists()


def test_a_run_that_is_trained_again_replaces_what_mlflow_has(sent, monkeypatch):
    """On another machine its losses are others."""
    store, tracker = sent
    shutil.rmtree(f"{store.root}/runs/{RUN.run_id}")
    monkeypatch.setattr(training, "record", other_record)
    train(store.root, RUN)
    assert tracker.sync(store) == {"sent": 2, "unchanged": 0}
    assert_mirror_equals(store, tracker.tracking_uri)
    assert Tracker(tracker.tracking_uri).sync(store) == {"sent": 0, "unchanged": 2}


@pytest.mark.parametrize("order", [("one", "other"), ("other", "one")])
def test_merged_storages_have_one_time_of_what_both_have_made(tmp_path, order):
    """As after `cp -an one/. other/`: both attempts of a run stay, and MLflow knows one of them."""
    for number, name in enumerate(("one", "other"), start=1):
        store = Store(tmp_path / name).open_for_writing(min_free_bytes=0)
        train(store.root, RUN, step_s=lambda: 0.01 * number)  # noqa: B023
        evaluate(store)
        synced(store, f"sqlite:///{tmp_path}/{name}/mlflow.db")
        # Attempts are named by the second in which they start.
        time.sleep(1.1)
    source, target = (tmp_path / name for name in order)
    for file in filter(Path.is_file, source.rglob("*")):
        place = target / file.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            shutil.copy2(file, place)
    store, uri = Store(target).open_for_writing(min_free_bytes=0), f"sqlite:///{target}/mlflow.db"
    assert len(store.run(RUN.run_id).list_finished_attempts()) == 2
    synced(store, uri)
    assert_mirror_equals(store, uri)
    assert load_store(store)["elapsed_s"].equals(load_store(tmp_path / "one")["elapsed_s"])
    assert Tracker(uri).sync(store) == {"sent": 0, "unchanged": 2}


@pytest.mark.parametrize("elapsed_s", [0.75, None])
def test_times_are_the_storages_after_a_clock_that_was_ahead(tmp_path, elapsed_s):
    """None: the storage that replaces this one lacks the times."""
    store, uri = Store(tmp_path).open_for_writing(min_free_bytes=0), f"sqlite:///{tmp_path}/x.db"
    evaluate(store)
    folder, facts = store.evaluation(EVALUATION.eval_id).folder, {"host": "x", "ended": time.time()}
    folder.write_sealed("timing.json", facts | {"elapsed_s": 0.5, "ended": time.time() + 86_400})
    synced(store, uri)
    folder.remove("timing.json")
    if elapsed_s:
        folder.write_sealed("timing.json", facts | {"elapsed_s": elapsed_s})
    synced(store, uri)
    assert_mirror_equals(store, uri)
    assert Tracker(uri).sync(store) == {"sent": 0, "unchanged": 1}


def other_record(step: int) -> dict:
    plain = record(step)
    return {**plain, "metrics": {name: 2 * value for name, value in plain["metrics"].items()}}


@pytest.mark.filterwarnings("ignore:run .* is missing:RuntimeWarning")
def test_a_curve_that_the_storage_has_lost_stays_in_mlflow(sent):
    """Also when its run is sent again.

    A new mirror gets the curve when the storage has it again.
    """
    store, tracker = sent
    whole, segments = load_store_curves(store), Path(store.root, "runs", RUN.run_id)
    shutil.copytree(segments, f"{store.root}/whole")
    for segment in segments.glob("attempts/*/segments/*"):
        segment.unlink()
    store.run(RUN.run_id).add_tags({"study": "another"})
    assert tracker.sync(store, IDS) == {"sent": 1, "unchanged": 1}
    assert_frame_equal(read(store, tracker).curves, whole, check_exact=True)
    emptied = Tracker(f"sqlite:///{store.root}/new.db")
    emptied.sync(store, IDS)
    assert read(store, emptied).source == "the storage"
    shutil.copytree(f"{store.root}/whole/attempts", segments / "attempts", dirs_exist_ok=True)
    emptied.sync(store, IDS)
    assert_mirror_equals(store, emptied.tracking_uri)


@pytest.mark.filterwarnings("ignore:run .* is missing:RuntimeWarning")
def test_a_run_that_was_copied_without_its_attempts_is_read_from_the_storage(sent):
    store, _ = sent
    shutil.rmtree(f"{store.root}/runs/{RUN.run_id}/attempts")
    emptied = synced(store, f"sqlite:///{store.root}/new.db")
    assert read(store, emptied).source == "the storage"


def test_a_report_names_its_source_and_its_table_is_the_same(planted_study, tmp_path):  # noqa: F811
    planted, about, _ = planted_study
    shutil.copytree(planted.root, tmp_path / "storage")
    store, tables = Store(tmp_path / "storage").open_for_writing(min_free_bytes=0), []
    for uri, source in (
        (f"sqlite:///{store.root}/mlflow.db", "MLflow"),
        (unused_address(), "the storage"),
    ):
        tracker, said = Tracker(uri), []
        mirror = Mirror(tracker, store, said.append)
        mirror.start()
        mirror.finish(about.ids)
        results, lost = read_or_lost(about, store, tracker, about.ids)
        assert (results.source, list(lost), bool(said)) == (source, [], source != "MLflow")
        paths = LOSSES_PRESENTATION.write(about, store, results, {}, None)
        assert f"Read from {source}." in Path(paths["report.html"]).read_text()
        tables.append(Path(paths["table.csv"]).read_bytes())
    assert tables[0] == tables[1]
