"""Checks the objective of the MaxEnt search: hand-computed values, bounds, references from planted
frames."""

import itertools
import math
import pickle

import pytest

from gram_platform.analysis.maxent_objective import HIGHEST_RATIO, MaxEntObjective, references_of
from tests.refused import refused
from tests.study_frames import DOMAINS, NUM_STEPS, curves, evaluations, loss_at

OBJECTIVE = MaxEntObjective(penalty_weight=10.0, floor=0.95)


def scored(retained=(), **ratios) -> dict[str, float]:
    """The score of one seed."""
    return OBJECTIVE.score({domain: [ratio] for domain, ratio in ratios.items()}, retained)


def test_above_the_floor_the_objective_is_the_mean_forget_ratio():
    score = scored(("lisp",), core=0.96, lisp=0.95, cyber=0.3, virology=0.5)
    assert score == pytest.approx(
        {"objective": 0.4, "forget": 0.4, "penalty": 0.0, "core": 0.96, "retain": 0.95}
    )


def test_a_shortfall_of_core_and_of_retain_is_penalised_each():
    score = scored(("lisp", "cyber"), core=0.85, lisp=0.90, cyber=0.8, virology=0.2)
    assert score["retain"] == pytest.approx(0.85)
    assert score["penalty"] == pytest.approx(10 * 0.1 + 10 * 0.1)
    assert score["objective"] == pytest.approx(0.2 + 2.0)


def test_core_alone_has_no_retain():
    score = scored(core=0.90, lisp=0.1, cyber=0.3)
    assert "retain" not in score
    assert score["objective"] == pytest.approx(0.2 + 0.5)


def test_a_forgotten_domain_does_not_make_up_for_a_known_one():
    gone, further = (scored(core=1.0, cyber=1.0, lisp=ratio) for ratio in (0.0, -3.0))
    assert further == gone
    assert gone["objective"] == pytest.approx(0.5)


def test_the_worst_objective_is_above_every_reachable_one():
    ends = (-math.inf, -5.0, 0.0, 0.5, 1.0, HIGHEST_RATIO, 1e9, math.inf)
    for core, retain, forget in itertools.product(ends, repeat=3):
        score = scored(("lisp",), core=core, lisp=retain, cyber=forget)
        assert all(math.isfinite(value) for value in score.values())
        assert 0.0 <= score["objective"] < OBJECTIVE.worst
    assert OBJECTIVE.worst == pytest.approx(4.0 + 2 * 10 * 0.95 + 1.0)
    assert MaxEntObjective(penalty_weight=100.0).worst > OBJECTIVE.worst


def test_seeds_are_averaged_before_the_floor_applies():
    score = OBJECTIVE.score({"core": [0.91, 1.03], "cyber": [-7.0, 0.4]}, ())
    assert score == pytest.approx({"objective": 0.2, "forget": 0.2, "penalty": 0.0, "core": 0.97})


def test_what_is_no_number_is_refused():
    with refused("ratios[cyber]"):
        scored(core=1.0, cyber=math.nan)
    with refused("maxent_objective.penalty_weight"):
        MaxEntObjective(penalty_weight=0.0)
    with refused("maxent_objective.floor"):
        MaxEntObjective(floor=-0.1)


def test_planted_losses_give_planted_ratios_on_another_process_too():
    references = pickle.loads(pickle.dumps(references_of(evaluations(), curves(), "small")))
    assert tuple(references) == DOMAINS
    losses = {
        d: float(loss_at("small", d, NUM_STEPS * r))
        for d, r in zip(DOMAINS, (0.97, 0.9, 0.35), strict=True)
    }
    score = OBJECTIVE.score_losses(references, [losses], ("biology",))
    expected = {
        "objective": 0.35 + 10 * 0.05,
        "forget": 0.35,
        "penalty": 0.5,
        "core": 0.97,
        "retain": 0.9,
    }
    assert score == pytest.approx(expected, rel=1e-6)


def test_losses_far_above_the_curve_stay_finite():
    references = references_of(evaluations(), curves(), "tiny")
    for loss in (20.0, 1e3, 1e300):
        losses = {
            "core": float(loss_at("tiny", "core", NUM_STEPS)),
            "biology": loss,
            "chemistry": 9.0,
        }
        assert OBJECTIVE.score_losses(references, [losses], ())["forget"] == 0.0
    assert (
        OBJECTIVE.score_losses(references, [dict.fromkeys(DOMAINS, 1e-300)], ())["forget"]
        == HIGHEST_RATIO
    )
    with refused("ratios[core]"):
        OBJECTIVE.score_losses(references, [dict.fromkeys(DOMAINS, math.inf)], ())


def test_incomplete_baselines_are_named():
    known = evaluations()
    with refused("baselines", "huge"):
        references_of(known, curves(), "huge")
    unfinished = known[
        ~((known["size"] == "small") & (known["method"] == "baseline") & (known["seed"] == "1"))
    ]
    with refused("baselines", "small"):
        references_of(unfinished, curves(), "small")
    assert set(references_of(unfinished, curves(), "tiny")) == set(DOMAINS)
