"""Checks the paper's sweeps against its source, and our analysis on planted ratios equal to the
paper's means."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gram_platform.analysis.sweeps import CORES, PROFILE_COLUMNS, SWEEP_COLUMNS, analyse_sweeps
from gram_platform.analysis.tables import StudyLosses
from gram_platform.paper.sweeps import (
    CLAIM_COLUMNS,
    PAPER_SWEEPS,
    SWEEP_CLAIMS,
    SWEEP_CLASSES,
    SWEEP_SEEDS,
    beside_paper_sweeps,
    sweep_claims,
)
from tests.stories_frames import AUXILIARY, SEEDS, curves
from tests.study_frames import jackknife
from tests.sweep_frames import POINTS, analysed, evaluations, planted

PAPER = Path(__file__).resolve().parents[3] / "shared" / "paper.tex"
LEGEND = {
    "Core": "core",
    "Core-Partial": "core_partial",
    "Core-Full": "core_full",
    "Retain": "retain",
}
LEGEND |= {"Forget": "forget", "Elicit": "elicited"}


def figure_source(label: str) -> str:
    if not PAPER.is_file():
        pytest.skip("the paper's source is not beside this checkout")
    text = PAPER.read_text()
    end = text.index(f"\\label{{{label}}}")
    return text[text.rindex("\\begin{figure}", 0, end) : end]


def drawn_band(path: str) -> dict[str, tuple[float, float]]:
    """`{place on the axis: (low, high)}` of a filled outline: the lowest and the highest corner of
    each place."""
    corners = [(x, float(y)) for x, y in re.findall(r"axis cs:([\d.]+),([\d.]+)\)", path)]
    places = dict.fromkeys(x for x, _ in corners)
    return {
        at: (min(y for x, y in corners if x == at), max(y for x, y in corners if x == at))
        for at in places
    }


@pytest.mark.parametrize("knob", PAPER_SWEEPS)
def test_the_literals_are_the_coordinates_of_the_papers_figures(knob):
    sweep, source = PAPER_SWEEPS[knob], figure_source(PAPER_SWEEPS[knob].source)
    bands = [
        drawn_band(path) for path in re.findall(r"\\path \[.*?\]\n(.*?)--cycle;", source, re.S)
    ]
    tables = re.findall(
        r"\\addplot \[semithick.*?table \{%\n(.*?)\};\n\\addlegendentry\{(\S+)", source, re.S
    )
    assert [LEGEND[name] for _, name in tables] == list(sweep.curves)
    labels = re.search(r"xticklabels=\{(.*?)\}", source)
    for (table, name), band in zip(tables, bands, strict=True):
        means = [row.split() for row in table.strip().splitlines()]
        values = [labels[1].split(",")[int(place)] if labels else place for place, _ in means]
        assert tuple(float(value) for value in values) == sweep.values
        drawn = [[float(mean), *band[place]] for place, mean in means]
        assert drawn == sweep.curves[LEGEND[name]].to_numpy().tolist()


def test_the_literals_are_consistent():
    for sweep in PAPER_SWEEPS.values():
        assert list(sweep.curves) == [name for name in SWEEP_CLASSES if name in sweep.curves]
        assert list(sweep.values) == sorted(sweep.values)
        for curve in sweep.curves.values():
            assert curve.index.tolist() == list(sweep.values)
            assert (curve["low"] < curve["mean"]).all()
            assert ((curve["low"] + curve["high"]) / 2).to_numpy() == pytest.approx(
                curve["mean"].to_numpy(), abs=1e-9
            )
        assert sweep.means.shape == (len(sweep.values), len(sweep.curves))
    assert "core" not in PAPER_SWEEPS["p_cr"].curves
    assert SWEEP_SEEDS == 3


def test_the_main_table_lies_on_the_spread_sweep():
    """GRAM's p_as 0.3 of `tab:synthetic`, .938 .952 .766 .855, between the sweep's 0.25 and 0.5."""
    means = PAPER_SWEEPS["p_as"].means
    between = means.loc[0.25] + (means.loc[0.5] - means.loc[0.25]) * 0.2
    assert between.tolist() == pytest.approx([0.938, 0.952, 0.766, 0.855], abs=0.005)


@pytest.fixture
def sweeps():
    return analysed()


def test_planted_means_are_recovered_with_their_intervals(sweeps):
    table = sweeps.table
    assert list(table.columns) == SWEEP_COLUMNS
    assert list(zip(table["knob"], table["value"], strict=True)) == list(POINTS)
    assert sweeps.missing.empty
    for row in table.to_dict("records"):
        means = planted(row["knob"], row["value"])
        expected = {**means, "core": (4 * means["core_partial"] + means["core_full"]) / 5}
        for name in SWEEP_CLASSES:
            seeds = [expected[name] + shift for shift in (-0.004, 0.0, 0.004)]
            interval = jackknife(seeds, [0.99, 1.0, 1.01])
            assert [row[name + end] for end in ("", "_low", "_high")] == pytest.approx(
                interval, abs=1e-6
            ), name
        assert row["num_seeds"] == 3
        assert row["runs"] == " ".join(
            f"run-{row['knob']}-{row['value']:g}-{seed}" for seed in SEEDS
        )
    assert set(table[table["knob"] == "p_ca"]["method"]) == {"ft_lora"}
    assert (sweeps.fits["rms"] < 1e-9).all()


def test_every_profile_of_every_point_has_a_row_as_in_the_tables_of_studies(sweeps):
    rows = sweeps.profiles
    assert list(rows.columns) == PROFILE_COLUMNS
    # They are the baseline's all and mean, and five profiles and their mean.
    assert len(rows) == 2 + 6 * len(POINTS)
    assert rows["knob"].tolist()[:3] == ["", "", "p_cr"]
    means = rows[(rows["profile"] == "mean") & (rows["knob"] != "")].reset_index(drop=True)
    pd.testing.assert_frame_equal(means[SWEEP_COLUMNS], sweeps.table, check_dtype=False)
    single = rows[
        (rows["knob"] == "p_cr")
        & (rows["value"] == 1.0)
        & (rows["profile"] == f"core+{AUXILIARY[0]}")
    ]
    assert single["core"].item() == pytest.approx(planted("p_cr", 1.0)["core_partial"])
    assert single["core_full"].isna().all()


def test_ours_beside_the_papers(sweeps):
    beside = beside_paper_sweeps(sweeps.table.replace({"value": {0.6: 0.65}}))
    assert len(beside) == 2 * len(POINTS) - 1  # the paper has no p_cr 0.65
    ours, paper = (
        beside[beside["from"] == name].set_index(["knob", "value"]) for name in ("ours", "paper")
    )
    assert ours.loc[("p_cr", 0.65), "core_full"].startswith("0.933 [")
    assert paper.loc[("p_cr", 1.0), "core_full"] == "0.785 [0.745, 0.825]"
    assert paper.loc[("p_cr", 1.0), "core"] == ""
    assert paper.loc[("p_ca", 4.0), "elicited"] == "0.821 [0.809, 0.833]"
    lora = beside_paper_sweeps(sweeps.table.assign(method="gram_lora", elicited=np.nan))
    assert set(lora["from"]) == {"ours"}
    assert "elicited" not in lora
    assert beside_paper_sweeps(sweeps.table.iloc[:0]).empty


def test_a_point_that_two_knobs_share_is_a_row_of_each():
    shared = evaluations((("p_cr", 0.4),))
    twin = shared[shared["method"] == "gram"].assign(knob="p_as", value=0.3)
    table = analyse_sweeps(StudyLosses(pd.concat([shared, twin]), curves())).table.set_index("knob")
    assert table.index.tolist() == ["p_cr", "p_as"]
    assert table.loc["p_cr"].drop("value").equals(table.loc["p_as"].drop("value"))


def test_what_is_missing_names_its_points():
    points = (("p_cr", 0.0), ("p_cr", 0.4), ("p_as", 0.5))
    known = evaluations(points)
    single = f"core+{AUXILIARY[0]}"
    gone = (known["knob"] == "p_cr") & (known["seed"] == "1") & (known["profile"] == single)
    whole = (known["knob"] == "p_as") & known["value"].notna()
    sweeps = analyse_sweeps(StudyLosses(known[~gone & ~whole], curves(), declared=known))
    assert sweeps.table["num_seeds"].tolist() == [2, 2]
    assert "p_cr 0, 0.4: gram 26M mean seed 1" in set(sweeps.missing["what"])
    assert "p_as 0.5: gram 26M core" in set(sweeps.missing["what"])
    unfinished = known[known["method"] != "baseline"]
    nothing = analyse_sweeps(StudyLosses(unfinished, curves(), declared=known))
    assert nothing.table.empty
    # The note is of every point, so without their names.
    assert nothing.missing["what"].str.endswith("size 26M").any()


def test_nothing_at_all():
    sweeps = analyse_sweeps(StudyLosses(evaluations(()), curves()))
    assert list(sweeps.table.columns) == SWEEP_COLUMNS
    assert sweeps.table.empty
    assert sweep_claims(sweeps.per_seed).columns.tolist() == CLAIM_COLUMNS


def claims_on(claims: pd.DataFrame, knob: str, *names: str) -> pd.DataFrame:
    """The rows of the claims on these classes along a knob, in the paper's order."""
    texts = [
        re.escape(claim.text)
        for claim in SWEEP_CLAIMS
        if (claim.knob, claim.names) == (knob, names)
    ]
    return claims[
        claims["claim"].str.match(
            "|".join(re.sub(r"\\{\w+\\}", r"[\\d.]+", text) for text in texts)
        )
    ]


