"""Says how far the unit of compute ratios is off, which the seeds of a study cannot show.

The calibration study (`calibration`) rates finished baselines of known shares of the steps. The error of a ratio is the
root mean square over the shares of ratio minus share, a mean over seeds (`calibration.rms_of_means`). A difference of
two ratios that are read off the same curves has another error: the same of differences between neighbouring shares.
`unit_errors.csv` holds the errors that were measured for the package.
"""

import math
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from gram_platform.analysis.calibration import AUXILIARY, LOWEST_SHARE, UNIT, by_class, rms_of_means
from gram_platform.analysis.ratios import ELICITED
from gram_platform.config import CORE

CLASS_OF = {CORE: CORE, "retain": AUXILIARY, "forget": AUXILIARY, ELICITED: AUXILIARY}
FITS = 0.05  # a unit whose errors are below needs no warning
# [ours] a size takes the error of one with up to so many times its parameters and steps, or so many times fewer
NEAR = 3.0
ERROR_FILE = Path(__file__).with_name("unit_errors.csv")
MEASURED_COLUMNS = ["size", "class", "ratio", "difference", "num_shares", "num_seeds"]
FILE_COLUMNS = ["corpus", "parameters", "steps", *MEASURED_COLUMNS]


class UnitError(NamedTuple):
    """Root mean square errors of the unit, in compute ratio; NaN if not known."""

    ratio: float  # of one ratio
    difference: float  # of the difference of two ratios of one class that are read off the same curves


NOT_KNOWN = UnitError(math.nan, math.nan)
UnitErrors = Mapping[tuple[str, str], UnitError]  # by (size, class of CLASSES)


def measured_errors(errors: pd.DataFrame) -> pd.DataFrame:
    """Returns MEASURED_COLUMNS, a row per size and class (core, AUXILIARY), from the errors of a calibration.

    `errors` has ERROR_COLUMNS; those of the fit do not count, nor do shares below LOWEST_SHARE or with one seed. A size
    with fewer than two shares has no row.
    """
    unit = errors[(errors["error_of"] == UNIT) & (errors["share"].astype(float).round(2) >= LOWEST_SHARE)]
    rows = []
    for (size, name), cell in by_class(unit).groupby(["size", "domain"], sort=False):
        by_share = cell.pivot(index="share", columns="seed", values="error").sort_index()
        by_share = by_share[by_share.notna().sum(axis="columns") > 1]
        if len(by_share) > 1 and name in CLASS_OF.values():
            parts = (by_share, by_share.diff().iloc[1:])
            # A row per share and seed, from a column per seed.
            parts = (one.reset_index().melt("share", var_name="seed", value_name="error").dropna() for one in parts)
            ratio, difference = map(rms_of_means, parts)
            numbers = {"ratio": ratio, "difference": difference, "num_shares": len(by_share)}
            rows.append({"size": size, "class": name, "num_seeds": cell["seed"].nunique(), **numbers})
    return pd.DataFrame(rows, columns=MEASURED_COLUMNS).dropna()


# ------------------------------------------------------------------------------------------ of a set-up


@cache
def shipped_errors() -> pd.DataFrame:
    """Reads the errors that were measured for the package: FILE_COLUMNS, a row per corpus, size and class."""
    return pd.read_csv(ERROR_FILE, comment="#")


def nearest_errors(rows: pd.DataFrame, corpus: str, parameters: int, steps: int) -> list[dict]:
    """Returns the rows of FILE_COLUMNS, one per class, that tell most about a size of so many parameters and steps.

    They are those of sizes within NEAR: of the corpus if it was measured there, else of any; for each class of the
    nearest size, and of several the largest error. [] if none is near.
    """
    places = zip(rows["parameters"], rows["steps"], strict=True)
    far = [max(_times(a, parameters), _times(b, steps)) for a, b in places]
    rows = rows.assign(far=far)
    rows = rows[rows["far"] <= NEAR]
    same = rows[rows["corpus"] == corpus]
    nearest = (same if len(same) else rows).sort_values(["far", "ratio"], ascending=[True, False], kind="stable")
    return nearest.drop(columns="far").drop_duplicates("class").sort_index().to_dict("records")


def _times(number: float, other: float) -> float:
    return max(number / other, other / number)


def errors_by_class(stored: Iterable[Mapping]) -> UnitErrors:
    """Returns {(size, class): error} of rows with `size, class, ratio, difference`, the class core or AUXILIARY."""
    found = {(row["size"], row["class"]): UnitError(row["ratio"], row["difference"]) for row in stored}
    sizes = dict.fromkeys(size for size, _ in found)
    pairs = [(size, name, found.get((size, kind))) for size in sizes for name, kind in CLASS_OF.items()]
    return {(size, name): error for size, name, error in pairs if error}
