"""Checks that the authors' trials give their laws to the printed digits, and the rates of their
runs."""

import csv
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import gram_platform
from gram_platform.analysis.lr_grid import POOLED, cells, load_trials, optima_table
from gram_platform.analysis.lr_laws import analyse_grid, laws_table
from gram_platform.analysis.surface import Fit, fit_quadratic, fit_surface
from gram_platform.studies.library.lr_bs_grid import SEARCH
from tests.analysis.test_lr_grid import laddered, planted
from tests.refused import refused

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT.parent / "shared" / "data" / "published"
TRIALS = PUBLISHED / "lr_bs_trials.csv"
KEY = ["size", "seed", "lr", "batch"]
SIZES = SEARCH.presets["paper"].sizes
published = pytest.mark.skipif(
    not TRIALS.exists(), reason="needs the authors' trials in ../shared/data/published"
)


def laws_of(trials, **options) -> pd.DataFrame:
    return laws_table(trials, Fit(**options), num_resamples=1).set_index("quantity")


@published
def test_their_fit_gives_the_published_laws():
    analysis = analyse_grid(
        load_trials(TRIALS, named_sizes=True), seq_len=1024, num_resamples=2, as_published=True
    )
    laws = analysis.laws.set_index("quantity")
    lr, batch = laws.loc["lr"], laws.loc["batch"]
    assert [f"{lr[name]:.4f}" for name in ("coefficient", "exponent", "r2")] == [
        "0.3113",
        "-0.3078",
        "0.9910",
    ]
    assert f"{batch['coefficient']:.3e}" == "4.929e-05"
    assert [f"{batch[name]:.4f}" for name in ("exponent", "r2")] == ["0.7990", "0.9565"]
    assert analysis.cells["num_seeds"].eq(3).all()
    assert len(analysis.cells) == 12 + 12 + 16 + 12


@published
def test_their_fit_gives_the_rates_that_they_trained_with():
    laws = laws_of(load_trials(TRIALS, named_sizes=True), as_published=True)
    lr, batch = laws.loc["lr"], laws.loc["batch"]
    names = (
        (47995776, 50e6),
        (103201984, 100e6),
        (199891008, 200e6),
        (402064768, 400e6),
        (4967743104, 5e9),
    )
    settings = [
        json.loads(line) for line in (PUBLISHED / "settings.jsonl").read_text().splitlines()
    ]
    for count, size in names:
        own = [s for s in settings if s["run"]["num_base_params"] == count]
        assert own
        expected = lr["coefficient"] * size ** lr["exponent"]
        assert [s["lr"] for s in own] == pytest.approx([expected] * len(own), rel=1e-11)
        targets = {s["run"]["target_effective_batch_size"] for s in own} - {-1}
        assert targets == {round(batch["coefficient"] * size ** batch["exponent"])}


@published
@pytest.mark.parametrize(
    ("named", "keep", "as_published", "lr", "batch"),
    [
        (False, "first", False, (0.2904, -0.3044, 0.9822), (7.63e-5, 0.7755, 0.9466)),  # ours
        # The sizes' names as numbers.
        (True, "first", False, (0.3232, -0.3100, 0.9879), (5.63e-5, 0.7916, 0.9560)),
        # The logarithm of the loss.
        (False, "first", True, (0.2806, -0.3022, 0.9860), (6.70e-5, 0.7827, 0.9471)),
        (True, "first", True, (0.3113, -0.3078, 0.9910), (4.931e-5, 0.7990, 0.9565)),  # both
        # The other of the doubled rows.
        (True, "last", True, (0.3113, -0.3078, 0.9910), (4.919e-5, 0.7991, 0.9566)),
    ],
)
def test_each_difference_from_the_authors_fit_moves_the_laws(named, keep, as_published, lr, batch):
    trials = load_trials(TRIALS, named_sizes=named).drop_duplicates(KEY, keep=keep)
    laws = laws_of(trials, as_published=as_published)
    for quantity, expected in (("lr", lr), ("batch", batch)):
        found = laws.loc[quantity, ["coefficient", "exponent", "r2"]].to_numpy(float)
        assert found[0] == pytest.approx(expected[0], rel=1e-3)
        assert found[1:] == pytest.approx(expected[1:], abs=1e-4)


@published
def test_doubled_rows_are_an_error_that_names_them_unless_fitted_as_published():
    with refused(
        "trials",
        {"parameters": 199891008.0, "size": "200M", "lr": 0.0002, "batch": 64.0, "seed": "1"},
    ):
        analyse_grid(load_trials(TRIALS), seq_len=1024)


@published
def test_the_paper_preset_has_the_published_cells():
    with TRIALS.open() as file:
        rows = list(csv.DictReader(file))
    cells_of = {
        name: {(float(r["lr"]), int(r["batch"])) for r in rows if r["size"] == name}
        for name in SIZES
    }
    assert {name: len(found) for name, found in cells_of.items()} == {
        "50M": 12,
        "100M": 12,
        "200M": 16,
        "400M": 12,
    }
    assert {
        name: set(SEARCH.points["paper"].of(size).cells) for name, size in SIZES.items()
    } == cells_of


