"""Checks grids with planted optima: cells, optima with every flag, laws and the sizes that they
leave out."""

import json
import math
import re

import numpy as np
import pandas as pd
import pytest

from gram_platform.analysis.lr_grid import POOLED, cells, optima_table, surface_table
from gram_platform.analysis.lr_laws import (
    analyse_grid,
    law_json,
    laws_table,
    make_law,
    predictions,
    window_table,
)
from gram_platform.analysis.surface import Fit
from gram_platform.analysis.trends import fit_power_law
from gram_platform.config.ladder import DEMO_SIZES, PAPER_LAW, PAPER_SIZES, load_law
from tests.refused import refused

SIZES = {"1M": 1e6, "4M": 4e6, "16M": 16e6}
LRS = tuple(1e-3 * 2.0**k for k in range(-2, 2))
BATCHES = (16, 32, 64)


def planted(
    size,
    lr=0.9e-3,
    batch=30.0,
    seeds=("0", "1", "2"),
    noise=0.0,
    bend=0.1,
    lrs=LRS,
    batches=BATCHES,
):
    """Trials of one size whose optimum is at `lr` and `batch`; `bend` is the curvature along the
    batch."""
    rng = np.random.default_rng(int(SIZES.get(size, 1)))
    rows = []
    for seed in seeds:
        for x in lrs:
            for y in batches:
                loss = 3.0 + 0.1 * math.log(x / lr) ** 2 + 0.5 * bend * math.log(y / batch) ** 2
                row = (
                    size,
                    SIZES.get(size, 1e6),
                    seed,
                    x,
                    y,
                    loss + noise * rng.standard_normal(),
                    "complete",
                )
                rows.append((*row, f"{size}-{seed}-{x:g}-{y}"))
    return pd.DataFrame(
        rows, columns=["size", "parameters", "seed", "lr", "batch", "loss", "state", "run_id"]
    )


def laddered(noise=0.0, **of_size) -> pd.DataFrame:
    """Three sizes along lr ~ N^-0.1 and batch ~ N^0.2; `of_size` changes single ones."""
    frames = []
    for size, n in SIZES.items():
        best = {"lr": 0.9e-3 * (n / 4e6) ** -0.1, "batch": 30.0 * (n / 4e6) ** 0.2}
        frames.append(planted(size, **{**best, "noise": noise, **of_size.get(f"s{size}", {})}))
    return pd.concat(frames, ignore_index=True)


def diverge(trials: pd.DataFrame, chosen: pd.Series) -> pd.DataFrame:
    return trials.assign(
        state=np.where(chosen, "diverged", trials["state"]),
        loss=np.where(chosen, np.nan, trials["loss"]),
    )


def pooled(trials, **options) -> pd.Series:
    optima = optima_table(trials, Fit(**options))
    return optima[optima["seed"] == POOLED].iloc[0]


def test_cells_average_seeds_and_count_incomplete_ones():
    trials = planted("4M", noise=0.01)
    trials = diverge(
        trials, (trials["lr"] == LRS[-1]) & (trials["batch"] == 16) & (trials["seed"] == "1")
    )
    trials.loc[
        (trials["lr"] == LRS[0]) & (trials["batch"] == 64) & (trials["seed"] == "2"), "state"
    ] = "failed"
    table = cells(trials).set_index(["lr", "batch"])
    assert len(table) == 12
    hot, torn, whole = table.loc[(LRS[-1], 16)], table.loc[(LRS[0], 64)], table.loc[(LRS[1], 32)]
    assert (hot["num_seeds"], hot["num_diverged"], hot["used"]) == (2, 1, False)
    assert (torn["num_seeds"], torn["num_failed"], torn["used"]) == (2, 1, True)
    losses = trials[(trials["lr"] == LRS[1]) & (trials["batch"] == 32)]["loss"]
    assert (whole["loss"], whole["loss_low"], whole["loss_high"]) == pytest.approx(
        (losses.mean(), losses.min(), losses.max())
    )
    assert whole["runs"].split() == [f"4M-{seed}-{LRS[1]:g}-32" for seed in "012"]


def test_rates_that_differ_in_their_last_bits_are_one_cell():
    trials = planted("4M", noise=0.01)
    moved = trials.assign(
        lr=trials["lr"].where(trials["seed"] != "1", trials["lr"] * (1.0 + 3e-16))
    )
    assert (moved["lr"] != trials["lr"]).any()
    pd.testing.assert_frame_equal(cells(moved), cells(trials))
    is_hot = (trials["lr"] == LRS[-1]) & (trials["seed"] == "1")
    assert pooled(diverge(moved, is_hot))["num_cells"] == 9
    assert pooled(moved)["notes"] == ""
    with refused("trials"):
        cells(pd.concat([trials, moved[is_hot]]))


