"""Checks the concentration of loss increases: known coefficients, planted views, the control."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from gram_platform.analysis.localization import (
    LOCALIZATION_COLUMNS,
    STATISTICS,
    MeasuredTokens,
    concentration_curve,
    gini,
    localization_tables,
    localize,
    shades,
    shading_scale,
)
from gram_platform.pages.report.localization import TokenResults, brief_tokens
from gram_platform.paper.verdicts import localization_claims
from tests.refused import refused

DOMAINS = ("lisp", "virology")
SHAPE = (20, 10)  # sequences, tokens


def test_gini_of_known_distributions():
    assert gini(np.full(7, 3.0)) == pytest.approx(0.0)
    assert gini(np.array([0.0, 0.0, 0.0, 5.0])) == pytest.approx(0.75)
    assert gini(np.array([1.0, 3.0])) == pytest.approx(0.25)
    assert gini(np.linspace(0.0, 1.0, 100_001)) == pytest.approx(1 / 3, abs=1e-4)  # uniform
    exponential = -np.log1p(-(np.arange(100_000) + 0.5) / 100_000)
    assert gini(exponential) == pytest.approx(0.5, abs=1e-3)
    assert np.isnan(gini(np.zeros(3)))


def test_shares_of_the_tokens_that_hold_most():
    values = np.array([8.0, *[2.0 / 9] * 9])  # a tenth of the tokens holds four fifths
    curve = concentration_curve(values)
    assert curve[[0, 10, 100]] == pytest.approx([0.0, 0.8, 1.0])
    assert (np.diff(curve) >= 0).all()
    assert concentration_curve(np.full(30, 2.0))[10] == pytest.approx(0.1)
    assert np.isnan(concentration_curve(np.zeros(4))).all()
    # Gini is twice the area between the curve and the diagonal.
    exact = np.linspace(0.0, 1.0, 10_001)
    assert 2.0 * np.mean(concentration_curve(exact) - np.linspace(0, 1, 101)) == pytest.approx(
        gini(exact), abs=0.01
    )


def test_shading_is_calibrated_on_the_filtered_model():
    filtered = np.arange(11) / 10.0
    scale = shading_scale(filtered)
    assert scale == pytest.approx(0.9)
    assert shades(np.array([-1.0, 0.45, 0.9, 5.0]), scale) == pytest.approx([0.0, 0.5, 1.0, 1.0])
    assert np.isnan(shading_scale(-filtered))
    assert (shades(filtered, np.nan) == 0).all()


def planted_views() -> tuple[list[MeasuredTokens], dict]:
    """Three seeds of a baseline, and a method whose forgotten loss rises by 4 nats on every tenth
    token."""
    views, references = [], {}
    for seed in ("0", "1", "2"):
        rng = np.random.default_rng(int(seed))
        base = {d: rng.uniform(1.0, 2.0, SHAPE) for d in DOMAINS}
        references["tiny", seed] = MeasuredTokens("baseline", "tiny", seed, "all", DOMAINS, base)
        spike = np.zeros(SHAPE)
        spike[:, 3] = 4.0 + int(seed) / 2
        for retained in ((), DOMAINS[:1], DOMAINS):
            profile = {0: "core", 1: "core+lisp", 2: "all"}[len(retained)]
            losses = {d: base[d] + (0.01 if d in retained else spike) for d in DOMAINS}
            views.append(
                MeasuredTokens("gram", "tiny", seed, profile, retained, losses, f"run{seed}")
            )
    for seed, other in (("0", "1"), ("1", "2"), ("2", "0")):
        control = references["tiny", other]
        views.append(MeasuredTokens("baseline", "tiny", seed, "all", DOMAINS, control.losses))
    return views, references


def test_planted_views_come_back():
    found = localization_tables(localize(*planted_views()))
    table = found.table.set_index(["method", "profile", "domain", "class"])
    assert list(found.table.columns) == [*LOCALIZATION_COLUMNS, "runs"]
    forgotten = table.loc[("gram", "core", "lisp", "forget")]
    assert forgotten["gini"] == pytest.approx(0.0, abs=1e-9)  # all spikes are equal
    assert forgotten["positive"] == pytest.approx(0.1)
    assert forgotten["top_share"] == pytest.approx(1.0)
    assert forgotten["increase"] == pytest.approx(0.45)  # of 0.4, 0.45 and 0.5
    assert forgotten["increase_low"] < 0.4 < 0.5 < forgotten["increase_high"]
    assert forgotten["num_tokens"] == 200
    assert forgotten["num_seeds"] == 3
    kept = table.loc[("gram", "core+lisp", "lisp", "retain")]
    assert kept["positive"] == 1.0
    assert kept["top_share"] == pytest.approx(0.1)
    assert table.loc[("gram", "mean", "mean", "forget"), "increase"] == pytest.approx(0.45)
    # These are of lisp once and of virology twice.
    assert table.loc[("gram", "mean", "mean", "forget"), "num_tokens"] == 600
    assert 0.2 < table.loc[("baseline", "mean", "mean", "control"), "top_share"] < 0.5
    assert found.table["method"].tolist() == sorted(found.table["method"])
    assert table.loc[("gram", "mean", "mean", "forget"), "runs"] == "run0, run1, run2"
    curve = found.curves[(found.curves["method"] == "gram") & (found.curves["class"] == "forget")]
    assert curve.loc[curve["tokens"] == 0.05, "share"].item() == pytest.approx(0.5)


def test_a_planted_gini_comes_back():
    """Increases of an exponential distribution on half of the tokens; the others' losses fall."""
    quantiles = -np.log1p(-(np.arange(1000) + 0.5) / 1000)
    base = {"lisp": np.full((20, 100), 2.0)}
    increases = np.random.default_rng(0).permutation(
        np.concatenate([quantiles, np.full(1000, -0.5)])
    )
    view = MeasuredTokens(
        "gram", "tiny", "0", "core", (), {"lisp": base["lisp"] + increases.reshape(20, 100)}
    )
    reference = MeasuredTokens("baseline", "tiny", "0", "all", ("lisp",), base)
    row = localization_tables(localize([view], {("tiny", "0"): reference})).table.iloc[0]
    assert row["gini"] == pytest.approx(0.5, abs=2e-3)
    assert row["positive"] == 0.5
    # A tenth of all tokens is the upper fifth of those with an increase.
    assert row["top_share"] == pytest.approx(0.2 * (1.0 + np.log(5.0)), abs=2e-3)
    assert row["increase"] == pytest.approx((1.0 - 0.5) / 2, abs=1e-3)


