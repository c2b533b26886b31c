"""Submitting is resuming: a finished study does nothing, an interrupted one ends as if nothing had happened."""

import json
import re
import resource

import pytest

from gram_platform import fit_learning_curve, load_store_curves
from gram_platform.config import run_from_plain
from gram_platform.config.flops import total_parameters
from gram_platform.config.routing import Plan
from gram_platform.methods.nodes import node_name
from gram_platform.store import Store
from gram_platform.studies.build import build_graph
from gram_platform.studies.flags import parse
from gram_platform.studies.library.scaling import STUDY
from tests.studies.mirrored import assert_mirrored_once
from tests.studies.processes import ROOT, attempts, results, submit, table, written

pytestmark = pytest.mark.ray

GRAM = "9adf14694b07"  # the run that docs/concepts.md traces


def test_the_mirror_has_every_node_once(finished_study):
    assert len(results(finished_study)) == 12
    assert_mirrored_once(finished_study)


def test_submitting_again_trains_nothing_and_writes_the_same_table(finished_copy):
    table, record = (finished_copy / "studies/scaling" / name for name in ("table.csv", "study.json"))
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
    """Processor time of all children that have ended: it does not grow with what else the machine does."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


# -------------------------------------------------------------------------- the traced run of docs/concepts.md


def test_the_traced_run_of_the_documents(finished_study):
    """The page's command is this study; its ids are in the storage, its losses, plan and row are those measured."""
    trace = (ROOT / "docs/concepts.md").read_text().split("## Glossary")[0]
    (command,) = re.findall(r"^    python experiments/scaling\.py (.*)$", trace, re.MULTILINE)
    nodes = build_graph(STUDY, parse(STUDY, command.split())).nodes
    store = Store(finished_study)
    assert {node.id for node in nodes} == {*store.list_runs(), *store.list_evaluations()}
    assert f"has {len(nodes)} nodes, {len(store.list_runs())} runs" in trace
    run = run_from_plain(store.run(GRAM).config())
    plan = Plan(run)
    assert f"{total_parameters(run.model):,} parameters" in trace
    assert f"{run.num_tokens:,} tokens" in trace
    assert re.search(rf"{run.num_steps} steps of {run.batch_size} .*\b{run.model.seq_len}\b", trace)
    assert [(plan[i].domain, "core_mlp" in plan[i].route.trained) for i in (0, 4)] == [
        ("attic", True),
        ("attic", False),
    ]
    assert (plan[7].domain, plan[7].route.active) == ("core", ())
    ids = {*re.findall(r"`([0-9a-f]{12})`", trace)}
    assert ids <= {node.id for node in nodes} | {run.data.data_id}
    rows = re.findall(r"\(`(\w+)`\)" + 5 * r" [|] ([0-9.]+)" + r" [|]$", trace, re.MULTILINE)
    assert len(rows) == 2
    for eval_id, *losses in rows:
        measured = store.evaluation(eval_id).result()["losses"]
        domains = ("core", "airport", "attic", "bakery", "beach")
        assert [float(loss) for loss in losses] == pytest.approx([measured[d] for d in domains], abs=0.02)
    (row,) = [line for line in table(finished_study).decode().splitlines() if ",core+airport," in line]
    (printed,) = re.findall(r"^    (gram,tiny,core\+airport,.*)$", trace, re.MULTILINE)
    assert [bool(cell) for cell in row.split(",")] == [bool(cell) for cell in printed.split(",")]
    assert numbers(printed) == pytest.approx(numbers(row), abs=0.03)  # another processor's last bits


def test_the_nodes_the_curve_and_the_words_of_the_trace(finished_study):
    """Each id of the page's table is the node that the table says; its steps and the glossary's numbers are true."""
    trace, glossary = (ROOT / "docs/concepts.md").read_text().split("## Glossary")
    (command,) = re.findall(r"^    python experiments/scaling\.py (.*)$", trace, re.MULTILINE)
    nodes = {node.id: node for node in build_graph(STUDY, parse(STUDY, command.split())).nodes}
    ids = re.findall(r"^\| [^(\n]*`([0-9a-f]{12})` \|", trace, re.MULTILINE)
    assert [node_name(nodes[node_id].kind, node_id, nodes[node_id].names) for node_id in ids] == [
        "baseline tiny all s0",
        "baseline tiny all s0, evaluated",
        "gram tiny all s0",
        "gram tiny core+airport s0, evaluated",
        "gram tiny core+airport s0, attacked for beach",
    ]
    baseline, of_baseline, _, view, _ = ids
    store, run = Store(finished_study), nodes[GRAM].config
    assert f"`{nodes[view].config.view.view_id}`" in glossary
    assert f"{sum(domain.num_draws for domain in run.data.domains)} draws in run `{GRAM}`" in glossary
    assert f"| {len(Plan(run))} micro-batches |" in glossary
    assert f"{run.batch_size} sequences, {run.micro_batches_per_step} micro-batches" in glossary
    points = load_store_curves(store, [baseline]).query("domain == 'core'")
    assert len(points) == 8
    assert "eight points" in " ".join(trace.split())
    curve = fit_learning_curve(points["step"], points["loss"])
    reached, own = (curve.step(store.evaluation(id_).result()["losses"]["core"]) for id_ in (view, of_baseline))
    said = r"core loss of [0-9.]+ after ([0-9.]+) steps and the baseline's own final loss after ([0-9.]+), "
    (printed,) = re.findall(said + r"so the ratio is ([0-9.]+)\.", " ".join(trace.split()))
    assert [float(number) for number in printed] == pytest.approx([reached, own, reached / own], rel=0.03)


def numbers(row: str) -> list[float]:
    return [float(cell) for cell in row.split(",")[3:] if cell]
