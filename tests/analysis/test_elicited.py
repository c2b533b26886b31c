"""Checks attacks in the tables: planted elicited ratios come back, missing attacks are named."""

import numpy as np
import pandas as pd
import pytest

from gram_platform.analysis.tables import StudyLosses, analyse, domain_table
from gram_platform.pages.results.results import format_table
from tests.refused import refused
from tests.stories_frames import (
    AUXILIARY,
    PLANTED,
    SEEDS,
    SIZE,
    attacks,
    curves,
    evaluations,
    jitter,
)
from tests.study_frames import jackknife


@pytest.fixture(scope="module")
def analysis():
    return analyse(StudyLosses(evaluations(), curves(), attacks=attacks()))


def row(table: pd.DataFrame, method: str, profile: str) -> pd.Series:
    (found,) = table[(table["method"] == method) & (table["profile"] == profile)].to_dict("records")
    return pd.Series(found)


def test_planted_ratios_come_back_with_their_intervals(analysis):
    for method, planted in PLANTED.items():
        for profile in ("core", f"core+{AUXILIARY[0]}", "mean"):
            own = row(analysis.table, method, profile)
            seeds = [planted[3] + jitter(method, seed) for seed in SEEDS]
            found = [own[f"elicited{end}"] for end in ("", "_low", "_high")]
            assert found == pytest.approx(
                jackknife(seeds, [1.0 + jitter("", seed) for seed in SEEDS]), rel=1e-6
            )
            assert own["forget"] == pytest.approx(planted[2], rel=1e-6)
    assert np.isnan(row(analysis.table, "baseline", "all")["elicited"])
    assert analysis.missing.empty
    assert "elicited" in format_table(analysis.table).splitlines()[0]


def test_without_attacks_the_column_is_empty_and_nothing_is_missing():
    for none in (None, attacks().iloc[:0]):
        analysis = analyse(StudyLosses(evaluations(), curves(), attacks=none))
        assert analysis.table["elicited"].isna().all()
        assert analysis.missing.empty


@pytest.mark.parametrize("is_declared", [True, False])
def test_an_attack_without_a_result_makes_its_class_unknown_and_is_named(is_declared):
    known = attacks()
    hit = (known["method"] == "gram") & (known["profile"] == "core") & (known["seed"] == "1")
    hit &= known["elicited"] == "Bygone Eras"
    known = known.assign(loss=known["loss"].mask(hit)) if is_declared else known[~hit]
    analysis = analyse(StudyLosses(evaluations(), curves(), attacks=known))
    why = "no result of the attack on seed 1: Bygone Eras"
    assert analysis.missing.to_dict("records") == [
        {"what": f"gram {SIZE} core, elicited", "why": why}
    ]
    per_seed = analysis.per_seed.set_index(["method", "profile", "seed"])
    assert np.isnan(per_seed.loc[("gram", "core", "1"), "elicited"])
    assert np.isnan(per_seed.loc[("gram", "mean", "1"), "elicited"])
    assert per_seed.loc[("gram", "mean", "1"), "forget"] == pytest.approx(0.766, rel=1e-6)
    mean = row(analysis.table, "gram", "mean")
    others = [PLANTED["gram"][3] + jitter("gram", seed) for seed in ("0", "2")]
    assert mean["elicited"] == pytest.approx(np.mean(others), rel=1e-6)
    assert row(analysis.table, "ft_full", "mean")["elicited"] == pytest.approx(0.806, rel=1e-6)


def test_declared_views_that_are_not_there_are_named_and_no_mean_is_taken_without_them():
    known, views = evaluations(), evaluations()[["method", "size", "seed", "profile", "retained"]]
    partial = known[~((known["method"] == "gram") & (known["profile"] == "core"))]
    analysis = analyse(StudyLosses(partial, curves(), attacks=attacks(), declared=views))
    assert "seed 0, 1, 2" in analysis.missing.set_index("what").loc[f"gram {SIZE} core", "why"]
    profiles = set(analysis.table[analysis.table["method"] == "gram"]["profile"])
    assert profiles == {f"core+{domain}" for domain in AUXILIARY}
    nothing = analyse(
        StudyLosses(known.iloc[:0], curves().iloc[:0], attacks=attacks(), declared=views)
    )
    assert nothing.missing["what"].str.split().str[-1].tolist() == [SIZE]


def test_the_domain_table_has_both_the_forgotten_and_the_attacked(analysis):
    domains = domain_table(analysis.ratios).set_index(["method", "profile", "domain", "class"])
    forget = domains.loc[("maxent", "core", "Bygone Eras", "forget")]
    elicited = domains.loc[("maxent", "core", "Bygone Eras", "elicited")]
    assert (forget["compute_ratio"], elicited["compute_ratio"]) == pytest.approx(
        (0.840, 0.983), rel=1e-6
    )
    assert elicited["num_seeds"] == 3
    assert "attack-maxent-0-core-Bygone Eras" in elicited["runs"]


def test_an_attack_twice_is_refused():
    with refused("attacks"):
        analyse(StudyLosses(evaluations(), curves(), attacks=pd.concat([attacks(), attacks()])))


def test_order_and_absent_run_ids_change_nothing(analysis):
    frames = (
        frame.sample(frac=1.0, random_state=0) for frame in (evaluations(), curves(), attacks())
    )
    frames = (frame.drop(columns="run_id", errors="ignore") for frame in frames)
    evaluated, points, attacked = frames
    again = analyse(StudyLosses(evaluated, points, attacks=attacked))
    pd.testing.assert_frame_equal(again.table, analysis.table, check_exact=True)
    assert again.missing.empty


def test_an_attack_on_a_domain_without_a_fitted_curve_is_unknown():
    domain, points = "Bygone Eras", curves()
    hit = points["domain"] == domain
    points.loc[hit, "loss"] = 1.0 + points.loc[hit, "step"]  # rises
    analysis = analyse(StudyLosses(evaluations(), points, attacks=attacks()))
    assert f"size {SIZE}, domain {domain}" in set(analysis.missing["what"])
    attacked = analysis.ratios[
        (analysis.ratios["class"] == "elicited") & (analysis.ratios["domain"] == domain)
    ]
    assert len(attacked) > 0
    assert attacked["compute_ratio"].isna().all()
    assert row(analysis.table, "gram", f"core+{domain}")["elicited"] == pytest.approx(
        0.855, rel=1e-6
    )


def test_an_attack_whose_loss_a_flat_curve_cannot_convert_is_named():
    domain, points, known, attacked = "Bygone Eras", curves(), evaluations(), attacks()
    hit = points["domain"] == domain
    points.loc[hit, "loss"] = 4.0 * points.loc[hit, "step"] ** -1e-4
    last = 4.0 * float(points["step"].max()) ** -1e-4
    known[f"loss/{domain}"] = last
    attacked.loc[attacked["elicited"] == domain, "loss"] = 3.5
    analysis = analyse(StudyLosses(known, points, attacks=attacked))
    notes = analysis.missing.set_index("what")["why"]
    why = "the baseline's curve is too flat to convert the loss after the attack on "
    assert notes[f"gram {SIZE} core, elicited"] == why + "; ".join(
        f"seed {seed}: {domain}" for seed in SEEDS
    )
    assert np.isnan(row(analysis.table, "gram", "core")["elicited"])
    assert row(analysis.table, "gram", f"core+{domain}")["elicited"] == pytest.approx(
        0.855, rel=1e-6
    )
    assert row(analysis.table, "gram", "core")["core"] == pytest.approx(0.938, rel=1e-6)
