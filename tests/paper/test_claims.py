"""Checks verdicts on planted differences."""

import dataclasses
import math
import re
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from gram_platform.analysis.calibration import UnitError, errors_by_class, load_errors
from gram_platform.analysis.intervals import t_interval
from gram_platform.analysis.tables import CLASSES, NUM_DOMAINS, StudyLosses, analyse
from gram_platform.analysis.trends import fall_weights
from gram_platform.pages.index import Shown
from gram_platform.pages.report.answers import answer_study, headline_rows
from gram_platform.pages.report.claims import claim_sections, claims_matrix, readable_claims
from gram_platform.pages.results.record import Card
from gram_platform.pages.results.results import count_verdicts, summary_text
from gram_platform.pages.results.results import judge_study as judged_claims
from gram_platform.paper.claims import CLAIMS, COMPARED, POSITIVE, alike, not_above, not_below
from gram_platform.paper.verdicts import (
    CLAIM_NATS,
    VERDICTS,
    Judgement,
    claims_frame,
    conclude,
    in_family,
    judge,
    paper_claims,
    seed_values,
    verdicts_text,
)
from tests.paper.claim_texts import claim_of
from tests.refused import refused
from tests.study_frames import SIZES, analysed, curves, evaluations, study_of

SEEDS = ("0", "1", "2")


def values(*numbers):
    return dict(zip(SEEDS, numbers, strict=False))


@pytest.mark.parametrize(
    ("left", "verdict"),
    [
        ((0.5, 0.51, 0.52), "agree"),
        ((-0.5, -0.51, -0.52), "disagree"),
        ((0.5, -0.5, 0.1), "cannot tell"),
    ],
)
def test_signed_contrasts(left, verdict):
    judgement = judge("left is above right", values(*left), values(0.0, 0.0, 0.0))
    assert judgement.verdict == verdict
    assert judgement.difference == pytest.approx(np.mean(left))
    assert judgement.low < judgement.difference < judgement.high
    assert judgement.num_seeds == 3
    assert judgement.detectable > 0


def test_pairing_by_seed_removes_what_seeds_share():
    left, right = values(0.9, 0.5, 0.1), values(0.8, 0.41, 0.02)
    assert judge("paired", left, right).verdict == "agree"
    shuffled = dict(zip(SEEDS, (0.02, 0.8, 0.41), strict=True))
    assert judge("not paired", left, shuffled).verdict == "cannot tell"


@pytest.mark.parametrize(
    ("within", "left", "verdict"),
    [
        (not_below("core"), (0.5, 0.51, 0.52), "agree"),  # better is no worse
        (not_below("core"), (-0.2, -0.21, -0.22), "disagree"),
        (not_below("core"), (-0.05, -0.06, -0.07), "cannot tell"),
        (not_above("forget"), (0.07, 0.08, 0.07), "agree"),
        (not_above("forget"), (0.2, 0.21, 0.22), "disagree"),
        (alike("core"), (0.01, 0.0, -0.01), "agree"),
        (alike("core"), (-0.2, -0.21, -0.22), "disagree"),
        (alike("core"), (0.06, 0.05, 0.04), "cannot tell"),
    ],
)
def test_ranges_with_margins(within, left, verdict):
    assert judge("one", values(*left), values(0.0, 0.0, 0.0), within).verdict == verdict


def test_one_seed_gives_the_side_and_says_that_it_has_no_interval():
    for within, difference, verdict in (
        (POSITIVE, 0.5, "agree (no interval)"),
        (POSITIVE, -0.5, "disagree (no interval)"),
        (not_below("retain"), -0.05, "agree (no interval)"),
        (POSITIVE, 0.0, "cannot tell"),
    ):
        judgement = judge("one", {"0": difference}, {"0": 0.0}, within)
        assert judgement.verdict == verdict
        assert verdict in VERDICTS
        assert math.isnan(judgement.low)
        assert math.isnan(judgement.detectable)