def test_optima_pooled_and_per_seed():
    optima = optima_table(laddered(noise=0.001))
    assert optima["size"].tolist() == [size for size in SIZES for _ in range(4)]
    assert optima["seed"].tolist() == [POOLED, "0", "1", "2"] * 3
    assert optima["convex"].all()
    assert not optima["on_edge"].any()
    assert (optima[["edges", "notes", "reason"]] == "").all(axis=None)
    middle = optima[(optima["size"] == "4M") & (optima["seed"] == POOLED)].iloc[0]
    assert (middle["lr"], middle["batch"]) == pytest.approx((0.9e-3, 30.0), rel=0.05)
    assert middle["lr_low"] < middle["lr"] < middle["lr_high"]
    assert (middle["num_cells"], middle["num_points"]) == (12, 36)
    assert (middle["best_lr"], middle["best_batch"]) == (1e-3, 32)


@pytest.mark.parametrize(
    ("lr", "batch", "edges"),
    [
        (9e-3, 30.0, "lr high"),
        (1e-5, 30.0, "lr low"),
        (9e-4, 64.0, "batch high"),
        (1e-6, 1.0, "lr low, batch low"),
    ],
)
def test_minima_at_the_edge_name_their_sides(lr, batch, edges):
    row = pooled(planted("4M", lr, batch))
    assert row["on_edge"]
    assert row["edges"] == edges
    assert row["notes"].endswith(f": {edges}")


def test_surfaces_without_a_minimum_and_minima_of_noise():
    saddle = pooled(planted("4M", bend=-0.1))
    assert not saddle["convex"]
    assert math.isnan(saddle["lr"])
    assert saddle["notes"].startswith("not convex")
    assert "batch" in saddle["edges"]
    flat = pooled(planted("1M", bend=1e-7, noise=0.01))
    assert flat["convex"]
    assert flat["curvature_t"] < 2
    assert "curvature" in flat["notes"]


def test_an_exact_fit_is_flagged():
    trials = planted("4M", seeds="0", lrs=LRS[:3])
    gone = (trials["lr"] == LRS[0]) & (trials["batch"] != 32) | (trials["lr"] == LRS[2]) & (
        trials["batch"] == 64
    )
    row = pooled(trials[~gone])
    assert row["num_points"] == 6
    assert (row["lr"], row["batch"]) == pytest.approx((0.9e-3, 30.0))
    assert "exact fit" in row["notes"]


def test_a_cell_with_a_diverged_seed_is_left_out_of_every_fit():
    whole = planted("4M")
    lucky = whole.copy()
    hot = (lucky["lr"] == LRS[-1]) & (lucky["batch"] == 16)
    # The survivor of a cell where the others diverged.
    lucky.loc[hot & (lucky["seed"] == "0"), "loss"] = 0.5
    row = pooled(diverge(lucky, hot & (lucky["seed"] != "0")))
    assert (row["num_cells"], row["num_diverged"]) == (11, 1)
    assert (row["lr"], row["batch"]) == pytest.approx((0.9e-3, 30.0))


def test_a_failed_fit_keeps_its_row_and_all_others():
    trials = laddered(s4M={"lrs": LRS[:2]})
    optima = optima_table(trials)
    refused = optima[optima["size"] == "4M"]
    assert len(refused) == 4
    assert refused["reason"].str.contains("three values").all()
    assert refused["best_loss"].notna().all()
    assert optima[optima["size"] != "4M"]["convex"].all()
    laws = laws_table(trials)
    assert laws["sizes"].tolist() == ["1M 16M"] * 2
    assert laws["left_out"].str.contains("4M: no fit").all()


def test_sizes_without_any_complete_run():
    trials = planted("4M")
    optima = optima_table(diverge(trials, trials["lr"] > 0))
    assert optima["seed"].tolist() == [POOLED]
    assert optima["num_diverged"].tolist() == [12]
    assert math.isnan(optima["best_loss"].iloc[0])
    assert surface_table(diverge(trials, trials["lr"] > 0)).empty


def test_bad_frames_name_the_column():
    good = planted("4M")
    for bad, field in (
        (good.drop(columns="state"), "trials"),
        (good.assign(state="lost"), "trials.state"),
        (good.assign(seed=None), "trials.seed"),
        (good.assign(loss=np.nan), "trials.loss"),
        (good.assign(lr=0.0), "trials.lr"),
        (good.assign(batch="large"), "trials.batch"),
        (pd.concat([good, good]), "trials"),
        (pd.concat([good, planted("1M").assign(parameters=4e6)]), "trials.parameters"),
    ):
        with refused(field):
            optima_table(bad)
    for window in (0.0, math.nan, True):
        with refused("window"):
            optima_table(good, Fit(window))


