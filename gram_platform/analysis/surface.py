"""Fits a quadratic in log learning rate and log batch size to the loss, and finds its minimum.

Source: the paper's appendix "Learning Rate and Batch Size Scaling". Ours:

- a surface that is not convex has no minimum
- a minimum at or beyond the edge of the grid is flagged
- fits can be restricted to cells (pairs of rate and batch) near the best
- each seed has its own additive constant (its level).

If the t-statistic of the smallest curvature is small, the curvature may be noise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.spatial import ConvexHull

from gram_platform.analysis.intervals import positive
from gram_platform.config.identity import invalid

NUM_COEFFICIENTS = 6
# A minimum this close to the border, as a share of the grid's log span, is at the edge.
EDGE_FRACTION = 0.01
# Predicted losses in a span exceed the minimum by at most this share.
SPAN_RISE = 0.001
# Decimals of the logarithms of a cell, since two grids may differ in the last bits.
SAME_CELL = 9
# Cells lie on a line if their width across it is less than this share of their length.
LINE_FRACTION = 1e-3
# The least singular value, as a share of the largest, of a design with columns scaled alike.
RANK_FRACTION = 1e-6
# A curvature below this share of the loss is rounding.
FLAT_FRACTION = 1e-11


@dataclass(frozen=True)
class Optimum:
    """The minimum of a fitted surface. Position and loss are NaN if the surface is not convex."""

    lr: float
    batch: float
    loss: float
    # The ends of the spans, see SPAN_RISE.
    lr_low: float
    lr_high: float
    batch_low: float
    batch_high: float
    convex: bool
    # At or beyond the border of the grid, or outside the hull of the used cells.
    on_edge: bool
    # The numbers of distinct (lr, batch) and of losses used.
    num_cells: int
    num_points: int
    # The rms residual, in nats or of the log loss if this is fitted.
    rms: float
    # The smallest curvature over its standard error. NaN without residual degrees of freedom.
    curvature_t: float


@dataclass(frozen=True)
class Surface:
    """A quadratic in w = ((log lr, log batch) - centre) @ whitening, which predicts the loss."""

    # The coefficients [6] of 1, x, y, x^2, x y, y^2 in w.
    coefficients: np.ndarray
    centre: np.ndarray
    # The matrix [2, 2] that gives the used cells unit covariance, so narrow valleys lose no digits.
    whitening: np.ndarray
    # The places (log lr, log batch) of all losses [n, 2].
    points: np.ndarray
    # The points within the window [m, 2].
    used: np.ndarray
    rms: float
    curvature_t: float
    is_convex: bool
    # The quadratic is the logarithm of the loss.
    is_log: bool = False

    def loss(self, lr: Sequence[float], batch: Sequence[float]) -> np.ndarray:
        """Predicts the loss at lr [n] and batch [n]."""
        points = np.log(np.stack([np.asarray(lr, float), np.asarray(batch, float)], axis=-1))
        fitted = _design((points - self.centre) @ self.whitening) @ self.coefficients
        return np.exp(fitted) if self.is_log else fitted

    def optimum(self) -> Optimum:
        values, loss, spans = np.full(2, np.nan), math.nan, np.full((2, 2), np.nan)
        on_edge = False
        if self.is_convex:
            slope, hessian = self.coefficients[1:3], _hessian(self.coefficients)
            w, back = -np.linalg.solve(hessian, slope), np.linalg.inv(self.whitening)
            lowest = float(self.coefficients[0] + slope @ w / 2.0)
            variances = np.diag(back.T @ np.linalg.inv(hessian) @ back)
            rise = math.log1p(SPAN_RISE) if self.is_log else SPAN_RISE * lowest
            half = np.sqrt(2.0 * rise * variances) if rise > 0.0 else np.full(2, np.nan)
            minimum = self.centre + w @ back
            with np.errstate(over="ignore", under="ignore"):
                values, spans = np.exp(minimum), np.exp([minimum - half, minimum + half]).T
            loss = math.exp(lowest) if self.is_log else lowest
            margin = EDGE_FRACTION * np.ptp(self.points, axis=0)
            low, high = self.points.min(axis=0) + margin, self.points.max(axis=0) - margin
            is_inside = np.all((low < minimum) & (minimum < high))
            on_edge = not is_inside or _beyond(minimum, self.used)
        return Optimum(
            *values.tolist(),
            loss,
            *spans.ravel().tolist(),
            convex=self.is_convex,
            on_edge=on_edge,
            num_cells=len(set(_cells(self.used))),
            num_points=len(self.used),
            rms=self.rms,
            curvature_t=self.curvature_t,
        )


@dataclass(frozen=True)
class Fit:
    """Options for fitting the surfaces of a grid."""

    # A fit uses only cells whose mean loss, without the seeds' levels, is within this fraction of
    # the lowest mean. None is all cells.
    window: float | None = None
    # As in the authors' code, not their text: log loss in place of loss, no levels of seeds, and
    # repeated trials all count.
    as_published: bool = False

    def __post_init__(self) -> None:
        window = self.window
        is_number = isinstance(window, int | float | np.number) and not isinstance(window, bool)
        if window is not None and not (is_number and math.isfinite(window) and window > 0.0):
            raise invalid("window", window, "a positive fraction, or None for all cells")


OUR_FIT = Fit()


def fit_quadratic(
    lr: Sequence[float], batch: Sequence[float], loss: Sequence[float], window: float | None = None
) -> Optimum:
    """Fits one surface as if all losses had the same seed, and returns its minimum."""
    return fit_surface(lr, batch, loss, None, Fit(window)).optimum()


def fit_surface(
    lr: Sequence[float],
    batch: Sequence[float],
    loss: Sequence[float],
    seeds: Sequence | None = None,
    fit: Fit = OUR_FIT,
) -> Surface:
    """Fits a quadratic in (log lr, log batch) to losses [n].

    A cell is a pair (lr, batch), and may have several seeds. `seeds` [n] has the seed of each loss.
    If given, each seed has its own additive constant (its level), and the surface predicts the loss
    at the mean level. Without `seeds`, the minimum is unreliable if a cell lacks a seed. Raises
    ValueError if values are not finite and positive, if fewer than six cells are used, or if the
    cells do not determine the quadratic and the levels (only two rates, cells on one line, fewer
    losses than coefficients).
    """
    window, seeds = fit.window, None if fit.as_published else seeds
    x, y, z = positive("lr", lr), positive("batch", batch), positive("loss", loss)
    if not len(x) == len(y) == len(z):
        allowed = f"one loss for each cell: {len(x)} of lr, {len(y)} of batch"
        raise invalid("loss", f"{len(z)} values", allowed)
    points = np.log(np.stack([x, y], axis=1))
    # This checks the number of seeds before the window selects losses.
    level_columns(seeds, len(z))
    kept = _within(points, z, window, seeds)
    used, losses = points[kept], np.log(z[kept]) if fit.as_published else z[kept]
    levels = level_columns(None if seeds is None else np.asarray(seeds)[kept], len(losses))
    field, value = ("lr, batch", f"{len(losses)} losses") if window is None else ("window", window)
    num_cells, num_levels = len(set(_cells(used))), levels.shape[1]
    if num_cells < NUM_COEFFICIENTS:
        allowed = f"at least {NUM_COEFFICIENTS} distinct cells; there are {num_cells}"
        raise invalid(field, value, allowed)
    centre, whitening = _whiten(used)
    is_flat = whitening is None
    fitted = None if is_flat else _least_squares((used - centre) @ whitening, losses, levels)
    if fitted is None:
        allowed = "cells that determine a quadratic: three values of each, not all on one line"
        if num_levels:
            allowed += f", with {num_levels} losses more for the levels of {num_levels + 1} seeds"
        raise invalid(field, value, allowed)
    coefficients, covariance, rms = fitted
    (least, most), vectors = np.linalg.eigh(_hessian(coefficients))
    is_convex = bool(least > max(1e-9 * abs(most), FLAT_FRACTION * np.abs(losses).max()))
    curvature_t = _curvature_t(least, vectors[:, 0], covariance)
    is_log = fit.as_published
    return Surface(
        coefficients, centre, whitening, points, used, rms, curvature_t, is_convex, is_log
    )


def subtract_levels(cell: np.ndarray, loss: np.ndarray, seeds: Sequence | None) -> np.ndarray:
    """Subtracts from each loss [n] the level (the additive constant) of its seed.

    Levels come from a least-squares fit of loss = cell + level. `cell` [n] is the index of each
    loss's cell. A seed that shares no cell with another seed has level 0.
    """
    if seeds is None:
        return loss
    # Among equally good levels, `lstsq` returns those of the smallest norm.
    names = np.asarray(seeds).astype(str)
    columns = (names[:, None] == np.unique(names)).astype(float)
    counts = np.bincount(cell).clip(1)
    means = [(np.bincount(cell, values) / counts)[cell] for values in (*columns.T, loss)]
    within = np.stack([*columns.T, loss], axis=1) - np.stack(means, axis=1)
    return loss - columns @ np.linalg.lstsq(within[:, :-1], within[:, -1], rcond=1e-9)[0]


def level_columns(seeds: Sequence | None, num: int) -> np.ndarray:
    """Returns the design matrix [num, K - 1] for levels of K seeds. The levels sum to 0.

    The row of a loss has 1 in the column of its seed, or -1 in all columns for the last seed.
    `seeds` has the seed of each of the `num` losses, and is None for a single seed. Raises
    ValueError if `seeds` has another length.
    """
    if seeds is None:
        return np.empty((num, 0))
    if len(seeds) != num:
        raise invalid("seeds", f"{len(seeds)} seeds", f"one seed for each of {num} losses")
    names, codes = np.unique(np.asarray(seeds).astype(str), return_inverse=True)
    last = np.full((1, max(len(names) - 1, 0)), -1.0)
    return np.concatenate([np.eye(last.size), last])[codes.ravel()]


def _within(
    points: np.ndarray, loss: np.ndarray, window: float | None, seeds: Sequence | None
) -> np.ndarray:
    if window is None:
        return np.ones(len(loss), bool)
    if not len(loss):
        return np.zeros(0, bool)
    cell = _cells(points)
    means = np.bincount(cell, subtract_levels(cell, loss, seeds)) / np.bincount(cell)
    return (means <= (1.0 + window) * means.min() * (1.0 + 1e-12))[cell]


def _cells(points: np.ndarray) -> np.ndarray:
    return np.unique(points.round(SAME_CELL), axis=0, return_inverse=True)[1].ravel()


def _whiten(used: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    centre, width = used.mean(axis=0), np.ptp(used, axis=0)
    if not width.min() > 0.0:
        return centre, None
    _, lengths, axes = np.linalg.svd((used - centre) / width, full_matrices=False)
    if not lengths[1] > LINE_FRACTION * lengths[0]:
        return centre, None
    return centre, (axes.T / width[:, None]) * (math.sqrt(len(used)) / lengths)


def _design(w: np.ndarray) -> np.ndarray:
    x, y = w[..., 0], w[..., 1]
    return np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], axis=-1)


def _least_squares(
    w: np.ndarray, loss: np.ndarray, levels: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float] | None:
    """Returns (coefficients [6], their covariance, rms residual), or None if undetermined."""
    design = np.concatenate([_design(w), levels], axis=1)
    norms = np.sqrt(np.mean(design**2, axis=0))
    left, singular, right = np.linalg.svd(design / norms, full_matrices=False)
    if len(singular) < design.shape[1] or not singular[-1] > RANK_FRACTION * singular[0]:
        return None
    inverse = (right.T / singular) / norms[:, None]
    fitted = inverse @ (left.T @ loss)
    residual = loss - design @ fitted
    freedom = len(loss) - design.shape[1]
    variance = residual @ residual / freedom if freedom > 0 else math.nan
    covariance = variance * (inverse @ inverse.T)[:NUM_COEFFICIENTS, :NUM_COEFFICIENTS]
    return fitted[:NUM_COEFFICIENTS], covariance, float(np.sqrt(np.mean(residual**2)))


def _hessian(c: np.ndarray) -> np.ndarray:
    return np.array([[2.0 * c[3], c[4]], [c[4], 2.0 * c[5]]])


def _curvature_t(curvature: float, direction: np.ndarray, covariance: np.ndarray) -> float:
    x, y = direction
    gradient = np.array([0.0, 0.0, 0.0, 2.0 * x * x, 2.0 * x * y, 2.0 * y * y])
    variance = float(gradient @ covariance @ gradient)
    if variance <= 0.0:
        return math.copysign(math.inf, curvature)
    return float(curvature) / math.sqrt(variance)


def _beyond(minimum: np.ndarray, used: np.ndarray) -> bool:
    width = np.ptp(used, axis=0)
    # The outward normals and offsets [k, 3].
    faces = ConvexHull(used / width).equations
    return bool(np.any(faces[:, :2] @ (minimum / width) + faces[:, 2] > 1e-9))
