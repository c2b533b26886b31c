"""Checks the tables on planted compute ratios, and when parts of a study are missing."""

import csv
import io

import numpy as np
import pandas as pd
import pytest

from gram_platform.analysis.intervals import t_interval
from gram_platform.analysis.ratios import method_key, profile_key, seed_key, size_key
from gram_platform.analysis.tables import (
    CLASSES,
    NATS_COLUMNS,
    TABLE_COLUMNS,
    StudyLosses,
    analyse,
    domain_table,
    find_mean_profiles,
    in_reading_order,
    interval_cell,
    nats_table,
    pair_means,
    short_text,
    table_csv,
)
from gram_platform.pages.results.results import format_table
from tests.refused import refused
from tests.study_frames import (
    DOMAINS,
    NUM_STEPS,
    PROFILES,
    SEEDS,
    SIZES,
    analysed,
    curves,
    evaluations,
    jackknife,
    loss_at,
    planted_ratio,
)


def row(table: pd.DataFrame, method: str, size: str, profile: str) -> pd.Series:
    found = table[
        (table["method"] == method) & (table["size"] == size) & (table["profile"] == profile)
    ]
    assert len(found) == 1
    return found.iloc[0]


@pytest.fixture(scope="module")
def analysis():
    return analysed()


def test_schema_and_order(analysis):
    table = analysis.table
    assert table_csv(table).splitlines()[0].split(",") == TABLE_COLUMNS + NATS_COLUMNS
    assert TABLE_COLUMNS[:6] == ["method", "size", "profile", "core", "core_low", "core_high"]
    assert TABLE_COLUMNS[-4:] == ["elicited", "elicited_low", "elicited_high", "num_seeds"]
    assert list(dict.fromkeys(table["method"])) == ["baseline", "filtering", "gram"]
    gram = table[table["method"] == "gram"]
    assert list(dict.fromkeys(gram["size"])) == ["tiny", "small", "medium"]
    assert list(gram["profile"][:5]) == ["core", "core+biology", "core+chemistry", "all", "mean"]
    assert table["elicited"].isna().all()
    assert analysis.missing.empty


def test_planted_ratios_are_recovered(analysis):
    for record in analysis.ratios.to_dict("records"):
        expected = planted_ratio(
            *(record[k] for k in ("method", "size", "seed", "profile", "domain"))
        )
        assert record["compute_ratio"] == pytest.approx(expected, rel=1e-6)
        assert record["run_id"].startswith("run-")
    assert len(analysis.ratios) == len(evaluations()) * len(DOMAINS)


def test_a_domain_whose_name_is_a_part_of_a_retained_name_is_forgotten():
    longer = "biology of plants"
    views = evaluations(("tiny",)).rename(columns={"loss/chemistry": f"loss/{longer}"})
    frames = (
        frame.replace("chemistry", longer, regex=True) for frame in (views, curves(("tiny",)))
    )
    view = row(analyse(StudyLosses(*frames)).table, "gram", "tiny", f"core+{longer}")
    assert list(view[["retain", "forget"]]) == pytest.approx([0.94, 0.75])


def test_the_reference_is_the_baseline_with_everything_on():
    views = evaluations(("tiny",))
    of_core = views[(views["method"] == "gram") & (views["profile"] == "core")].assign(
        method="baseline"
    )
    table = analyse(
        StudyLosses(pd.concat([of_core, views], ignore_index=True), curves(("tiny",)))
    ).table
    assert row(table, "gram", "tiny", "core")["core"] == pytest.approx(0.94)


def test_classes_of_each_profile(analysis):
    view = row(analysis.table, "gram", "small", "core+biology")
    seeds = [0.94 - 0.02, 0.94, 0.94 + 0.02]
    assert list(view[["core", "core_low", "core_high"]]) == pytest.approx(
        jackknife(seeds, [0.98, 1.0, 1.02]), rel=1e-6
    )
    assert view["retain"] == pytest.approx(0.94)
    assert view["forget"] == pytest.approx(0.65)
    assert view["num_seeds"] == 3
    assert np.isnan(row(analysis.table, "gram", "small", "core")["retain"])
    assert np.isnan(row(analysis.table, "gram", "small", "all")["forget"])


