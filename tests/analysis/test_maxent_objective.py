"""Checks the objective of the MaxEnt search: hand-computed values, bounds, references from planted frames."""

import itertools
import math
import pickle

import numpy as np
import pytest

from gram_platform.analysis.maxent_objective import (
    HIGHEST_RATIO,
    MaxEntObjective,
    mean_ratios,
    ratios_of,
    references_of,
)
from gram_platform.analysis.tables import analyse
from tests.refused import refused
from tests.study_frames import DOMAINS, NUM_STEPS, SIZES, curves, evaluations, loss_at

OBJECTIVE = MaxEntObjective(penalty_weight=10.0, floor=0.95)


def test_above_the_floor_the_objective_is_the_mean_forget_ratio():
    score = OBJECTIVE.score({"core": 0.96, "lisp": 0.95, "cyber": 0.3, "virology": 0.5}, ("lisp",))
    assert score == pytest.approx({"objective": 0.4, "forget": 0.4, "penalty": 0.0, "core": 0.96, "retain": 0.95})


def test_a_shortfall_of_core_and_of_retain_is_penalised_each():
    score = OBJECTIVE.score({"core": 0.85, "lisp": 0.90, "cyber": 0.8, "virology": 0.2}, ("lisp", "cyber"))
    assert score["retain"] == pytest.approx(0.85)
    assert score["penalty"] == pytest.approx(10 * 0.1 + 10 * 0.1)
    assert score["objective"] == pytest.approx(0.2 + 2.0)


def test_core_alone_has_no_retain():
    score = OBJECTIVE.score({"core": 0.90, "lisp": 0.1, "cyber": 0.3}, ())
    assert "retain" not in score
    assert score["objective"] == pytest.approx(0.2 + 0.5)


def test_a_forgotten_domain_does_not_make_up_for_a_known_one():
    gone, further = ({"core": 1.0, "cyber": 1.0, "lisp": ratio} for ratio in (0.0, -3.0))
    assert OBJECTIVE.score(further, ()) == OBJECTIVE.score(gone, ())
    assert OBJECTIVE.score(gone, ())["objective"] == pytest.approx(0.5)


def test_the_worst_objective_is_above_every_reachable_one():
    ends = (-math.inf, -5.0, 0.0, 0.5, 1.0, HIGHEST_RATIO, 1e9, math.inf)
    for core, retain, forget in itertools.product(ends, repeat=3):
        score = OBJECTIVE.score({"core": core, "lisp": retain, "cyber": forget}, ("lisp",))
        assert all(math.isfinite(value) for value in score.values())
        assert 0.0 <= score["objective"] < OBJECTIVE.worst
    assert OBJECTIVE.worst == pytest.approx(4.0 + 2 * 10 * 0.95 + 1.0)
    assert MaxEntObjective(penalty_weight=100.0).worst > OBJECTIVE.worst


def test_seeds_are_averaged_before_the_floor_applies():
    below, above = {"core": 0.91, "cyber": -7.0}, {"core": 1.03, "cyber": 0.4}
    score = OBJECTIVE.score(mean_ratios([below, above]), ())
    assert score == pytest.approx({"objective": 0.2, "forget": 0.2, "penalty": 0.0, "core": 0.97})
    for seeds in ([], [{"core": 1.0}, {"core": 1.0, "cyber": 1.0}]):
        with refused("ratios"):
            mean_ratios(seeds)


@pytest.mark.parametrize(
    ("ratios", "retained", "field"),
    [
        ({"lisp": 1.0, "cyber": 1.0}, ("lisp",), "ratios"),
        ({"core": 1.0, "cyber": 1.0}, ("lisp",), "ratios"),
        ({"core": 1.0, "lisp": 1.0}, ("lisp",), "ratios"),
        ({"core": 1.0, "cyber": math.nan}, (), "ratios[cyber]"),
    ],
)
def test_what_cannot_be_scored_is_refused(ratios, retained, field):
    with refused(field):
        OBJECTIVE.score(ratios, retained)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"penalty_weight": 0.0}, "penalty_weight"),
        ({"penalty_weight": math.nan}, "penalty_weight"),
        ({"floor": -0.1}, "floor"),
    ],
)
def test_bad_parameters(fields, name):
    with refused(f"maxent_objective.{name}"):
        MaxEntObjective(**fields)


# ---------------------------------------------------------------------------------------------------- references


def test_planted_losses_give_planted_ratios_on_another_process_too():
    references = pickle.loads(pickle.dumps(references_of(evaluations(), curves(), "small")))
    assert tuple(references) == DOMAINS
    losses = {d: float(loss_at("small", d, NUM_STEPS * r)) for d, r in zip(DOMAINS, (0.97, 0.9, 0.35), strict=True)}
    score = OBJECTIVE.score(ratios_of(references, losses), ("biology",))
    expected = {"objective": 0.35 + 10 * 0.05, "forget": 0.35, "penalty": 0.5, "core": 0.97, "retain": 0.9}
    assert score == pytest.approx(expected, rel=1e-6)


def test_the_ratios_are_those_of_the_studies_table():
    references = references_of(evaluations(), curves(), "tiny")
    own = evaluations().query("method == 'gram' and size == 'tiny' and profile == 'core+biology' and seed == '2'")
    ratios = ratios_of(references, {d: own[f"loss/{d}"].item() for d in DOMAINS})
    table = analyse(evaluations(), curves()).ratios
    same = table.query("method == 'gram' and size == 'tiny' and profile == 'core+biology' and seed == '2'")
    assert ratios == dict(zip(same["domain"], same["compute_ratio"], strict=True))


def test_losses_far_above_the_curve_stay_finite():
    references = references_of(evaluations(), curves(), "tiny")
    for loss in (20.0, 1e3, 1e300):
        ratios = ratios_of(
            references, {"core": float(loss_at("tiny", "core", NUM_STEPS)), "biology": loss, "chemistry": 9.0}
        )
        assert ratios["biology"] < 0.0
        assert OBJECTIVE.score(ratios, ())["forget"] == 0.0
    tiny_loss = ratios_of(references, dict.fromkeys(DOMAINS, 1e-300))
    assert OBJECTIVE.score(tiny_loss, ())["forget"] == HIGHEST_RATIO
    unknown = ratios_of(references, dict.fromkeys(DOMAINS, math.inf))
    assert all(np.isnan(ratio) for ratio in unknown.values())


def test_incomplete_baselines_are_named():
    known = evaluations()
    with refused("baselines", "huge"):
        references_of(known, curves(), "huge")
    unfinished = known[~((known["size"] == "small") & (known["method"] == "baseline") & (known["seed"] == "1"))]
    with refused("baselines", "small"):
        references_of(unfinished, curves(), "small")
    assert set(SIZES) == {"tiny", "small", "medium"}
    assert set(references_of(unfinished, curves(), "tiny")) == set(DOMAINS)
    with refused("losses", ["biology", "core"]):
        ratios_of(references_of(known, curves(), "tiny"), {"core": 3.0, "biology": 3.0})
