"""Submitting is resuming: a finished study does nothing, an interrupted one ends as if nothing had
happened."""

import json
import re
import resource

import pytest

from gram_platform.store import Store
from gram_platform.studies.library.scaling import STUDY
from tests.studies.mirrored import assert_mirrored_once
from tests.studies.processes import ROOT, attempts, submit, table, written
from tests.submitted import study_plan

pytestmark = pytest.mark.ray


def test_submitting_again_trains_nothing_and_writes_the_same_table(finished_copy):
    table, record = (
        finished_copy / "studies/scaling" / name for name in ("table.csv", "study.json")
    )
    submissions = json.loads(record.read_text())["submissions"]
    before = (written(finished_copy), attempts(finished_copy), table.read_bytes())
    started_s = children_s()
    output = submit(finished_copy)
    used_s = children_s() - started_s
    assert (written(finished_copy), attempts(finished_copy), table.read_bytes()) == before
    assert re.search(r"12 of 12 .*: 0 now", output)
    assert json.loads(record.read_text())["submissions"] == submissions
    assert used_s < 30
    uri = f"sqlite:///{finished_copy}/mlflow.db"
    assert_mirrored_once(finished_copy, uri)


def children_s() -> float:
    """Processor time of all children that have ended: it does not grow with what else the machine
    does."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


# --------------------------------------------------------------- the traced run of docs/concepts.md


def test_the_traced_run_of_the_documents(finished_study):
    """The page's command is this study; its ids are in the storage, its losses and its row are
    those measured."""
    trace = (ROOT / "docs/concepts.md").read_text().split("## Glossary")[0]
    (command,) = re.findall(r"^    python experiments/scaling\.py (.*)$", trace, re.MULTILINE)
    nodes = study_plan(STUDY, command.split()).nodes
    store = Store(finished_study)
    assert {node.id for node in nodes} == {*store.list_runs(), *store.list_evaluations()}
    ids = {*re.findall(r"`([0-9a-f]{12})`", trace)}
    assert ids <= {node.id for node in nodes} | {nodes[0].config.data.data_id}
    rows = re.findall(r"\(`(\w+)`\)" + 5 * r" [|] ([0-9.]+)" + r" [|]$", trace, re.MULTILINE)
    assert rows
    for eval_id, *losses in rows:
        measured = store.evaluation(eval_id).result()["losses"]
        domains = ("core", "airport", "attic", "bakery", "beach")
        assert [float(loss) for loss in losses] == pytest.approx(
            [measured[d] for d in domains], abs=0.02
        )
    (row,) = [
        line for line in table(finished_study).decode().splitlines() if ",core+airport," in line
    ]
    (printed,) = re.findall(r"^    (gram,tiny,core\+airport,.*)$", trace, re.MULTILINE)
    assert [bool(cell) for cell in row.split(",")] == [bool(cell) for cell in printed.split(",")]
    # Another processor's last bits.
    assert numbers(printed) == pytest.approx(numbers(row), abs=0.03)


def numbers(row: str) -> list[float]:
    """Reads the cells of a row that are numbers, bounds such as `> 6.0` too."""
    cells = (cell.removeprefix("> ") for cell in row.split(",")[3:])
    return [float(cell) for cell in cells if re.fullmatch(r"[\d.]+", cell)]
