"""Checks of the numbers that people hand to the fits; every error names the field, the value and what is allowed."""

from collections.abc import Sequence

import numpy as np

from gram_platform.config.identity import invalid


def floats(field: str, values: object) -> np.ndarray:
    """A number or an array of them as floats, of any shape; ValueError for text and whatever else is no number."""
    try:
        return np.asarray(values, float)
    except (TypeError, ValueError) as error:
        raise invalid(field, f"values of {type(values).__name__}", f"numbers ({error})") from error


def positive(field: str, values: Sequence[float]) -> np.ndarray:
    """The values [n] as floats; ValueError naming the field and the first entry that is not finite and positive."""
    array = floats(field, values)
    if array.ndim != 1:
        raise invalid(field, f"values of shape {array.shape}", "one dimension: one value for each run or size")
    bad = np.flatnonzero(~(np.isfinite(array) & (array > 0.0)))
    if len(bad):
        place = f"entry {bad[0]} of {len(array)}" + (f", and {len(bad) - 1} more" if len(bad) > 1 else "")
        raise invalid(field, float(array[bad[0]]), f"finite positive numbers; this is {place}")
    return array


def require_confidence(confidence: float) -> None:
    if not 0.0 < confidence < 1.0:
        raise invalid("confidence", confidence, "a probability strictly between 0 and 1")
