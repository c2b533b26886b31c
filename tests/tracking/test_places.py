"""MLflow's database names absolute places: those of a copied, moved or edited one are never written
to."""

import contextlib
import os
import shutil
import sqlite3
import tempfile
from pathlib import Path

import pytest
from mlflow import MlflowClient
from pandas.testing import assert_frame_equal

from gram_platform.config import View
from gram_platform.store import Store
from gram_platform.tracking import Tracker, TrackingUnavailable, default_tracking_uri
from gram_platform.tracking.connection import Connection, first_line
from gram_platform.tracking.database import database_path, database_uri
from gram_platform.tracking.frame import load_runs, load_store
from gram_platform.tracking.views import StudyLog
from tests.store.training import act_as, in_process, require_success, train
from tests.tracking.planted import RUN

PLACES = (
    "SELECT artifact_location FROM experiments WHERE name = 'gram' UNION ALL SELECT artifact_uri"
    " FROM runs"
)


def log(storage: Path, table: bytes = b"a,b\n1,2\n") -> str:
    """Logs a study; returns the id of its run in MLflow."""
    import plotly.graph_objects as go

    files = {"table.csv": table, "report.html": b"<p>x"}
    figures = {"curves": go.Figure(), "of ../../home/o'brien": go.Figure()}
    tracker = Tracker(default_tracking_uri(str(storage)))
    return tracker.log_study(StudyLog("scaling", files, figures, {"preset": "smoke"}))


def table_of(storage: Path) -> str | None:
    return Tracker(default_tracking_uri(str(storage))).study_file("scaling", "table.csv")


def execute(storage: Path, statement: str, *values: str) -> list[tuple]:
    with contextlib.closing(sqlite3.connect(storage / "mlflow.db")) as connection, connection:
        return connection.execute(statement, values).fetchall()


def places(storage: Path) -> set[str]:
    """The folders that the database names for the artifacts of its runs, without what follows
    `mlartifacts`."""
    return {place.partition("/mlartifacts")[0] for (place,) in execute(storage, PLACES)}


