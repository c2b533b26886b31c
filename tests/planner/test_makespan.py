"""How long a study takes on a number of slots."""

import dataclasses

from gram_platform.config import Evaluation, View
from gram_platform.methods.nodes import Node
from gram_platform.planner.makespan import predict_makespan
from tests.planner.scene import run_of
from tests.refused import refused


def runs(number: int) -> list[Node]:
    return [Node.of(run_of("dense", seed=seed), {"kind": "run"}) for seed in range(number)]


def started_from(run: Node) -> Node:
    return Node.of(dataclasses.replace(run.config, start=View.of(run.id)), {"kind": "run"})


def evaluation_of(run: Node) -> Node:
    config = run.config
    domains = tuple(budget.name for budget in config.data.domains)
    return Node.of(
        Evaluation(View.of(run.id), config.data.data_id, domains, 4), {"kind": "evaluation"}
    )


def test_twelve_runs_of_sixty_hours_on_eight_gpus():
    """One GPU a run: two waves. Two GPUs and half the hours a run: three waves of four."""
    nodes = runs(12)
    assert predict_makespan(nodes, {node.id: 60.0 for node in nodes}, 8) == 120.0
    pairs = {node.id: 2 for node in nodes}
    assert predict_makespan(nodes, {node.id: 30.0 for node in nodes}, 8, pairs) == 90.0


def test_the_longest_path_starts_first():
    """In the listed order it would start at hour 2, and what needs it would end at hour 6."""
    *short, first = runs(5)
    second = started_from(first)
    hours = {node.id: 1.0 for node in short} | {first.id: 1.0, second.id: 3.0}
    assert predict_makespan([*short, first, second], hours, 2) == 4.0
    assert predict_makespan([*short, first, second], hours, 1) == 8.0
    assert predict_makespan([*short, first, second], hours, 8) == 4.0


def test_an_evaluation_starts_before_runs_and_after_its_own():
    """On one slot: the run, its evaluation, the other run. On two, the other run ends last."""
    one, other = runs(2)
    evaluation = evaluation_of(one)
    hours = {one.id: 2.0, other.id: 3.0, evaluation.id: 0.5}
    assert predict_makespan([evaluation, one, other], hours, 1) == 5.5
    assert predict_makespan([evaluation, one, other], hours, 2) == 3.0
    assert predict_makespan([evaluation], hours, 1) == 0.5
    assert predict_makespan([], {}, 1) == 0.0


def test_narrow_runs_start_where_a_wide_one_does_not_fit():
    """On four slots: three ranks for two hours and then again, next to three runs of an hour."""
    wide, wide_too, *narrow = runs(5)
    hours = {wide.id: 2.0, wide_too.id: 2.0} | {node.id: 1.0 for node in narrow}
    ranks = {wide.id: 3, wide_too.id: 3}
    assert predict_makespan([wide, wide_too, *narrow], hours, 4, ranks) == 4.0
    with refused("num_slots", 2):
        predict_makespan([wide, *narrow], hours, 2, ranks)
