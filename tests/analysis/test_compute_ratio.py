"""Checks the curve fit on planted curves and real public ones, and the errors."""

import json
import math
import tracemalloc
from collections import defaultdict

import numpy as np
import pandas as pd
import pytest

from gram_platform.analysis.compute_ratio import LearningCurve, compute_ratio, fit_learning_curve
from gram_platform.analysis.ratios import fit_pooled_curve
from tests.refused import refused

STEPS = np.arange(1, 101) * 10.0


def planted(steps, scale, alpha, s0):
    return scale * (np.asarray(steps) + s0) ** -alpha


@pytest.mark.parametrize("alpha", [0.02, 0.3, 1.5])
@pytest.mark.parametrize("s0", [-9.0, -5.0, 0.0, 30.0, 1e3, 1e5])
def test_recovers_planted_curves(s0, alpha):
    curve = fit_learning_curve(STEPS, planted(STEPS, 7.0, alpha, s0))
    assert curve.s0 == pytest.approx(s0, rel=1e-5, abs=1e-8)
    assert curve.alpha == pytest.approx(alpha, rel=1e-5)
    np.testing.assert_allclose(curve.A, 7.0, rtol=1e-4)
    assert curve.rms < 1e-12
    assert not curve.poor
    assert not curve.at_bound
    assert curve.step(planted(777.0, 7.0, alpha, s0)) == pytest.approx(777.0, rel=1e-6)
    assert curve.loss(2000.0) == pytest.approx(planted(2000.0, 7.0, alpha, s0), rel=1e-6)


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e6])
def test_the_unit_of_steps_does_not_matter(unit):
    losses = planted(STEPS, 5.0, 0.2, 40.0)
    curve = fit_learning_curve(STEPS * unit, losses)
    assert curve.s0 / unit == pytest.approx(40.0, rel=1e-6)
    assert compute_ratio(curve, losses[49], [losses[-1]]) == pytest.approx(0.5, rel=1e-8)


def test_a_curve_that_starts_at_step_zero_or_is_unordered():
    steps = np.arange(0, 50) * 20.0
    curve = fit_learning_curve(steps[::-1], planted(steps, 6.0, 0.25, 12.0)[::-1])
    assert curve.s0 == pytest.approx(12.0, rel=1e-8)
    assert not curve.at_bound


def test_pooled_seeds_with_noise():
    rng = np.random.default_rng(0)
    steps = np.tile(STEPS, 3)
    losses = planted(steps, 6.0, 0.2, 50.0) * np.exp(0.002 * rng.standard_normal(len(steps)))
    curve = fit_learning_curve(steps, losses)
    assert curve.num_points == 300
    assert curve.alpha == pytest.approx(0.2, abs=0.005)
    assert curve.s0 == pytest.approx(50.0, abs=8.0)
    assert curve.rms == pytest.approx(0.002, rel=0.15)
    assert compute_ratio(
        curve, planted(500.0, 6.0, 0.2, 50.0), [planted(1000.0, 6.0, 0.2, 50.0)]
    ) == pytest.approx(0.5, abs=0.02)


def test_the_fit_is_the_global_least_squares_minimum():
    rng = np.random.default_rng(1)
    losses = planted(STEPS, 6.0, 0.2, 50.0) * np.exp(0.05 * rng.standard_normal(len(STEPS)))
    curve = fit_learning_curve(STEPS, losses)
    for s0 in np.concatenate([-STEPS[0] + np.geomspace(1e-3, 1e5, 2000)]):
        x = np.log(STEPS + s0)
        slope, intercept = np.polyfit(x, np.log(losses), 1)
        rms = np.sqrt(np.mean((np.log(losses) - intercept - slope * x) ** 2))
        assert slope >= 0 or curve.rms <= rms + 1e-12


def test_of_two_local_minima_the_better_one_is_found():
    """A cliff at the first point (s0 at -min(s)) and one at the last (s0 far up) each have a
    minimum of their own."""
    steps, losses = np.arange(1, 7) * 10.0, np.array([8.235, 0.306, 0.724, 1.939, 1.577, 0.124])
    # These are values of s0 + min(s) over its range.
    shifted = [np.log1p((steps - 10.0) / above) for above in np.geomspace(1e-5, 6e7, 1000)]
    rss = np.array([np.polyfit(x, np.log(losses), 1, full=True)[1][0] for x in shifted])
    padded = np.array([np.inf, *rss, np.inf])
    first, second = rss[(rss < padded[:-2]) & (rss < padded[2:])]
    assert first != pytest.approx(second, rel=0.2)
    assert len(losses) * fit_learning_curve(steps, losses).rms ** 2 == pytest.approx(
        min(first, second), rel=1e-4
    )


