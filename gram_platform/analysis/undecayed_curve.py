"""Reads steps off a baseline's losses before the decay of its rate, without a law for their shape [ours].

The paper's curve (`compute_ratio`) is a power law through all points: those of a constant rate, and a few of the decay,
in which the loss drops. On small models the losses have another shape. Here the undecayed points alone count: means
over seeds at each step, pooled where they rise (isotonic regression), and interpolated by a monotone cubic (PCHIP) in
the logarithms of step and loss; beyond the ends by the line through the nearest END_POINTS. A final loss, of the
baseline or of a model that is compared with it, has gained by a decay. So each is first raised by the baseline's gain:
the log of the curve's loss at the last step over the mean of the baseline's final losses.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.optimize import isotonic_regression

from gram_platform.analysis.compute_ratio import POOR_RMS, POOR_STEP_RMS, like, measured_points, positive_losses
from gram_platform.config.identity import invalid

END_POINTS = 4  # of the pooled ones, through which the line beyond an end goes


@dataclass(frozen=True)
class UndecayedCurve:
    """A decreasing curve through log steps and log losses, and the log of what the decay gains."""

    log_steps: tuple[float, ...]  # increasing
    log_losses: tuple[float, ...]  # decreasing
    gain: float  # >= 0 if the decay lowers the loss
    last_step: float  # of the baseline, after its decay
    rms: float  # root mean square of the residuals of the log loss, at undecayed points
    step_rms: float  # the same of the log step
    num_points: int

    A = alpha = s0 = math.nan  # no law
    at_bound = False

    @property
    def first_step(self) -> float:
        return math.exp(self.log_steps[0])

    @property
    def first_loss(self) -> float:
        """The loss at the first step, nats a token."""
        return math.exp(self.log_losses[0])

    @property
    def poor(self) -> bool:
        """Tells whether the residual exceeds POOR_RMS or POOR_STEP_RMS."""
        return self.rms > POOR_RMS or self.step_rms > POOR_STEP_RMS

    def step(self, loss):
        """Returns the steps after which a baseline with a decay reaches `loss`, a number or an array.

        ValueError unless the losses are finite and positive.
        """
        with np.errstate(over="ignore"):
            return like(loss, np.exp(self.log_step(np.log(positive_losses("loss", loss)) + self.gain)))

    def log_step(self, log_loss: np.ndarray) -> np.ndarray:
        """Returns the log steps at which undecayed losses reach `log_loss`."""
        x, y = np.array(self.log_steps), np.array(self.log_losses)
        inside = PchipInterpolator(-y, x)(np.clip(-log_loss, -y[0], -y[-1]))
        before = x[0] + _slope(y[:END_POINTS], x[:END_POINTS]) * (log_loss - y[0])
        after = x[-1] + _slope(y[-END_POINTS:], x[-END_POINTS:]) * (log_loss - y[-1])
        return np.where(log_loss > y[0], before, np.where(log_loss < y[-1], after, inside))


def fit_undecayed_curve(
    steps: Sequence[float], losses: Sequence[float], undecayed_share: float, final_losses: Sequence[float]
) -> UndecayedCurve:
    """Reads a curve off pooled points [N] of one or more seeds, of which the last is after the decay.

    `undecayed_share`: the share of the last step up to which the rate was not decayed. `final_losses`: one per seed, in
    nats a token. ValueError as `fit_learning_curve`, or if fewer than two distinct losses are left.
    """
    s, log_losses = measured_points(steps, losses)
    last = float(s.max())
    is_used = (s <= undecayed_share * last) & (s > 0.0)
    s, y = np.log(s[is_used]), log_losses[is_used]
    distinct, place, counts = np.unique(s, return_inverse=True, return_counts=True)
    means = np.bincount(place, y) / counts
    pooled = isotonic_regression(means, weights=counts, increasing=False)
    starts = pooled.blocks[:-1]
    if len(starts) < 2:
        raise invalid("losses", np.exp(means).tolist(), "losses that fall before the decay")
    x = np.add.reduceat(distinct, starts) / np.diff(pooled.blocks)
    levels = pooled.x[starts]
    at_end = levels[-1] + (math.log(last) - x[-1]) / _slope(levels[-END_POINTS:], x[-END_POINTS:])
    gain = float(at_end - np.mean(np.log(positive_losses("final_losses", final_losses))))
    plain = UndecayedCurve(tuple(x), tuple(levels), gain, last, 0.0, 0.0, len(s))
    residuals = y - pooled.x[place], s - plain.log_step(y)
    rms, step_rms = (float(np.sqrt(np.mean(r**2))) for r in residuals)
    return UndecayedCurve(plain.log_steps, plain.log_losses, gain, last, rms, step_rms, len(s))


def _slope(y: np.ndarray, x: np.ndarray) -> float:
    """Returns the slope of the least-squares line of x on y."""
    centred = y - y.mean()
    return float(centred @ (x - x.mean()) / (centred @ centred))
