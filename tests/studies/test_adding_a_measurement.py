"""A new measurement is a class of nodes and one line of a table: it is run, read, written, and in
the site's index."""

import dataclasses
from typing import ClassVar

import pandas as pd
import pytest

from gram_platform.config import CORE, TokenLosses
from gram_platform.engine.evaluation import execute_evaluation
from gram_platform.engine.execution import Execution
from gram_platform.engine.node import execute_run
from gram_platform.methods.measurements import Losses, instead_of_losses
from gram_platform.methods.nodes import method_nodes, require_closed
from gram_platform.pages.report.measurements import MEASUREMENTS, Presentation
from gram_platform.pages.report.page import Page, Section
from gram_platform.pages.results.record import load_record
from gram_platform.pages.results.results import nodes_frame
from gram_platform.store import Store
from gram_platform.store.data import provide_corpus
from gram_platform.studies.library.stories import STORIES_SMOKE, STUDY
from gram_platform.studies.record import record_of
from gram_platform.tracking.frame import store_frames
from tests.submitted import study_plan


class WorstToken(Losses):
    """The highest loss of a token of core."""

    name: ClassVar[str] = "worst_token"

    def nodes(self, method, setting):
        def evaluation_of(node):
            return TokenLosses(node.view, setting.data_id, (CORE,), 2, setting.size.precision)

        return instead_of_losses(method_nodes(method, setting), self.name, evaluation_of)


@dataclasses.dataclass(frozen=True)
class WorstResults:
    table: pd.DataFrame
    runs: pd.DataFrame
    source: str = "the storage"


def read_worst(record, store, frames=None):
    views = [entry for entry in record.entries if entry["kind"] == "evaluation"]
    rows = [
        (
            e["tags"]["method"],
            e["tags"]["profile"],
            float(store.evaluation(e["id"]).tensors()[CORE].max()),
        )
        for e in views
        if store.evaluation(e["id"]).result()
    ]
    table = pd.DataFrame(rows, columns=["method", "profile", "loss"])
    return (
        WorstResults(table, nodes_frame(record, store_frames(store, record.ids, ()).nodes))
        if rows
        else None
    )


def worst_page(record, results, tracker):
    return Page(record.title, "Losses in nats.", [Section("Worst tokens", table=results.table)])


SHOWN = Presentation(
    read=read_worst,
    text=lambda record, results: f"the highest loss is {results.table['loss'].max():.3f}",
    table=lambda record, results: results.table,
    page=worst_page,
)


@pytest.fixture
def study():
    size = dataclasses.replace(STORIES_SMOKE.sizes["tiny"], core_tokens=64 * 160)
    preset = dataclasses.replace(
        STORIES_SMOKE, sizes={"tiny": size}, num_seeds=1, measurement=WorstToken()
    )
    return dataclasses.replace(STUDY, name="worst", presets={"smoke": preset})


def test_a_measurement_is_a_class_and_one_line(study, tmp_path, monkeypatch):
    monkeypatch.setitem(MEASUREMENTS, WorstToken.name, SHOWN)
    place = str(tmp_path / "storage")
    graph = study_plan(study, ["--preset", "smoke", "--methods", "gram", "--storage", place])
    store = Store(place).open_for_writing()
    require_closed(graph.nodes)
    provide_corpus(graph.corpora[0], store)
    store.study_dir("worst").write("study.json", record_of(graph).to_json())
    record = load_record(store, "worst")
    measurement = MEASUREMENTS[record.measurement]
    assert measurement.read(record, store) is None
    for node in graph.nodes:
        execute = execute_run if node.is_run else execute_evaluation
        execute(node.config, node.names, Execution(place))
    results = measurement.read(record, store)
    assert set(results.table["method"]) == {"baseline", "gram"}
    assert (results.table["loss"] > 0).all()
    assert f" {results.table['loss'].max():.3f}" in measurement.text(record, results)
    assert set(measurement.write(record, store, results, {}, None)) == {
        "table.csv",
        "report.html",
        "study.json",
    }
    page = (tmp_path / "storage" / "studies" / "worst" / "report.html").read_text()
    assert "Losses in nats." in page
