"""Checks the unit's error: planted errors come back, apart from the seeds' noise, and reach claims
and pages."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from benchmarks.unit_coverage import COMPARED, false_agrees, false_agrees_in_nats
from gram_platform.analysis.calibration import (
    DIFFERENCE_LAGS,
    ERROR_COLUMNS,
    FILE_COLUMNS,
    MEASURED_COLUMNS,
    NOT_KNOWN,
    RATIO_LAGS,
    UnitError,
    effective_freedom,
    errors_by_class,
    load_errors,
    measure_errors,
    nearest_errors,
)

ROOT = Path(__file__).parents[2]
SHARES = (0.25, 0.5, 0.75, 1.0)


def calibration(bend: float, noise: float, num_seeds: int = 3, rng_seed: int = 0) -> pd.DataFrame:
    """Errors of rated baselines: `bend` x share x (1 - share), of core half, on two auxiliary
    domains with noise."""
    rng, rows = np.random.default_rng(rng_seed), []
    for share in SHARES:
        for seed in map(str, range(num_seeds)):
            off = bend * share * (1.0 - share)
            planted = {
                "core": off / 2.0,
                "a": off + rng.normal(0.0, noise),
                "b": off + rng.normal(0.0, noise),
            }
            cell = {"error_of": "unit", "size": "1M", "seed": seed, "share": share}
            rows += [
                cell | {"domain": d, "compute_ratio": share + error, "error": error}
                for d, error in planted.items()
            ]
    of_fit = rows[-1] | {"error_of": "fit", "error": 5.0}
    of_short = [row | {"share": 0.1, "error": 5.0} for row in rows if row["share"] == 1.0]
    return pd.DataFrame([*rows, of_fit, *of_short], columns=ERROR_COLUMNS)


def errors_of(frame: pd.DataFrame) -> pd.DataFrame:
    return measure_errors(frame).set_index("class")


def test_planted_errors_come_back():
    found = errors_of(calibration(bend=0.4, noise=0.0))
    off = np.array([0.4 * share * (1.0 - share) for share in SHARES])
    for name, errors in (("core", off / 2.0), ("auxiliary", off)):
        assert found.loc[name, "ratio"] == pytest.approx(np.sqrt(np.mean(errors**2)))
        assert found.loc[name, "difference"] == pytest.approx(
            np.sqrt(np.mean(np.diff(errors) ** 2))
        )
    assert found["num_shares"].tolist() == [4, 4]
    assert found["num_seeds"].tolist() == [3, 3]


def test_noise_between_seeds_makes_the_error_larger_and_never_smaller():
    """The mean square over 25 calibrations is the planted one and the variance of a mean of three
    seeds and domains."""
    ratios = [
        errors_of(calibration(0.4, 0.11, rng_seed=n)).loc["auxiliary", "ratio"] for n in range(25)
    ]
    planted = np.mean([(0.4 * share * (1.0 - share)) ** 2 for share in SHARES])
    noise = 0.11**2 / 6.0
    assert np.mean(np.square(ratios)) == pytest.approx(planted + noise, abs=0.0013)


def test_a_share_needs_two_seeds_and_a_size_two_shares():
    assert measure_errors(calibration(0.4, 0.0, num_seeds=1)).empty
    one = calibration(0.4, 0.0)
    assert measure_errors(one[one["share"] == 0.5]).empty
    assert measure_errors(one.iloc[:0]).columns.tolist() == MEASURED_COLUMNS


def test_two_shares_that_round_to_one_count_as_one():
    """Their baselines have the same seeds and steps, which ended every study in the calibration's
    storage."""
    frame = calibration(0.4, 0.1)
    pd.testing.assert_frame_equal(measure_errors(pd.concat([frame, frame])), measure_errors(frame))


def test_the_nearest_size_of_the_corpus_counts_else_the_largest_error_on_any_text():
    places = [
        ("stories", 1e5, 0.05, 0.02, 8),
        ("stories", 3e5, 0.07, 0.01, 8),
        ("code", 1e5, 0.09, 0.01, 8),
        ("code", 3e5, 0.06, 0.03, 4),
    ]
    measured = [
        (c, p, p / 100, f"{p:g}", name, ratio, difference, num_shares, 3)
        for c, p, ratio, difference, num_shares in places
        for name in ("core", "auxiliary")
    ]
    rows = pd.DataFrame(measured, columns=FILE_COLUMNS)

    def found(corpus: str, parameters: float, steps: float) -> list[tuple]:
        numbers = ("ratio", "difference", "num_shares", "places")
        near = nearest_errors(rows, corpus, parameters, steps)
        return [tuple(row[name] for name in numbers) for row in near]

    assert found("stories", 2.9e5, 2.9e3) == [(0.07, 0.01, 8, [("stories", "300000")])] * 2
    # Nobody measured this text: the larger errors, whatever the steps.
    largest = (0.09, 0.03, 4, [("code", "100000"), ("code", "300000")])
    assert found("mine", 2.0e5, 2.0e3) == [largest] * 2
    assert found("stories", 2.0e5, 49) == [largest] * 2
    assert found("mine", 8.9e5, 1.0e3) == [(0.07, 0.03, 4, [*SIZES_AT_300K])] * 2
    assert found("stories", 9.1e5, 3e3) == []
    of_stories = rows[rows["corpus"] == "stories"]
    rows = of_stories[(of_stories["parameters"] < 2e5) | (of_stories["class"] == "core")]
    # Auxiliary domains, which only the other size has, and core.
    assert sorted(found("stories", 2.9e5, 2.9e3))[0][0] == 0.05


SIZES_AT_300K = (("stories", "300000"), ("code", "300000"))


def test_fewer_and_correlated_shares_have_fewer_degrees_of_freedom():
    assert effective_freedom(8, ()) == 8.0
    assert effective_freedom(8, (1.0,) * 7) == pytest.approx(1.0)
    # Nearer four than eight: docs/findings/intervals.md.
    assert effective_freedom(8, RATIO_LAGS) == pytest.approx(3.9, abs=0.05)
    assert effective_freedom(7, DIFFERENCE_LAGS) == pytest.approx(5.85, abs=0.05)
    assert effective_freedom(2, RATIO_LAGS) < 2.0


def test_the_lags_are_those_of_the_readings_that_the_findings_print():
    """Readings of finished baselines, rounded to hundredths, of every calibration that ships."""
    lines = (ROOT / "docs/findings/unit.md").read_text().splitlines()
    cells = [line.split("|")[4] for line in lines if line.count("|") == 6]
    readings = [cell.split(",") for cell in cells if cell.startswith(" .")]
    shares = np.array([0.25, 0.35, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1])
    errors = np.array([np.array(row, float) - shares for row in readings])
    shipped = load_errors()
    assert len(errors) == len(shipped[shipped["num_seeds"] == 3]) == 12
    for lags, parts in ((RATIO_LAGS, errors), (DIFFERENCE_LAGS, np.diff(errors, axis=1))):
        parts = parts / np.sqrt((parts**2).mean(axis=1, keepdims=True))
        found = [(parts[:, :-k] * parts[:, k:]).mean() for k in range(1, len(lags) + 1)]
        assert found == pytest.approx(lags, abs=0.006)


@pytest.mark.parametrize("compared", COMPARED)
@pytest.mark.parametrize("dominance", [0.0, 1.0, 100.0])
def test_agree_at_a_boundary_is_rare_whether_the_unit_dominates_or_not(compared, dominance):
    """One sigma of the unit in a 90% interval gave .17 where it dominates."""
    shares = false_agrees(compared, dominance, num_seeds=3, num_studies=50_000)
    assert shares["agree"] < 0.06
    assert shares["coverage"] > 0.89
    assert (shares["one_sigma"] > 0.1) == (dominance > 10.0)


def test_a_verdict_in_nats_holds_its_level_unless_seeds_are_quiet_and_the_slope_is_off():
    exact, coarse, quiet = (
        false_agrees_in_nats(*case, num_seeds=3, num_studies=50_000)
        for case in ((10.0, 0.0), (1.0, 0.1), (10.0, 0.1))
    )
    assert [exact, coarse] == pytest.approx([0.05, 0.05], abs=0.005)
    assert quiet > 0.08


def test_what_ships_was_measured():
    rows = load_errors()
    assert rows.columns.tolist() == FILE_COLUMNS
    assert len(rows)
    assert (rows[["ratio", "difference"]] >= 0.0).all(axis=None)
    assert (rows["num_seeds"] > 1).all()


def test_classes_of_auxiliary_domains_share_the_half_width():
    rows = [
        {"size": "1M", "class": name, "ratio": ratio, "difference": difference, "num_shares": 8}
        for name, ratio, difference in (("core", 0.05, 0.01), ("auxiliary", 0.12, 0.03))
    ]
    errors = errors_by_class(rows)
    assert errors["1M", "forget"] == errors["1M", "elicited"] == errors["1M", "retain"]
    freedoms = (effective_freedom(8, RATIO_LAGS), effective_freedom(7, DIFFERENCE_LAGS))
    factors = stats.t.ppf(0.95, freedoms)
    assert errors["1M", "core"] == pytest.approx(UnitError(*factors * (0.05, 0.01)))
    assert errors["1M", "retain"] == pytest.approx(UnitError(*factors * (0.12, 0.03)))
    # A record from before the number of shares was stored.
    assert errors == errors_by_class([{k: row[k] for k in list(row)[:4]} for row in rows])
    few = errors_by_class([{**row, "num_shares": 2} for row in rows])
    assert few["1M", "core"].difference > 0.06
    assert errors.get(("2M", "core"), NOT_KNOWN) is NOT_KNOWN