def test_a_seed_that_lacks_a_view_is_not_in_the_means():
    found = localization_tables(
        localize(*planted_views()), [("gram", "tiny", "1", "core+virology")]
    )
    table = found.table.set_index(["method", "profile", "domain", "class"])
    assert table.loc[("gram", "mean", "mean", "forget"), "num_seeds"] == 2
    assert table.loc[("gram", "core", "lisp", "forget"), "num_seeds"] == 3
    assert found.missing["what"].tolist() == ["gram tiny core+virology seed 1"]


def test_claims_of_planted_views():
    claims = localization_claims(localization_tables(localize(*planted_views())).per_seed)
    # Equal spikes are the most even spread.
    assert claims["verdict"].tolist() == ["agree", "disagree"]
    assert claims["num_seeds"].tolist() == [3, 3]


def test_a_terminal_shows_the_means_in_short():
    found = localization_tables(localize(*planted_views()))
    results = TokenResults(
        found, (), localization_claims(found.per_seed), pd.DataFrame(), "the storage"
    )
    brief = brief_tokens(None, results, False)
    (means,) = brief.tables.values()
    assert list(means) == ["method", "class", *STATISTICS]
    assert brief.verdicts == {"agree": 1, "disagree": 1}


def test_a_view_without_its_baseline_has_no_row_and_other_tokens_are_refused():
    views, references = planted_views()
    one = {key: value for key, value in references.items() if key[1] == "0"}
    assert set(localize(views, one)["seed"]) == {"0"}
    shorter = {d: losses[:3] for d, losses in references["tiny", "0"].losses.items()}
    wrong = {("tiny", "0"): MeasuredTokens("baseline", "tiny", "0", "all", DOMAINS, shorter)}
    with refused("losses"):
        localize(views, wrong)
    nothing = localization_tables(localize([], {}))
    assert nothing.table.empty
    assert localization_claims(nothing.per_seed).empty


def test_with_one_auxiliary_domain_all_is_in_the_means():
    views, references = planted_views()
    one = [
        dataclasses.replace(view, retained=view.retained[:1], losses={"lisp": view.losses["lisp"]})
        for view in views
        if view.profile != "core+lisp"
    ]
    known = {
        k: dataclasses.replace(v, losses={"lisp": v.losses["lisp"]}) for k, v in references.items()
    }
    found = localization_tables(localize(one, known))
    means = found.per_seed[found.per_seed["profile"] == "mean"].set_index(
        ["method", "class", "seed"]
    )
    assert means.loc[("gram", "retain", "0"), "increase"] == pytest.approx(0.01)
    assert means.loc[("gram", "forget", "0"), "increase"] == pytest.approx(0.4)
    claims = localization_claims(found.per_seed)
    assert claims["claim"].str.contains(r"\bforgotten\b").any()