@pytest.mark.parametrize(
    ("unit_error", "verdict"),
    [(None, "agree"), (math.nan, ""), (0.0, "agree"), (0.07, "agree"), (0.1, "cannot tell")],
)
def test_the_units_error_widens_the_verdicts_interval_in_quadrature(unit_error, verdict):
    left = values(0.11, 0.09, 0.10)  # half-width .0169: with .0985 the interval would reach 0
    judgement = judge("left is above right", left, values(0.0, 0.0, 0.0), unit_error=unit_error)
    assert judgement.verdict == verdict
    # Of the seeds alone.
    assert (judgement.low, judgement.high) == pytest.approx(t_interval(list(left.values()))[1:])
    expected = math.nan if unit_error is None else unit_error
    assert judgement.unit_error == pytest.approx(expected, nan_ok=True)
    edge = math.sqrt(0.1**2 - (0.1 - judgement.low) ** 2)
    below, above = (
        judge("edge", left, values(0.0, 0.0, 0.0), unit_error=edge + e).verdict
        for e in (-1e-6, 1e-6)
    )
    assert (below, above) == ("agree", "cannot tell")


def test_one_seed_is_judged_within_the_units_error():
    assert judge("one", {"0": 0.1}, {"0": 0.0}, unit_error=0.09).verdict == "agree (no interval)"
    assert judge("one", {"0": 0.1}, {"0": 0.0}, unit_error=0.11).verdict == "cannot tell"


def test_a_claim_has_the_units_errors_of_what_it_compares():
    """Two methods on one class are read off the same curves; two classes, or two sizes, are two
    ratios."""
    per_seed = analysed().per_seed
    ratios = {
        ("tiny", "core"): 0.2,
        ("tiny", "forget"): 0.04,
        ("tiny", "retain"): 0.03,
        ("medium", "forget"): 0.5,
    }
    errors = {place: UnitError(ratio, ratio / 10.0) for place, ratio in ratios.items()}
    claims = paper_claims(per_seed, "scaling", unit_error=errors).set_index(["claim", "size"])[
        "unit_error"
    ]
    assert claims[claim_of("scaling", "gram retain", "gram forget"), "tiny"] == pytest.approx(0.05)
    assert claims[claim_of("scaling", "gram core", "filtering core"), "tiny"] == pytest.approx(0.02)
    assert math.isnan(claims[claim_of("scaling", "gram retain", "gram forget"), "small"])
    # From tiny over small, which is not known, to medium.
    falls = claim_of("scaling", "gram forget", "gram forget")
    assert math.isnan(claims[falls, ""])
    errors["small", "forget"] = UnitError(0.3, 0.03)
    found = paper_claims(per_seed, "scaling", unit_error=errors).set_index(["claim", "size"])
    assert found.loc[(falls, ""), "unit_error"] == pytest.approx(math.hypot(0.04, 0.5))
    assert found.loc[(falls, ""), "verdict"] == "cannot tell"
    retain = claim_of("scaling", "gram retain", "gram forget")
    assert found["verdict"][retain].tolist() == ["agree", "", ""]
    alone = paper_claims(per_seed, "scaling")
    assert alone["unit_error"].isna().all()
    assert set(alone["verdict"]) == {"agree"}


