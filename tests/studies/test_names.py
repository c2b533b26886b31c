"""A node has one name, with its variant or its trial's parameters, wherever people meet it; no
study has it twice."""

import dataclasses
import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from gram_platform.cli import main
from gram_platform.config import RoutingConfig
from gram_platform.engine.executor import LocalExecutor
from gram_platform.engine.life import with_stored_tags
from gram_platform.engine.slots import task_name
from gram_platform.methods.nodes import Node, method_nodes, node_name, tags_to_add
from gram_platform.store import Store
from gram_platform.studies.library import accumulation, scaling
from gram_platform.studies.live import LiveView
from gram_platform.tracking import Tracker, default_tracking_uri
from tests.engine import conftest as cells
from tests.executed import events_of
from tests.record.ids import graphs
from tests.submitted import execute

packed_root, execution, setting = cells.packed_root, cells.execution, cells.setting
FLAGS = (
    "--preset",
    "smoke",
    "--sizes",
    "tiny",
    "--seeds",
    "1",
    "--methods",
    "gram",
    "--in-process",
    "--device",
    "cpu",
)
TAGS = {
    "method": "gram",
    "size": "tiny",
    "profile": "core",
    "seed": "0",
    "retained": "",
    "kind": "run",
}


@pytest.mark.parametrize(
    ("kind", "more", "name"),
    [
        ("run", {}, "gram tiny core s0"),
        ("evaluation", {}, "gram tiny core s0, evaluated"),
        ("evaluation", {"measure": "samples"}, "gram tiny core s0, samples"),
        (
            "run",
            {"variant": "uniform", "elicited": "lisp"},
            "gram tiny core s0, uniform, attacked for lisp",
        ),
        (
            "evaluation",
            {"variant": "0.5", "p_cr": "0.25"},
            "p_cr 0.25, tiny gram core s0, 0.5, evaluated",
        ),
        ("run", {"profile": "all", "lr": "0.01"}, "lr 0.01, tiny gram s0"),
    ],
)
def test_a_name_has_the_variant_and_the_parameters_of_the_trial(kind, more, name):
    assert node_name(kind, "0123456789ab", TAGS | more) == name


def test_a_node_without_tags_is_named_by_its_id():
    assert node_name("evaluation", "0123456789ab", {}) == "0123456789ab, evaluated"


def repeated(nodes: tuple[Node, ...]) -> dict[str, int]:
    """The names of more than one node of a study, which takes each node under the first of its
    variants."""
    ids = {node.id: node.name for node in reversed(nodes)}
    return {name: number for name, number in Counter(ids.values()).items() if number > 1}


def test_a_smoke_study_names_no_two_nodes_alike():
    found = {
        heading: repeated(graph.entries)
        for heading, graph in graphs(lambda text: text.endswith(" smoke"))
    }
    assert len(found) > 15
    assert not any(found.values()), found


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_study_names_two_nodes_alike():
    found = {heading: repeated(graph.entries) for heading, graph in graphs()}
    assert not any(found.values()), found


@pytest.fixture
def nodes(setting) -> list[Node]:
    """A run of each of two variants with an evaluation, and the same for one trial of a search."""
    found = []
    for kind in ("uniform", "heterogeneous"):
        routing = RoutingConfig(0.5, 0.3, kind)
        found += method_nodes("gram", dataclasses.replace(setting, routing=routing, variant=kind))[
            :2
        ]
    size = dataclasses.replace(setting.size, peak_lr=0.004)
    trial = method_nodes("baseline", dataclasses.replace(setting, size=size))
    return [*found, *(node.with_tags(lr="0.004", batch=str(size.batch_size)) for node in trial)]


def test_terminal_status_mlflow_and_ray_call_a_node_the_same(setting, nodes, execution, capsys):
    names, store = {node.id: node.name for node in nodes}, execution.store()
    runs = {node.id: node.name for node in nodes if node.is_run}
    assert len(set(names.values())) == len(nodes)
    for node in (node for node in nodes if node.is_run):
        directory = store.run(node.id)
        directory.ensure_config(node.config)
        directory.add_tags(node.names)
        directory.start_attempt("a test").fail("it failed")
    view = LiveView(nodes, store, "s", in_process=True)
    for event in events_of(LocalExecutor(execution), nodes):
        view.see(event)
    printed = capsys.readouterr().out
    assert all(f" {name} trained in " in printed for name in runs.values())
    main(["status", "--storage", store.root, "--json"])
    assert {run["id"]: run["name"] for run in json.loads(capsys.readouterr().out)["runs"]} == runs
    tracker = Tracker(default_tracking_uri(store.root))
    tracker.sync(store)
    assert {node_id: run.info.run_name for (_, node_id), run in tracker.runs().items()} == names
    assert {task_name((node,)) for node in nodes} == set(names.values())


def test_a_node_of_several_studies_has_the_last_submission_s_tags_on_top_of_the_others(
    setting, nodes, execution
):
    """So the driver of a study without variants says the variant that the storage and MLflow
    say, and a search adds no parameters to the name."""
    run = next(node for node in nodes if node.names.get("variant") == "heterogeneous")
    store, plain = (
        execution.store(),
        Node.of(run.config, {k: v for k, v in run.names.items() if k != "variant"}),
    )
    assert with_stored_tags([plain], store)[0].name == plain.name == "gram tiny all s0"
    store.run(run.id).add_tags(run.names)
    for node in (plain, plain.with_tags(variant="all"), plain.with_tags(size="small")):
        (named,) = with_stored_tags([node], store)
        store.run(run.id).add_tags(node.names)
        assert named.name == node_name("run", run.id, store.run(run.id).tags())
    assert named.name == "gram small all s0, all"
    searched = plain.with_tags(lr="0.01")
    store.run(run.id).add_tags(tags_to_add(store.run(run.id).tags(), searched.names))
    assert with_stored_tags([searched], store)[0].names == store.run(run.id).tags()
    assert node_name("run", run.id, store.run(run.id).tags()) == "gram tiny all s0, all"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_study_that_shares_a_run_with_another_says_its_name(tmp_path):
    flags = (*FLAGS, "--storage", str(tmp_path))
    assert execute(accumulation.STUDY, flags) == 0
    store = Store(str(tmp_path))
    shared = [
        run
        for run in map(store.run, store.list_runs())
        if run.tags().get("variant") == "heterogeneous"
    ]
    for run in shared:
        shutil.rmtree(run.attempts.path)
        (Path(run.folder.path) / "result.json").unlink()
    assert execute(scaling.STUDY, flags) == 0
    mlflow = Tracker(default_tracking_uri(store.root)).runs()
    for (kind, node_id), run in mlflow.items():
        assert run.info.run_name == node_name(kind, node_id, store.node(kind, node_id).tags())
