"""Checks studies that vary something: planted ratios of each variant come back, against either
reference."""

import re

import numpy as np
import pandas as pd
import pytest

from gram_platform.analysis.tables import (
    NATS_COLUMNS,
    POINTS,
    TABLE_COLUMNS,
    StudyLosses,
    analyse,
)
from gram_platform.analysis.variants import analyse_variants
from gram_platform.pages.figures.study import variant_figure
from gram_platform.paper.claims import CLAIMS, paper_difference
from gram_platform.paper.paper import beside_paper, read_printed
from gram_platform.paper.verdicts import paper_claims
from tests.study_frames import NUM_STEPS, SEEDS, curves, evaluations, loss_at

VARIANTS = ("uniform", "heterogeneous")


def varied(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([frame.assign(variant=name) for name in VARIANTS], ignore_index=True)


@pytest.fixture(scope="module")
def frames() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Uniform: the baseline's own losses are those of 80% of the steps, in its curve too."""
    views, points = varied(evaluations()), varied(curves())
    slow = (views["variant"] == "uniform") & (views["method"] == "baseline")
    for domain in ("core", "biology", "chemistry"):
        losses = [float(loss_at(size, domain, 0.8 * NUM_STEPS)) for size in views.loc[slow, "size"]]
        views.loc[slow, f"loss/{domain}"] = losses
    return views, points


@pytest.fixture(scope="module")
def measured(frames):
    """Both variants on the baselines of one."""
    return analyse_variants(StudyLosses(*frames), VARIANTS, unit="heterogeneous")


def cell(
    table: pd.DataFrame, variant: str, method: str, profile: str, name: str, size: str = "small"
) -> float:
    keys = {"variant": variant, "method": method, "profile": profile, "size": size}
    rows = table[np.logical_and.reduce([table[key] == value for key, value in keys.items()])]
    return float(rows[name].item())


def test_each_variant_is_compared_with_its_baselines(frames):
    analysis = analyse_variants(StudyLosses(*frames), VARIANTS)
    columns = [name for name in analysis.table if not name.endswith(POINTS)]
    assert columns == ["variant", *TABLE_COLUMNS, *NATS_COLUMNS]
    plain = analyse(StudyLosses(evaluations(), curves()))
    own = (
        analysis.table[analysis.table["variant"] == "heterogeneous"]
        .drop(columns="variant")
        .reset_index(drop=True)
    )
    pd.testing.assert_frame_equal(own, plain.table)
    assert cell(analysis.table, "uniform", "baseline", "all", "core") == pytest.approx(1.0)
    assert cell(analysis.table, "uniform", "gram", "core", "core") == pytest.approx(
        0.94 / 0.8, abs=1e-6
    )


def test_one_variants_baselines_can_be_the_reference_of_all(frames):
    views, points = frames
    table = analyse_variants(StudyLosses(views, points), VARIANTS, unit="heterogeneous").table
    assert cell(table, "uniform", "baseline", "all", "core") == pytest.approx(0.8, abs=1e-6)
    assert cell(table, "uniform", "gram", "core", "core") == pytest.approx(0.94, abs=1e-6)
    assert cell(table, "heterogeneous", "baseline", "all", "core") == pytest.approx(1.0)


def test_each_seed_can_be_compared_with_its_baseline():
    """The planted jitter of a seed, which baseline and GRAM have in common, goes out of the
    ratio."""
    views, points = evaluations(), curves()
    pooled, own = (
        analyse(StudyLosses(views, points)),
        analyse(StudyLosses(views, points), own_baseline=True),
    )
    rows = own.per_seed[(own.per_seed["method"] == "gram") & (own.per_seed["profile"] == "core")]
    for seed, ratio in rows[rows["size"] == "tiny"][["seed", "core"]].itertuples(index=False):
        jitter = 0.02 * (int(seed) - 1)
        assert ratio == pytest.approx((0.94 + jitter) / (1.0 + jitter), abs=1e-6)
    assert len(own.fits) == len(SEEDS) * len(pooled.fits)
    assert sorted(set(own.fits["seed"])) == sorted(SEEDS)


def test_a_seed_without_a_baseline_is_named():
    views, points = evaluations(("tiny",)), curves(("tiny",))
    found = analyse(StudyLosses(views, points[points["seed"] != "2"]), own_baseline=True)
    assert set(found.per_seed["seed"]) == {"0", "1"}
    of_rows, of_unit = found.missing["what"]
    assert re.search("rows .*tiny, seed 2", of_rows)
    assert of_unit == "baseline tiny seed 2"
    assert "curve" in found.missing["why"].iloc[1]
    is_lost = (views["method"] == "baseline") & (views["seed"] == "2")
    unit = views[(views["method"] == "baseline") & ~is_lost]
    found = analyse(
        StudyLosses(views[~is_lost], points[points["seed"] != "2"]), unit=unit, own_baseline=True
    )
    assert found.missing["what"].tolist() == [of_rows]
    flat = points.assign(
        loss=points["loss"].where((points["seed"] != "2") | (points["domain"] != "biology"), 3.0)
    )
    whats = analyse(StudyLosses(views, flat), own_baseline=True).missing["what"]
    assert whats.str.startswith("size tiny, domain biology, seed 2").any()


def test_what_is_missing_names_its_variant(frames):
    views, points = frames
    declared = views[["variant", "method", "size", "seed", "profile", "retained"]]
    is_lost = (
        (views["variant"] == "uniform") & (views["method"] == "gram") & (views["profile"] == "all")
    )
    missing = analyse_variants(
        StudyLosses(views[~is_lost], points, declared=declared), VARIANTS
    ).missing
    assert len(missing) == 3
    assert all(what.startswith("uniform: gram ") for what in missing["what"])


def test_claims_between_variants_and_at_each_size(measured):
    claims = paper_claims(measured.per_seed, "accumulation")
    lowers = claims[claims["claim"].str.startswith("Baseline: uniform")]
    assert sorted(lowers["size"]) == ["medium", "small", "tiny"]
    assert lowers["difference"].tolist() == pytest.approx([0.2] * 3, abs=1e-6)
    assert set(lowers["paper"].round(2)) == {0.24}
    stays = claims[claims["claim"].str.contains("leaves forget")]
    assert set(stays["verdict"]) == {"agree"}


def test_the_papers_tables_agree_with_its_claims():
    """Each claim with both sides in the paper's table points the way that the paper says, at its
    scale."""
    judged = 0
    for study, claims in CLAIMS.items():
        tables = list(dict.fromkeys(read_printed(study)["variant"]))
        for claim in claims:
            if claim.left.size:
                continue
            difference = paper_difference(study, claim, variants=tables or [""])
            if not np.isnan(difference):
                judged += 1
                assert difference in claim.within, claim.text
    assert judged > 33


def test_the_papers_difference_between_a_studys_first_and_last_variant_stands_beside_ours():
    numbers = ("4", "12", "20")
    views = pd.concat(
        [evaluations(("tiny",)).assign(variant=number) for number in numbers], ignore_index=True
    )
    points = pd.concat(
        [curves(("tiny",)).assign(variant=number) for number in numbers], ignore_index=True
    )
    per_seed = analyse_variants(StudyLosses(views, points), numbers).per_seed
    claims = paper_claims(per_seed, "aux_scaling")
    rises = claims[claims["claim"] == "Forget rises as domains are added"]
    assert rises["paper"].tolist() == pytest.approx([0.744 - 0.647])
    unprinted = paper_claims(per_seed.replace({"4": "2"}), "aux_scaling")
    assert unprinted.loc[unprinted["claim"] == rises["claim"].iloc[0], "paper"].isna().all()


def test_the_papers_rows_stand_below_ours(measured):
    table = measured.table
    beside = beside_paper(table[table["size"] == "small"], "accumulation")
    assert beside.columns.tolist()[:4] == ["variant", "method", "size", "from"]
    paper = beside[beside["from"] == "paper"]
    assert paper[["variant", "method", "retain"]].values.tolist() == [
        ["uniform", "baseline", "0.760"],
        ["uniform", "gram", "0.750"],
        ["heterogeneous", "gram", "1.110"],
    ]


def test_figures_have_the_tables_values_and_the_papers(measured):
    table = measured.table
    figure = variant_figure(table, "accumulation", "small", "mean", "core", "accumulation")
    series = {trace.name: trace for trace in figure.data}
    assert list(series["GRAM"].y) == pytest.approx(
        [cell(table, v, "gram", "mean", "core") for v in VARIANTS]
    )
    # The reference is not drawn.
    assert list(series["baseline"].y) == pytest.approx([0.8], abs=1e-6)
    (of_paper,) = [trace for name, trace in series.items() if name.startswith("GRAM, ")]
    assert list(of_paper.y) == [0.94, 0.99]
    # Only the baseline is drawn.
    assert len(variant_figure(table, "accumulation", "small", "core+physics", "core").data) == 1


def test_numbers_get_an_axis():
    views = pd.concat(
        [evaluations().assign(variant=name) for name in ("4", "16")], ignore_index=True
    )
    points = pd.concat([curves().assign(variant=name) for name in ("4", "16")], ignore_index=True)
    table = analyse_variants(StudyLosses(views, points), ("4", "16")).table
    figure = variant_figure(table, "num_auxiliary", "small", "mean", "forget", "aux_scaling")
    assert list(figure.data[0].x) == [4.0, 16.0]
    assert figure.layout.xaxis.title.text == "num auxiliary"
