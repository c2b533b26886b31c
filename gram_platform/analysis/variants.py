"""Analyses a study's variants, the number of active modules, and the modules' gradient shares."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from gram_platform.analysis.intervals import (
    ENDS,
    JACKKNIFE,
    interval_columns,
    pseudo_frame,
    subtract_pairs,
    with_pseudo_values,
)
from gram_platform.analysis.ratios import ALL, MEAN
from gram_platform.analysis.tables import (
    Analysis,
    StudyLosses,
    analyse,
    average_rows,
    join_notes,
    pair_means,
)
from gram_platform.config import core_first
from gram_platform.config.identity import sum_in_order
from gram_platform.methods.nodes import BASELINE, VARIANT
from gram_platform.store.checkpoints import PROBE

# Without forget, since a forgotten domain's module is off, whichever others are on.
COMPOSED = ("core", "retain")
MODULES = "modules"
MODULES_CELL = ["method", "size", MODULES]
DROP_COLUMNS = ["method", "size", "class"]
DROP_COLUMNS += [name + end for name in ("one", "all", "drop", "less_than_gram") for end in ENDS]
DROP_COLUMNS += ["num_seeds"]
RUN = ["method", "size", "seed"]
SHARE_COLUMNS = [*RUN, "run_id", "step", "domain", "module", "share"]


def analyse_variants(
    losses: StudyLosses,
    variants: Sequence[str],
    sizes: Sequence[str] = (),
    unit: str = "",
    own_baseline: bool = False,
    intervals: str = JACKKNIFE,
) -> Analysis:
    """Concatenates the tables of all variants, with a column `variant`.

    All variants are compared with the baselines of the variant `unit`. Without `unit`, each variant
    is compared with its own baselines. A note names the variants that it concerns, unless it
    concerns all. Other arguments and errors are as in `tables.analyse`.
    """
    evaluations = losses.evaluations
    reference = _of(evaluations[evaluations["method"] == BASELINE], unit) if unit else None
    parts: dict[str, Analysis] = {}
    for variant in variants:
        of_variant = StudyLosses(
            _of(evaluations, variant),
            _of(losses.curves, unit or variant),
            None if losses.attacks is None else _of(losses.attacks, variant),
            _of(losses.views, variant),
        )
        parts[variant] = analyse(of_variant, sizes, reference, own_baseline, intervals)
    missing = join_notes({variant: part.missing for variant, part in parts.items()}, ", ".join)
    frames = (_join(parts, name) for name in ("table", "per_seed", "ratios", "fits"))
    return Analysis(*frames, missing)


def _of(frame: pd.DataFrame, variant: str) -> pd.DataFrame:
    return frame[frame[VARIANT] == variant].drop(columns=VARIANT)


def _join(analyses: dict[str, Analysis], table: str) -> pd.DataFrame:
    parts = [getattr(analysis, table).copy() for analysis in analyses.values()]
    for variant, part in zip(analyses, parts, strict=True):
        part.insert(0, VARIANT, variant)
    return pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)


def by_number(per_seed: pd.DataFrame, declared: pd.DataFrame | None = None) -> pd.DataFrame:
    """Returns mean compute ratios by method, size, number of active modules and seed.

    The columns are MODULES_CELL, `seed`, COMPOSED (means over profiles), `num_profiles`, and the
    pseudo-values of COMPOSED, which equal COMPOSED if the curve is fixed.

    `per_seed` comes from `tables.per_seed_frame`. At each number of modules, the means use only
    profiles that all methods have in `declared` (the study's views, by default those in
    `per_seed`). A seed that lacks one of these profiles has no row.
    """
    shared: dict[tuple[str, int], frozenset[str]] = {}
    views = _views(per_seed if declared is None else declared)
    for (_, size, number), of_method in views.groupby(MODULES_CELL, sort=False):
        profiles = frozenset(of_method["profile"])
        shared[size, number] = shared.get((size, number), profiles) & profiles
    pseudo = _by_number(pseudo_frame(per_seed, COMPOSED), shared)
    return with_pseudo_values(_by_number(per_seed, shared), pseudo, COMPOSED)


def _by_number(
    per_seed: pd.DataFrame, shared: Mapping[tuple[str, int], frozenset[str]]
) -> pd.DataFrame:
    rows = []
    for (method, size, number), cell in _views(per_seed).groupby(MODULES_CELL, sort=False):
        profiles = shared.get((size, number), frozenset())
        for seed, of_seed in cell[cell["profile"].isin(profiles)].groupby("seed", sort=False):
            if set(of_seed["profile"]) == profiles:
                values = [pair_means(of_seed, name) for name in COMPOSED]
                rows.append((method, size, number, seed, *values, len(profiles)))
    return pd.DataFrame(rows, columns=[*MODULES_CELL, "seed", *COMPOSED, "num_profiles"])


def drop_table(numbers: pd.DataFrame, per_seed: pd.DataFrame) -> pd.DataFrame:
    """Returns a table with DROP_COLUMNS: how far ratios drop from one active module to all.

    There is one row per method, size and class. The column `one` has the ratio with one module,
    `all` the ratio with all modules, and `drop` the first minus the second. `less_than_gram` is
    GRAM's drop minus the method's drop, and NaN for GRAM. Cells are means with 90% t-intervals over
    the seeds that have both ratios. Methods without such a seed have no row.
    """
    views = _views(per_seed)
    counts = views[views["profile"] == ALL].groupby("size")[MODULES].max()
    rows, pseudo = [], pseudo_frame(numbers, COMPOSED)
    for method, size in dict.fromkeys(zip(numbers["method"], numbers["size"], strict=True)):
        for name in COMPOSED:
            ends = _ends(numbers, method, size, name, counts.get(size, 0))
            if ends.empty:
                continue
            spread = _ends(pseudo, method, size, name, counts[size])
            of_gram, gram_spread = (
                _ends(f, "gram", size, name, counts[size])["drop"] for f in (numbers, pseudo)
            )
            row = {"method": method, "size": size, "class": name, "num_seeds": len(ends)}
            for column in ends:
                row |= interval_columns(column, ends[column], spread[column].reindex(ends.index))
            compared = {} if method == "gram" else of_gram.to_dict()
            saved = subtract_pairs(compared, ends["drop"].to_dict())
            saved_spread = (gram_spread - spread["drop"]).reindex(list(saved))
            row |= interval_columns("less_than_gram", list(saved.values()), saved_spread)
            rows.append(row)
    return pd.DataFrame(rows, columns=DROP_COLUMNS)


def _views(per_seed: pd.DataFrame) -> pd.DataFrame:
    views = per_seed[(per_seed["profile"] != MEAN) & (per_seed["method"] != BASELINE)]
    numbers = [len(retained.split(",")) if retained else 0 for retained in views["retained"]]
    return views.assign(**{MODULES: pd.Series(numbers, views.index, dtype="int64")})


def _ends(
    numbers: pd.DataFrame, method: str, size: str, name: str, num_modules: int
) -> pd.DataFrame:
    known = numbers[(numbers["method"] == method) & (numbers["size"] == size)]
    known = known[known[name].notna()]
    one, every = (known[known[MODULES] == n].set_index("seed")[name] for n in (1, num_modules))
    ends = pd.DataFrame({"one": one, "all": every}).dropna()
    ends = ends if num_modules > 1 else ends.iloc[:0]
    return ends.assign(drop=ends["one"] - ends["all"])


def module_shares(
    runs: pd.DataFrame, records_of: Callable[[str], Iterable[Mapping]]
) -> pd.DataFrame:
    """Returns a table with SHARE_COLUMNS and one row per run, step, domain and module.

    `runs` has one row per run, with `id`, `method`, `size`, `seed` and optionally `variant`, which
    is copied to the result. `share`, in [0, 1], is the module's fraction of all modules' squared
    gradient norms on batches of the domain. `records_of` returns a run's metric records. Domains
    without gradients have no rows.
    """
    names = [name for name in (VARIANT, *RUN) if name in runs]
    rows = []
    for *named, run_id in runs[[*names, "id"]].itertuples(index=False, name=None):
        for record in records_of(run_id):
            for probed, share in compute_shares(record["metrics"]).items():
                rows.append((*named, run_id, record["step"], *probed, share))
    return pd.DataFrame(rows, columns=[*names, *SHARE_COLUMNS[len(RUN) :]])


def compute_shares(metrics: Mapping[str, float]) -> dict[tuple[str, str], float]:
    """Returns {(domain, module): gradient share} from one record's metrics, with core first."""
    squares: dict[str, dict[str, float]] = {}
    for name, norm in metrics.items():
        if name.startswith(PROBE):
            domain, module = name.removeprefix(PROBE).split("/")
            squares.setdefault(domain, {})[module] = norm**2
    totals = {d: sum_in_order(squares[d].values()) for d in core_first(tuple(squares))}
    known = [d for d, total in totals.items() if np.isfinite(total) and total > 0.0]
    return {(d, module): square / totals[d] for d in known for module, square in squares[d].items()}


def share_curves(shares: pd.DataFrame) -> pd.DataFrame:
    """Averages gradient shares over seeds by method, size, domain, module and step."""
    return average_rows(shares, [*_cell(shares), "domain", "module", "step"], "share")


def final_shares(shares: pd.DataFrame) -> pd.DataFrame:
    """Averages the gradient shares over seeds, at the last step for which a run has shares.

    `is_own` marks the share of a domain's own module. Rows whose domain and module are both
    `mean` average each seed's own shares over the auxiliary domains, and then over seeds.
    """
    cell = _cell(shares)
    last = shares[shares["step"] == shares.groupby("run_id")["step"].transform("max")]
    own = last[last["domain"] == last["module"]]
    by_run = own.groupby([*cell, "seed", "run_id"], sort=False, as_index=False)["share"].mean()
    both = pd.concat([last, by_run.assign(domain=MEAN, module=MEAN)])
    means = average_rows(both, [*cell, "domain", "module"], "share")
    return means.assign(is_own=means["domain"] == means["module"])


def _cell(shares: pd.DataFrame) -> list[str]:
    return [name for name in (VARIANT, "method", "size") if name in shares]
