"""A result names the weights that it was made from: it is made again when they are others."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from gram_platform.engine import node as node_module
from gram_platform.engine.evaluation import execute_evaluation
from gram_platform.engine.execution import Execution
from gram_platform.engine.life import NodeLifecycle, find_done_ids
from gram_platform.engine.node import RunExecution, execute_run
from gram_platform.engine.ranks import train_rank
from gram_platform.methods.nodes import Node, method_nodes, unique
from gram_platform.methods.setting import Elicitation, Options
from gram_platform.store import Store
from gram_platform.store.directories import SOURCE_HASHES
from gram_platform.store.files import seal
from tests.engine.conftest import elsewhere, result_files
from tests.engine.test_node import Stopped, stop_after
from tests.executed import run_in_process
from tests.ranks import run_ranks
from tests.tiny import weights_of


@pytest.fixture
def nodes(setting) -> list[Node]:
    """A GRAM run and a baseline, their evaluations, and attacks that start from each."""
    attack = Elicitation(num_sequences=4, num_steps=3, patience=0, batch_size=4, compared_only=True)
    setting = dataclasses.replace(setting, options=Options(elicitation=attack))
    return unique(n for method in ("gram", "baseline") for n in method_nodes(method, setting))


@pytest.fixture
def gram(nodes) -> Node:
    return nodes[0]


@pytest.fixture
def made_of_it(nodes, gram) -> list[Node]:
    """What is made from the GRAM run's weights: evaluations and attacks."""
    found = [node for node in nodes if gram.id in node.needs]
    assert {node.kind for node in found} == {"run", "evaluation"}
    return found


def path_of(execution: Execution, node: Node) -> Path:
    return Path(Store(execution.storage).node(node.kind, node.id).folder.file("result.json"))


def lose(execution: Execution, node: Node) -> None:
    shutil.rmtree(path_of(execution, node).parent)


def train_otherwise(execution: Execution, node: Node) -> str:
    """Trains a complete run again to other bits, as another kind of processor does.

    Returns the hash of its weights.
    """
    directory = execution.store().run(node.id)
    weights, result = weights_of(directory), dict(directory.result())
    lose(execution, node)
    directory.ensure_config(node.config)
    for name in ("run_id", "weights_sha256", "sha256"):
        del result[name]
    changed = {name: weight + 1e-3 for name, weight in weights.items()}
    with directory.start_attempt("another machine") as attempt:
        return attempt.complete(result, changed)["weights_sha256"]


def sources(execution: Execution, node: Node) -> dict | None:
    return json.loads(path_of(execution, node).read_bytes()).get(SOURCE_HASHES)


def test_what_other_weights_made_is_made_again_in_the_same_submission(
    nodes, gram, made_of_it, execution
):
    run_in_process(nodes, execution)
    first = result_files(execution, nodes)
    before = {gram.id: execution.store().run(gram.id).result()["weights_sha256"]}
    assert all(sources(execution, node) == before for node in made_of_it)
    assert SOURCE_HASHES not in json.loads(first[gram.id]), "it has a random start"
    after = {gram.id: train_otherwise(execution, gram)}
    assert find_done_ids(nodes, Store(execution.storage)) == set(first) - {n.id for n in made_of_it}
    progress = run_in_process(nodes, execution)
    assert progress.done == set(first)
    assert progress.reused == len(first) - len(made_of_it)
    again = result_files(execution, nodes)
    for node in made_of_it:
        assert sources(execution, node) == after
        aside = path_of(execution, node).with_name("result.json.corrupt-1")
        assert aside.read_bytes() == first[node.id], "nothing computed is lost"
    others = set(first) - {gram.id, *(node.id for node in made_of_it)}
    assert {i: again[i] for i in others} == {i: first[i] for i in others}
    assert run_in_process(nodes, execution).reused == len(nodes)


def test_equal_weights_make_nothing_again(nodes, gram, made_of_it, execution):
    run_in_process(nodes, execution)
    first = result_files(execution, nodes)
    times = {node.id: path_of(execution, node).stat().st_mtime_ns for node in made_of_it}
    lose(execution, gram)
    assert run_in_process(nodes, execution).done == set(first)
    assert result_files(execution, nodes) == first
    assert times == {n.id: path_of(execution, n).stat().st_mtime_ns for n in made_of_it}


