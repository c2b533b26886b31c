"""Computes compute ratios, which rate a loss by the step at which the baseline reaches this loss.

Source: the paper's appendix "Compute Ratio Methodology". For each domain, L(s) = A (s + s0)^-alpha
(A, alpha > 0, no floor) is fitted to the baseline's validation curve, by least squares of the log
loss over all seeds. The inverse step(l) = (A / l)^(1 / alpha) - s0 turns losses into steps. CR(l)
is step(l) divided by the mean of step(l_n), where l_n is the final loss of baseline seed n.

We add the constraint s0 > -min(s), so that the curve is finite at every measured step. For a fixed
s0 the fit is linear in log A and alpha, so we search only s0: on a logarithmic grid, then around
each local minimum.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar

from gram_platform.analysis.intervals import floats, positive
from gram_platform.config.identity import invalid

MIN_POINTS = 3
# s0 is at its bound if s0 + min(s) is below this share of `_scale`, or as close to its upper end.
BOUND_FRACTION = 0.05
# The smallest and the largest `step_rms` of the published curves (docs/findings/unit.md).
PUBLISHED_STEP_RMS = (0.18, 0.71)
GRID_POINTS = 400
# The largest array of offsets x points, 8 MB.
NUMBERS_AT_ONCE = 2**20
# The range of s0 + min(s), in units of `_scale` and of the last step.
LOWEST, HIGHEST = 1e-6, 1e6


@dataclass(frozen=True)
class LearningCurve:
    """The curve L(s) = A (s + s0)^-alpha.

    The field `offset` is s0 + first_step. If it is small, s0 alone would round it off.
    """

    alpha: float
    offset: float
    first_step: float
    last_step: float
    log_loss_first: float
    # The rms residual of the log loss.
    rms: float
    # s0 is at an end of its range, so the curve is unreliable.
    at_bound: bool
    num_points: int

    @property
    def s0(self) -> float:
        """The shift s0 in steps, larger than -first_step."""
        return self.offset - self.first_step

    @property
    def A(self) -> float:
        """The coefficient A. Infinite if it overflows, as it may at the upper bound of s0."""
        log_a = self.log_loss_first + self.alpha * math.log(self.offset)
        return math.exp(log_a) if log_a < 709.0 else math.inf

    @property
    def first_loss(self) -> float:
        """The fitted loss in nats per token at the first measured step."""
        return math.exp(self.log_loss_first)

    @property
    def step_rms(self) -> float:
        """Estimates the rms relative error of `step` from the residuals of the log loss."""
        return self.rms / self.alpha

    @property
    def poor(self) -> bool:
        """True if `step_rms` exceeds that of every published fit."""
        return self.step_rms > PUBLISHED_STEP_RMS[1]

    def loss(self, step):
        """Returns the fitted loss in nats per token at `step`, a number or an array.

        Raises ValueError for steps at or below -s0.
        """
        shifted = (floats("step", step) - self.first_step) / self.offset
        if not np.all(shifted > -1.0):
            raise invalid("step", step, f"steps above -s0 = {-self.s0:g}")
        return _like(step, np.exp(self.log_loss_first - self.alpha * np.log1p(shifted)))

    def step(self, loss):
        """Returns the steps at which the curve reaches `loss`, a number or an array.

        Losses below the curve's range map to steps beyond `last_step`, and losses far above it can
        map to negative steps. Returns infinity on overflow. Raises ValueError for losses <= 0.
        """
        losses = floats("loss", loss)
        positive("loss", losses.ravel())
        with np.errstate(over="ignore"):
            growth = np.expm1((self.log_loss_first - np.log(losses)) / self.alpha)
            return _like(loss, self.first_step + self.offset * growth)


def fit_learning_curve(steps: Sequence[float], losses: Sequence[float]) -> LearningCurve:
    """Fits L(s) = A (s + s0)^-alpha to N points of one or more seeds. Steps may repeat.

    `steps` are optimizer steps >= 0, and `losses` are nats per token > 0. Raises ValueError for
    other values, for fewer than three distinct steps, or if the losses do not fall, so that no
    alpha > 0 fits.
    """
    s, y = _points(steps, losses)
    offsets = np.geomspace(LOWEST * _scale(s), HIGHEST * float(s.max()), GRID_POINTS)
    rss = _profile(offsets, s, y)
    if not np.isfinite(rss).any():
        allowed = "losses that fall with the steps, so that some alpha > 0 fits"
        raise invalid("losses", [float(np.exp(y[0])), "...", float(np.exp(y[-1]))], allowed)
    padded = np.concatenate([[np.inf], rss, [np.inf]])
    is_local = (rss <= padded[:-2]) & (rss <= padded[2:]) & np.isfinite(rss)
    spacing = float(np.log(offsets[1] / offsets[0]))
    _, offset = min(_descend(offset, spacing, s, y) for offset in offsets[is_local])
    offset = float(np.clip(offset, offsets[0], offsets[-1]))
    x = np.log1p((s - s.min()) / offset)
    centred = x - x.mean()
    alpha = -float(centred @ (y - y.mean()) / (centred @ centred))
    intercept = float(y.mean() + alpha * x.mean())
    rms = float(np.sqrt(np.mean((y - intercept + alpha * x) ** 2)))
    low, high = BOUND_FRACTION * _scale(s), (1.0 - BOUND_FRACTION) * offsets[-1]
    return LearningCurve(
        alpha=alpha,
        offset=offset,
        first_step=float(s.min()),
        last_step=float(s.max()),
        log_loss_first=intercept,
        rms=rms,
        at_bound=bool(offset <= low or offset >= high),
        num_points=len(s),
    )


def compute_ratio(curve: LearningCurve, loss, baseline_losses: Sequence[float]):
    """Returns step(loss) / mean(step(baseline_losses)). A ratio above 1 beats the baseline.

    `loss` is a number or an array. `baseline_losses` has the final loss of each baseline seed on
    the same domain. All are in nats per token. Raises ValueError for losses <= 0, if
    `baseline_losses` is empty, or if the denominator is not positive and finite.
    """
    baseline = positive("baseline_losses", np.atleast_1d(baseline_losses))
    if baseline.size == 0:
        raise invalid("baseline_losses", [], "the final loss of at least one baseline seed")
    reference = float(np.mean(curve.step(baseline)))
    if not 0.0 < reference < math.inf:
        allowed = "losses that the curve reaches after a positive step"
        raise invalid("baseline_losses", baseline.tolist(), allowed)
    return curve.step(loss) / reference


def _scale(s: np.ndarray) -> float:
    first, second = np.unique(s)[:2].tolist()
    return min(second - first, first or math.inf)


def _profile(offsets: np.ndarray, s: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns the fit's sum of squared residuals for each s0 + min(s) [G], or inf if alpha <= 0."""
    rows, centred, parts = max(1, NUMBERS_AT_ONCE // len(s)), y - y.mean(), []
    for start in range(0, len(offsets), rows):
        x = np.log1p((s - s.min()) / offsets[start : start + rows, None])
        x -= x.mean(axis=1, keepdims=True)
        slope = (x @ centred) / np.einsum("gn,gn->g", x, x)
        residuals = centred - slope[:, None] * x
        squares = np.einsum("gn,gn->g", residuals, residuals)
        parts.append(np.where(slope < 0.0, squares, np.inf))
    return np.concatenate(parts)


def _descend(offset: float, spacing: float, s: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    best = float(_profile(np.array([offset]), s, y)[0]), float(offset)
    # The first search finds the minimum only to 1e-8.
    for width in (spacing, 1e-6):
        centre = best[1]
        minimum = minimize_scalar(
            lambda v, centre=centre: float(_profile(np.array([centre * np.exp(v)]), s, y)[0]),
            bounds=(-width, width),
            method="bounded",
            options={"xatol": 1e-15},
        )
        best = min(best, (float(minimum.fun), float(centre * np.exp(minimum.x))))
    return best


def _like(reference, values: np.ndarray):
    return float(values) if np.ndim(reference) == 0 else values


def _points(steps: Sequence[float], losses: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    s, values = floats("steps", steps), positive("losses", losses)
    if values.shape != s.shape:
        allowed = f"one loss for each step, of shape {s.shape}"
        raise invalid("losses", f"{len(values)} values", allowed)
    is_bad = ~(np.isfinite(s) & (s >= 0.0))
    if is_bad.any():
        raise invalid("steps", float(s[is_bad][0]), "finite steps >= 0")
    if len(np.unique(s)) < MIN_POINTS:
        raise invalid("steps", np.unique(s).tolist(), f"at least {MIN_POINTS} distinct steps")
    # The order of the seeds must not change the sums, even in the last bit.
    order = np.lexsort((values, s))
    return s[order], np.log(values[order])
