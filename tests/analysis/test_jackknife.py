"""Checks the jackknife's intervals against whole analyses without each seed, and where it has
nothing to leave out."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from gram_platform.analysis import ratios
from gram_platform.analysis.intervals import CURVE_FIXED, ENDS, PSEUDO_SUFFIX
from gram_platform.analysis.ratios import PSEUDO
from gram_platform.analysis.tables import CLASSES, StudyLosses, analyse, domain_table
from gram_platform.analysis.variants import analyse_variants, by_number, drop_table
from gram_platform.methods.nodes import BASELINE
from gram_platform.paper.verdicts import claims_frame, paper_claims, separation_claims
from tests.study_frames import curves, evaluations

SIZES = ("tiny", "small")
ROW = ["method", "size", "profile"]
TAIL = 0.95


def noisy(seeds=("0", "1", "2"), sizes=("tiny",)) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The planted study with noise between the seeds' curves, and losses that the noise does not
    explain."""
    rng, found = np.random.default_rng(7), []
    points = curves(sizes)
    level = {seed: 0.02 * rng.standard_normal() for seed in ("0", "1", "2")}
    noise = points["seed"].map(level) + 0.01 * rng.standard_normal(len(points))
    views = evaluations(sizes)
    losses = [name for name in views if name.startswith("loss/")]
    views[losses] *= np.exp(0.01 * rng.standard_normal((len(views), len(losses))))
    for frame in (views, points.assign(loss=points["loss"] * np.exp(noise))):
        found.append(frame[frame["seed"].isin(seeds)].reset_index(drop=True))
    return found[0], found[1]


def without(frame: pd.DataFrame, seed: str) -> pd.DataFrame:
    return frame[frame["seed"] != seed]


@pytest.fixture(scope="module")
def analysis():
    return analyse(StudyLosses(*noisy(sizes=SIZES)), SIZES)


@pytest.fixture(scope="module")
def left_out():
    """The analyses without each seed, whose means are what the jackknife leaves out."""
    views, points = noisy(sizes=SIZES)
    return [
        analyse(StudyLosses(without(views, s), without(points, s)), SIZES, intervals=CURVE_FIXED)
        for s in ("0", "1", "2")
    ]


def half_width(every: np.ndarray, left: list[np.ndarray]) -> np.ndarray:
    """Tukey's: of the pseudo-values n every - (n - 1) left."""
    num = len(left)
    pseudo = np.array([num * every - (num - 1) * one for one in left])
    return stats.t.ppf(TAIL, num - 1) * pseudo.std(axis=0, ddof=1) / math.sqrt(num)