def test_falls_with_size_is_a_trend_over_all_sizes():
    """A middle size that lies nearer the last one counts, with its unit's error."""
    sizes, forget = {"1M": 1e6, "8M": 8e6, "16M": 1.6e7}, {"1M": 0.6, "8M": 0.9, "16M": 0.4}
    rows = [
        {"method": "gram", "size": size, "profile": "core+x", "seed": seed, "retained": "x"}
        | {"core": 1.0, "retain": 1.0, "forget": forget[size] + noise, "elicited": math.nan}
        | dict.fromkeys(NUM_DOMAINS.values(), 1)
        for size in sizes
        for seed, noise in zip(SEEDS, (-0.01, 0.0, 0.01), strict=True)
    ]
    per_seed, claim = pd.DataFrame(rows), claim_of("scaling", "gram forget", "gram forget")
    errors = {(size, "forget"): UnitError(0.1, 0.1) for size in sizes}
    row = paper_claims(per_seed, "scaling", "core+x", errors).set_index("claim").loc[claim]
    slope = np.polyfit(np.log([*sizes.values()]), [*forget.values()], 1)[0]
    assert row["difference"] == pytest.approx(-slope * math.log(16.0))
    weights = fall_weights(np.log([*sizes.values()]))
    assert row["unit_error"] == pytest.approx(0.1 * math.sqrt((weights**2).sum()))
    # One fall a seed: the noise of three sizes cancels, since it is the same at each.
    assert row["high"] - row["low"] == pytest.approx(0.0, abs=1e-9)
    partial = per_seed.drop(index=4)
    row = paper_claims(partial, "scaling", "core+x").set_index("claim").loc[claim]
    assert row["num_seeds"] == 2


@pytest.mark.parametrize(
    ("within", "unit_error", "verdict"),
    [
        (not_below("core"), 0.0599, "agree"),
        (not_below("core"), 0.06, "not measurable here"),
        (not_above("forget"), 0.0999, "agree"),
        (not_above("forget"), 0.11, "not measurable here"),
        (alike("core"), 0.07, "not measurable here"),
        # It has no margin.
        (POSITIVE, 0.9, "cannot tell"),
    ],
)
def test_a_unit_that_reaches_the_margin_decides_nothing(within, unit_error, verdict):
    better = 0.5 if within.left < 0 < within.right and math.isinf(within.right) else 0.0
    left = values(*(better - 0.001, better, better + 0.001))
    judgement = judge("one", left, values(0.0, 0.0, 0.0), within, unit_error)
    assert judgement.verdict == verdict
    one = judge("one", {"0": better}, {"0": 0.0}, within, unit_error)
    assert one.verdict.removesuffix(" (no interval)") == verdict


def test_what_is_not_measurable_here_says_where_it_could_be_decided():
    coarse = {(size, name): UnitError(0.2, 0.2) for size in SIZES for name in CLASSES}
    claims = paper_claims(analysed().per_seed, "scaling", unit_error=coarse)
    has_margin = claims["claim"].str.contains("no more than")
    assert set(claims.loc[has_margin, "verdict"]) == {"not measurable here"}
    assert "not measurable here" not in set(claims.loc[~has_margin, "verdict"])
    places = claims[has_margin].drop_duplicates("claim").set_index("claim")["explanation"]
    fine = errors_by_class(
        row | {"size": f"{row['corpus']} at {row['size']}"}
        for row in load_errors().to_dict("records")
    )
    for name, left, margin in (("core", "gram core", 0.06), ("forget", "gram forget", 0.1)):
        named = places[claim_of("scaling", left, f"filtering {name}")]
        for (place, of_class), error in fine.items():
            if of_class == name:
                assert (place in named) == (error.difference < margin)
    counted = f"{has_margin.sum()} not measurable here"
    card = Card(verdicts=count_verdicts(claims))
    text = Shown("", "", card, (), "", "", ()).verdicts
    assert counted in text.replace(" are ", " ")
    assert text == verdicts_text(Counter(claims["verdict"]))


COARSE = {(size, name): UnitError(0.2, 0.2) for size in SIZES for name in CLASSES}


def in_nats(per_seed: pd.DataFrame, left: str, right: str, errors=COARSE) -> pd.Series:
    """The row of a claim of the scaling study at tiny."""
    claims = paper_claims(per_seed, "scaling", unit_error=errors).set_index(["claim", "size"])
    return claims.loc[(claim_of("scaling", left, right), "tiny")]


