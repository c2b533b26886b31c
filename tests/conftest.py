"""What every test may use: the shared data beside the checkout, a storage of its own, one Ray
cluster a session."""

import contextlib
import os
import shutil
import sqlite3
import sys
import tempfile
import threading
import uuid
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHARED_DATA = ROOT.parent / "shared" / "data"

# Set before torch and Ray are imported, and inherited by the processes that tests start: one thread
# a process, so that sums have one order; a token of this session, so that Ray neither reads nor
# writes the user's; nobody else's cluster; workers that a busy machine does not put behind
# everything else, as Ray does by default.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_AUTH_TOKEN"] = uuid.uuid4().hex
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ.update(RAY_worker_niceness="0")  # Ray spells it so
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_AUTH_TOKEN_PATH", "MLFLOW_TRACKING_URI"):
    os.environ.pop(name, None)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spreads the files that start Ray, those with the longest time-outs first, evenly among the
    others.

    They wait more than they compute: of two files at a time one should compute, and a long one must
    not come last.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    waiting = [
        path for path, own in files.items() if any(item.get_closest_marker("ray") for item in own)
    ]
    waiting.sort(key=lambda path: -max(_time_out(item) for item in files[path]))
    computing = [path for path in files if path not in waiting]
    share = len(computing) / max(len(waiting), 1)
    ordered = computing if not waiting else []
    for number, path in enumerate(waiting):
        ordered += [path, *computing[round(number * share) : round((number + 1) * share)]]
    items[:] = [item for path in ordered for item in files[path]]


def _time_out(item: pytest.Item) -> float:
    mark = item.get_closest_marker("timeout")
    return mark.args[0] if mark else 0.0


@pytest.fixture(scope="session", autouse=True)
def default_storage(tmp_path_factory):
    """`$GRAM_STORAGE` of the session, so that no test ever touches the user's own storage."""
    path = tmp_path_factory.mktemp("default-storage")
    os.environ["GRAM_STORAGE"] = str(path)
    os.environ["GRAM_CACHE"] = str(tmp_path_factory.mktemp("default-cache"))
    return path


@pytest.fixture(autouse=True)
def leases_end_with_their_test():
    """Ends the threads of leases that a test leaves held, as a kill would: they would write and
    warn in later tests."""
    earlier = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - earlier:
        renew = getattr(thread, "_target", None) if thread.name == "lease" else None
        if renew is not None:
            renew.__self__._released.set()


@pytest.fixture(autouse=True)
def mlflow_tables_are_made_once(default_storage):
    """The first empty SQLite database of a process gets its tables by MLflow's migrations, each
    other one a copy."""
    utils = sys.modules.get("mlflow.store.db.utils")
    migrate = getattr(utils, "_initialize_tables", None)
    if migrate is None or hasattr(migrate, "copies"):
        return
    template = default_storage / f"mlflow-tables-{os.getpid()}.db"

    def copy(source: sqlite3.Connection, target: sqlite3.Connection) -> None:
        with contextlib.closing(target), contextlib.closing(source):
            source.backup(target)

    def initialize(engine) -> None:
        if engine.dialect.name == "sqlite" and template.exists():
            return copy(sqlite3.connect(template), sqlite3.connect(engine.url.database))
        migrate(engine)
        if engine.dialect.name == "sqlite":
            unfinished = f"{template}-{os.getpid()}"
            copy(sqlite3.connect(engine.url.database), sqlite3.connect(unfinished))
            os.replace(unfinished, template)
        return None

    initialize.copies = True
    utils._initialize_tables = initialize


@pytest.fixture
def storage(tmp_path, monkeypatch) -> Path:
    """An empty storage folder for one test, also as `$GRAM_STORAGE`."""
    path = tmp_path / "storage"
    path.mkdir()
    monkeypatch.setenv("GRAM_STORAGE", str(path))
    return path


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder `shared/data` beside the checkout (real corpora and reference curves); not part of
    the repository."""
    if not SHARED_DATA.is_dir():
        pytest.skip("the folder shared/data is not beside this checkout")
    return SHARED_DATA


@pytest.fixture(scope="session")
def ray_cluster():
    """The `ray` module, connected to a cluster of two CPUs that the session's Ray tests share.

    The dashboard stays on: without it, nested trials that Ray Tune stops leak their placement
    groups.
    """
    import ray

    # It is short, since AF_UNIX paths hold 107 bytes.
    temp_dir = tempfile.mkdtemp(prefix="gram-ray-", dir="/tmp")
    ray.shutdown()  # of the Ray that a command in this process has started
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=True,
        dashboard_port=0,
        object_store_memory=200 * 2**20,
        _temp_dir=temp_dir,
        log_to_driver=False,
    )
    yield ray
    ray.shutdown()
    shutil.rmtree(temp_dir, ignore_errors=True)
