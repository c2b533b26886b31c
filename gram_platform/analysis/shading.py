"""A text whose tokens are shaded by the increases of their losses, as the paper's sentences are. Pure.

Source: the paper's appendix "Capability Removal Concentrates Loss on Domain-Relevant Tokens": white for no increase,
full colour for the 90th percentile of the increases of the model filtered to core, calibrated on every text by itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CALIBRATION = 0.9  # quantile


@dataclass(frozen=True)
class ShadedView:
    """One view of a text: a label, and the increase of every token but the first, over the baseline, in nats."""

    label: str
    increases: np.ndarray  # [T]


@dataclass(frozen=True)
class ShadedText:
    """One text under several views, and the increase that is drawn in full colour."""

    domain: str
    pieces: tuple[str, ...]  # [T + 1]: what each token adds to the text
    baseline: np.ndarray  # [T]: the losses that increases are over
    scale: float  # nats; NaN: nothing is shaded
    views: Sequence[ShadedView]


def shading_scale(increases: np.ndarray) -> float:
    """The increase in full colour, from those of the filtered model on the text [T]; NaN where it is not above 0."""
    scale = float(np.quantile(increases, CALIBRATION))
    return scale if scale > 0.0 else np.nan


def shades(increases: np.ndarray, scale: float) -> np.ndarray:
    """Increases as colour between 0 and 1; 0 without a scale."""
    return np.clip(increases / scale, 0.0, 1.0) if scale == scale else np.zeros(np.shape(increases))