@pytest.mark.parametrize(
    ("name", "side", "allowed"), [("core", 1.0, 0.06), ("retain", 1.0, 0.06), ("forget", -1.0, 0.1)]
)
def test_a_margin_in_nats_is_the_ratios_over_the_slope_at_filterings_loss(name, side, allowed):
    """Core and retain may be above by it, forget below by it; a nat to either side decides."""
    per_seed = analysed().per_seed
    theirs = per_seed.query("method == 'filtering' and size == 'tiny' and profile == 'mean'")
    ours = (per_seed["method"] == "gram") & (per_seed["profile"] == "core+biology")
    margin = allowed / theirs[f"{name}_ratio_per_nat"].mean()
    found = in_nats(per_seed, f"gram {name}", f"filtering {name}")
    assert found["nats_margin"] == pytest.approx(margin)
    for times, verdict in ((0.9, "agree"), (1.1, "disagree")):
        moved = per_seed.copy()
        by = side * times * margin - found["nats_difference"]
        moved.loc[ours, f"{name}_nats"] += by
        again = in_nats(moved, f"gram {name}", f"filtering {name}")
        assert again["nats_verdict"] == verdict
        assert again["verdict"] == "not measurable here"
        assert again["nats_difference"] == pytest.approx(side * times * margin)
        assert again["nats_high"] - again["nats_low"] == pytest.approx(
            found["nats_high"] - found["nats_low"]
        )


def test_nats_decide_only_where_the_unit_decides_nothing():
    per_seed = analysed().per_seed
    for errors in (None, {}, {key: UnitError(0.0, 0.0) for key in COARSE}):
        row = in_nats(per_seed, "gram core", "filtering core", errors)
        assert row["nats_verdict"] == ""
        assert math.isfinite(row["nats_difference"])
    # Two classes have no margin.
    row = in_nats(per_seed, "gram retain", "gram forget")
    assert row["nats_verdict"] == ""
    assert math.isnan(row["nats_difference"])
    # Numbers of others may have no losses.
    plain = per_seed[["method", "size", "profile", "seed", *CLASSES, *NUM_DOMAINS.values()]]
    plain = plain.assign(retained=per_seed["retained"])
    row = in_nats(plain, "gram core", "filtering core")
    assert row["nats_verdict"] == ""
    assert math.isnan(row["nats_margin"])


def test_pages_show_verdicts_in_nats_beside_those_of_ratios():
    claims = conclude(paper_claims(analysed().per_seed, "scaling", unit_error=COARSE), "demo")
    assert list(claims)[-5:] == list(CLAIM_NATS)
    assert not conclude(claims, "smoke")["nats_verdict"].any()
    cells = claims_matrix(claims).set_index("claim")
    core = claim_of("scaling", "gram core", "filtering core")
    assert cells.loc[core, "tiny"] == "\u2013 not measurable here (in nats: agree)"
    shown = readable_claims(claims).set_index(["claim", "size"])
    assert shown.loc[(core, "tiny"), "nats_difference"] == pytest.approx(0.0108, abs=5e-5)
    assert "nats_verdict" not in readable_claims(paper_claims(analysed().per_seed, "scaling"))


def test_two_seeds_have_their_points_and_no_interval():
    judgement = judge("two", values(0.5, 0.7), values(0.0, 0.0))
    assert judgement.verdict == "agree (no interval)"
    assert judgement.points == (0.5, 0.7)
    assert math.isnan(judgement.low)
    assert math.isnan(judgement.detectable)
    claims = conclude(claims_frame([judgement]), "demo")
    assert readable_claims(claims)["difference"].tolist() == ["0.600 (0.500, 0.700)"]
    assert claims["holm_verdict"].tolist() == ["cannot tell"]


def holm(differences: list[float], half: float = 0.1, unit_error: float = math.nan) -> list[str]:
    """The verdicts by Holm of claims "above zero" of many seeds, whose t is the normal one."""
    rows = [
        Judgement("", "agree", d, d - half, d + half, unit_error, 10**7, math.nan)
        for d in differences
    ]
    return claims_frame(rows).pipe(conclude, "demo")["holm_verdict"].tolist()