def test_closeness_to_the_lower_bound_is_measured_by_the_interval_between_points():
    """Points every 10 steps from 1,000 on: the bound is 5% of 10 steps above -1,000."""
    steps = 1000.0 + STEPS - STEPS[0]
    near, far = (
        fit_learning_curve(steps, planted(steps, 7.0, 0.3, -1000.0 + above)) for above in (0.4, 0.6)
    )
    assert (near.at_bound, far.at_bound) == (True, False)


def test_a_scale_too_large_for_a_float_is_infinite_and_the_curve_goes_on():
    steep, just = (
        LearningCurve(alpha, math.e, 1.0, 10.0, 0.0, 0.0, True, 10) for alpha in (720.0, 700.0)
    )
    assert math.isinf(steep.A)
    assert math.log(just.A) == pytest.approx(700.0)
    assert steep.loss(1.0) == 1.0


def test_a_baseline_without_a_positive_finite_step_is_refused():
    curve = fit_learning_curve(STEPS, planted(STEPS, 7.0, 0.3, 20.0))
    flat = LearningCurve(1e-4, 1.0, 1.0, 10.0, 0.0, 0.0, False, 10)
    for of, loss in ((curve, 99.0), (flat, 0.1)):
        with refused("baseline_losses"):
            compute_ratio(of, 3.0, [loss])


def test_bounds_are_reported():
    # Steeper than any power law: s0 goes to its upper end.
    exponential = 5.0 * np.exp(-STEPS / 1000.0)
    curve = fit_learning_curve(STEPS, exponential)
    assert curve.at_bound
    assert np.isfinite(curve.s0)
    assert curve.loss(500.0) == pytest.approx(5.0 * np.exp(-0.5), rel=1e-3)
    # One high point: s0 goes to -min(s).
    cliff = np.concatenate([[9.0], planted(STEPS[1:], 4.0, 0.01, 0.0)])
    curve = fit_learning_curve(STEPS, cliff)
    assert curve.at_bound
    assert curve.s0 > -STEPS[0]


@pytest.mark.parametrize("num_parameters", [5e7, 4e8, 5e9])
def test_a_fit_that_is_close_in_loss_is_far_in_steps(num_parameters):
    """Hoffmann and others' law at 20 tokens a parameter: its floor makes the curve no power law."""
    share = np.arange(1, 101) / 100.0
    loss = lambda s: (
        1.69 + 406.4 / num_parameters**0.34 + 410.7 / (20.0 * num_parameters * s) ** 0.28
    )
    curve = fit_learning_curve(share, loss(share))
    assert curve.rms < 0.007
    assert compute_ratio(curve, loss(0.25), [loss(1.0)]) > 0.28  # 0.25 if the fit were right
    assert curve.step_rms == pytest.approx(
        np.std((np.log(loss(share)) - np.log(curve.loss(share))) / curve.alpha)
    )
    assert curve.step_rms > 0.05
    assert not curve.at_bound


@pytest.mark.parametrize(("alpha", "poor"), [(0.0141, True), (0.0143, False)])
def test_a_fit_is_poor_if_it_is_worse_than_every_published_one(alpha, poor):
    """Those are at most .71 of the steps off."""
    curve = LearningCurve(alpha, 1.0, 1.0, 10.0, 0.0, 0.01008, False, 10)
    assert curve.poor == poor


def test_compute_ratio_of_the_baseline_is_one_and_nothing_is_clipped():
    curve = fit_learning_curve(STEPS, planted(STEPS, 7.0, 0.3, 20.0))
    finals = planted(np.array([950.0, 1000.0, 1050.0]), 7.0, 0.3, 20.0)
    assert np.mean(compute_ratio(curve, finals, finals)) == pytest.approx(1.0, rel=1e-9)
    assert compute_ratio(curve, planted(2500.0, 7.0, 0.3, 20.0), finals) == pytest.approx(
        2.5, rel=1e-7
    )
    # Worse than an untrained baseline.
    assert compute_ratio(curve, planted(1e-3, 7.0, 0.3, 20.0) * 2, finals) < 0
    assert isinstance(compute_ratio(curve, 3.0, finals), float)