def test_the_mean_averages_the_profiles_of_at_most_one_domain(analysis):
    per_profile = [
        row(analysis.table, "gram", "small", p) for p in ("core", "core+biology", "core+chemistry")
    ]
    mean = row(analysis.table, "gram", "small", "mean")
    for name in ("core", "retain", "forget"):
        assert mean[name] == pytest.approx(np.nanmean([r[name] for r in per_profile]))
    only = row(analysis.table, "filtering", "small", "core+biology")
    assert row(analysis.table, "filtering", "small", "mean")["forget"] == only["forget"]


def test_the_mean_weighs_every_pair_of_a_profile_and_a_domain_alike():
    known = evaluations(("small",))
    is_core = (known["method"] == "gram") & (known["profile"] == "core")
    known.loc[is_core, "loss/biology"] = float(loss_at("small", "biology", 0.2 * NUM_STEPS))
    known.loc[is_core, "loss/chemistry"] = float(loss_at("small", "chemistry", 0.3 * NUM_STEPS))
    analysis = analyse(StudyLosses(known, curves(("small",))))
    planted = [0.2, 0.3, 0.65, 0.65]  # core forgets two domains, core with one the other one
    assert row(analysis.table, "gram", "small", "mean")["forget"] == pytest.approx(np.mean(planted))
    own = analysis.per_seed[
        (analysis.per_seed["method"] == "gram") & (analysis.per_seed["seed"] == "1")
    ]
    counts = own.set_index("profile")[["num_core", "num_retain", "num_forget", "num_elicited"]]
    assert counts.loc["core"].tolist() == [1, 0, 2, 0]
    assert counts.loc["all"].tolist() == [1, 2, 0, 0]
    assert counts.loc["mean"].tolist() == [3, 2, 4, 0]
    assert pair_means(
        own[own["profile"].isin(["core", "core+biology"])], "forget"
    ) == pytest.approx(1.15 / 3)
    assert np.isnan(pair_means(own, "elicited"))
    unknown = own.assign(forget=own["forget"].where(own["profile"] != "core"))
    assert np.isnan(pair_means(unknown, "forget"))
    assert pair_means(unknown, "retain") == pytest.approx(0.94)


def test_with_one_auxiliary_domain_all_is_one_of_the_averaged_profiles():
    one = evaluations().drop(columns="loss/chemistry")
    one = one[one["profile"].isin(["core", "all"])].assign(
        retained=lambda f: f["profile"].map({"core": "", "all": "biology"})
    )
    points = curves()
    table = analyse(StudyLosses(one, points[points["domain"] != "chemistry"])).table
    mean = row(table, "gram", "tiny", "mean")
    assert mean["retain"] == row(table, "gram", "tiny", "all")["retain"]
    assert mean["forget"] == row(table, "gram", "tiny", "core")["forget"]
    assert row(table, "baseline", "tiny", "mean")["core"] == pytest.approx(1.0)


def test_the_baseline_is_one_by_construction(analysis):
    for size in SIZES:
        for profile in ("all", "mean"):
            baseline = row(analysis.table, "baseline", size, profile)
            assert baseline["core"] == pytest.approx(1.0, abs=1e-12)
            assert baseline["retain"] == pytest.approx(1.0, abs=1e-12)
            assert np.isnan(baseline["forget"])


def test_fits(analysis):
    fits = analysis.fits
    assert len(fits) == len(SIZES) * len(DOMAINS)
    assert (fits["rms"] < 1e-9).all()
    assert not fits["at_bound"].any()
    assert fits["reference_steps"].to_numpy() == pytest.approx(500.0, rel=1e-6)
    assert list(fits["domain"][:3]) == ["core", "biology", "chemistry"]


