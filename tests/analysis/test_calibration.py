"""Errors of compute ratios whose true shares are planted: of the fit, of the unit, what seeds
share, and the page."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from gram_platform.analysis.calibration import (
    AUXILIARY,
    ERROR_COLUMNS,
    FIT,
    SINGLE,
    UNIT,
    by_class,
    calibration_table,
    fit_errors,
    unit_errors,
)
from gram_platform.analysis.tables import StudyLosses
from gram_platform.analysis.variants import analyse_variants
from gram_platform.methods.nodes import VARIANT
from gram_platform.pages.report.calibration import (
    calibration_figure,
    readable_errors,
    share_table,
)
from gram_platform.pages.report.measurements import MEASUREMENTS

REFERENCE, NUM_STEPS, ALPHA = "reference", 1000, 0.3
SHARES = (0.25, 0.5, 1.1)
DOMAINS = ("core", "biology", "chemistry")
SCHEDULE = {"tiny": (0.05, 0.9)}


def errors_of(drop: float, num_seeds: int = 3) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns (errors of the fit, of the unit) on exact power laws without a shift, the same for
    all seeds.

    `drop`: the factor by which the decay lowers the loss at a run's end.
    """
    evaluations, curves = [], []
    for number, share in enumerate((1.0, *SHARES)):
        variant = f"{share:g}" if number else REFERENCE
        for seed in range(num_seeds):
            names = {
                "method": "baseline",
                "size": "tiny",
                "seed": str(seed + 100 * (number > 0)),
                VARIANT: variant,
            }
            names["run_id"] = f"{variant}-{seed}"
            steps = np.linspace(0.02, 1.0, 50) * NUM_STEPS * share
            losses = {domain: (2.0 + i) * steps**-ALPHA for i, domain in enumerate(DOMAINS)}
            curves += [
                pd.DataFrame({**names, "domain": d, "step": steps, "loss": y})
                for d, y in losses.items()
            ]
            finals = {f"loss/{domain}": drop * y[-1] for domain, y in losses.items()}
            evaluations.append(
                {**names, "profile": "all", "retained": "biology,chemistry", **finals}
            )
    frame, points = pd.DataFrame(evaluations), pd.concat(curves, ignore_index=True)
    analysis = analyse_variants(
        StudyLosses(frame, points), tuple(dict.fromkeys(frame[VARIANT])), unit=REFERENCE
    )
    is_unit = [part[VARIANT] == REFERENCE for part in (analysis.ratios, points)]
    fitted = fit_errors(analysis.ratios[is_unit[0]], points[is_unit[1]], SCHEDULE)
    return fitted, unit_errors(analysis.ratios, points, REFERENCE)


def test_on_an_exact_curve_without_a_decay_both_errors_are_nothing():
    fitted, unit = errors_of(drop=1.0)
    assert list(fitted.columns) == list(unit.columns) == ERROR_COLUMNS
    assert set(unit["share"]) == set(SHARES)
    assert len(unit) == len(SHARES) * 3 * len(DOMAINS)
    # The points are after the warm-up, up to the decay.
    assert (fitted["share"].min(), fitted["share"].max()) == (0.06, 0.9)
    assert set(fitted["seed"]) == {"0", "1", "2"}
    assert set(unit["seed"]) == {"100", "101", "102"}
    for errors in (fitted, unit):
        assert errors["error"].abs().max() < 1e-6


def test_a_drop_at_the_end_of_every_run_is_no_error_of_the_unit_and_one_of_unfinished_losses():
    """Without a shift a factor of the loss is a factor of the steps, so that it cancels between
    finished runs."""
    fitted, unit = errors_of(drop=0.96)
    assert unit["error"].abs().max() < 1e-6
    read_as = fitted["share"] * 0.96 ** (1.0 / ALPHA)
    np.testing.assert_allclose(fitted["compute_ratio"], read_as, rtol=1e-6)


def test_one_reference_seed_has_no_other_to_rate_it():
    fitted, unit = errors_of(drop=1.0, num_seeds=1)
    assert fitted.empty
    assert len(unit) == len(SHARES) * len(DOMAINS)
    assert calibration_table(unit)["rms_of_means"].isna().all()


