"""Checks the unit's error: planted errors come back, apart from the seeds' noise, and reach claims and pages."""

import numpy as np
import pandas as pd
import pytest

from gram_platform.analysis.unit_error import (
    FILE_COLUMNS,
    NOT_KNOWN,
    UnitError,
    errors_by_class,
    measured_errors,
    nearest_errors,
    shipped_errors,
)

SHARES = (0.25, 0.5, 0.75, 1.0)


def calibration(bend: float, noise: float, num_seeds: int = 3, rng_seed: int = 0, spread: float = 0.0) -> pd.DataFrame:
    """Rated baselines whose ratio is off by `bend` x share x (1 - share), core by half; every value with noise.

    The reference's three seeds are `spread` apart in retain.
    """
    rng, rows = np.random.default_rng(rng_seed), []
    for share in SHARES:
        for seed in range(num_seeds):
            off = bend * share * (1.0 - share)
            core, retain = share + off / 2.0, share + off
            view = {"variant": f"{share:g}", "size": "1M", "seed": str(seed), "profile": "all"}
            rows.append({**view, "core": core + rng.normal(0, noise), "retain": retain + rng.normal(0, noise)})
    apart = {**rows[0], "core": 1.0, "retain": 1.0, "variant": "reference"}
    references = [{**apart, "seed": str(n), "retain": 1.0 + ends} for n, ends in enumerate((-spread, 0.0, spread))]
    mean = {**rows[0], "profile": "mean", "core": 5.0}  # of one seed twice, if it counted
    return pd.DataFrame([*rows, *references, mean])


def by_class(frame: pd.DataFrame) -> pd.DataFrame:
    return measured_errors(frame).set_index("class")


def test_planted_errors_come_back():
    found = by_class(calibration(bend=0.4, noise=0.0))
    off = np.array([0.4 * share * (1.0 - share) for share in SHARES])
    for name, errors in (("core", off / 2.0), ("auxiliary", off)):
        assert found.loc[name, "ratio"] == pytest.approx(np.sqrt(np.mean(errors**2)))
        assert found.loc[name, "difference"] == pytest.approx(np.sqrt(np.mean(np.diff(errors) ** 2)))
        assert found.loc[name, "of_one_seed"] == pytest.approx(found.loc[name, "ratio"])
    assert found["num_shares"].tolist() == [4, 4]
    assert found["num_seeds"].tolist() == [3, 3]


def test_noise_between_seeds_is_no_error_of_the_unit():
    """The mean square over 60 calibrations is the planted one; the noise of the means over seeds would add .0021."""
    ratios = [by_class(calibration(0.4, 0.08, rng_seed=n)).loc["auxiliary", "ratio"] for n in range(60)]
    planted = np.mean([(0.4 * share * (1.0 - share)) ** 2 for share in SHARES])
    assert np.mean(np.square(ratios)) == pytest.approx(planted, abs=0.001)
    assert by_class(calibration(0.0, 0.08, rng_seed=1)).loc["auxiliary", "of_one_seed"] > 0.05


def test_noise_of_the_reference_is_no_error_of_the_unit():
    """Every ratio shifts with the reference: at a share s, by s times the error of the reference's mean."""
    alone, noisy = (by_class(calibration(0.4, 0.0, spread=spread)).loc["auxiliary"] for spread in (0.0, 0.09))
    shares = np.array(SHARES)
    for name, factors in (("ratio", shares), ("difference", np.diff(shares))):
        assert alone[name] ** 2 - noisy[name] ** 2 == pytest.approx(0.09**2 / 3 * np.mean(factors**2))
    assert by_class(calibration(0.4, 0.0, spread=1.0)).loc["auxiliary", "ratio"] == 0.0


def test_a_share_needs_two_seeds_and_a_size_two_shares():
    assert measured_errors(calibration(0.4, 0.0, num_seeds=1)).empty
    one = calibration(0.4, 0.0)
    assert measured_errors(one[one["variant"].isin(["reference", "0.5"])]).empty
    with pytest.raises(ValueError, match="shares of the reference's steps"):
        measured_errors(one.replace({"0.5": "half"}))


def test_the_nearest_size_of_the_corpus_counts_else_the_largest_error():
    numbers = {"difference": 0.02, "of_one_seed": 0.1, "num_shares": 4, "num_seeds": 3}
    places = [("stories", 1e5, 0.05), ("stories", 3e5, 0.07), ("code", 1e5, 0.09), ("code", 3e5, 0.06)]
    rows = pd.DataFrame(
        [
            {
                "corpus": c,
                "undecayed": False,
                "parameters": p,
                "steps": p / 100,
                "size": f"{p:g}",
                "class": n,
                "ratio": r,
                **numbers,
            }
            for c, p, r in places
            for n in ("core", "auxiliary")
        ]
    )
    assert set(rows) == set(FILE_COLUMNS)

    def ratios(corpus: str, parameters: float, steps: float) -> list[float]:
        return [row["ratio"] for row in nearest_errors(rows, corpus, parameters, steps)]

    assert ratios("stories", 2.9e5, 2.9e3) == [0.07, 0.07]
    assert ratios("mine", 1.1e5, 1.1e3) == [0.09, 0.09]  # nobody measured this text: the larger of the two
    assert ratios("mine", 3.0e5, 3.0e3) == [0.07, 0.07]
    assert ratios("stories", 3e5, 49) == []  # a smoke study's steps
    assert ratios("stories", 5e7, 5e5) == []


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
    assert ERRORS["1M", "forget"] == ERRORS["1M", "elicited"] == ERRORS["1M", "retain"] == UnitError(0.12, 0.03)
    assert ERRORS.get(("2M", "core"), NOT_KNOWN) is NOT_KNOWN
