"""The table that is written while a study still trains."""

from types import SimpleNamespace

from gram_platform.engine.life import Progress
from gram_platform.studies.measurements import MEASUREMENTS
from gram_platform.studies.run import Driver


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