def test_the_table_has_the_intervals_of_whole_analyses_without_each_seed(analysis, left_out):
    fixed = analyse(StudyLosses(*noisy(sizes=SIZES)), SIZES, intervals=CURVE_FIXED).table
    pd.testing.assert_frame_equal(
        analysis.table[[*ROW, *CLASSES]], fixed[[*ROW, *CLASSES]], check_exact=True
    )
    for name in CLASSES[:3]:
        means = [part.table[name].to_numpy() for part in (analysis, *left_out)]
        mean, low, high = (analysis.table[name + end].to_numpy() for end in ENDS)
        half = half_width(means[0], means[1:])
        np.testing.assert_allclose(high - mean, half, rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(mean - low, half, rtol=1e-6, atol=1e-12)
        differs = np.abs(half / (fixed[f"{name}_high"] - fixed[name]).to_numpy() - 1.0)
        assert np.nanmedian(differs) > 0.1  # the curve's error shows
    is_baseline = analysis.table["method"] == BASELINE  # whose mean is 1, whichever seeds there are
    np.testing.assert_allclose(
        analysis.table.loc[is_baseline, ["core_low", "core_high"]], 1.0, rtol=1e-9
    )


def test_domains_drops_and_claims_have_them_too(analysis, left_out):
    domains = [domain_table(part.ratios) for part in (analysis, *left_out)]
    means = [frame["compute_ratio"].to_numpy() for frame in domains]
    np.testing.assert_allclose(
        domains[0]["high"] - means[0], half_width(means[0], means[1:]), rtol=1e-6, atol=1e-12
    )
    drops = [drop_table(by_number(part.per_seed), part.per_seed) for part in (analysis, *left_out)]
    for name in ("one", "all", "drop"):
        means = [frame[name].to_numpy() for frame in drops]
        np.testing.assert_allclose(
            drops[0][f"{name}_high"] - means[0], half_width(means[0], means[1:]), rtol=1e-6
        )
    for judged in (
        lambda part: paper_claims(part, "scaling"),
        lambda part: claims_frame(separation_claims(part)),
    ):
        claims = [judged(part.per_seed) for part in (analysis, *left_out)]
        assert len(claims[0]) > 3
        means = [frame["difference"].to_numpy() for frame in claims]
        np.testing.assert_allclose(
            claims[0]["high"] - means[0], half_width(means[0], means[1:]), rtol=1e-6
        )


def test_with_a_fixed_curve_the_interval_is_the_t_over_seeds():
    views, points = noisy()
    alone = analyse(StudyLosses(views, points), SIZES, own_baseline=True)
    fixed = analyse(StudyLosses(views, points), SIZES, own_baseline=True, intervals=CURVE_FIXED)
    pd.testing.assert_frame_equal(alone.table, fixed.table, check_exact=True)
    assert PSEUDO not in fixed.ratios
    assert not [name for name in fixed.per_seed if name.endswith(PSEUDO_SUFFIX)]
    (same,) = points.loc[points["seed"] == "0", "loss"].to_numpy()[None]
    views.loc[views["method"] == BASELINE, ["loss/core", "loss/biology", "loss/chemistry"]] = 2.5
    equal = points.sort_values(["seed", "size", "domain", "step"]).assign(loss=np.tile(same, 3))
    both = [
        analyse(StudyLosses(views, equal), SIZES, intervals=kind).table
        for kind in ("leave-one-seed-out jackknife", CURVE_FIXED)
    ]
    # Three equal baselines: without one, the curve is the same.
    pd.testing.assert_frame_equal(*both, rtol=1e-6)


@pytest.mark.parametrize("seeds", [("0",), ("0", "1")])
def test_one_or_two_seeds_have_no_interval(seeds):
    alone = analyse(StudyLosses(*noisy(seeds)), SIZES)
    assert alone.table["core"].notna().all()
    assert alone.table[["core_low", "core_high"]].isna().all(axis=None)
    assert alone.missing.empty


def test_variants_of_one_unit_share_the_fits():
    views, points = noisy()
    both = [frame.assign(variant=name) for name in ("a", "b") for frame in (views,)]
    ratios._fitted.cache_clear()
    curves_of_a = points.assign(variant="a")
    joined = analyse_variants(
        StudyLosses(pd.concat(both), curves_of_a), ("a", "b"), ("tiny",), unit="a"
    )
    # Domains; the pooled curve and one without each seed.
    assert ratios._fitted.cache_info().misses == 3 * (1 + 3)
    alone = analyse(StudyLosses(views, points), ("tiny",)).table
    for variant in ("a", "b"):
        table = (
            joined.table[joined.table["variant"] == variant]
            .drop(columns="variant")
            .reset_index(drop=True)
        )
        pd.testing.assert_frame_equal(table, alone)


def test_a_row_with_fewer_seeds_keeps_the_references_variance():
    views, points = noisy()
    is_gram = views["method"] == "gram"
    names = [name for name in views if name.startswith("loss/")]
    views.loc[is_gram, names] = (
        views.loc[is_gram, names].groupby(views["size"]).transform("first")
    )  # no noise of theirs

    def variance(rows: pd.DataFrame) -> pd.Series:
        per_seed = analyse(StudyLosses(rows, points), SIZES).per_seed
        of_gram = per_seed[per_seed["method"] == "gram"].groupby(ROW)["core" + PSEUDO_SUFFIX]
        return of_gram.var() / of_gram.size()

    fewer = [variance(views[~is_gram | (views["seed"] != seed)]) for seed in ("0", "1", "2")]
    pd.testing.assert_series_equal(sum(fewer) / 3.0, variance(views), rtol=1e-6)


def test_a_seed_without_a_baseline_keeps_its_spread():
    views, points = noisy()
    lost = (views["method"] == BASELINE) & (views["seed"] == "2")
    found = analyse(StudyLosses(views[~lost], without(points, "2")), SIZES)
    rows = found.ratios[found.ratios["method"] != BASELINE]
    is_alone = rows["seed"] == "2"
    assert (rows.loc[is_alone, PSEUDO] == rows.loc[is_alone, "compute_ratio"]).all()
    assert (rows.loc[~is_alone, PSEUDO] != rows.loc[~is_alone, "compute_ratio"]).all()
    assert (found.table["core_high"] > found.table["core"])[found.table["method"] == "gram"].all()


def test_where_no_curve_fits_without_a_seed_there_is_no_interval_and_a_note():
    views, points = noisy(sizes=SIZES)
    rises = (points["size"] == "tiny") & (points["domain"] == "core") & (points["seed"] != "0")
    points.loc[rises, "loss"] = 2.0 + 1e-4 * points.loc[rises, "step"]
    views.loc[views["size"] == "tiny", "loss/core"] = points.loc[
        points["size"] == "tiny", "loss"
    ].median()
    found = analyse(StudyLosses(views, points), SIZES)
    (note,) = found.missing.to_dict("records")
    assert note["what"].endswith("size tiny, domain core")
    assert "without seed 0: losses=" in note["why"]
    table = found.table.set_index("size")
    assert table["core"].notna().all()
    assert table.loc["tiny", ["core_low", "core_high"]].isna().all(axis=None)
    assert table.loc["small", ["core_low", "core_high"]].notna().all(axis=None)
    assert (
        table.loc["tiny", "forget_low"].notna().sum()
        == table.loc["tiny", "forget"].notna().sum()
        > 0
    )
    claims = paper_claims(found.per_seed, "scaling").set_index(["claim", "size"])
    judged = claims.loc["GRAM's core is no more than 0.06 below filtering's"]
    assert judged.loc["tiny", "verdict"] == "agree (no interval)"
    assert math.isnan(judged.loc["tiny", "detectable"])
    assert "no interval" not in judged.loc["small", "verdict"]