def test_holm_keeps_the_strongest_claims_first():
    """Against the adjusted p of the definition: the largest of (n + 1 - k) p_k up to k."""
    rng = np.random.default_rng(0)
    z = rng.normal(2.0, 1.5, (40, 7))
    for row in z:
        p = np.sort(stats.norm.sf(row))
        adjusted = dict(zip(p, np.maximum.accumulate(p * np.arange(7, 0, -1)), strict=True))
        found = holm((row * 0.1 / stats.norm.ppf(0.95)).tolist())
        for verdict, number in zip(found, row, strict=True):
            assert (verdict == "agree") == (adjusted[stats.norm.sf(number)] < 0.05)
    assert holm([0.11]) == ["agree"]
    assert holm([-0.11]) == ["disagree"]
    assert holm([0.11, 0.0]) == ["cannot tell", "cannot tell"]
    assert holm([0.2], unit_error=0.15) == ["agree"]
    assert holm([0.16], unit_error=0.15) == ["cannot tell"]
    assert holm([]) == []


def test_no_verdict_and_what_is_not_measurable_are_no_claims_of_the_family():
    claims = claims_frame(
        [
            judge("one", values(0.5, 0.51, 0.52), values(0.0, 0.0, 0.0)),
            judge("unknown", values(0.5, 0.5, 0.5), values(0.0, 0.0, 0.0), POSITIVE, math.nan),
            judge("coarse", values(0.5, 0.5, 0.6), values(0.0, 0.0, 0.0), not_below("core"), 1.0),
        ]
    )
    assert in_family(claims).tolist() == [True, False, False]
    expected = ["agree", "", "not measurable here"]
    assert conclude(claims, "demo")["holm_verdict"].tolist() == expected
    assert conclude(claims, "demo").columns[-2:].tolist() == ["explanation", "holm_verdict"]
    assert set(conclude(claims, "smoke")["verdict"]) == {""}


def test_verdicts_are_counted_and_those_of_one_seed_are_none():
    counts = re.findall(
        r"(\d+|none) (?:is|are) (\w+)", verdicts_text({"agree": 2, "cannot tell": 1})
    )
    assert counts == [("2", "confirmed"), ("none", "contradicted"), ("1", "undecided")]
    alone = verdicts_text({"disagree (no interval)": 1, "agree": 1, "": 2})
    assert alone.startswith("Of 4 ")
    assert "1 is confirmed" in alone
    assert "none is contradicted" in alone
    assert "3 are not judged" in alone


def test_every_claim_has_a_profile_before_there_are_data():
    """The paper's where it names one, else the mean."""
    profiles = {study: {claim.profile for claim in claims} for study, claims in CLAIMS.items()}
    named = {"scaling": {COMPARED}, "partial_labels": {"core"}, "accumulation": {"mean", "all"}}
    assert profiles == {study: named.get(study, {"mean"}) for study in CLAIMS}
    named_by_sides = {
        side.profile for claims in CLAIMS.values() for claim in claims for side in claim.terms
    }
    assert named_by_sides == {"", "all"}  # composing, from one module to all


def test_a_claim_compares_what_the_row_of_its_profile_shows():
    """Retain .881 stood beside forget .920, and the mean over profiles agreed that it is above."""
    rows = []
    for seed, noise in (("0", -0.001), ("1", 0.0), ("2", 0.001)):
        for profile, retain, forget in (
            ("core+a", 0.881, 0.92),
            ("core+b", 0.99, 0.6),
            ("core+c", 0.98, 0.7),
        ):
            row = {
                "method": "gram",
                "size": "1M",
                "profile": profile,
                "seed": seed,
                "retained": profile[-1],
            }
            values = {"core": 0.9, "retain": retain + noise, "forget": forget, "elicited": math.nan}
            rows.append({**row, **values, **dict.fromkeys(NUM_DOMAINS.values(), 1)})
    per_seed, claim = pd.DataFrame(rows), claim_of("scaling", "gram retain", "gram forget")
    for compared, profile, difference, verdict in (
        ("core+a", "core+a", -0.039, "disagree"),
        ("", "core+a", -0.039, "disagree"),  # the first of those that most methods have
        ("core+b", "core+b", 0.39, "agree"),
        ("mean", "mean", (0.881 + 0.99 + 0.98 - 0.92 - 0.6 - 0.7) / 3, "agree"),
    ):
        row = paper_claims(per_seed, "scaling", compared).set_index("claim").loc[claim]
        assert (row["profile"], row["verdict"]) == (profile, verdict)
        assert row["difference"] == pytest.approx(difference)
    # As the paper's bars.
    assert set(paper_claims(per_seed, "dual_use", "core+a")["profile"]) == {"mean"}


