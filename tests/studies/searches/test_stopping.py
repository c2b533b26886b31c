"""The rule of early stopping and its replay on planted curves, without Ray."""

import math

import pytest

from benchmarks.early_stopping import kept_cells, kept_share, rank_correlations, replay
from gram_platform.studies.searches.stopping import Board, Course, StoppingRule, centre_first

FRACTIONS = [0.25, 0.5, 0.75, 1.0]


def course(lr: float, batch: float, losses, seed: int = 0) -> Course:
    return Course(("tiny", seed), ("tiny", lr, batch), lr, batch, list(FRACTIONS[: len(losses)]), list(losses))


def reported(board: Board, name: str, whole: Course) -> list[str]:
    blank = Course(whole.group, whole.cell, whole.lr, whole.batch)
    return [board.report(name, blank, f, loss) for f, loss in zip(whole.fractions, whole.losses, strict=True)]


def test_a_noisier_peer_that_is_better_stops_a_trial_and_a_quieter_one_needs_a_wide_margin():
    board = Board(StoppingRule(0.5, margin=0.02, wide_margin=0.2))
    assert reported(board, "middle", course(2e-3, 8, [3.0, 2.0, 1.5, 1.0])) == [""] * 4
    quiet = reported(board, "quiet", course(1e-3, 16, [9.0, 2.1]))
    assert quiet[0] == ""  # before the start
    assert quiet[1] == "loss 2.1 at 50% of the schedule, where middle had 2"
    noisy = course(4e-3, 4, [9.0, 2.3])
    assert reported(board, "noisy", noisy) == ["", ""]
    assert board.report("noisy", noisy, 0.75, 1.9) != ""  # more than 20% above 1.5


def test_only_one_size_and_seed_is_compared_and_only_at_the_same_fraction():
    board = Board(StoppingRule(0.5, 0.0, 0.0))
    reported(board, "other seed", course(1e-3, 8, [1.0, 1.0], seed=1))
    reported(board, "young", course(2e-3, 8, [1.0]))
    assert reported(board, "own", course(1e-3, 16, [9.0, 9.0, 9.0])) == ["", "", ""]


def test_a_cell_that_was_stopped_at_one_seed_is_stopped_at_the_others():
    board = Board(StoppingRule(0.5, 0.0, 0.0))
    reported(board, "good", course(2e-3, 8, [1.0, 1.0]))
    assert reported(board, "bad s0", course(1e-3, 8, [2.0, 2.0]))[1] != ""
    assert reported(board, "bad s1", course(1e-3, 8, [0.5, 0.5], seed=1)) == ["", "bad was stopped at another seed"]


def test_a_run_that_continues_from_a_checkpoint_is_not_judged_twice_at_one_place():
    board = Board(StoppingRule(0.5, 0.0, 0.0))
    own = course(1e-3, 8, [1.0, 0.9])
    reported(board, "a", own)
    reported(board, "b", course(2e-3, 8, [0.5, 0.4]))
    assert board.report("a", own, 0.5, 0.9) == ""
    assert board.report("a", own, 0.75, 0.9) == ""  # b has not come so far


@pytest.mark.parametrize("field", ["start", "margin", "wide_margin"])
def test_bad_rules_are_refused_by_name(field):
    with pytest.raises(ValueError, match=f"^rule.{field}="):
        StoppingRule(**{field: -0.1})


GRID = {
    "best": course(2e-3, 8, [3.0, 2.0, 1.5, 1.0]),
    "near": course(2e-3, 4, [3.0, 2.05, 1.6, 1.05]),
    "slow": course(1e-3, 8, [4.0, 3.0, 2.5, 2.0]),
}


def test_a_replay_ends_trials_where_the_rule_would_have():
    one_by_one = replay(GRID, StoppingRule(0.5, 0.02, 0.2), num_slots=1)
    assert one_by_one == {"best": 1.0, "near": 1.0, "slow": 0.5}
    assert kept_share(one_by_one, dict.fromkeys(GRID, 2.0)) == pytest.approx(2.5 / 3)
    assert kept_cells(GRID, one_by_one) == {"best", "near"}
    assert replay(GRID, StoppingRule(0.5, 0.02, 0.2), num_slots=3) == one_by_one
    backwards = dict(reversed(GRID.items()))  # the first trial has nothing to be compared with
    assert replay(backwards, StoppingRule(0.5, 0.02, 0.2), num_slots=1)["slow"] == 1.0


def test_nothing_is_stopped_by_a_margin_that_nothing_exceeds():
    assert replay(GRID, StoppingRule(0.25, 9.0, 9.0), num_slots=2) == dict.fromkeys(GRID, 1.0)


def test_rank_correlation_is_by_group():
    curves = {**GRID, "alone": course(1e-3, 8, [1.0, 1.0, 1.0, 1.0], seed=1)}
    found = rank_correlations(curves, 0.5)
    assert found[("tiny", 0)] == pytest.approx(1.0)
    assert math.isnan(found[("tiny", 1)])


def test_the_middle_of_a_grid_comes_first():
    cells = [(f"{lr}x{batch}", lr, batch) for lr in (1.0, 2.0, 4.0) for batch in (2.0, 4.0, 8.0)]
    order = centre_first(cells)
    assert order[0] == "2.0x4.0"
    assert set(order[-4:]) == {"1.0x2.0", "1.0x8.0", "4.0x2.0", "4.0x8.0"}