def planted(core: dict, biology: dict, chemistry: dict) -> pd.DataFrame:
    """Makes errors of the unit; each argument is {share: the errors of seeds 0, 1, ...}."""
    rows = []
    for domain, of_share in (("core", core), ("biology", biology), ("chemistry", chemistry)):
        for share, errors in of_share.items():
            rows += [
                (UNIT, "tiny", str(i), share, domain, share + e, e) for i, e in enumerate(errors)
            ]
    return pd.DataFrame(rows, columns=ERROR_COLUMNS)


def test_the_table_tells_what_seeds_share_from_their_spread():
    errors = planted(
        # Below a quarter of the steps nothing counts.
        core={0.1: [9.0, 9.0], 0.5: [0.2, -0.2], 1.0: [0.1, -0.1]},
        biology={0.5: [0.3, 0.3], 1.0: [0.1, 0.1]},
        chemistry={0.5: [-0.1, -0.1], 1.0: [0.1, 0.1]},
    )
    table = calibration_table(errors).set_index("domain")
    assert list(table.index) == ["core", AUXILIARY, SINGLE]
    assert table.loc["core", "bias"] == pytest.approx(0.0)
    assert np.isnan(table.loc["core", "bias_high"])  # of two seeds, +.15 and -.15
    assert table.loc["core", "rms"] == pytest.approx(np.sqrt((0.04 + 0.01) / 2))
    # Seeds that are opposite have nothing in common.
    assert table.loc["core", "rms_of_means"] == 0.0
    found = table.loc[AUXILIARY, ["bias", "rms", "rms_of_means"]].tolist()
    assert found == pytest.approx([0.1] * 3)
    assert table.loc[SINGLE, "rms"] == pytest.approx(np.sqrt((0.09 + 0.01 + 0.01 + 0.01) / 4))
    assert table.loc[SINGLE, "worst"] == 0.3
    assert table["num_ratios"].tolist() == [4, 4, 8]


def test_shares_are_averaged_over_domains_then_over_seeds():
    errors = planted({0.5: [0.1, 0.3]}, {0.5: [0.0, 0.2]}, {0.5: [0.2, 0.4]})
    (means,) = share_table(pd.concat([errors, errors.assign(error_of=FIT)])).to_dict("records")
    assert (means["share"], means["core"], means[AUXILIARY]) == (0.5, "0.700", "0.700")
    of_seeds = by_class(errors).set_index(["domain", "seed"])["compute_ratio"]
    assert of_seeds[AUXILIARY].tolist() == pytest.approx([0.6, 0.8])


def test_the_page_shows_errors_against_shares():
    """A line for finished baselines and one for left-out points, for core and for the auxiliary
    domains."""
    unit = planted({0.5: [0.1, 0.3], 1.0: [0.0, 0.0]}, {0.5: [0.0, 0.2]}, {0.5: [0.2, 0.4]})
    errors = pd.concat([unit, unit.assign(error_of=FIT, error=-unit["error"])])
    lines = {line.name: line for line in calibration_figure(errors, "tiny").data if line.name}
    assert lines["core, finished baselines"].x.tolist() == [0.5, 1.0]
    assert lines["core, finished baselines"].y.tolist() == pytest.approx([0.2, 0.0])
    assert lines["auxiliary, finished baselines"].y.tolist() == pytest.approx([0.2])
    assert lines["core, left-out points"].y.tolist() == pytest.approx([-0.2, 0.0])
    assert not calibration_figure(errors, "small").data
    shares = share_table(errors)
    assert shares["share"].tolist() == [0.5, 1.0]
    assert shares["core"].tolist() == ["0.700", "1.000"]
    assert shares[AUXILIARY].isna().tolist() == [False, True]
    # Two seeds have no interval.
    assert not readable_errors(errors)["bias"].str.contains(r"\[").any()
    found = SimpleNamespace(errors=errors, claims=pd.DataFrame())
    *_, short = MEASUREMENTS["calibration"].brief(None, found, False).tables.values()
    assert short["core"].tolist() == shares["core"].tolist()
