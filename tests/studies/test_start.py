"""`--start`: a study of a model that was trained elsewhere, to which modules are added."""

import dataclasses
import json
import math
import shutil

import pytest

from gram_platform.cli import main as gram
from gram_platform.config import View
from gram_platform.config.training import ARCHITECTURES
from gram_platform.methods import plan
from gram_platform.release.importing import import_checkpoint
from gram_platform.store import Store
from gram_platform.studies.library.stories import STUDY as STORIES
from tests.engine import conftest as cells
from tests.refused import refused
from tests.release.planted import complete, exported
from tests.studies.processes import SMALL, submit
from tests.submitted import parse, study_plan

packed_root, execution, setting = cells.packed_root, cells.execution, cells.setting

SMOKE = ("--preset", "smoke", "--seeds", "1")
CORE_METHODS = ("baseline", "filtering", "gram", "ft_lora", "maxent")


@pytest.fixture(params=ARCHITECTURES)
def imported(request, setting, execution, tmp_path):
    """(storage, import id): a dense model that left as a checkpoint and came back."""
    setting = dataclasses.replace(
        setting, size=dataclasses.replace(setting.size, architecture=request.param)
    )
    store = execution.store()
    exported(
        store, View(complete(store, plan("baseline", setting).runs["all"])), tmp_path / "checkpoint"
    )
    return store.root, import_checkpoint(tmp_path / "checkpoint", store).import_id


def graph_of(storage, import_id, *arguments):
    flags = parse(STORIES, [*SMOKE, "--storage", str(storage), "--start", import_id, *arguments])
    return study_plan(STORIES, flags)


def test_what_has_no_origin_begins_with_the_import(imported):
    storage, import_id = imported
    graph = graph_of(storage, import_id, "--methods", *CORE_METHODS)
    model = Store(storage).import_dir(import_id).config()["model"]
    begins = {n.config.start: n.config for n in graph.nodes if n.kind == "run" and not n.needs}
    assert set(begins) == {View.of(import_id)}
    assert {run.model.d_mlp for run in begins.values()} == {model["d_mlp"]}
    architectures = {node.config.model.architecture for node in graph.nodes if node.kind == "run"}
    assert architectures == {model.get("architecture", ARCHITECTURES[0])}
    assert all(
        node.needs
        for node in graph.nodes
        if node.config not in begins.values() and node.kind == "evaluation"
    )
    (size,) = {node.size for node in graph.nodes}
    assert size.startswith("imported-")
    assert graph.choice.sizes == (size,)
    tokenizer = Store(storage).import_dir(import_id).result()["tokenizer_sha256"]
    assert graph.corpora[0].tokenizer.source == tokenizer  # not one that is trained on the corpus


def test_what_cannot_begin_with_it(imported, tmp_path):
    storage, import_id = imported
    with refused("start"):
        graph_of(storage, import_id, "--methods", "demix")
    with refused("start", "abc"):
        graph_of(storage, "abc")
    with refused("import_id", "imported-000000000000"):
        graph_of(storage, "imported-000000000000")
    with refused("num_workers", "tiny=2"):
        graph_of(storage, import_id, "--num-workers", "tiny=2")
    bare = shutil.copytree(tmp_path / "checkpoint", tmp_path / "bare")
    (bare / "tokenizer.json").unlink()
    gram(["import", str(bare), "--storage", str(tmp_path / "other")])
    (bare_id,) = Store(tmp_path / "other").list_imports()
    with refused("start", bare_id):
        graph_of(tmp_path / "other", bare_id)


@pytest.mark.slow
def test_a_study_of_an_import(finished_copy, tmp_path):
    """The core of a finished GRAM run leaves and comes back; a study that begins with it has
    learned already."""
    store, out = Store(finished_copy), tmp_path / "checkpoint"
    earlier = store.list_runs()
    run_id = next(run_id for run_id in earlier if store.run(run_id).config()["model"]["modules"])
    gram(["export", run_id, "--modules", "", "--storage", str(finished_copy), "--out", str(out)])
    gram(["import", str(out), "--storage", str(finished_copy)])
    (import_id,) = store.list_imports()
    submit(finished_copy, (*SMALL, "--start", import_id))
    record = json.loads((finished_copy / "studies/scaling/study.json").read_bytes())
    assert record["params"]["start"] == import_id
    (size,) = record["sizes"]
    assert (finished_copy / "studies/scaling/table.csv").read_text().count(size) > 3
    new = [store.run(run_id) for run_id in store.list_runs() if run_id not in earlier]
    begun = [run for run in new if (run.config().get("start") or {}).get("run_id") == import_id]
    assert len(begun) == 2  # the baseline and GRAM
    for run in begun:
        loss = run.records()[0]["metrics"]["train/loss"]
        assert loss < math.log(1024) - 1.0  # that of random weights
