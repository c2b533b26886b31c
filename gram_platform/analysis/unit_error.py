"""Measures how far the unit of compute ratios is off, which the seeds of a study cannot show.

A baseline that was trained for a known share of the steps, with a warm-up and a decay of its own, should have that
share as its compute ratio. The difference has a part that varies between seeds, which intervals over seeds contain, and
a part that is common to them: the losses have another shape than the fitted curve, and the reference is the same. The
errors here are root mean squares of the common part over the shares. Its square at one share is estimated by the
squared mean over seeds minus that mean's variance (method of moments): noise between seeds does not count as an error
of the unit.

A difference of two ratios that are read off the same curves has a smaller error: that of the difference between
neighbouring shares. `unit_errors.csv` holds the errors that were measured for the package.
"""

import math
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from gram_platform.analysis.intervals import require_columns
from gram_platform.analysis.ratios import ELICITED, VARIANT
from gram_platform.config.identity import invalid

REFERENCE = "reference"  # the variant whose baselines are the unit
AUXILIARY = "auxiliary"  # every class but core: their domains share the curves
CLASS_OF = {"core": "core", "retain": AUXILIARY, "forget": AUXILIARY, ELICITED: AUXILIARY}
FITS = 0.05  # a unit whose errors are below needs no warning
# [ours] a size takes the error of one with up to so many times its parameters and steps, or so many times fewer
NEAR = 3.0
ERROR_FILE = Path(__file__).with_name("unit_errors.csv")
MEASURED_COLUMNS = ["size", "class", "ratio", "difference", "of_one_seed", "num_shares", "num_seeds"]
FILE_COLUMNS = ["corpus", "parameters", "steps", *MEASURED_COLUMNS]


class UnitError(NamedTuple):
    """Root mean square errors of the unit, in compute ratio; NaN if not known."""

    ratio: float  # of one ratio
    difference: float  # of the difference of two ratios of one class that are read off the same curves


NOT_KNOWN = UnitError(math.nan, math.nan)
UnitErrors = Mapping[tuple[str, str], UnitError]  # by (size, class of CLASSES)


def measured_errors(per_seed: pd.DataFrame) -> pd.DataFrame:
    """Returns MEASURED_COLUMNS, a row per size and class (core, AUXILIARY), from the `per_seed` frame of a calibration.

    Its variants are REFERENCE and the shares, as texts. A share needs two seeds, a size two shares; others have no row.
    `of_one_seed` is the root mean square of ratio - share over shares and seeds, which contains the seeds' noise.
    ValueError for a variant that is no share.
    """
    require_columns("per_seed", per_seed, [VARIANT, "size", "seed", "profile", "core", "retain"])
    rows, rated = [], per_seed[(per_seed[VARIANT] != REFERENCE) & (per_seed["profile"] == "all")]
    for size, of_size in rated.groupby("size", sort=False):
        for name, column in (("core", "core"), (AUXILIARY, "retain")):
            errors = _errors(of_size, column)
            if len(errors) > 1:
                num_seeds = int(errors.notna().sum(axis="columns").min())
                row = {"size": size, "class": name, "num_shares": len(errors), "num_seeds": num_seeds}
                row |= {"ratio": _common(errors), "difference": _common(errors.diff().iloc[1:])}
                rows.append(row | {"of_one_seed": float(np.sqrt(np.nanmean(errors.to_numpy() ** 2)))})
    return pd.DataFrame(rows, columns=MEASURED_COLUMNS)


def _errors(rated: pd.DataFrame, column: str) -> pd.DataFrame:
    """Returns ratio - share: a row per share with two seeds or more, from small to large; a column per seed."""
    ratios = rated.pivot(index=VARIANT, columns="seed", values=column)
    try:
        shares = ratios.index.astype(float)
    except ValueError as error:
        raise invalid(VARIANT, list(ratios.index), f"{REFERENCE}, and shares of the reference's steps") from error
    errors = ratios.set_axis(shares).sub(shares.to_numpy(), axis="index").sort_index()
    return errors[errors.notna().sum(axis="columns") > 1]


def _common(values: pd.DataFrame) -> float:
    """Returns the root mean square over rows of the part that is common to a row's values, one for each seed.

    0 if the seeds' noise explains all of it; NaN without a row of two values.
    """
    known = values[values.notna().sum(axis="columns") > 1]
    squares = known.mean(axis="columns") ** 2 - known.var(axis="columns", ddof=1) / known.notna().sum(axis="columns")
    return math.sqrt(max(0.0, float(squares.mean()))) if len(squares) else math.nan


# ------------------------------------------------------------------------------------------ of a set-up


@cache
def shipped_errors() -> pd.DataFrame:
    """Reads the errors that were measured for the package: FILE_COLUMNS, a row per corpus, size and class."""
    return pd.read_csv(ERROR_FILE, comment="#")


def nearest_errors(rows: pd.DataFrame, corpus: str, parameters: int, steps: int) -> list[dict]:
    """Returns the rows of FILE_COLUMNS, one per class, that tell most about a size of so many parameters and steps.

    They are those of the corpus if it was measured, else of any corpus; of the nearest of the sizes within NEAR; and of
    these the largest error of each class. [] if none is near.
    """
    same = rows[rows["corpus"] == corpus]
    rows = same if len(same) else rows
    places = zip(rows["parameters"], rows["steps"], strict=True)
    far = [max(_times(a, parameters), _times(b, steps)) for a, b in places]
    rows = rows.assign(far=far)
    rows = rows[rows["far"] <= NEAR]
    nearest = rows[rows["far"] == rows["far"].min()].sort_values("ratio", ascending=False, kind="stable")
    return nearest.drop(columns="far").drop_duplicates("class").to_dict("records")


def _times(number: float, other: float) -> float:
    return max(number / other, other / number)


def errors_by_class(stored: Iterable[Mapping]) -> UnitErrors:
    """Returns {(size, class): error} of rows with `size, class, ratio, difference`, the class core or AUXILIARY."""
    found = {(row["size"], row["class"]): UnitError(row["ratio"], row["difference"]) for row in stored}
    sizes = dict.fromkeys(size for size, _ in found)
    pairs = [(size, name, found.get((size, kind))) for size in sizes for name, kind in CLASS_OF.items()]
    return {(size, name): error for size, name, error in pairs if error}