def test_a_size_without_finished_baselines_is_absent_and_named():
    known = evaluations()
    unfinished = known[~((known["size"] == "medium") & (known["method"] == "baseline"))]
    analysis = analyse(StudyLosses(unfinished, curves()))
    assert set(analysis.table["size"]) == {"tiny", "small"}
    assert analysis.missing["what"].str.endswith("size medium").any()
    pd.testing.assert_frame_equal(
        analysis.table,
        analyse(StudyLosses(evaluations(("tiny", "small")), curves(("tiny", "small")))).table,
    )


def test_a_baseline_seed_counts_once_it_is_complete():
    without_curve = curves()
    without_curve = without_curve[
        ~((without_curve["size"] == "tiny") & (without_curve["seed"] == "2"))
    ]
    analysis = analyse(StudyLosses(evaluations(), without_curve))
    fits = analysis.fits.set_index(["size", "domain"])
    assert fits.loc[("tiny", "core"), "num_seeds"] == 2
    assert fits.loc[("small", "core"), "num_seeds"] == 3
    assert list(analysis.missing["what"]) == ["baseline tiny seed 2"]


def test_a_missing_profile_leaves_its_seed_out_of_the_mean():
    known = evaluations()
    gone = (
        (known["method"] == "gram")
        & (known["profile"] == "core")
        & (known["seed"] == "1")
        & (known["size"] == "tiny")
    )
    analysis = analyse(StudyLosses(known[~gone], curves()))
    assert row(analysis.table, "gram", "tiny", "core")["num_seeds"] == 2
    assert row(analysis.table, "gram", "tiny", "core+biology")["num_seeds"] == 3
    assert row(analysis.table, "gram", "tiny", "mean")["num_seeds"] == 2
    assert analysis.missing.to_dict("records") == [
        {"what": "gram tiny mean seed 1", "why": "core is missing"}
    ]


def test_seeds_are_those_of_the_class_that_has_the_fewest():
    known = evaluations()
    hit = (known["method"] == "gram") & (known["profile"] == "core") & (known["size"] == "tiny")
    known.loc[hit & (known["seed"] == "1"), "loss/biology"] = np.nan
    of_core = row(analyse(StudyLosses(known, curves())).table, "gram", "tiny", "core")
    assert of_core["num_seeds"] == 2
    # Two seeds have their two points and no interval.
    assert np.isnan(of_core["forget_low"])
    assert np.mean(of_core["forget_points"]) == pytest.approx(of_core["forget"])
    assert of_core["core_points"] == ()
    cell = interval_cell(of_core, "forget")
    assert cell == "{:.3f} ({:.3f}, {:.3f})".format(of_core["forget"], *of_core["forget_points"])


def test_an_unknown_domain_makes_its_class_unknown_and_nothing_else():
    known = evaluations()
    hit = (known["method"] == "gram") & (known["profile"] == "core") & (known["size"] == "tiny")
    known.loc[hit, "loss/biology"] = np.nan
    analysis = analyse(StudyLosses(known, curves()))
    assert np.isnan(row(analysis.table, "gram", "tiny", "core")["forget"])
    assert np.isnan(row(analysis.table, "gram", "tiny", "mean")["forget"])
    assert row(analysis.table, "gram", "tiny", "mean")["core"] == pytest.approx(0.94)
    assert len(analysis.missing) == len(SEEDS)


def test_a_curve_that_cannot_be_fitted_is_named():
    rising = curves()
    hit = (rising["size"] == "tiny") & (rising["domain"] == "biology")
    rising.loc[hit, "loss"] = 1.0 + rising.loc[hit, "step"]
    analysis = analyse(StudyLosses(evaluations(), rising))
    assert analysis.missing["what"].tolist() == ["size tiny, domain biology"]
    # biology is one of its two domains.
    assert np.isnan(row(analysis.table, "gram", "tiny", "core")["forget"])
    assert row(analysis.table, "gram", "tiny", "core")["core"] == pytest.approx(0.94)


