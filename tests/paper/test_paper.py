"""Judges the paper's claims on a study with the paper's compute ratios, and sets the paper's table
beside ours."""

import math

import pytest

from gram_platform.analysis.tables import StudyLosses, analyse
from gram_platform.methods import METHODS
from gram_platform.paper.claims import SGTM, STORIES_CLAIMS, paper_difference
from gram_platform.paper.paper import beside_paper, read_printed
from gram_platform.paper.verdicts import PAPER_COLUMNS, paper_claims
from tests.paper.claim_texts import claim_of
from tests.stories_frames import AUXILIARY, PLANTED, attacks, curves, evaluations


@pytest.fixture(scope="module")
def analysis():
    return analyse(StudyLosses(evaluations(), curves(), attacks=attacks()))


def test_the_literals_are_consistent():
    assert set(read_printed("stories")["method"]) < set(METHODS)
    for claim in STORIES_CLAIMS:
        difference = paper_difference("stories", claim)
        assert (claim.source == SGTM) == math.isnan(difference)
        assert math.isnan(difference) or difference in claim.within, claim.text
    assert len({claim.text for claim in STORIES_CLAIMS}) == len(STORIES_CLAIMS)


def test_a_study_like_the_papers_agrees_with_every_claim(analysis):
    claims = paper_claims(analysis.per_seed, "stories")
    assert claims.columns.tolist() == PAPER_COLUMNS
    assert len(claims) == sum(claim.source != SGTM for claim in STORIES_CLAIMS)
    assert set(claims["verdict"]) == {"agree"}
    assert claims["difference"].tolist() == pytest.approx(claims["paper"].tolist(), abs=1e-6)
    assert (claims["num_seeds"] == 3).all()


def test_a_claim_of_methods_that_are_not_there_is_absent():
    few = ("gram", "ft_lora")
    claims = paper_claims(
        analyse(StudyLosses(evaluations(few), curves(), attacks=attacks(few))).per_seed, "stories"
    )
    assert claims["claim"].tolist() == [
        claim_of("stories", "gram retain", "gram forget"),
        claim_of("stories", "gram retain", "gram elicited"),
        claim_of("stories", "gram core", "ft_lora core"),
    ]
    unattacked = paper_claims(analyse(StudyLosses(evaluations(few), curves())).per_seed, "stories")
    assert len(unattacked) == 2
    assert paper_claims(
        analyse(StudyLosses(evaluations().iloc[:0], curves())).per_seed, "stories"
    ).empty


def test_methods_are_compared_on_the_profiles_that_both_have():
    known = evaluations()
    kept = known["profile"] == f"core+{AUXILIARY[0]}"
    skewed = known[(known["method"] != "filtering") | kept].copy()
    hit = (skewed["method"] == "gram") & ~kept
    skewed.loc[hit, "loss/core"] *= 1.5  # on profiles that filtering does not have
    claims = paper_claims(
        analyse(StudyLosses(skewed, curves(), attacks=attacks())).per_seed, "stories"
    ).set_index("claim")
    assert claims.loc[
        claim_of("stories", "gram core", "filtering core"), "difference"
    ] == pytest.approx(0.938 - 0.961)
    # Over all five.
    assert claims.loc[claim_of("stories", "gram core", "ft_lora core"), "difference"] < 0.0


def test_a_seed_without_one_of_the_profiles_takes_no_part(analysis):
    known = analysis.per_seed
    gone = (
        (known["method"] == "gram")
        & (known["seed"] == "1")
        & (known["profile"] == f"core+{AUXILIARY[0]}")
    )
    assert gone.sum() == 1
    claims = paper_claims(known[~gone], "stories").set_index("claim")
    assert claims.loc[claim_of("stories", "gram retain", "gram forget"), "num_seeds"] == 2
    assert claims.loc[claim_of("stories", "filtering retain", "filtering forget"), "num_seeds"] == 3


def test_classes_are_compared_only_on_profiles_where_both_are_known():
    unknown, aux = evaluations(), AUXILIARY[0]
    here = unknown["profile"] == f"core+{aux}"
    unknown.loc[here & (unknown["method"] == "gram"), f"loss/{aux}"] = float("nan")
    unknown.loc[here & (unknown["method"] == "filtering"), f"loss/{aux}"] *= 1.5
    claims = paper_claims(
        analyse(StudyLosses(unknown, curves(), attacks=attacks())).per_seed, "stories"
    )["claim"].tolist()
    # 0.18 apart over three and over four profiles
    assert claim_of("stories", "gram retain", "filtering retain") not in claims
    assert claim_of("stories", "gram forget", "filtering forget") in claims
    assert claim_of("stories", "filtering retain", "filtering forget") in claims


def test_elicited_is_judged_over_the_profiles_that_are_attacked():
    on_core = attacks()[attacks()["profile"] == "core"]
    on_core.loc[on_core["method"] == "ft_lora", "loss"] = float("nan")  # attacks without a result
    analysis = analyse(StudyLosses(evaluations(), curves(), attacks=on_core))
    claims = paper_claims(analysis.per_seed, "stories").set_index("claim")
    resists = claims.loc[claim_of("stories", "gram retain", "gram elicited")]
    assert resists["difference"] == pytest.approx(0.952 - 0.855, rel=1e-4)
    assert (
        claims.loc[claim_of("stories", "gram elicited", "filtering elicited"), "verdict"] == "agree"
    )
    scaled = paper_claims(analysis.per_seed, "scaling")["claim"].tolist()
    assert claim_of("scaling", "ft_lora elicited", "filtering elicited") not in scaled


def test_ours_beside_the_papers(analysis):
    beside = beside_paper(analysis.table)
    ours, paper = (beside[beside["from"] == name].set_index("method") for name in ("ours", "paper"))
    assert ours.index.tolist() == list(PLANTED)
    assert set(paper.index) == set(read_printed("stories")["method"])
    assert ours.loc["maxent", "elicited"].startswith("0.983 [")
    assert paper.loc["maxent", "elicited"] == "0.983 [0.932, 1.034]"
    unattacked = beside_paper(analyse(StudyLosses(evaluations(), curves())).table)
    assert unattacked["elicited"].tolist()[:2] == ["", "0.870 [0.858, 0.882]"]
    assert beside_paper(analysis.table.iloc[:0]).empty