@pytest.mark.parametrize(
    ("steps", "losses", "field"),
    [
        ([1, 1, 2, 2], [3, 3, 2, 2], "steps"),
        ([-1, 2, 3, 4], [3, 2, 2, 1], "steps"),
        (["a", 2, 3], [3, 2, 1], "steps"),
        ([], [], "steps"),
        ([1, 2, 3], [3, 2], "losses"),
        ([1, 2, 3, 4], [3, 2, float("nan"), 1], "losses"),
        ([1, 2, 3, 4], [3, 2, 0.0, 1], "losses"),
        ([1, 2, 3, 4], [2.0, 2.0, 2.0, 2.0], "losses"),  # no alpha > 0 fits
    ],
)
def test_bad_curves_name_the_field(steps, losses, field):
    with refused(field):
        fit_learning_curve(steps, losses)


def test_bad_losses_name_the_field():
    curve = fit_learning_curve(STEPS, planted(STEPS, 7.0, 0.3, 20.0))
    for loss in (0.0, float("inf"), "low"):
        with refused("loss"):
            compute_ratio(curve, loss, [1.0])
    for losses in ([], [0.0], ["low"]):
        with refused("baseline_losses"):
            compute_ratio(curve, 3.0, losses)
    with refused("step"):
        curve.loss(-25.0)


def test_real_curves_are_bounded_flagged_and_reported(shared_data):
    points = defaultdict(list)
    for line in (shared_data / "gemstones_curves.jsonl").read_text().splitlines():
        row = json.loads(line)
        points[row["run_name"]].append((row["step"], row["final_loss"]))
    curves = {name: fit_learning_curve(*zip(*rows, strict=True)) for name, rows in points.items()}
    assert len(curves) == 22
    assert all(curve.s0 > -curve.first_step and curve.at_bound for curve in curves.values())
    assert all(0.006 < curve.rms < 0.0095 for curve in curves.values())
    for name, rows in points.items():
        steps, losses = np.array(rows).T
        unshifted = np.polyfit(np.log(steps), np.log(losses), 1)
        rms = np.sqrt(np.mean((np.log(losses) - np.polyval(unshifted, np.log(steps))) ** 2))
        assert 0.016 < rms < 0.027
        assert curves[name].rms < 0.45 * rms


def test_a_pooled_curve_takes_runs_that_differ_only_in_the_seed():
    configs = {"a": {"seed": 0, "peak_lr": 0.1}, "b": {"seed": 1, "peak_lr": 0.1}}
    curves = pd.DataFrame(
        {
            "run_id": np.repeat(["a", "b", "other"], len(STEPS)),
            "step": np.tile(STEPS, 3),
            "domain": "core",
            "loss": np.concatenate([planted(STEPS, scale, 0.2, 5.0) for scale in (6.0, 6.1, 9.0)]),
        }
    )
    pooled = curves[curves["run_id"] != "other"]
    assert fit_pooled_curve(curves, configs) == fit_learning_curve(pooled["step"], pooled["loss"])
    configs["b"] |= {"peak_lr": 0.2, "warmup": 3}
    with refused("configs", {"peak_lr": [0.1, 0.2], "warmup": [None, 3]}):
        fit_pooled_curve(curves, configs)
    for domain, points in ("virology", curves), ("core", curves[curves["run_id"] != "a"]):
        with refused("curves"):
            fit_pooled_curve(points, {"a": configs["a"]}, domain)


def test_many_points_fit_in_pieces(monkeypatch):
    steps = np.tile(STEPS, 20)
    losses = planted(steps, 6.0, 0.2, 50.0) * np.exp(
        0.01 * np.random.default_rng(0).standard_normal(len(steps))
    )
    whole = fit_learning_curve(steps, losses)
    monkeypatch.setattr("gram_platform.analysis.compute_ratio.NUMBERS_AT_ONCE", 7 * len(steps))
    assert fit_learning_curve(steps, losses) == whole
    many = np.linspace(1.0, 1e5, 20_000)
    tracemalloc.start()
    fit_learning_curve(many, planted(many, 6.0, 0.2, 50.0))
    assert tracemalloc.get_traced_memory()[1] < 40e6  # 192 MB in one piece
    tracemalloc.stop()