def test_final_losses_that_the_curve_has_not_reached_by_step_zero_are_named():
    known = evaluations()
    hit = (known["size"] == "tiny") & (known["method"] == "baseline")
    # Far above the curve's first loss: a negative number of steps.
    known.loc[hit, "loss/biology"] = 99.0
    analysis = analyse(StudyLosses(known, curves()))
    (note,) = analysis.missing.to_dict("records")
    assert note["what"] == "size tiny, domain biology"
    assert "positive step" in note["why"]
    assert row(analysis.table, "gram", "tiny", "core")["core"] == pytest.approx(0.94)


def test_an_infinite_loss_has_no_ratio_and_is_named():
    known = evaluations()
    hit = (known["method"] == "gram") & (known["profile"] == "core") & (known["size"] == "tiny")
    known.loc[hit & (known["seed"] == "1"), "loss/biology"] = np.inf
    analysis = analyse(StudyLosses(known, curves()))
    note = analysis.missing.to_dict("records")[0]
    assert {"gram", "tiny", "core", "1,", "biology"} <= set(note["what"].split())
    assert note["why"].endswith(" inf")
    assert row(analysis.table, "gram", "tiny", "core")["num_seeds"] == 2


def test_one_seed_has_a_mean_and_no_interval():
    table = analyse(StudyLosses(evaluations(seeds=("0",)), curves(seeds=("0",)))).table
    gram = row(table, "gram", "tiny", "core")
    assert gram["num_seeds"] == 1
    assert np.isfinite(gram["core"])
    assert np.isnan(gram["core_low"])


def test_nothing_at_all():
    analysis = analyse(StudyLosses(evaluations().iloc[:0], curves().iloc[:0]))
    assert analysis.table.empty
    assert table_csv(analysis.table).split() == [",".join(TABLE_COLUMNS + NATS_COLUMNS)]
    assert format_table(analysis.table).split() == ["method", "size", "profile", "seeds"]


def test_a_view_twice_is_refused():
    with refused("evaluations"):
        analyse(StudyLosses(pd.concat([evaluations(), evaluations()]), curves()))


def test_the_file_is_the_same_byte_for_byte_whatever_the_order_of_the_rows():
    views, noisy = evaluations(("tiny", "small")), curves(("tiny", "small"))
    noisy["loss"] *= np.exp(0.01 * np.random.default_rng(0).standard_normal(len(noisy)))
    shuffled = (frame.sample(frac=1.0, random_state=0) for frame in (views, noisy))
    table, again = analyse(StudyLosses(views, noisy)).table, analyse(StudyLosses(*shuffled)).table
    pd.testing.assert_frame_equal(again, table, check_exact=True)
    text = table_csv(table)
    assert table_csv(again) == text
    assert text.startswith("method,size,profile,core,core_low,core_high,retain,")
    assert "nan" not in text.lower()
    assert table_csv(pd.read_csv(io.StringIO(text), keep_default_na=True)) == text


FORMULAS = [
    "=HYPERLINK(1)",
    "\n=1",
    "\uff1d1+1",
    "@SUM(1)",
    "+1+1",
    "-1+1",
    "-cmd",
    "\tx",
    "=1",
    "--1",
]
PLAIN = ["core", "core+@SUM(1)", "-", "-1", "+1.5e3", "-inf", "", "a=b", "1-2", "'=1"]


def test_a_spreadsheet_runs_no_cell():
    """Numbers and plain labels stay as they are, also where a column has other text."""
    frame = pd.DataFrame({"text": FORMULAS + PLAIN, "@SUM": -1.0, "n": -1})
    header, *rows = csv.reader(io.StringIO(table_csv(frame)))
    assert header == ["text", "'@SUM", "n"]
    assert [row[0] for row in rows] == [*(f"'{cell}" for cell in FORMULAS), *PLAIN]
    assert {tuple(row[1:]) for row in rows} == {("-1.000000", "-1")}
    values = pd.DataFrame(
        {"text": PLAIN, "value": np.linspace(-1, 1, len(PLAIN)), "none": [None, *PLAIN[1:]]}
    )
    assert table_csv(values) == values.to_csv(index=False, float_format="%.6f", lineterminator="\n")
    for fractions in (None, "%.6g"):  # of searches
        assert table_csv(values, fractions) == values.to_csv(index=False, float_format=fractions)
        assert f"'{FORMULAS[0]}" in table_csv(frame, fractions)


