"""The tables that are written while a study still trains, and while MLflow is away."""

from types import SimpleNamespace

from gram_platform.engine.life import Progress
from gram_platform.pages.report.measurements import MEASUREMENTS
from gram_platform.store import Store
from gram_platform.studies.run import Driver
from gram_platform.tracking import TrackingUnavailable


def test_a_table_that_cannot_be_made_is_said_and_ends_nothing(monkeypatch):
    """The study's driver goes on: the error is in the table's way, not in that of what trains."""

    def read(*_):
        raise ZeroDivisionError("a fit of nothing")

    monkeypatch.setitem(MEASUREMENTS, "losses", SimpleNamespace(read=read))
    said, sent = [], []
    driver = object.__new__(Driver)
    driver.view = SimpleNamespace(update=lambda progress, ended: None, say=said.append, nodes={})
    driver.mirror = SimpleNamespace(watch=lambda nodes: None, ended=sent.append)
    driver.flags = SimpleNamespace(max_hours=0.0, max_cost=0.0, through="")
    driver.store, driver.records = None, [SimpleNamespace(name="scaling", measurement="losses")]
    driver.unwritten = {(0, "tiny"): {"first"}, (0, "small"): {"second"}}
    node = SimpleNamespace(id="first")
    driver._on_change(Progress([], done={"first"}), node)
    assert said == ["no table so far: ZeroDivisionError: a fit of nothing"]
    assert sent == [node]
    assert list(driver.unwritten) == [(0, "small")]


def test_every_table_is_written_while_mlflow_is_away(monkeypatch, tmp_path):
    def away(study):
        raise TrackingUnavailable("its disk is full")

    def write(record, store, results, failed, tracker):
        return away(record.name) if tracker else {"table.csv": f"/{record.name}/table.csv"}

    results = SimpleNamespace(source="MLflow")
    losses = SimpleNamespace(read=lambda *_: results, lost=lambda *_: (), write=write, text=lambda *_: "a table")
    monkeypatch.setitem(MEASUREMENTS, "losses", losses)
    said = []
    driver = object.__new__(Driver)
    driver.view, driver.mirror = SimpleNamespace(say=said.append), SimpleNamespace(is_away=False)
    driver.tracker = SimpleNamespace(view_urls=away, sent=None)
    driver.store, driver.progress = Store(tmp_path), Progress([])
    about = {"measurement": "losses", "ids": (), "baseline_runs": ()}
    driver.records = [SimpleNamespace(name=name, title=name, **about) for name in ("scaling", "stories")]
    assert driver._write_tables() == 0
    assert sum("/scaling/table.csv" in line or "/stories/table.csv" in line for line in said) == 2
    assert said.count("no links to the study's pages (its disk is full)") == 2
