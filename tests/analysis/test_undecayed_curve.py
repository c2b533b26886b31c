"""Checks the unit without a law: it gives planted shares where the losses are no power law, and says what it cannot."""

import numpy as np
import pandas as pd
import pytest

from gram_platform.analysis.compute_ratio import compute_ratio, fit_learning_curve
from gram_platform.analysis.tables import analyse
from gram_platform.analysis.undecayed_curve import fit_undecayed_curve
from tests.study_frames import NUM_STEPS, curves, evaluations

LAST, SHARE = 1000.0, 0.9
STEPS = np.linspace(25.0, LAST, 40)
SHAPES = {  # losses at a constant rate
    "a power law": lambda s: 8.0 * (s + 30.0) ** -0.3,
    "a floor": lambda s: 0.5 + 300.0 * (s + 30.0) ** -1.1,
    "steps": lambda s: 8.0 * (s + 30.0) ** -0.3 * (1.0 - 0.12 * (s > 330.0) - 0.12 * (s > 640.0)),
}


def decayed(loss):
    """The loss after a decay: 6% lower."""
    return 0.94 * loss


def measured(shape, noise: float = 0.0) -> np.ndarray:
    """Three seeds' points, whose last tenth decays."""
    in_decay = np.clip((STEPS / LAST - SHARE) / (1.0 - SHARE), 0.0, 1.0)
    rng = np.random.default_rng(0)
    return np.stack([shape(STEPS) * (1.0 - 0.06 * in_decay) * np.exp(rng.normal(0.0, noise, 40)) for _ in range(3)])


@pytest.mark.parametrize("name", SHAPES)
def test_a_known_share_is_the_ratio(name):
    shape = SHAPES[name]
    final = [float(decayed(shape(LAST)))] * 3
    shares = np.array([0.25, 0.5, 0.6, 0.8, 0.9, 1.1])
    losses = decayed(shape(shares * LAST))
    steps, points = np.tile(STEPS, 3), measured(shape).ravel()
    found = compute_ratio(fit_undecayed_curve(steps, points, SHARE, final), losses, final)
    np.testing.assert_allclose(found, shares, atol=0.025)
    of_law = np.abs(compute_ratio(fit_learning_curve(steps, points), losses, final) - shares).max()
    assert of_law < 0.02 if name == "a power law" else of_law > 0.045


def test_rises_are_pooled_and_seeds_averaged():
    curve = fit_undecayed_curve([10, 20, 30, 40, 50, 10], [3.0, 2.0, 2.2, 1.5, 0.1, 3.0], 0.8, [1.0])
    assert np.exp(curve.log_losses) == pytest.approx([3.0, np.sqrt(2.0 * 2.2), 1.5])
    assert np.exp(curve.log_steps) == pytest.approx([10.0, np.sqrt(20.0 * 30.0), 40.0])
    assert (curve.num_points, curve.last_step) == (5, 50.0)
    noisy = fit_undecayed_curve(np.tile(STEPS, 3), measured(SHAPES["a floor"], 0.05).ravel(), SHARE, [0.6])
    assert noisy.poor
    assert noisy.rms == pytest.approx(0.05, rel=0.2)
    assert np.all(np.diff(noisy.step(np.linspace(0.4, 3.0, 200))) < 0.0)


def test_what_cannot_be_read_is_refused():
    with pytest.raises(ValueError, match="losses that fall before the decay"):
        fit_undecayed_curve([10, 20, 30, 40], [1.0, 2.0, 3.0, 0.5], 0.9, [0.5])
    with pytest.raises(ValueError, match="losses"):
        fit_undecayed_curve([10, 20, 30, 40], [1.0, 0.0, 3.0, 0.5], 0.9, [0.5])
    with pytest.raises(ValueError, match="finite positive"):
        fit_undecayed_curve([10, 20, 30, 40], [3.0, 2.0, 1.0, 0.5], 0.9, [-0.5])


def test_a_study_that_names_it_is_read_by_it_and_no_other():
    """The planted curves have no decay, so the shares are the planted ones; the tables of others stay as they are."""
    frames = evaluations(("small",)), curves(("small",))
    default, named = analyse(*frames), analyse(*frames, undecayed_share=0.9)
    pd.testing.assert_frame_equal(default.table, analyse(*frames, undecayed_share=0.0).table)
    classes = ["core", "retain", "forget"]
    np.testing.assert_allclose(named.table[classes], default.table[classes], atol=0.01, equal_nan=True)
    assert not named.table[classes].equals(default.table[classes])
    assert named.fits["alpha"].isna().all()
    assert named.fits["last_step"].unique().tolist() == [NUM_STEPS]
