"""Measures reading a thousand runs from MLflow: their frame and their learning curves."""

import time

import sqlalchemy as sql

from benchmarks.many_runs import DOMAINS, run_config, write_run
from benchmarks.results import Aim, BenchmarkResult, BenchmarkSettings
from gram_platform.store import Store
from gram_platform.tracking import Tracker, default_tracking_uri
from gram_platform.tracking.entry import LOSS, RUN_ID
from gram_platform.tracking.frame import load_curves, load_runs

# Runs, and points per domain.
NUM_RUNS, NUM_POINTS = 1000, 100
# The rest are copies within the database: mirroring a thousand takes minutes.
NUM_MIRRORED = 10
NUM_TIMES = 3
TABLES = ("runs", "tags", "params", "metrics", "latest_metrics")


def measure(settings: BenchmarkSettings, num_runs: int = NUM_RUNS) -> list[BenchmarkResult]:
    """Reads three times, each followed by the reference query."""
    uri = settings.tracking_uri or default_tracking_uri(settings.storage)
    fill(settings.storage, uri, num_runs)
    timed, reference = [], []
    for _ in range(NUM_TIMES):
        started = time.perf_counter()
        num_rows, num_curve_points = len(load_runs(uri)), len(load_curves(uri))
        timed.append(time.perf_counter() - started)
        assert (num_rows, num_curve_points) == (num_runs, num_runs * NUM_POINTS * len(DOMAINS))
        started = time.perf_counter()
        assert len(_raw_points(uri)) == num_curve_points
        reference.append(time.perf_counter() - started)
    frame = BenchmarkResult(
        name="frame",
        unit="s",
        values=tuple(timed),
        references=tuple(reference),
        against="one SQL query for the points of the same curves",
        aim=Aim("at most", 5.0, "value"),
    )
    return [frame]


def fill(storage: str, tracking_uri: str, num_runs: int) -> None:
    """Mirrors a few complete runs, then copies them within the database up to `num_runs` (a
    multiple of ten)."""
    store = Store(storage).open_for_writing()
    for seed in range(NUM_MIRRORED):
        write_run(store, run_config(seed, NUM_POINTS), ends="complete")
    Tracker(tracking_uri).sync(store)
    engine = sql.create_engine(tracking_uri)
    tables = sql.MetaData()
    tables.reflect(engine, only=TABLES)
    originals = [run.info.run_id for run in Tracker(tracking_uri).runs().values()]
    with engine.begin() as connection:
        for number in range(1, num_runs // NUM_MIRRORED):
            for name in TABLES:
                connection.execute(_copy(tables.tables[name], originals, number))
    engine.dispose()


def _copy(table: sql.Table, originals: list[str], number: int) -> sql.Insert:
    """Inserts the rows of these MLflow runs again under new ids."""
    columns = {column.name: column for column in table.columns}
    columns["run_uuid"] = _renamed(table.c.run_uuid, 28, number)
    if table.name == "tags":
        columns["value"] = sql.case(
            (table.c.key == RUN_ID, _renamed(table.c.value, 8, number)), else_=table.c.value
        )
    rows = sql.select(*columns.values()).where(table.c.run_uuid.in_(originals))
    return table.insert().from_select(list(columns), rows)


def _renamed(column: sql.Column, num_kept: int, number: int) -> sql.ColumnElement[str]:
    """Builds a new id from the first characters of the old one and the copy's number."""
    # No hash has an x.
    return sql.func.substr(column, 1, num_kept, type_=sql.String).concat(f"x{number:03d}")


def _raw_points(tracking_uri: str) -> list:
    query = f"SELECT run_uuid, step, key, value FROM metrics WHERE key LIKE '{LOSS}%'"
    engine = sql.create_engine(tracking_uri)
    with engine.connect() as connection:
        rows = connection.execute(sql.text(query)).all()
    engine.dispose()
    return rows