def test_a_result_of_an_unknown_source_stays(nodes, gram, made_of_it, execution):
    run_in_process(nodes, execution)
    for node in made_of_it:
        result = json.loads(path_of(execution, node).read_bytes())
        fields = {k: v for k, v in result.items() if k not in ("sha256", SOURCE_HASHES)}
        if node.is_run:
            (finished,) = path_of(execution, node).parent.glob("attempts/*/complete.json")
            finish = json.loads(finished.read_bytes())
            del finish["sha256"]
            finished.write_bytes(seal(finish | {"result": fields}))
        path_of(execution, node).write_bytes(seal(fields))
    first = result_files(execution, made_of_it)
    train_otherwise(execution, gram)
    assert run_in_process(nodes, execution).reused == len(nodes)
    assert result_files(execution, made_of_it) == first


def test_an_old_result_stays_where_no_new_one_can_be_made(nodes, gram, made_of_it, execution):
    run_in_process(nodes, execution)
    first = result_files(execution, made_of_it)
    train_otherwise(execution, gram)
    execution.store().run(gram.id).drop_weights()
    progress = run_in_process(nodes, execution)
    assert set(progress.failed) == {node.id for node in made_of_it}
    assert all(gram.id in message for message in progress.failed.values())
    assert result_files(execution, made_of_it) == first


def test_a_search_and_a_waiting_driver_do_not_take_it_for_done(gram, made_of_it, execution):
    run_in_process([gram, *made_of_it], execution)
    lifecycle = NodeLifecycle(execution.store())
    assert all(lifecycle.result(node) for node in made_of_it)
    train_otherwise(execution, gram)
    assert not any(lifecycle.result(node) for node in made_of_it)
    for node in made_of_it:
        assert lifecycle.ends([node]) == {node.id: None}


def test_a_slower_writer_of_old_weights_changes_nothing(gram, made_of_it, execution, monkeypatch):
    """It has read the weights before they were replaced, and ends after the others."""
    run_in_process([gram], execution)
    evaluation = next(node for node in made_of_it if not node.is_run)
    slow = elsewhere(execution, Path(execution.storage).parent, "slow")
    shutil.copytree(f"{execution.storage}/runs", f"{slow.storage}/runs")
    old = execute_evaluation(evaluation.config, {}, slow)
    train_otherwise(execution, gram)
    new = execute_evaluation(evaluation.config, {}, execution)
    store = execution.store()
    directory = store.evaluation(evaluation.id)
    store.set_outdated_aside(directory)
    with pytest.warns(RuntimeWarning, match=evaluation.id):
        late = directory.complete({k: v for k, v in old.items() if k not in ("sha256", "eval_id")})
    assert late == directory.result() == new


@pytest.fixture
def attack(made_of_it) -> Node:
    return next(node for node in made_of_it if node.is_run)


def test_a_checkpoint_of_another_start_is_not_continued(
    gram, attack, execution, tmp_path, monkeypatch
):
    execute_run(gram.config, {}, execution)
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        with pytest.raises(Stopped):
            execute_run(attack.config, {}, execution)
    train_otherwise(execution, gram)
    fresh = elsewhere(execution, tmp_path, "fresh")
    shutil.copytree(f"{execution.storage}/runs/{gram.id}", f"{fresh.storage}/runs/{gram.id}")
    expected = execute_run(attack.config, {}, fresh)
    with pytest.warns(RuntimeWarning, match="set aside"):
        assert execute_run(attack.config, {}, execution) == expected


def test_a_checkpoint_of_the_same_start_is_continued(gram, attack, execution, monkeypatch):
    execute_run(gram.config, {}, execution)
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        with pytest.raises(Stopped):
            execute_run(attack.config, {}, execution)
    steps = []
    resume = RunExecution._resume
    monkeypatch.setattr(RunExecution, "_resume", lambda one: steps.append(resume(one)) or steps[-1])
    assert execute_run(attack.config, {}, execution)[SOURCE_HASHES].keys() == {gram.id}
    assert steps[0] > 0


def test_a_kill_before_the_new_result_costs_nothing(gram, attack, execution, monkeypatch):
    run_in_process([gram, attack], execution)
    after = {gram.id: train_otherwise(execution, gram)}

    def killed(*_):
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(node_module, "new_learner", killed)
        with pytest.raises(Stopped), pytest.warns(RuntimeWarning, match="outdated"):
            execute_run(attack.config, {}, execution)
    assert Store(execution.storage).run(attack.id).result() is None
    progress = run_in_process([gram, attack], execution)
    assert progress.done == {gram.id, attack.id}
    assert sources(execution, attack) == after


def train(rank, num_ranks, run, execution):
    assert train_rank(run, execution) is None


def test_ranks_make_a_run_of_another_start_again(gram, attack, execution):
    run_in_process([gram, attack], execution)
    after = {gram.id: train_otherwise(execution, gram)}
    run_ranks(2, train, attack.config, execution)
    assert sources(execution, attack) == after