def test_a_study_like_the_papers_agrees_with_its_claims(sweeps):
    claims = sweep_claims(sweeps.per_seed)
    assert claims.columns.tolist() == CLAIM_COLUMNS
    assert len(claims) == len(SWEEP_CLAIMS)
    assert set(claims["verdict"]) == {"agree"}
    # The paper calls it roughly flat.
    assert claims_on(claims, "p_ca", "forget")["high"].item() > 0.05
    assert claims["difference"].tolist() == pytest.approx(claims["paper"].tolist(), abs=1e-6)
    assert (claims["num_seeds"] == 3).all()
    difference = lambda *on: claims_on(claims, *on)["difference"].tolist()
    assert difference("p_as", "forget") == pytest.approx([0.889691833716366 - 0.68613207457495])
    # Both classes of core converge.
    assert difference("p_cr", *CORES)[1] == pytest.approx(0.112616 - 0.003921, abs=1e-5)
    assert difference("p_as", "retain", "forget") == pytest.approx(
        [1.03944719807588 - 0.889691833716366]
    )


def test_a_claim_needs_its_values():
    ends = sweep_claims(
        analyse_sweeps(StudyLosses(evaluations((("p_cr", 0.2), ("p_cr", 1.0))), curves())).per_seed
    )
    assert [
        len(claims_on(ends, "p_cr", *names)) for names in (CORES, ("retain",), ("forget",))
    ] == [1, 1, 1]
    assert len(ends) == 3
    assert ends["claim"].str.contains(r"p_cr (?:1|from 0\.2 to 1) ").all()
    assert sweep_claims(
        analyse_sweeps(StudyLosses(evaluations((("p_as", 0.5),)), curves())).per_seed
    ).empty


