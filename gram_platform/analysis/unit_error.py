"""Measures how far the unit of compute ratios is off, which the seeds of a study cannot show.

A baseline that was trained for a known share of the steps, with a warm-up and a decay of its own, should have that
share as its compute ratio. The difference has a part that varies with the rated seeds and with the reference's seeds,
which intervals over seeds contain, and a part that is common: the losses have another shape than the fitted curve. The
errors here are root mean squares of the common part over the shares, by the method of moments: the squared mean over
seeds, less the variance of that mean, and less the variance of the reference's mean times the share squared.

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
from gram_platform.analysis.ratios import ALL, ELICITED, VARIANT
from gram_platform.config.identity import invalid

REFERENCE = "reference"  # the variant whose baselines are the unit
AUXILIARY = "auxiliary"  # every class but core: their domains share the curves
CLASS_OF = {"core": "core", "retain": AUXILIARY, "forget": AUXILIARY, ELICITED: AUXILIARY}
FITS = 0.05  # a unit whose errors are below needs no warning
# [ours] a size takes the error of one with up to so many times its parameters and steps, or so many times fewer
NEAR = 3.0
ERROR_FILE = Path(__file__).with_name("unit_errors.csv")
MEASURED_COLUMNS = ["size", "class", "ratio", "difference", "of_one_seed", "num_shares", "num_seeds"]
FILE_COLUMNS = ["corpus", "undecayed", "parameters", "steps", *MEASURED_COLUMNS]


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
    rows, whole = [], per_seed[per_seed["profile"] == ALL]
    for size, of_size in whole.groupby("size", sort=False):
        for name, column in (("core", "core"), (AUXILIARY, "retain")):
            is_reference = of_size[VARIANT] == REFERENCE
            errors, reference = _errors(of_size[~is_reference], column), of_size.loc[is_reference, column]
            if len(errors) > 1:
                noise = reference.var(ddof=1) / len(reference) if len(reference) > 1 else 0.0
                num_seeds = int(errors.notna().sum(axis="columns").min())
                row = {"size": size, "class": name, "num_shares": len(errors), "num_seeds": num_seeds}
                shares = errors.index.to_series()
                row["ratio"] = _common(errors, noise * shares**2)
                row["difference"] = _common(errors.diff().iloc[1:], noise * shares.diff().iloc[1:] ** 2)
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


def _common(values: pd.DataFrame, noise: pd.Series) -> float:
    """Returns the root mean square over rows of the part that is common to a row's values, one for each seed.

    `noise`: each row's variance that the reference's seeds explain. 0 if noise explains all; NaN without a row of two
    values.
    """
    known = values[values.notna().sum(axis="columns") > 1]
    of_means = known.var(axis="columns", ddof=1) / known.notna().sum(axis="columns")
    squares = known.mean(axis="columns") ** 2 - of_means - noise
    return math.sqrt(max(0.0, float(squares.mean()))) if len(known) else math.nan


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
