"""How long a study takes on a number of slots."""

from dataclasses import replace

import pytest

from gram_platform.config import Evaluation, View
from gram_platform.config.identity import InvalidField
from gram_platform.methods.budgets import dense_run
from gram_platform.methods.nodes import BASELINE, Node
from gram_platform.planner import MACHINES, training_hours
from gram_platform.planner.ranks import (
    BY_DEVICE,
    MOST_HOURS,
    Ranks,
    StudyWork,
    exchange_hours,
    fewest_ranks,
    predict_makespan,
)
from gram_platform.studies.library.scaling import STUDY
from tests.planner.scene import DOMAINS, run_of
from tests.refused import refused


def runs(number: int) -> list[Node]:
    return [Node.of(run_of("dense", seed=seed), {"kind": "run"}) for seed in range(number)]


def started_from(run: Node) -> Node:
    return Node.of(replace(run.config, start=View.of(run.id)), {"kind": "run"})


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


H100 = MACHINES["h100"]
ANY = Ranks(BY_DEVICE, machine=H100)


def paper_runs(size: str, number: int, method: str = BASELINE) -> list[Node]:
    """Dense runs of the paper's size, one for each seed."""
    preset = STUDY.presets["paper"]
    settings = (
        preset.setting(preset.sizes[size], seed, "data", DOMAINS, ((),)) for seed in range(number)
    )
    tags = {"method": method, "size": size, "kind": "run"}
    return [
        Node.of(dense_run(setting, DOMAINS, preset.num_eval_points, "heterogeneous"), tags)
        for setting in settings
    ]


def test_ranks_are_those_with_which_a_study_ends_first():
    """Twelve runs of 800M on eight GPUs end in three waves of pairs, not in two of single GPUs.
    On twelve GPUs one wave of single ones is best, and on four three."""
    work = StudyWork(paper_runs("800M", 12), ANY)
    chosen = {slots: work.choose(slots).number_of("800M") for slots in (4, 8, 12)}
    assert chosen == {4: 1, 8: 2, 12: 1}
    of_one = training_hours(work.nodes[0].config, H100)
    single = work.forecast(8, Ranks(1, machine=H100))
    assert single.hours == pytest.approx(2 * of_one, rel=1e-4)
    assert single.idle == pytest.approx(1 - 12 / 16, abs=1e-4)
    pairs = work.forecast(8, work.choose(8))
    assert 1.5 * of_one < pairs.hours < 1.55 * of_one
    assert pairs.idle == pytest.approx(0)
    # As many as it can use: one wave, each run on as many GPUs as are worth their hours.
    unlimited = work.choose(0)
    cost = exchange_hours(work.nodes[0].config, unlimited.number_of("800M"), H100)
    assert unlimited.number_of("800M") == 8
    assert cost < (MOST_HOURS - 1) * of_one


def test_numbers_that_are_given_stay_and_so_do_the_ranks_of_runs_that_have_begun():
    nodes = paper_runs("800M", 3) + paper_runs("50M", 3)
    ranks = replace(ANY, of_size=(("50M", 3),))
    chosen = StudyWork(nodes, ranks).choose(8, {nodes[0].id: 4, nodes[3].id: 1, "another": 2})
    assert chosen.of(nodes[0].config, "800M") == 4
    assert chosen.of(nodes[3].config, "50M") == 3
    assert StudyWork(nodes, chosen).choose(8) == chosen


def test_ranks_that_need_more_memory_than_a_gpu_has_are_refused_with_those_that_fit():
    nodes = paper_runs("5B", 1)
    fitting = fewest_ranks(nodes[0].config, H100)
    with pytest.raises(InvalidField, match=f"num_workers=1: expected {fitting} for 5B"):
        StudyWork(nodes, Ranks(1, machine=H100)).choose(8)
    with pytest.raises(InvalidField, match=f"hardware='1xh100': expected at least {fitting} GPUs"):
        StudyWork(nodes, ANY).choose(1)
    with pytest.raises(InvalidField, match=r"num_workers=1: .* of 18.6 GiB"):
        StudyWork(paper_runs("800M", 1), Ranks(1, machine=H100), share=0.25).choose(8)


def test_runs_that_share_gpus_hold_their_shares():
    """Sixteen runs on quarters of two GPUs: two waves, each four times as long."""
    work = StudyWork(paper_runs("50M", 16), ANY, share=0.25)
    assert work.choose(2).number_of("50M") == 1
    of_one = training_hours(work.nodes[0].config, H100)
    assert work.forecast(2).hours == pytest.approx(2 * 4 * of_one, rel=1e-2)
    assert work.forecast(2).idle == pytest.approx(0)
