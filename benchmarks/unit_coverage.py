"""Prints how often "agree" comes at a claim's boundary if the unit of compute ratios is off.

    python -m benchmarks.unit_coverage

The studies are drawn: a calibration's errors at eight shares with the correlations that were
measured, hence a root mean square, and an error of the study with the same distribution. The seeds
of the study have normal noise. An interval is the platform's: the t over seeds and the unit's
half-width of `calibration.errors_by_class`, in quadrature. One-sigma is the root mean square alone.
A second table has claims in nats, whose margin comes from a slope that is off.
"""

import itertools
import math

import numpy as np
import pandas as pd
from scipy import linalg, stats

from gram_platform.analysis.calibration import (
    AUXILIARY,
    DIFFERENCE_LAGS,
    NUM_SHARES,
    RATIO_LAGS,
    errors_by_class,
)
from gram_platform.analysis.intervals import TAIL
from gram_platform.analysis.tables import frame_text
from gram_platform.config.terminal import say

# The unit's error over the standard error of the mean over seeds: 0 has none, 100 nothing else.
DOMINANCE = (0.0, 0.3, 1.0, 3.0, 10.0, 100.0)
NUM_SEEDS = (3, 5, 20)
# A margin in nats over the standard error of the mean, and the relative errors of its slope.
MARGINS, SLOPE_ERRORS = (1.0, 3.0, 10.0, 30.0), (0.0, 0.03, 0.1)
# What a claim compares: the number of errors that add up, and of which kind they are.
COMPARED = {
    "one class of two methods": (1, DIFFERENCE_LAGS, NUM_SHARES - 1),
    "two classes": (2, RATIO_LAGS, NUM_SHARES),
}


def draw_rms(lags: tuple, number: int, num_studies: int, rng: np.random.Generator) -> np.ndarray:
    """Returns the root mean squares [studies] of `number` errors of variance 1, correlated by
    `lags`."""
    matrix = linalg.toeplitz((1.0, *lags)[:number])
    values, vectors = np.linalg.eigh(matrix)
    # Measured correlations need not be those of any process.
    root = vectors * np.sqrt(np.clip(values, 0.0, None))
    root /= np.sqrt((root**2).sum(axis=1, keepdims=True))
    errors = rng.standard_normal((num_studies, number)) @ root.T
    return np.sqrt((errors**2).mean(axis=1))


def false_agrees(
    compared: str, dominance: float, num_seeds: int, num_studies: int = 200_000, rng_seed: int = 0
) -> dict[str, float]:
    """Returns the shares of studies that agree, and those whose 90% interval holds the truth.

    The true difference is at the boundary. `one_sigma` takes the root mean squares as they are.
    """
    rng = np.random.default_rng(rng_seed)
    num_errors, lags, number = COMPARED[compared]
    noise = rng.standard_normal((num_studies, num_seeds)) * math.sqrt(num_seeds)
    off = dominance * rng.standard_normal((num_errors, num_studies)).sum(axis=0)
    means = noise.mean(axis=1) + off
    half = stats.t.ppf(TAIL, num_seeds - 1) * noise.std(axis=1, ddof=1) / math.sqrt(num_seeds)
    rms = [dominance * draw_rms(lags, number, num_studies, rng) for _ in range(num_errors)]
    row = {"size": "", "class": AUXILIARY, "ratio": 1.0, "difference": 1.0}
    error = errors_by_class([row])["", "retain"]
    factor = error.difference if lags is DIFFERENCE_LAGS else error.ratio
    unit = np.sqrt(np.sum(np.square(rms), axis=0))
    wide, narrow = np.hypot(half, factor * unit), np.hypot(half, unit)
    return {
        "agree": float((means > wide).mean()),
        "coverage": float((np.abs(means) <= wide).mean()),
        "one_sigma": float((means > narrow).mean()),
    }


def false_agrees_in_nats(
    margin: float, slope_error: float, num_seeds: int, num_studies: int = 200_000, rng_seed: int = 0
) -> float:
    """Returns the share of studies that agree at the boundary of a margin in nats.

    `margin` is in standard errors of the mean over seeds; `slope_error` is the relative standard
    deviation of the slope that it is divided by.
    """
    rng = np.random.default_rng(rng_seed)
    noise = rng.standard_normal((num_studies, num_seeds)) * math.sqrt(num_seeds)
    half = stats.t.ppf(TAIL, num_seeds - 1) * noise.std(axis=1, ddof=1) / math.sqrt(num_seeds)
    found = margin / (1.0 + slope_error * rng.standard_normal(num_studies))
    return float((margin + noise.mean(axis=1) + half < found).mean())


def main() -> None:
    """Prints a row per kind of claim, number of seeds and dominance of the unit, then the nats."""
    rows = [
        {"compares": compared, "seeds": seeds, "unit over seeds": dominance}
        | false_agrees(compared, dominance, seeds)
        for compared, seeds, dominance in itertools.product(COMPARED, NUM_SEEDS, DOMINANCE)
    ]
    say(frame_text(pd.DataFrame(rows)))
    rows = [
        {"seeds": seeds, "margin over seeds": margin}
        | {f"slope off by {e:g}": false_agrees_in_nats(margin, e, seeds) for e in SLOPE_ERRORS}
        for seeds, margin in itertools.product(NUM_SEEDS, MARGINS)
    ]
    say(frame_text(pd.DataFrame(rows)))


if __name__ == "__main__":
    main()