def test_a_value_that_the_paper_lacks_has_no_paper_difference(sweeps):
    moved = sweeps.per_seed.replace({"value": {0.4: 0.5}})
    claims = sweep_claims(moved[moved["knob"] == "p_cr"])
    above, converge, _ = claims_on(claims, "p_cr", *CORES).to_dict("records")
    assert "p_cr 0.5 " in converge["claim"]
    assert converge["verdict"] == "agree"
    assert np.isnan(converge["paper"])
    assert np.isfinite(above["paper"])


def test_a_seed_counts_once_it_has_every_value(sweeps):
    lacking = sweeps.per_seed.drop(
        sweeps.per_seed.index[(sweeps.per_seed["seed"] == "2") & (sweeps.per_seed["value"] == 0.5)]
    )
    claims = sweep_claims(lacking)
    assert claims_on(claims, "p_as", "core")["num_seeds"].tolist() == [2]
    assert claims_on(claims, "p_cr", "retain")["num_seeds"].tolist() == [3]


def test_another_method_is_named_and_not_compared_with_the_paper(sweeps):
    lora = sweeps.per_seed[sweeps.per_seed["knob"] == "p_as"].assign(method="gram_lora")
    claims = claims_on(sweep_claims(pd.concat([sweeps.per_seed, lora])), "p_as", "core")
    papers = dict(
        zip(claims["claim"].str.extract(r"\((\w+), 26M\)$")[0], claims["paper"], strict=True)
    )
    assert set(papers) == {"gram", "gram_lora"}
    assert np.isnan(papers["gram_lora"])
    assert np.isfinite(papers["gram"])
