"""Checks on planted studies, with the noise of the authors' published losses, that intervals cover
and claims hold."""

import numpy as np
import pandas as pd
import pytest

from benchmarks.coverage import SHAPES, Measured, Planted, coverage, measured, of_domains, verdicts
from gram_platform.analysis.ratios import compute_ratio_frame, pseudo_values
from tests.published import NEEDS_FOLDER, SIZES, published_analysis, published_frames

PROFILE = "core+papers-biology"
GRAM, FILTERING = ("gram", PROFILE, "core"), ("filtering", PROFILE, "core")
pytestmark = NEEDS_FOLDER


@pytest.fixture(scope="module")
def source() -> Measured:
    frames = published_frames("scaling")
    return measured(frames.curves, published_analysis("scaling").ratios, PROFILE)


def test_the_planted_noise_is_that_of_the_measured_study(source):
    assert len(source.deviations) == 3 * len({size for size, _ in source.units})
    assert {size for size, _ in source.units} <= set(SIZES)
    planted = Planted(of_domains(source, ["core"]), SHAPES["power law"], 2, 3)
    drawn = np.concatenate(
        [planted.draw().reshape(-1, source.deviations.shape[1]) for _ in range(200)]
    )
    expected = np.sqrt((source.deviations**2).sum() / source.freedom)
    np.testing.assert_allclose(drawn.std(axis=0), expected, rtol=0.15)


def test_planted_rows_are_rated_as_the_analysis_rates_them(source):
    planted = Planted(of_domains(source, ["core"]), SHAPES["power law"], 2, 3)
    ratios = planted.measured_ratios(GRAM)
    found = planted.row(GRAM, ratios, planted.noise)
    logs = (
        planted.log_losses("core", GRAM, ratios)[:, None]
        + planted.noise[:, :, planted.column("core", GRAM)]
    )
    views = pd.DataFrame(
        {"loss/core": np.exp(logs).ravel(), "size": np.repeat(["0", "1"], 3), "seed": [*"012"] * 2}
    )
    views = views.assign(method="gram", profile=PROFILE, retained="papers-biology")
    frame, notes = compute_ratio_frame(views, planted.references)
    assert not notes
    np.testing.assert_allclose(found.values.ravel(), frame["compute_ratio"], rtol=1e-9)
    np.testing.assert_allclose(
        found.pseudo.ravel(), pseudo_values(frame, planted.references), rtol=1e-9
    )


def test_without_noise_the_planted_ratio_comes_back(source):
    still = of_domains(source, ["core"])
    still = Measured(
        still.units, still.ratios, still.domains, source.deviations * 1e-7, source.freedom
    )
    planted = Planted(still, SHAPES["power law"], 3, 3)
    ratios = np.array([0.3, 0.9, 1.1])
    np.testing.assert_allclose(
        planted.row(GRAM, ratios, planted.noise).values.mean(axis=1), ratios, rtol=1e-4
    )
    bent = Planted(still, SHAPES["4% drop in the last tenth"], 3, 3)
    assert (np.abs(bent.row(GRAM, ratios, bent.noise).values.mean(axis=1) - ratios) > 0.01).any()


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("num_seeds", [3, 5])
def test_the_jackknife_covers_and_no_claim_is_agreed_at_its_boundary(source, num_seeds):
    """300 studies: two standard errors of a coverage of .90 are .035, of a share of .07 .03."""
    planted = Planted(source, SHAPES["power law"], 300, num_seeds)
    table = coverage(planted).set_index("quantity")
    assert table["jackknife"].between(0.86 - 0.035, 0.94 + 0.035).all()
    assert table["jackknife"].mean() == pytest.approx(0.9, abs=0.03)
    claims = verdicts(planted, PROFILE)
    assert (claims["boundary"] <= 0.07 + 0.03).all()