def test_pages_show_claims_at_the_profile_of_the_tiles():
    analysis, profile = analysed(), "core+chemistry"
    about = {"compare_with": "scaling", "profile": profile, "sizes": tuple(SIZES)}
    study = study_of(analysis, curves(), pd.DataFrame({"id": []}), **about)
    claims = judged_claims(study.record, analysis)
    assert set(claims["profile"]) == {profile} == {study.main_profile}
    table = analysis.table[
        (analysis.table["method"] == "gram") & (analysis.table["profile"] == profile)
    ]
    gaps = (
        claims[claims["claim"] == claim_of("scaling", "gram retain", "gram forget")]
        .set_index("size")["difference"]
        .to_dict()
    )
    assert gaps == pytest.approx(
        dict(zip(table["size"], table["retain"] - table["forget"], strict=True))
    )
    whole = dataclasses.replace(study, claims=claims)
    assert f"profile {profile}." in answer_study(whole)[0]
    assert set(headline_rows(whole)["profile"]) == {profile}
    matrix, differences = claim_sections(whole)
    assert matrix.text == f"Profile {profile}."
    assert set(differences.table["profile"]) == {profile}
    assert "profile was fixed before" in matrix.markup
    assert profile in summary_text(study.record, whole).partition("published claims")[2]


def test_claims_whose_profile_is_missing_are_not_judged_at_another():
    views = evaluations()
    analysis = analyse(
        StudyLosses(views[views["profile"] != "core+biology"], curves()), tuple(SIZES)
    )
    study = study_of(
        analysis, curves(), pd.DataFrame({"id": []}), compare_with="scaling", profile="core+biology"
    )
    claims = judged_claims(study.record, analysis)
    assert claims.empty
    assert (
        "core+chemistry" not in summary_text(study.record, study).partition("published claims")[2]
    )
    assert claim_sections(dataclasses.replace(study, claims=claims)) == []


def test_a_study_without_claims_is_judged_on_the_mean_and_says_so():
    analysis = analysed()
    study = study_of(analysis, curves(), pd.DataFrame({"id": []}), profile="core+biology")
    claims = judged_claims(study.record, analysis)
    assert set(claims["profile"]) == {"mean"}
    matrix, differences = claim_sections(dataclasses.replace(study, claims=claims))
    assert matrix.text == "Profile mean."
    assert set(differences.table["profile"]) == {"mean"}


def test_one_size_is_not_compared_with_itself():
    whole, per_seed = evaluations(), analyse(StudyLosses(evaluations(), curves())).per_seed
    assert claim_of("scaling", "gram forget", "gram forget") in set(
        paper_claims(per_seed, "scaling")["claim"]
    )
    first = analyse(StudyLosses(whole[whole["size"] == whole["size"].iloc[0]], curves())).per_seed
    claims = set(paper_claims(first, "scaling")["claim"])
    assert claim_of("scaling", "gram retain", "gram forget") in claims
    assert not any("falls with size" in claim for claim in claims)


def test_seed_values_name_one_view():
    per_seed = analyse(StudyLosses(evaluations(), curves())).per_seed
    found = seed_values(per_seed, "core", method="gram", size="tiny", profile="core")
    assert found == pytest.approx({"0": 0.92, "1": 0.94, "2": 0.96})
    assert seed_values(per_seed, "retain", method="gram", size="tiny", profile="core") == {}
    with refused("where"):
        seed_values(per_seed, "core", method="gram")


