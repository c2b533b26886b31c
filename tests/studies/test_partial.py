"""The tables that are written while a study still trains, and while MLflow is away."""

from types import SimpleNamespace

from gram_platform.engine.life import Progress
from gram_platform.pages.report.measurements import MEASUREMENTS
from gram_platform.store import Store
from gram_platform.studies.run import StudyWork
from gram_platform.studies.submission import Submission
from gram_platform.tracking import TrackingUnavailable


def test_a_table_that_cannot_be_made_is_said_and_ends_nothing(monkeypatch):
    """The study's driver goes on: the error is in the table's way, not in that of what trains."""

    def read(*_):
        raise ZeroDivisionError("no fit")

    monkeypatch.setitem(MEASUREMENTS, "losses", SimpleNamespace(read=read))
    said = []
    work = object.__new__(StudyWork)
    work.say, work.flags = said.append, SimpleNamespace(max_hours=0.0, max_cost=0.0, through="")
    work.store, work.records = None, [SimpleNamespace(name="scaling", measurement="losses")]
    work.unwritten = {(0, "tiny"): {"first"}, (0, "small"): {"second"}}
    work._on_end(SimpleNamespace(id="first"), Progress([], done={"first"}))
    (line,) = said
    assert "ZeroDivisionError" in line
    assert "no fit" in line
    assert list(work.unwritten) == [(0, "small")]


def test_every_table_is_written_while_mlflow_is_away(monkeypatch, tmp_path):
    def away(study):
        raise TrackingUnavailable("no disk")

    def write(record, store, results, failed, tracker):
        return away(record.name) if tracker else {"table.csv": f"/{record.name}/table.csv"}

    results = SimpleNamespace(source="MLflow")
    losses = SimpleNamespace(read=lambda *_: results, lost=lambda *_: (), write=write, text=lambda *_: "a table")
    losses.brief_of = lambda *_: None
    monkeypatch.setitem(MEASUREMENTS, "losses", losses)
    said = []
    submission, work = object.__new__(Submission), object.__new__(StudyWork)
    submission.view = SimpleNamespace(say=said.append, show=lambda text, brief: said.append(text))
    submission.mirror = SimpleNamespace(is_away=False)
    submission.flags = SimpleNamespace(tracking_uri="http://127.0.0.1:9", notify="")
    submission.tracker = work.tracker = SimpleNamespace(view_urls=away, has_sent_all=False)
    work.submission, work.say, work.store, submission.progress = submission, said.append, Store(tmp_path), Progress([])
    about = {"measurement": "losses", "ids": (), "baseline_runs": ()}
    work.records = [SimpleNamespace(name=name, title=name, **about) for name in ("scaling", "stories")]
    assert work.write() == 0
    assert sum("/scaling/table.csv" in line or "/stories/table.csv" in line for line in said) == 2
    assert sum("links" in line and "no disk" in line for line in said) == 2