def test_laws_with_their_intervals():
    laws = laws_table(laddered(noise=0.001), num_resamples=20).set_index("quantity")
    assert laws.loc["lr", "exponent"] == pytest.approx(-0.1, abs=0.02)
    assert laws.loc["batch", "exponent"] == pytest.approx(0.2, abs=0.05)
    assert (laws["bootstrap_low"] < laws["exponent"]).all()
    assert (laws["t_low"] < laws["exponent"]).all()
    assert (laws[["num_sizes", "num_resamples", "num_failed"]] == [3, 20, 0]).all(axis=None)
    optima = optima_table(laddered(noise=0.001))
    optima = optima[optima["seed"] == POOLED]
    expected = fit_power_law(optima["parameters"], optima["lr"])
    assert (laws.loc["lr", "coefficient"], laws.loc["lr", "r2"]) == pytest.approx(
        (expected.coefficient, expected.r2)
    )


def no_law(trials, **options) -> str:
    laws = laws_table(trials, Fit(**options), num_resamples=2)
    assert laws["no_law"].nunique() == 1
    return laws["no_law"][0]


@pytest.mark.parametrize(
    ("changed", "why"),
    [({"lr": 9e-3}, "edge .*lr high"), ({"bend": 1e-7, "noise": 0.01}, "curvature .*noise")],
)
def test_weak_optima_are_left_out_while_three_others_remain(changed, why):
    weak = planted("1M", **changed).assign(size="64M", parameters=64e6)
    laws = laws_table(pd.concat([laddered(), weak]), num_resamples=2)
    assert laws["sizes"].tolist() == ["1M 4M 16M"] * 2
    assert laws[["num_sizes", "smallest", "largest"]].to_numpy().tolist() == [[3, 1e6, 16e6]] * 2
    assert re.match(f"64M: .*{why}", laws["left_out"][0])
    assert laws["no_law"].tolist() == [""] * 2
    assert laws["exponent"].tolist() == pytest.approx([-0.1, 0.2])


def test_too_few_sizes_an_edge_and_a_flat_surface_make_no_law():
    two = laddered()[lambda trials: trials["size"] != "16M"]
    assert re.search("2, at least 3", no_law(two))
    assert re.fullmatch(r"16M: .*\(lr high\)", no_law(laddered(s16M={"lr": 9e-3})))
    both = no_law(laddered(s16M={"lr": 9e-3}, s4M={"lr": 1e-5}))
    assert re.fullmatch(r"4M: .*\(.* low\); 16M: .*\(.* high\)", both)
    assert "curvature" in no_law(laddered(s1M={"bend": 1e-7, "noise": 0.01}))
    assert no_law(laddered()) == ""


def test_laws_that_cannot_be_fitted_say_why():
    laws = laws_table(laddered(s1M={"bend": -0.1}, s4M={"bend": -0.1}))
    assert laws["exponent"].isna().all()
    (why,) = set(laws["no_law"])
    assert re.search("1, .*3 .*; 1M: .*convex; 4M: .*convex", why)
    assert make_law(laws, "ours", 64, "a test") is None
    assert law_json(None, laws)["no_law"] == why


def test_coefficients_beyond_all_numbers_are_no_law():
    """Sizes that are almost alike, or a minimum far away, give an exponent whose coefficient no
    float holds."""
    alike = laddered(noise=0.001).replace({"parameters": {4e6: 1e6 + 1, 16e6: 1e6 + 2}})
    laws = laws_table(alike, num_resamples=2)
    assert all(laws["no_law"])
    assert make_law(laws, "ours", 64, "a test") is None


def test_a_grid_read_as_text_is_the_same_grid():
    trials = laddered()
    text = trials.astype(dict.fromkeys(("parameters", "lr", "batch", "loss"), str))
    pd.testing.assert_frame_equal(
        laws_table(text, num_resamples=1), laws_table(trials, num_resamples=1)
    )


def test_the_table_of_windows_shows_how_the_exponents_move():
    exact = window_table(laddered(), (None, 0.1, 1e-6))
    assert exact["window"].tolist()[1:] == [0.1, 1e-6]
    assert math.isnan(exact["window"][0])
    assert exact["lr_exponent"].tolist()[:2] == pytest.approx([-0.1, -0.1])
    assert exact["no_law"].tolist()[:2] == ["", ""]
    assert re.search("0, .*3 .*; 1M: no fit", exact["no_law"][2])
    trials = laddered()
    skew = 0.02 * np.maximum(np.log(trials["lr"] / 0.9e-3), 0.0) ** 3 * (trials["parameters"] / 1e6)
    moved = window_table(trials.assign(loss=trials["loss"] + skew), (None, 0.05))
    assert abs(moved["lr_exponent"][1] + 0.1) < abs(moved["lr_exponent"][0] + 0.1)