def judged(
    study: str, cells: dict[tuple[str, str, str], tuple[float, float, float, float]]
) -> pd.DataFrame:
    """A study's claims on one seed, in their order, from {(method, variant, profile): values of
    CLASSES}."""
    rows = []
    for (method, variant, profile), values in cells.items():
        retained = "x,y" if profile == "all" else "x"
        row = {"method": method, "size": "1M", "variant": variant, "profile": profile, "seed": "0"}
        rows.append(
            row
            | {"retained": retained}
            | dict(zip(CLASSES, values, strict=True))
            | dict.fromkeys(NUM_DOMAINS.values(), 1)
        )
    return paper_claims(pd.DataFrame(rows), study)


def test_claims_without_published_numbers_compare_what_they_say():
    """Every difference is another number, so that each names its two sides; the texts say which."""
    of_domains = {
        ("gram", "4", "core+x"): (0.9, 0.8, 0.1, 0.3),
        ("gram", "8", "core+x"): (0.5, 0.6, 0.2, 0.4),
        ("gram", "20", "core+x"): (0.89, 0.77, 0.25, 0.5),
    }
    retain_above_forget, retain_above_elicited = [0.7, 0.4, 0.52], [0.5, 0.2, 0.27]
    last_less_first = [-0.01, -0.03, 0.15]  # core, retain, forget
    expected = retain_above_forget + retain_above_elicited + last_less_first
    aux_scaling = judged("aux_scaling", of_domains)
    assert aux_scaling["difference"].tolist() == pytest.approx(expected)
    # In the paper's table.
    printed = [0.238, 0.200, 0.161, 0.173, 0.119, 0.067, -0.014, 0.020, 0.097]
    assert aux_scaling["paper"].tolist() == pytest.approx(printed)
    titrated = {
        ("gram", "0", "core+x"): (0.90, 0.1, 0.01, 0.02),
        ("gram", "0.5", "core+x"): (0.93, 0.5, 0.03, 0.04),
        ("gram", "1", "core+x"): (0.91, 0.7, 0.05, 0.06),
        ("ft_lora", "0", "core+x"): (0.80, 0.2, 0.07, 0.08),
        ("ft_lora", "0.5", "core+x"): (0.82, 0.3, 0.09, 0.11),
        ("ft_lora", "1", "core+x"): (0.83, 0.8, 0.12, 0.13),
        # Has no module.
        **{("filtering", variant, "core+x"): (0.9, 0.9, 0.1, 0.2) for variant in ("0", "0.5", "1")},
    }
    assert judged("titration", titrated)["difference"].tolist() == pytest.approx(
        [0.4, 0.2, 0.01, 0.1, 0.5, 0.03]
    )
    accumulated = {
        ("baseline", "heterogeneous", "all"): (1.0, 0.99, math.nan, math.nan),
        ("baseline", "heterogeneous", "mean"): (1.0, 0.5, math.nan, math.nan),
        ("baseline", "uniform", "all"): (1.0, 0.8, math.nan, math.nan),
        ("baseline", "uniform", "mean"): (1.0, 0.4, math.nan, math.nan),
    }
    assert judged("accumulation", accumulated)["difference"].tolist() == pytest.approx([0.19])
    composed = {
        ("gram", "", "core+x"): (0.95, 0.90, 0.1, 0.2),
        ("gram", "", "all"): (0.94, 0.88, 0.1, 0.2),
        ("ft_lora", "", "core+x"): (0.93, 0.91, 0.1, 0.2),
        ("ft_lora", "", "all"): (0.73, 0.61, 0.1, 0.2),
    }
    assert judged("dual_use", composed)["difference"].tolist()[-4:] == pytest.approx(
        [0.2 - 0.01, 0.3 - 0.02, 0.2, 0.3]
    )
