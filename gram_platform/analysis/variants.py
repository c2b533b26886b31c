"""Tables of a study that varies something beside method, size and profile: `analyse` at each variant. Pure.

The frames are those of `tables.analyse` with a column `variant`; a run that several variants share has a row for each.
"""

from collections.abc import Sequence
from dataclasses import fields

import pandas as pd

from gram_platform.analysis.ratios import BASELINE, VARIANT
from gram_platform.analysis.tables import Analysis, analyse


def analyse_variants(
    evaluations: pd.DataFrame,
    curves: pd.DataFrame,
    variants: Sequence[str],
    sizes: Sequence[str] = (),
    attacks: pd.DataFrame | None = None,
    declared: pd.DataFrame | None = None,
    unit: str = "",
    own_baseline: bool = False,
) -> Analysis:
    """The tables of every variant in one, with a column `variant`, in the order of `variants`.

    `unit`: the variant whose baselines are the reference for all, by default each its own. What is missing at some
    variants only names them. Further arguments and errors: `tables.analyse`.
    """
    declared = evaluations if declared is None else declared
    reference = _of(evaluations[evaluations["method"] == BASELINE], unit) if unit else None
    parts = {
        variant: analyse(
            _of(evaluations, variant),
            _of(curves, unit or variant),
            sizes,
            _of(attacks, variant),
            _of(declared, variant),
            reference,
            own_baseline,
        )
        for variant in variants
    }
    names = [field.name for field in fields(Analysis) if field.name != "missing"]
    joined = {name: _joined({variant: getattr(part, name) for variant, part in parts.items()}) for name in names}
    return Analysis(**joined, missing=_missing({variant: part.missing for variant, part in parts.items()}))


def _of(frame: pd.DataFrame | None, variant: str) -> pd.DataFrame | None:
    return None if frame is None else frame[frame[VARIANT] == variant].drop(columns=VARIANT)


def _joined(frames: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """One under the other, the variant in the first column."""
    parts = [frame.assign(**{VARIANT: variant}) for variant, frame in frames.items()]
    found = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
    return found[[VARIANT, *(column for column in found.columns if column != VARIANT)]]


def _missing(frames: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """One row a note, led by the variants that it is about unless these are all."""
    lacking: dict[tuple[str, str], list[str]] = {}
    for variant, frame in frames.items():
        for note in frame.itertuples(index=False, name=None):
            lacking.setdefault(note, []).append(variant)
    rows = [
        (what if len(own) == len(frames) else f"{', '.join(own)}: {what}", why) for (what, why), own in lacking.items()
    ]
    return pd.DataFrame(rows, columns=["what", "why"])
