"""Profiles of one run are evaluated together, with the results that each has alone."""

import dataclasses

import pytest

from gram_platform.config import CORE, Evaluation, View
from gram_platform.engine.evaluation import common_work, execute_evaluation, execute_profiles
from gram_platform.engine.execution import ALL_ON_ONE_RANK, Resources
from gram_platform.engine.node import execute_run
from gram_platform.engine.ray_executor import RayExecutor
from gram_platform.methods import plan
from gram_platform.methods.nodes import method_nodes
from gram_platform.model.transformer import Attention
from gram_platform.store import Store
from tests.executed import run_graph


@pytest.fixture
def execution(execution):
    """Without checkpoints: nothing interrupts these runs."""
    return dataclasses.replace(execution, checkpoint_every_s=1e9)


def evaluations(setting, run, precision) -> list[Evaluation]:
    """Core, each module, one at half its weight, and all."""
    first, *_ = setting.auxiliary
    weights = [
        {},
        {first: 0.5},
        *({domain: 1.0} for domain in setting.auxiliary),
        dict.fromkeys(setting.auxiliary, 1.0),
    ]
    views = [View.of(run.run_id, each) for each in weights]
    return [
        Evaluation(view, setting.data_id, (CORE, *setting.auxiliary), 3, precision=precision)
        for view in views
    ]


def stored(execution, evaluation) -> bytes:
    return Store(execution.storage).evaluation(evaluation.eval_id).folder.read("result.json")


@pytest.mark.parametrize("method", ["gram", "gram_lora"])
def test_together_as_alone(setting, execution, tmp_path, method):
    run = plan(method, setting).runs["all"]
    execute_run(run, {}, execution)
    for precision in ("float32", "bfloat16"):
        asked = evaluations(setting, run, precision)
        assert len({common_work(evaluation) for evaluation in asked}) == 1
        results = [execute_evaluation(evaluation, {}, execution) for evaluation in asked]
        assert len({tuple(result["losses"].values()) for result in results}) > 1
        alone = [stored(execution, evaluation) for evaluation in asked]
        store = Store(execution.storage).open_for_writing()
        for evaluation in asked[1:]:  # the first is there already
            store.evaluation(evaluation.eval_id).folder.remove("result.json")
        assert (
            execute_profiles(asked, [{"profile": str(i)} for i in range(len(asked))], execution)
            == results
        )
        assert [stored(execution, evaluation) for evaluation in asked] == alone


def test_the_first_layers_attention_is_computed_once(setting, execution, monkeypatch):
    run = plan("gram", setting).runs["all"]
    execute_run(run, {}, execution)
    asked, plain, calls = evaluations(setting, run, "float32"), Attention.forward, []
    monkeypatch.setattr(
        Attention, "forward", lambda self, *inputs: (calls.append(1), plain(self, *inputs))[1]
    )
    execute_profiles(asked, [{}] * len(asked), execution)
    num_layers, num_domains = run.model.num_layers, 1 + len(setting.auxiliary)
    assert len(calls) == num_domains * (1 + len(asked) * (num_layers - 1))


def test_what_has_no_common_work(setting):
    run = plan("gram", setting).runs["all"]
    first = evaluations(setting, run, "float32")[0]
    others = [
        dataclasses.replace(first, precision="bfloat16"),
        dataclasses.replace(first, num_sequences=2),
        dataclasses.replace(first, split="train"),
        dataclasses.replace(first, view=View("0" * 12)),
    ]
    assert len({common_work(evaluation) for evaluation in (first, *others)}) == 5
    foreign = View.of(run.run_id, {"a": 1.0}, sources=(("a", "0" * 12),))
    assert common_work(dataclasses.replace(first, view=foreign)) is None
    assert (
        common_work(
            dataclasses.replace(first, view=View.of(run.run_id, {"a": 1.0}, rule="by_domain"))
        )
        is None
    )


@pytest.mark.ray
def test_one_that_fails_fails_alone(setting, execution, ray_cluster, monkeypatch):
    """A profile that asks for a module which the run lacks: the common task fails, each is tried by
    itself.
    """
    setting = dataclasses.replace(
        setting, profiles=tuple((domain,) for domain in setting.auxiliary)
    )
    nodes = method_nodes("gram", setting)
    views = [node for node in nodes if node.kind == "evaluation"]
    wrong = dataclasses.replace(views[0].config, view=View.of(nodes[0].id, {"nope": 1.0}))
    submitted, note, ended = [], RayExecutor._note, []
    monkeypatch.setattr(
        RayExecutor,
        "_note",
        lambda self, ref, task: (submitted.append(len(task)), note(self, ref, task))[1],
    )
    asked = [*nodes, dataclasses.replace(views[0], config=wrong)]
    progress = run_graph(
        asked, execution, Resources(), ALL_ON_ONE_RANK, lambda _, node: ended.append(node)
    )
    assert progress.done == {node.id for node in nodes}
    assert list(progress.failed) == [wrong.eval_id]
    assert "view.weights" in progress.failed[wrong.eval_id]
    assert len([node for node in ended if node is not None]) == len(asked)
    assert submitted == [1, len(views) + 1, *[1] * (len(views) + 1)]