def content(folder: Path) -> dict[Path, bytes]:
    return {
        path.relative_to(folder): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A storage with a run, a study in MLflow, and a registered export."""
    storage = tmp_path_factory.mktemp("places") / "template"
    train(str(storage), RUN)
    tracker = Tracker(default_tracking_uri(str(storage)))
    tracker.sync(Store(storage))
    log(storage)
    export = storage.parent / "export"
    (export / "part").mkdir(parents=True)
    (export / "record.json").write_text("{}")
    (export / "part" / "weights").write_bytes(b"w")
    view = View.of(RUN.run_id, {})
    tracker.register_export(
        Store(storage).run(RUN.run_id), view, "model", export / "record.json", {}
    )
    return storage


@pytest.fixture
def original(template, tmp_path):
    """A storage of this test, whose database names its own places."""
    shutil.copytree(template, tmp_path / "original")
    log(tmp_path / "original")
    return tmp_path / "original"


@pytest.fixture
def home(tmp_path):
    """A folder that is not the storage's, with a file of the name of an artifact."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "table.csv").write_text("mine")
    return folder


def test_a_copy_writes_into_itself(original, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(original, copy)
    before = content(original)
    run_id = log(copy, b"of the copy")
    assert content(original) == before
    assert (table_of(copy), table_of(original)) == ("of the copy", "a,b\n1,2\n")
    assert places(copy) == {copy.as_uri()}
    client = MlflowClient(default_tracking_uri(str(copy)))
    assert Path(client.download_artifacts(run_id, "table.csv")).read_text() == "of the copy"
    figures = {Path(found.path).name for found in client.list_artifacts(run_id, "figures")}
    assert len(figures) == 2
    assert {"curves.html"} < figures
    (version,) = client.search_model_versions("name = 'model'")
    exported = Path(
        client.get_model_version_download_uri("model", version.version).removeprefix("file://")
    )
    assert copy in exported.parents
    assert (exported / "part" / "weights").read_bytes() == b"w"


def test_a_moved_storage_does_not_come_back_at_its_old_place(original, tmp_path):
    moved = original.rename(tmp_path / "moved")
    store, uri = Store(moved).open_for_writing(), default_tracking_uri(str(moved))
    assert table_of(moved) == "a,b\n1,2\n"
    store.run(RUN.run_id).add_tags({"study": "second"})
    assert Tracker(uri).sync(store) == {"sent": 1, "unchanged": 0}
    assert places(moved) == {moved.as_uri()}
    log(moved)
    assert not original.exists()


def test_reading_changes_no_place_and_reads_beside_the_database(original, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(original, copy)
    (table,) = copy.glob("mlartifacts/*/artifacts/table.csv")
    table.write_text("of the copy")
    before = content(copy)
    assert table_of(copy) == "of the copy"
    assert_frame_equal(load_runs(default_tracking_uri(str(copy))), load_store(str(copy)))
    assert content(copy) == before
    table.unlink()
    assert table_of(copy) is None


def test_a_link_to_the_storage_is_the_same_storage(original, tmp_path):
    (tmp_path / "link").symlink_to(original)
    log(tmp_path / "link", b"through the link")
    assert places(original) == {original.as_uri()}
    assert table_of(original) == table_of(tmp_path / "link") == "through the link"


def test_copies_at_once_keep_apart(original, tmp_path):
    copies = [tmp_path / "one", tmp_path / "two"]
    for copy in copies:
        shutil.copytree(original, copy)
    processes = [in_process(log, copy, copy.name.encode()) for copy in copies for _ in range(2)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert [table_of(copy) for copy in (*copies, original)] == ["one", "two", "a,b\n1,2\n"]


SET_RUN = "UPDATE runs SET artifact_uri = ?"
SET_EXPERIMENT = "UPDATE experiments SET artifact_location = ?"
OTHER_PLACES = (
    "file://{}",
    "{}",
    "s3://bucket/mlartifacts",
    "file://{}/mlartifacts/a",
    "",
    "file://{}#/mlartifacts",
)


@pytest.mark.parametrize("statement", [SET_RUN, SET_EXPERIMENT])
def test_a_place_that_no_storage_had_is_refused(original, home, statement):
    uri = default_tracking_uri(str(original))
    for place in OTHER_PLACES:
        execute(original, statement, place.format(home))
        with pytest.raises(TrackingUnavailable):
            Tracker(uri).prepare_database()
    with pytest.raises(TrackingUnavailable):
        log(original)
    assert content(home) == {Path("table.csv"): b"mine"}
    assert load_runs(uri).equals(load_store(str(original)))


def test_a_database_that_changes_its_mind_names_no_place(original, home):
    """Triggers set the place again after it was looked at."""
    for event in ("INSERT ON tags", "UPDATE ON tags", "UPDATE OF artifact_uri ON runs"):
        name = event.replace(" ", "_")
        execute(
            original,
            f"CREATE TRIGGER {name} AFTER {event} BEGIN UPDATE runs SET artifact_uri ="
            f" 'file://{home}'; END",
        )
    execute(original, SET_RUN, f"file://{home}")
    execute(
        original,
        "UPDATE runs SET artifact_uri = 'file:///x/mlartifacts/' || run_uuid || '/artifacts'",
    )
    with contextlib.suppress(TrackingUnavailable):
        log(original)
    assert content(home) == {Path("table.csv"): b"mine"}


def test_an_artifact_that_is_a_link_is_replaced_and_not_followed(original, home):
    (table,) = original.glob("mlartifacts/*/artifacts/table.csv")
    table.unlink()
    table.symlink_to(home / "table.csv")
    log(original, b"new")
    assert content(home) == {Path("table.csv"): b"mine"}
    assert table.read_bytes() == b"new"


@pytest.mark.parametrize("name", ["mlflow.db", "mlflow.db-wal"])
def test_a_database_that_is_a_link_is_refused(original, home, name):
    if (original / name).exists():
        (original / name).rename(home / "other")
    (original / name).symlink_to(home / "other")
    before = content(home)
    with pytest.raises(TrackingUnavailable):
        log(original)
    assert content(home) == before


@pytest.mark.parametrize("name", ["a#b?c%41 d;e", 'o\'brien & "co"+é'])
def test_a_storage_whose_name_means_something_in_a_uri(original, name):
    storage = original.rename(original.with_name(name))
    uri = default_tracking_uri(str(storage))
    assert database_path(uri) == storage / "mlflow.db"
    log(storage, b"named")
    assert table_of(storage) == "named"
    assert load_runs(uri).equals(load_store(str(storage)))
    assert [path.name for path in storage.parent.iterdir()] == [name]
    assert places(storage) == {storage.as_uri()}


def test_a_plain_path_has_a_plain_uri(tmp_path):
    assert database_uri("/home/me/.gram/mlflow.db") == "sqlite:////home/me/.gram/mlflow.db"
    assert database_path("sqlite:////a/b.db") == Path("/a/b.db")
    assert database_path("http://host:5000") is database_path("postgresql://host/mlflow") is None


@pytest.mark.parametrize(
    "place", ["mlartifacts", "mlartifacts/{}", "mlartifacts/{}/artifacts/figures"]
)
def test_a_folder_of_artifacts_that_is_a_link_is_not_followed(original, home, place):
    run_id = log(original)
    folder = original / place.format(run_id)
    shutil.rmtree(folder)
    folder.symlink_to(home)
    with pytest.raises(TrackingUnavailable):
        log(original)
    assert content(home) == {Path("table.csv"): b"mine"}
    assert table_of(original) in (None, "a,b\n1,2\n")


def test_the_database_follows_the_umask(tmp_path):
    def make() -> None:
        os.umask(0o007)
        log(tmp_path)

    require_success(make)
    assert (tmp_path / "mlflow.db").stat().st_mode & 0o777 == 0o660


def test_a_database_that_may_not_be_written_is_named():
    with tempfile.TemporaryDirectory(prefix="gram-rights-", dir="/tmp") as folder:
        Path(folder).chmod(0o777)
        database = Path(folder, "mlflow.db")
        uri = database_uri(database)
        log(Path(folder))
        database.chmod(0o444)

        def write() -> None:
            act_as(2002)
            with pytest.raises(TrackingUnavailable) as raised, Connection(uri).writing():
                pass
            assert f"{database}: no permission to write" in str(raised.value)

        require_success(write)


def test_a_reason_is_not_cut_before_it_begins():
    remark = "(raised as a result of Query-invoked autoflush; consider something)"
    reason = "(sqlite3.OperationalError) attempt to write a readonly database"
    assert first_line(ValueError(f"{remark}\n{reason}\n[SQL: INSERT]")) == reason