def test_every_table_at_once():
    # Its minimum is at the edge, so the law is of 1M to 16M.
    far = planted("1M", lr=9e-3).assign(size="640M", parameters=640e6)
    trials = pd.concat([laddered(noise=0.001), far], ignore_index=True)
    analysis = analyse_grid(trials, seq_len=64, num_resamples=4)
    pd.testing.assert_frame_equal(analysis.cells, cells(trials))
    pd.testing.assert_frame_equal(analysis.optima, optima_table(trials))
    pd.testing.assert_frame_equal(analysis.laws, laws_table(trials, num_resamples=4))
    lines = analysis.lines[analysis.lines["quantity"] == "batch"]
    assert ((lines["low"] <= lines["high"]) == (lines["parameters"] <= 160e6)).all()
    # It predicts no farther.
    assert (lines["value"].notna() == (lines["parameters"] <= 160e6)).all()
    assert lines["paper"].isna().iloc[0]  # 50 times beyond the paper's sizes
    assert lines["paper"].iloc[-1] == pytest.approx(16 * PAPER_LAW.batch(640e6))
    ours = make_law(analysis.laws, "ours", 64, "a test")
    assert lines["value"].iloc[0] == pytest.approx(ours.batch(1e6))
    surface = analysis.surfaces[analysis.surfaces["size"] == "4M"]
    assert len(surface) == 25 * 25
    assert (surface["lr"].min(), surface["batch"].max()) == pytest.approx((LRS[0], 64))
    assert surface["loss"].min() == pytest.approx(3.0, abs=0.01)


def test_a_law_file_is_read_back(tmp_path):
    path = tmp_path / "law.json"
    for trials, why in (
        (laddered(), ""),
        (laddered(s16M={"lr": 9e-3}), "16M: at the edge (lr high)"),
    ):
        laws = laws_table(trials, num_resamples=1)
        law = make_law(laws, "ours", 64, "a test")
        path.write_text(json.dumps(law_json(law, laws), allow_nan=False))
        assert load_law(str(path)) == law
        assert (law.num_sizes, law.smallest, law.largest, law.flaw) == (3, 1e6, 16e6, why)
        stored = json.loads(path.read_text())
        assert (stored["no_law"], stored["evidence"][0]["no_law"]) == (why, why)
        assert stored["evidence"][0]["bootstrap_low"] is None  # a single resample


def test_predictions_beside_the_paper():
    law = make_law(laws_table(laddered(), num_resamples=2), "ours", 64, "a test")
    table = predictions(law, [*DEMO_SIZES.values(), *PAPER_SIZES.values()]).set_index("size")
    at_800m = table.loc["800M"]
    assert (at_800m["paper_lr"], at_800m["paper_batch"]) == pytest.approx((5.62e-4, 644), rel=2e-3)
    assert (at_800m["ladder_lr"], at_800m["ladder_batch"]) == (5.7e-4, 672)
    assert math.isnan(at_800m["batch"])
    assert table.loc["50M", "batch"] == pytest.approx(law.batch(47_944_704) * 64 / 1024)
    assert table.loc["0.15M", "lr"] == pytest.approx(law.lr(table.loc["0.15M", "parameters"]))
    assert predictions(None, list(DEMO_SIZES.values()))["lr"].isna().all()


def test_a_law_predicts_at_most_ten_times_beyond_its_sizes():
    sizes = [*DEMO_SIZES.values(), *PAPER_SIZES.values()]
    law = make_law(laws_table(laddered(), num_resamples=2), "ours", 64, "a test")
    table = predictions(law, sizes).set_index("size")
    assert table.index[table["lr"].notna()].tolist() == [
        "0.15M",
        "0.28M",
        "0.6M",
        "1.2M",
        "3M",
        "50M",
        "100M",
    ]
    assert table.index[table["paper_batch"].notna()].tolist() == [
        "50M",
        "100M",
        "200M",
        "400M",
        "800M",
        "2B",
    ]
    assert table["times_beyond"]["5B"] == pytest.approx(4_967_623_680 / 16e6)
    assert table["times_beyond"]["0.1M"] == pytest.approx(1e6 / 88_704)
    assert table["times_beyond"]["3M"] == 1.0
    flawed = make_law(
        laws_table(laddered(s16M={"lr": 9e-3}), num_resamples=2), "ours", 64, "a test"
    )
    assert predictions(flawed, sizes)[["lr", "batch", "times_beyond"]].isna().all(axis=None)