def loss_of(method: str, seed: str, profile: str, domain: str) -> float:
    ratio = planted_ratio(method, "tiny", seed, profile, domain)
    return float(loss_at("tiny", domain, NUM_STEPS * ratio))


def test_losses_in_nats_are_means_over_domains_then_over_seeds(analysis):
    """Of the profile core, which forgets two domains."""
    means = [
        np.mean([loss_of("gram", seed, "core", d) for d in ("biology", "chemistry")])
        for seed in SEEDS
    ]
    found = row(analysis.table, "gram", "tiny", "core")
    names = ("forget_nats", "forget_nats_low", "forget_nats_high")
    assert [found[name] for name in names] == pytest.approx(t_interval(means))
    assert np.isnan(found["retain_nats"])


def test_differences_from_filtering_are_paired_by_seed_on_the_profiles_of_both(analysis):
    """Filtering has core+biology alone, so that GRAM's mean is compared there."""
    differences = [
        np.subtract(*(loss_of(m, seed, "core+biology", "core") for m in ("gram", "filtering")))
        for seed in SEEDS
    ]
    name = "core_nats_minus_filtering"
    for profile in ("core+biology", "mean"):
        found = row(analysis.table, "gram", "tiny", profile)
        ends = [found[name + end] for end in ("", "_low", "_high")]
        assert ends == pytest.approx(t_interval(differences))
    for method, profile in (("gram", "core"), ("filtering", "mean"), ("baseline", "all")):
        assert np.isnan(row(analysis.table, method, "tiny", profile)[name])


def test_a_seed_without_filtering_has_no_difference():
    views = evaluations(("tiny",))
    lacking = (views["method"] == "filtering") & (views["seed"] == "1")
    analysis = analyse(StudyLosses(views[~lacking], curves(("tiny",)), declared=views))
    found = analysis.per_seed.query("method == 'gram' and profile == 'mean'").set_index("seed")
    assert found["core_nats_minus_filtering"].notna().to_dict() == {
        "0": True,
        "1": False,
        "2": True,
    }
    alone = analyse(StudyLosses(views[views["method"] != "filtering"], curves(("tiny",))))
    assert alone.table.filter(NATS_COLUMNS[-12:]).isna().all(axis=None)
    assert "core nats minus filtering" not in nats_table(alone.table)


def test_a_ratio_is_worth_its_slope_in_nats(analysis):
    """The planted curve's, by a difference quotient."""
    rows = analysis.per_seed.query("method == 'filtering' and size == 'tiny' and profile == 'mean'")
    for seed, slope in zip(rows["seed"], rows["core_ratio_per_nat"], strict=True):
        ratio = planted_ratio("filtering", "tiny", seed, "core+biology", "core")
        near = np.array([ratio - 1e-4, ratio + 1e-4])
        quotient = 2e-4 / -np.diff(loss_at("tiny", "core", NUM_STEPS * near))[0]
        assert slope == pytest.approx(quotient, rel=1e-4)


def test_losses_of_the_report_have_four_digits(analysis):
    shown = nats_table(analysis.table)
    assert list(shown)[3:] == [
        *(f"{name} nats" for name in CLASSES[:3]),
        *(f"{name} nats minus filtering" for name in CLASSES[:3]),
    ]
    first = shown.query("method == 'gram' and size == 'tiny' and profile == 'mean'").iloc[0]
    assert first["core nats minus filtering"] == "0.0108 [0.0104, 0.0112]"


