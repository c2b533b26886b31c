"""Nodes that wait: which tasks can start, in which order, and what an end, a failure or another
driver changes.
"""

import dataclasses

import pytest

from gram_platform.engine import life
from gram_platform.engine.execution import ALL_ON_ONE_RANK, Placement
from gram_platform.engine.life import NodeLifecycle, Progress, WaitingNodes
from gram_platform.methods.nodes import method_nodes
from gram_platform.store import Store
from tests.engine.conftest import on_ranks


@pytest.fixture
def nodes(setting):
    """GRAM on two seeds with three profiles, every forgotten domain attacked on the first seed."""
    setting = dataclasses.replace(
        setting, profiles=tuple((domain,) for domain in setting.auxiliary)
    )
    return [
        *method_nodes("gram", setting),
        *method_nodes("gram", dataclasses.replace(setting, seed=1)),
    ]


@pytest.fixture
def lifecycle(tmp_path):
    return NodeLifecycle(Store(tmp_path / "storage").open_for_writing())


def ready(waiting):
    return [task for _, tasks in waiting.tasks() for task in tasks]


def start(waiting):
    """Starts the first task."""
    task = ready(waiting)[0]
    waiting.start(task)
    return task


def waiting_of(nodes, lifecycle, placements=ALL_ON_ONE_RANK) -> WaitingNodes:
    waiting = WaitingNodes(Progress(), lifecycle, placements)
    waiting.add(nodes)
    return waiting


def test_a_node_waits_for_what_it_needs_and_profiles_of_one_run_are_one_task(nodes, lifecycle):
    waiting = waiting_of(nodes, lifecycle)
    runs = [node for node in nodes if not node.needs]
    assert ready(waiting) == [(run,) for run in runs]
    (first,) = start(waiting)
    waiting.finish(first)
    views = tuple(node for node in nodes if node.kind == "evaluation" and first.id in node.needs)
    others = [
        (node,) for node in nodes if node.is_run and node.needs <= {first.id} and node != first
    ]
    assert len(views) > 1
    # Evaluations first; then by the place among the nodes, not by the time.
    assert ready(waiting) == [views, *others]


def test_the_widest_runs_come_first_and_each_number_of_ranks_has_its_queue(nodes, lifecycle):
    placements = {node.id: on_ranks(4 if node.names["seed"] == "1" else 1) for node in nodes}
    waiting = waiting_of(nodes, lifecycle, placements)
    found = [(ranks, [task[0].names["seed"] for task in tasks]) for ranks, tasks in waiting.tasks()]
    assert found == [(4, ["1"]), (1, ["0"])]


@pytest.mark.parametrize(("adapter_hours", "comes_first"), [(0.6, "ft_lora"), (0.4, "gram")])
def test_of_equally_wide_runs_the_longest_path_to_an_end_comes_first(
    setting, lifecycle, adapter_hours, comes_first
):
    """Half an hour and adapters after it, against a run of one hour."""
    nodes = [
        *method_nodes("gram", dataclasses.replace(setting, seed=1)),
        *method_nodes("ft_lora", setting),
    ]
    hours = lambda node: (
        (adapter_hours if node.needs else {"gram": 1.0}.get(node.method, 0.5))
        if node.is_run
        else 0.0
    )
    waiting = waiting_of(
        nodes, lifecycle, {node.id: Placement(hours=hours(node)) for node in nodes}
    )
    (first,), (second,) = ready(waiting)
    assert (first.method == "gram") == (comes_first == "gram")
    waiting.start((second,))
    waiting.retry(second, 0.0)
    waiting.look_again()
    assert ready(waiting) == [(second,), (first,)], "what waits again is in front of all others"


def test_profiles_whose_common_task_failed_are_tasks_of_their_own(nodes, lifecycle):
    waiting = waiting_of(nodes, lifecycle)
    waiting.finish(start(waiting)[0])
    views = start(waiting)
    for view in views:
        waiting.retry(view, 0.0, alone=True)
    assert not waiting.look_again()
    assert sorted(ready(waiting)[: len(views)], key=lambda task: task[0].id) == sorted(
        [(view,) for view in views], key=lambda task: task[0].id
    )


def test_a_failure_blocks_what_needs_it_directly_or_not_and_nothing_else(setting, lifecycle):
    nodes = method_nodes("ft_lora", setting)  # base <- adapters <- evaluations
    base = next(node for node in nodes if node.is_run and not node.needs)
    progress = Progress()
    waiting = WaitingNodes(progress, lifecycle)
    waiting.add(nodes)
    task = start(waiting)
    assert task == (base,)
    waiting.fail(base, "why")
    assert progress.failed == {base.id: "why"}
    assert set(progress.blocked) == {node.id for node in nodes} - {base.id}
    for blocked, culprits in progress.blocked.items():
        node = next(node for node in nodes if node.id == blocked)
        assert set(culprits) == set(node.needs)
    assert not waiting


def test_what_has_ended_before_is_counted_and_what_it_was_waited_for_with_can_start(
    nodes, lifecycle, monkeypatch
):
    first, second = (node for node in nodes if not node.needs)
    ends = {first.id: "", second.id: "loss nan"}
    monkeypatch.setattr(
        lifecycle, "ends", lambda nodes: {node.id: ends.get(node.id) for node in nodes}
    )
    progress = Progress()
    waiting = WaitingNodes(progress, lifecycle)
    waiting.add(nodes)
    assert (progress.done, progress.reused, progress.failed) == (
        {first.id},
        1,
        {second.id: "loss nan"},
    )
    assert {node.id for task in ready(waiting) for node in task} == {
        n.id for n in nodes if n.needs == {first.id}
    }


def test_a_held_node_waits_and_ends_with_the_other_driver(nodes, lifecycle, monkeypatch):
    ends, now = {}, [100.0]
    monkeypatch.setattr(
        lifecycle, "ends", lambda nodes: {node.id: ends.get(node.id) for node in nodes}
    )
    monkeypatch.setattr(life.time, "monotonic", lambda: now[0])
    waiting = waiting_of(nodes, lifecycle)
    (node,) = start(waiting)
    waiting.retry(node, held=True)
    assert not waiting.look_again()
    assert (node,) not in ready(waiting)
    now[0] += life.HELD_RETRY_S
    assert not waiting.look_again()
    assert ready(waiting)[0] == (node,)  # in front of all others
    waiting.start((node,))
    waiting.retry(node, held=True)
    ends[node.id] = ""
    now[0] += life.HELD_RETRY_S
    assert waiting.look_again() == [node]
    assert ready(waiting)[0][0].needs == {node.id}
