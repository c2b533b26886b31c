"""Measures the error of compute ratios on baselines, whose true ratio is known.

The reference is the baseline that defines the ratios. A baseline trained for some share of its
steps should have this share as its compute ratio. The error is the ratio minus the share. There are
two kinds:

- `fit`: each reference seed is left out in turn, and its losses between warm-up and decay are rated
  by the curve of the other seeds. The share is the step of the loss divided by the run's number of
  steps.
- `unit`: finished baselines of other lengths and seeds, each with its own warm-up and decay, are
  rated like any model. The share is the baseline's steps divided by the reference's.

The spread over a study's seeds does not contain the `unit` error, which we estimate separately:

- for one ratio, average the errors over seeds at each share, then take the root mean square of the
  averages;
- for a difference of two ratios on the same curves, do the same with the difference between each
  seed's errors at neighbouring shares.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from gram_platform.analysis.intervals import ENDS, TAIL, interval_columns
from gram_platform.analysis.ratios import ALL, ELICITED, PREFIX, baseline_references
from gram_platform.config import CORE
from gram_platform.methods.nodes import BASELINE, VARIANT

FIT, UNIT = "fit", "unit"
AUXILIARY, SINGLE = "auxiliary", "one auxiliary domain"
# The tables leave out smaller shares, whose errors are small too.
LOWEST_SHARE = 0.25
ERROR_COLUMNS = ["error_of", "size", "seed", "share", "domain", "compute_ratio", "error"]
ERROR_CELL = ["error_of", "size", "domain"]
CALIBRATION_COLUMNS = [*ERROR_CELL, *(f"bias{end}" for end in ENDS)]
CALIBRATION_COLUMNS += ["rms", "rms_of_means", "worst", "num_ratios", "num_seeds"]
CLASS_OF = {CORE: CORE, "retain": AUXILIARY, "forget": AUXILIARY, ELICITED: AUXILIARY}
# See `nearest_errors` [ours].
NEAR = 3.0
# Correlations at distances of 1, 2, ... shares, means over the three-seed rows of
# `unit_errors.csv` (docs/findings/intervals.md).
RATIO_LAGS = (0.56, 0.41, 0.37, 0.22, 0.10, 0.16, -0.06)
DIFFERENCE_LAGS = (-0.23, 0.01, -0.03, 0.04, -0.38, -0.29)
# The number of rated shares in a record without this number.
NUM_SHARES = 8
ERROR_FILE = Path(__file__).with_name("unit_errors.csv")
MEASURED_COLUMNS = ["size", "class", "ratio", "difference", "num_shares", "num_seeds"]
FILE_COLUMNS = ["corpus", "parameters", "steps", *MEASURED_COLUMNS]


def unit_errors(ratios: pd.DataFrame, curves: pd.DataFrame, unit: str) -> pd.DataFrame:
    """Returns the errors of finished baselines' compute ratios, with ERROR_COLUMNS.

    `unit` is the name of the variant whose baselines are the reference. Each baseline of another
    variant has one row per domain with a known ratio.
    """
    # A curve's last point is after training.
    num_steps = curves.groupby("run_id")["step"].max()
    whole = curves[curves[VARIANT] == unit].groupby("size")["step"].max()
    rated = ratios[(ratios[VARIANT] != unit) & ratios["compute_ratio"].notna()]
    shares = rated["run_id"].map(num_steps) / rated["size"].map(whole)
    return _errors(rated.assign(error_of=UNIT, share=shares))


def fit_errors(
    ratios: pd.DataFrame, curves: pd.DataFrame, constant_rate: Mapping[str, tuple[float, float]]
) -> pd.DataFrame:
    """Returns errors of compute ratios during the reference's training, with ERROR_COLUMNS.

    There is one row per seed, domain and step. Each seed's losses are converted to ratios by the
    curve of the other seeds, so a size with one seed has no rows. `ratios` and `curves` have only
    the reference. `constant_rate` maps a size to the first and last of these steps (the end of
    warm-up and the start of decay), as shares of all steps.
    """
    finals = ratios.pivot(index=["size", "seed"], columns="domain", values="loss")
    finals = finals.add_prefix(PREFIX).reset_index().assign(method=BASELINE, profile=ALL)
    parts = [pd.DataFrame(columns=ERROR_COLUMNS)]
    for size, seed in zip(finals["size"], finals["seed"], strict=True):
        of_size = curves[curves["size"] == size]
        others = finals[(finals["size"] == size) & (finals["seed"] != seed)]
        if others.empty:
            continue
        references, _ = baseline_references(others, of_size[of_size["seed"] != seed])
        points = of_size[of_size["seed"] == seed]
        points = points.assign(error_of=FIT, share=points["step"] / of_size["step"].max())
        is_rated = points["domain"].isin([domain for _, domain in references])
        points = points[points["share"].between(*constant_rate[size]) & is_rated]
        rated = [references[size, row.domain].ratio(row.loss) for row in points.itertuples()]
        parts.append(_errors(points.assign(compute_ratio=rated)))
    return pd.concat([part for part in parts if len(part)] or parts, ignore_index=True)


def _errors(rated: pd.DataFrame) -> pd.DataFrame:
    known = rated[np.isfinite(rated["compute_ratio"].astype(float))]
    errors = known.assign(error=known["compute_ratio"] - known["share"])
    return errors[ERROR_COLUMNS].reset_index(drop=True)


def by_class(errors: pd.DataFrame) -> pd.DataFrame:
    """Averages the errors of the auxiliary domains for each seed and share of steps.

    The column `domain` of the result has the classes CORE and AUXILIARY.
    """
    classes = errors.assign(domain=errors["domain"].where(errors["domain"] == CORE, AUXILIARY))
    names = ["error_of", "size", "seed", "share", "domain"]
    groups = classes.groupby(names, sort=False, as_index=False)
    return groups[["compute_ratio", "error"]].mean()


def _select_shares(errors: pd.DataFrame) -> pd.DataFrame:
    return errors[errors["share"].astype(float).round(2) >= LOWEST_SHARE]


def calibration_table(errors: pd.DataFrame) -> pd.DataFrame:
    """Returns a table with CALIBRATION_COLUMNS and one row per kind of error, size and class.

    The class is CORE, AUXILIARY (errors are means over auxiliary domains) or SINGLE (each auxiliary
    domain has its own errors).

    - `bias`: the mean error, with a 90% t-interval over seeds
    - `rms`: the root mean square of all errors
    - `worst`: the error farthest from 0
    """
    single = errors[errors["domain"] != CORE].assign(domain=SINGLE)
    frame, rows = _select_shares(pd.concat([by_class(errors), single], ignore_index=True)), []
    for key, cell in frame.groupby(ERROR_CELL, sort=False):
        row = dict(zip(ERROR_CELL, key, strict=True))
        row |= interval_columns("bias", cell.groupby("seed")["error"].mean())
        row["rms"] = math.sqrt((cell["error"] ** 2).mean())
        row["rms_of_means"] = rms_of_means(cell)
        row["worst"] = cell["error"].iloc[int(cell["error"].abs().argmax())]
        rows.append({**row, "num_ratios": len(cell), "num_seeds": cell["seed"].nunique()})
    sizes, domains = list(dict.fromkeys(errors["size"])), (CORE, AUXILIARY, SINGLE)
    rows.sort(key=lambda r: (sizes.index(r["size"]), domains.index(r["domain"]), r["error_of"]))
    return pd.DataFrame(rows, columns=CALIBRATION_COLUMNS)


def rms_of_means(cell: pd.DataFrame) -> float:
    """Averages errors over seeds at each share of steps. Returns the root mean square of the means.

    `cell` has the columns `share, seed, error`. Shares with one seed are left out. If no share
    remains, returns NaN. The variance between seeds is not subtracted, since with three seeds the
    result would then often be 0.
    """
    means = cell.groupby(["share", "seed"])["error"].mean().groupby("share").agg(["mean", "count"])
    means = means.loc[means["count"] > 1, "mean"]
    return math.sqrt((means**2).mean()) if len(means) else math.nan


class UnitError(NamedTuple):
    """Half-widths of 90% intervals for errors that no spread over seeds shows. NaN if unknown."""

    ratio: float
    # The error of a difference of two ratios of one class by the same curves.
    difference: float


NOT_KNOWN = UnitError(math.nan, math.nan)
# By (size, class).
UnitErrors = Mapping[tuple[str, str], UnitError]


def measure_errors(errors: pd.DataFrame) -> pd.DataFrame:
    """Summarises the `unit` errors of finished baselines in one row per size and class.

    Returns a table with MEASURED_COLUMNS. A share is a baseline's steps divided by the reference's.
    Shares below LOWEST_SHARE or with only one seed are left out. A size and class with fewer than
    two remaining shares has no row.
    """
    unit, rows = _select_shares(errors[errors["error_of"] == UNIT]), []
    for (size, name), cell in by_class(unit).groupby(["size", "domain"], sort=False):
        by_share = cell.pivot(index="share", columns="seed", values="error").sort_index()
        by_share = by_share[by_share.notna().sum(axis="columns") > 1]
        if len(by_share) > 1:
            ratio, difference = (
                rms_of_means(part.melt(value_name="error", ignore_index=False).dropna())
                for part in (by_share, by_share.diff().iloc[1:])
            )
            rows.append((size, name, ratio, difference, len(by_share), cell["seed"].nunique()))
    return pd.DataFrame(rows, columns=MEASURED_COLUMNS).dropna()


@cache
def load_errors() -> pd.DataFrame:
    """Reads `unit_errors.csv`, which has FILE_COLUMNS."""
    return pd.read_csv(ERROR_FILE, comment="#")


def nearest_errors(rows: pd.DataFrame, corpus: str, parameters: int, steps: int) -> list[dict]:
    """Chooses measured errors of compute ratios for a size.

    Returns one row of FILE_COLUMNS per class. Uses the size on `corpus` that is nearest to
    `parameters` and `steps`, if both are within a factor of NEAR. Otherwise takes all sizes on any
    corpus whose parameters are within this factor, and returns their largest `ratio` and largest
    `difference`, or no row if there is no such size. `places` lists the (corpus, size) pairs used.
    """
    apart, steps_apart = (
        np.maximum(rows[name] / number, number / rows[name])
        for name, number in (("parameters", parameters), ("steps", steps))
    )
    rows, nearest = rows.assign(apart=apart, far=np.maximum(apart, steps_apart)), []
    for _, cell in rows[rows["apart"] <= NEAR].groupby("class", sort=False):
        same = cell[(cell["corpus"] == corpus) & (cell["far"] <= NEAR)]
        largest = cell.loc[list(dict.fromkeys(cell[["ratio", "difference"]].idxmax()))]
        used = same.nsmallest(1, "far") if len(same) else largest
        row = {**used.iloc[0], **used[["ratio", "difference"]].max()}
        row["num_shares"] = int(used["num_shares"].min())
        nearest.append(row | {"places": list(zip(used["corpus"], used["size"], strict=True))})
    return nearest


def effective_freedom(number: int, lags: Sequence[float]) -> float:
    """Returns the degrees of freedom of the mean square of `number` correlated values.

    `lags[k - 1]` is the correlation of values k places apart. Source: Satterthwaite (1946),
    trace(R)^2 / trace(R^2) for the correlation matrix R.
    """
    squares = sum((number - k) * r**2 for k, r in enumerate(lags, 1) if k < number)
    return number**2 / (number + 2.0 * squares)


def errors_by_class(stored: Iterable[Mapping]) -> UnitErrors:
    """Converts rms errors to half-widths with t quantiles. Returns {(size, class): UnitError}.

    `stored` has rows with `size`, `class`, `num_shares`, `ratio` and `difference`. The last two are
    root mean squares. A row of the class AUXILIARY yields the errors of retain, forget and
    elicited.
    """
    errors = {}
    for row in stored:
        number = row.get("num_shares", NUM_SHARES)
        ratio, difference = (
            stats.t.ppf(TAIL, effective_freedom(*of))
            for of in ((number, RATIO_LAGS), (number - 1, DIFFERENCE_LAGS))
        )
        error = UnitError(float(ratio * row["ratio"]), float(difference * row["difference"]))
        errors |= {(row["size"], n): error for n, kind in CLASS_OF.items() if kind == row["class"]}
    return errors