def test_text_for_a_terminal(analysis):
    lines = format_table(analysis.table).splitlines()
    assert lines[0].split() == ["method", "size", "profile", "core", "retain", "forget", "seeds"]
    assert any(line.startswith("GRAM") and "0.940 [0.938, 0.942]" in line for line in lines)
    shown = in_reading_order(analysis.table)
    assert len(lines) == 1 + len(shown)
    assert list(shown["method"])[-3:] == ["baseline"] * 3
    # Every row but the means of filtering and of the baseline, which have one profile each.
    assert set(shown.loc[shown["profile"] == "mean", "method"]) == {"gram"}
    assert len(analysis.table) - len(shown) == 2 * analysis.table["size"].nunique()


def test_sizes_methods_profiles_and_seeds_have_one_order():
    assert sorted(["2B", "tiny", "800M", "50M", "1.5B"], key=size_key) == [
        "50M",
        "800M",
        "1.5B",
        "2B",
        "tiny",
    ]
    methods = ["demix", "other", "gram", "filtering", "baseline", "maxent"]
    assert sorted(methods, key=method_key) == [
        "baseline",
        "filtering",
        "gram",
        "maxent",
        "demix",
        "other",
    ]
    profiles = ["mean", "all", "core+b", "core", "core+a+b", "core+a"]
    assert sorted(profiles, key=profile_key) == [
        "core",
        "core+a",
        "core+b",
        "core+a+b",
        "all",
        "mean",
    ]
    assert sorted(["x", "10", "9"], key=seed_key) == ["9", "10", "x"]


def test_a_curve_too_flat_to_convert_a_loss_affects_only_its_domain():
    known, points = evaluations(), curves()
    hit = (points["size"] == "tiny") & (points["domain"] == "biology")
    points.loc[hit, "loss"] = 4.0 * points.loc[hit, "step"] ** -1e-4
    tiny = known["size"] == "tiny"
    known.loc[tiny, "loss/biology"] = np.where(
        known.loc[tiny, "method"] == "baseline", 4.0 * 500.0**-1e-4, 3.5
    )
    analysis = analyse(StudyLosses(known, points), tuple(SIZES))
    core = row(analysis.table, "gram", "tiny", "core")
    assert core["core"] == pytest.approx(0.94)
    assert np.isnan(core["forget"])  # biology is one of its two domains
    assert np.isfinite(analysis.ratios["compute_ratio"].dropna()).all()
    assert np.isfinite(domain_table(analysis.ratios)["compute_ratio"]).all()
    notes = analysis.missing.set_index("what")["why"]
    assert len(notes) == len(SEEDS) * (len(PROFILES) + 1)
    assert all("biology" in what for what in notes.index)
    assert notes.str.contains(r"alpha 0\.0001.* flat .*\b\d\.\d+$").all()
    assert notes[notes.index.str.contains("tiny core seed 0")].str.endswith(", 3.5").tolist() == [
        True
    ]
    rest = [
        frame[frame["size"] != "tiny"].reset_index(drop=True)
        for frame in (analysis.table, analysed().table)
    ]
    pd.testing.assert_frame_equal(*rest)


def test_profiles_of_the_mean_by_what_they_retain():
    per_seed = analysed().per_seed
    gram = per_seed[per_seed["method"] == "gram"]
    assert find_mean_profiles(gram) == {"core", "core+biology", "core+chemistry"}
    one = gram[gram["profile"].isin(["core", "all"])]
    assert find_mean_profiles(one) == {"core"}
    assert find_mean_profiles(
        one.assign(retained=one["retained"].replace("biology,chemistry", "biology"))
    ) == {
        "core",
        "all",
    }
    assert find_mean_profiles(gram.iloc[:0]) == set()


def test_an_interval_in_short():
    assert short_text(0.914, 0.855, 0.973) == "0.914 \u00b1.059"
    assert short_text(1.548, 0.2, 2.9) == "1.548 \u00b11.350"
    assert short_text(0.914, np.nan, np.nan) == "0.914"
    assert short_text(np.nan, np.nan, np.nan) == ""
