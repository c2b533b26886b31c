"""Checks the unit's error: planted errors come back, apart from the seeds' noise, and reach claims
and pages."""

import numpy as np
import pandas as pd
import pytest

from gram_platform.analysis.calibration import (
    ERROR_COLUMNS,
    FILE_COLUMNS,
    MEASURED_COLUMNS,
    NOT_KNOWN,
    UnitError,
    errors_by_class,
    measured_errors,
    nearest_errors,
    shipped_errors,
)

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
    return measured_errors(frame).set_index("class")


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
    assert measured_errors(calibration(0.4, 0.0, num_seeds=1)).empty
    one = calibration(0.4, 0.0)
    assert measured_errors(one[one["share"] == 0.5]).empty
    assert measured_errors(one.iloc[:0]).columns.tolist() == MEASURED_COLUMNS


def test_two_shares_that_round_to_one_count_as_one():
    """Their baselines have the same seeds and steps, which ended every study in the calibration's
    storage."""
    frame = calibration(0.4, 0.1)
    pd.testing.assert_frame_equal(
        measured_errors(pd.concat([frame, frame])), measured_errors(frame)
    )


def test_the_nearest_size_of_the_corpus_counts_else_the_largest_error():
    numbers = {"difference": 0.02, "num_shares": 4, "num_seeds": 3}
    places = [
        ("stories", 1e5, 0.05),
        ("stories", 3e5, 0.07),
        ("code", 1e5, 0.09),
        ("code", 3e5, 0.06),
    ]
    rows = [
        {
            "corpus": c,
            "parameters": p,
            "steps": p / 100,
            "size": f"{p:g}",
            "class": name,
            "ratio": r,
            **numbers,
        }
        for c, p, r in places
        for name in ("core", "auxiliary")
    ]
    rows = pd.DataFrame(rows)
    assert set(rows) == set(FILE_COLUMNS)

    def ratios(corpus: str, parameters: float, steps: float) -> list[float]:
        return [row["ratio"] for row in nearest_errors(rows, corpus, parameters, steps)]

    assert ratios("stories", 2.9e5, 2.9e3) == [0.07, 0.07]
    # Nobody measured this text: the larger of the two.
    assert ratios("mine", 1.1e5, 1.1e3) == [0.09, 0.09]
    assert ratios("mine", 3.0e5, 3.0e3) == [0.07, 0.07]
    assert ratios("stories", 3e5, 49) == []  # a smoke study's steps
    assert ratios("stories", 5e7, 5e5) == []
    of_stories = rows[rows["corpus"] == "stories"]
    rows = of_stories[(of_stories["parameters"] < 2e5) | (of_stories["class"] == "core")]
    # Auxiliary domains, which only the other size has, and core.
    assert ratios("stories", 2.9e5, 2.9e3) == [0.05, 0.07]


def test_what_ships_was_measured():
    rows = shipped_errors()
    assert rows.columns.tolist() == FILE_COLUMNS
    assert len(rows)
    assert (rows[["ratio", "difference"]] >= 0.0).all(axis=None)
    assert (rows["num_seeds"] > 1).all()


ERRORS = errors_by_class(
    {"size": "1M", "class": name, "ratio": ratio, "difference": difference}
    for name, ratio, difference in (("core", 0.05, 0.01), ("auxiliary", 0.12, 0.03))
)


def test_classes_of_auxiliary_domains_share_the_error():
    assert (
        ERRORS["1M", "forget"]
        == ERRORS["1M", "elicited"]
        == ERRORS["1M", "retain"]
        == UnitError(0.12, 0.03)
    )
    assert ERRORS.get(("2M", "core"), NOT_KNOWN) is NOT_KNOWN