def test_a_surface_of_the_logarithm_is_found_and_predicted():
    rng = np.random.default_rng(0)
    x, y = np.log(2.0) * rng.uniform(-2, 2, (2, 40))
    loss = np.exp(1.0 + 0.3 * x**2 + 0.1 * x * y + 0.2 * y**2)
    columns = (1e-3 * np.exp(x), 64.0 * np.exp(y), loss)
    surface = fit_surface(*columns, fit=Fit(as_published=True))
    optimum = surface.optimum()
    assert (optimum.lr, optimum.batch, optimum.loss) == pytest.approx(
        (1e-3, 64.0, math.e), rel=1e-9
    )
    assert surface.loss(*columns[:2]) == pytest.approx(loss, rel=1e-9)
    assert surface.loss([optimum.lr], [optimum.batch])[0] == pytest.approx(optimum.loss)
    high = optimum.lr_high  # on the ellipse of 0.1%: some batch there has just that loss
    along = np.geomspace(40.0, 100.0, 20001)
    assert surface.loss(np.full(len(along), high), along).min() == pytest.approx(
        1.001 * math.e, rel=1e-8
    )
    # The loss itself is no quadratic.
    assert fit_quadratic(*columns).lr != pytest.approx(1e-3, rel=1e-3)


def test_a_repeated_trial_counts_twice_as_published_and_is_refused_otherwise():
    trials = planted("4M", noise=0.01)
    worse = trials.iloc[[0]].assign(loss=trials["loss"].iloc[0] + 0.1)
    doubled = pd.concat([trials, worse])
    with refused("trials"):
        cells(doubled)
    once, twice = (
        optima_table(t, Fit(as_published=True)).set_index("seed") for t in (trials, doubled)
    )
    assert twice.loc[POOLED, "num_points"] == once.loc[POOLED, "num_points"] + 1
    columns = [doubled[name] for name in ("lr", "batch", "loss")]
    assert twice.loc[POOLED, "lr"] == pytest.approx(
        fit_surface(*columns, fit=Fit(as_published=True)).optimum().lr, rel=1e-9
    )
    assert set(cells(doubled, may_repeat=True)["num_seeds"]) == {3}


def test_a_law_as_published_has_an_interval_over_seeds():
    law = (
        laws_table(laddered(noise=0.001), Fit(as_published=True), num_resamples=20)
        .set_index("quantity")
        .loc["lr"]
    )
    assert law["exponent"] == pytest.approx(-0.1, abs=0.02)
    assert law["bootstrap_low"] < -0.1 < law["bootstrap_high"]


def test_a_file_of_trials_is_read_with_either_loss(tmp_path):
    trials = laddered()
    trials.to_csv(tmp_path / "a.csv", index=False)
    read = load_trials(tmp_path / "a.csv")
    pd.testing.assert_frame_equal(
        laws_table(read, num_resamples=1), laws_table(trials, num_resamples=1)
    )
    halves = trials.assign(
        loss_core=trials["loss"] + 1, loss_a=trials["loss"], loss_b=trials["loss"] - 2
    )
    halves.drop(columns=["loss", "state"]).to_csv(tmp_path / "b.csv", index=False)
    read = load_trials(tmp_path / "b.csv", named_sizes=True)
    assert read["loss"].to_numpy() == pytest.approx(trials["loss"].to_numpy())
    assert set(read["parameters"]) == {1e6, 4e6, 16e6}
    assert set(read["state"]) == {"complete"}


def test_trials_that_have_not_ended_are_left_out_and_diverged_ones_need_no_loss(tmp_path):
    trials = planted("4M")
    trials.loc[0, ["state", "loss"]] = ["diverged", np.nan]
    trials.loc[1, ["state", "loss"]] = ["running", np.nan]
    trials.to_csv(tmp_path / "a.csv", index=False)
    read = load_trials(tmp_path / "a.csv")
    assert len(read) == len(trials) - 1
    assert cells(read)["num_diverged"].sum() == 1


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("loss", ""),
        ("lr", "fast"),
        ("batch", "-8"),
        ("seed", ""),
        ("parameters", "inf"),
        ("state", "asleep"),
    ],
)
def test_bad_files_name_line_and_column(tmp_path, column, value):
    trials = planted("4M").astype(object)
    trials.loc[2, column] = value
    trials.to_csv(tmp_path / "a.csv", index=False)
    with refused(f"line 4, {column}"):
        load_trials(tmp_path / "a.csv")


def test_absent_columns_and_unreadable_sizes_are_named(tmp_path):
    trials = planted("4M")
    trials.drop(columns=["lr", "seed"]).to_csv(tmp_path / "a.csv", index=False)
    with refused("trials"):
        load_trials(tmp_path / "a.csv")
    trials.rename(columns={"loss": "loss_core"}).to_csv(tmp_path / "b.csv", index=False)
    with refused("trials"):
        load_trials(tmp_path / "b.csv")
    trials.assign(size="large").to_csv(tmp_path / "c.csv", index=False)
    with refused("line 2, size", "large"):
        load_trials(tmp_path / "c.csv", named_sizes=True)


def test_public_names_are_functions_of_the_rooms():
    assert gram_platform.load_trials is load_trials
    assert all(
        callable(getattr(gram_platform, name))
        for name in gram_platform.__all__
        if name != "__version__"
    )
    assert set(gram_platform.__all__) <= set(dir(gram_platform))
    with pytest.raises(AttributeError):
        gram_platform.load_everything  # noqa: B018
