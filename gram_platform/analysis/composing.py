"""Compute ratios against the number of modules that are on: what switching on more of them costs. Pure.

Within a seed a value is the mean over the profiles with so many modules; then over seeds.
"""

import numpy as np
import pandas as pd

from gram_platform.analysis.intervals import paired_contrast, t_interval
from gram_platform.analysis.order import MEAN
from gram_platform.analysis.ratios import ALL, BASELINE
from gram_platform.analysis.tables import over_seeds, pair_means

COMPOSED = ("core", "retain")  # classes: a forgotten domain's module is off, whatever else is on
MODULES = "modules"  # the column of how many are on
CELL = ["method", "size", MODULES]
DROP_COLUMNS = ["method", "size", "class"]
DROP_COLUMNS += [name + end for name in ("one", "all", "drop", "less_than_gram") for end in ("", "_low", "_high")]
DROP_COLUMNS += ["num_seeds"]


def by_number(per_seed: pd.DataFrame, declared: pd.DataFrame | None = None) -> pd.DataFrame:
    """One row a method, size, number of modules on and seed: CELL, seed, COMPOSED, `num_profiles`.

    `per_seed` is `tables.per_seed_frame`'s, `declared` the views that the study consists of (`method, size, profile,
    retained`; default: those in `per_seed`). Methods are compared on the profiles of a number that all which have some
    share; a seed that lacks one of them has no row. The baseline has no modules, hence no rows.
    """
    shared = _shared_profiles(per_seed if declared is None else declared)
    views, rows = _views(per_seed), []
    for (method, size, number), cell in views.groupby(CELL, sort=False):
        profiles = shared.get((size, number), frozenset())
        for seed, own in cell[cell["profile"].isin(profiles)].groupby("seed", sort=False):
            if set(own["profile"]) == profiles:
                values = {name: pair_means(own, name) for name in COMPOSED}
                rows.append((method, size, number, seed, *values.values(), len(profiles)))
    return pd.DataFrame(rows, columns=[*CELL, "seed", *COMPOSED, "num_profiles"])


def number_table(numbers: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds of the rows of `by_number` with their 90% t-intervals: CELL, and as table.csv has them, with
    `num_profiles`.
    """
    num_profiles = numbers.groupby(CELL, sort=False)["num_profiles"].first()
    return over_seeds(numbers, CELL).assign(num_profiles=num_profiles.tolist())


def drop_table(numbers: pd.DataFrame, per_seed: pd.DataFrame) -> pd.DataFrame:
    """What each class loses from one module to all: one row a method, size and class, DROP_COLUMNS.

    `drop` is one - all of the same seed; `less_than_gram` is GRAM's drop less the method's own, of the same seed, NaN
    for GRAM itself. Every value over the seeds that have both, with its 90% t-interval. Methods without all modules on
    at once, or of which no seed has both values, are absent.
    """
    counts = _views(per_seed).loc[lambda views: views["profile"] == ALL].groupby("size")[MODULES].max()
    rows = []
    for method, size in dict.fromkeys(zip(numbers["method"], numbers["size"], strict=True)):
        for name in COMPOSED:
            ends = _ends(numbers, method, size, name, counts.get(size, 0))
            if ends.empty:
                continue
            of_gram = _ends(numbers, "gram", size, name, counts[size])["drop"]
            row = {"method": method, "size": size, "class": name, "num_seeds": len(ends)}
            for column in ends:
                row |= _interval(column, ends[column])
            both = method != "gram" and len(ends.index.intersection(of_gram.index)) > 0
            saved = paired_contrast(of_gram.to_dict(), ends["drop"].to_dict()).differences if both else ()
            rows.append(row | _interval("less_than_gram", saved))
    return pd.DataFrame(rows, columns=DROP_COLUMNS)


def _views(per_seed: pd.DataFrame) -> pd.DataFrame:
    """The rows of single profiles of methods with modules, with the number of them that are on."""
    views = per_seed[(per_seed["profile"] != MEAN) & (per_seed["method"] != BASELINE)]
    numbers = [len(retained.split(",")) if retained else 0 for retained in views["retained"]]
    return views.assign(**{MODULES: pd.Series(numbers, views.index, dtype="int64")})


def _shared_profiles(declared: pd.DataFrame) -> dict[tuple[str, int], frozenset[str]]:
    """{(size, number of modules): the profiles that every method has which has any of them}."""
    shared: dict[tuple[str, int], frozenset[str]] = {}
    for (_, size, number), views in _views(declared).groupby(CELL, sort=False):
        own = frozenset(views["profile"])
        shared[size, number] = shared.get((size, number), own) & own
    return shared


def _ends(numbers: pd.DataFrame, method: str, size: str, name: str, num_modules: int) -> pd.DataFrame:
    """`one`, `all` and `drop` of a class, indexed by the seeds that have both ends; none where all are but one."""
    own = numbers[(numbers["method"] == method) & (numbers["size"] == size) & numbers[name].notna()]
    one, every = (own[own[MODULES] == number].set_index("seed")[name] for number in (1, num_modules))
    ends = pd.DataFrame({"one": one, "all": every}).dropna()
    return ends.assign(drop=ends["one"] - ends["all"]) if num_modules > 1 else ends.iloc[:0].assign(drop=np.nan)


def _interval(name: str, values) -> dict[str, float]:
    interval = t_interval(values) if len(values) else (np.nan,) * 3
    return dict(zip((name, f"{name}_low", f"{name}_high"), interval, strict=True))
