"""The tables of a study: averages of compute ratios within seeds and over them.

Source of the averages: the paper's appendix "Compute Ratio Methodology" and the numbers of `tab:synthetic`. Within a
seed a class is the mean over all its pairs of a profile and a domain (`pair_means`), not a mean of the profiles' means:
core alone forgets more domains than core with one, and weighs more. Then over seeds, with a 90% t-interval over the
seed means. What does not exist is absent and named in `missing`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gram_platform.analysis.intervals import t_interval
from gram_platform.analysis.ratios import (
    ALL,
    MEAN,
    NO_BASELINE,
    VARIANT,
    VIEW,
    Notes,
    baseline_references,
    checked_attacks,
    checked_curves,
    checked_evaluations,
    compute_ratio_frame,
    elicited_ratios,
    fits_frame,
    ordered,
)

CLASSES = ("core", "retain", "forget", "elicited")
NUM_DOMAINS = {name: f"num_{name}" for name in CLASSES}  # column of how many domains of a class a view has
ROW = ["method", "size", "profile"]
TABLE_COLUMNS = [*ROW, *(name + end for name in CLASSES for end in ("", "_low", "_high")), "num_seeds"]


@dataclass(frozen=True)
class Analysis:
    """Every table of a study."""

    table: pd.DataFrame  # TABLE_COLUMNS: table.csv
    per_seed: pd.DataFrame  # ROW, seed, CLASSES (what `table` averages), retained, NUM_DOMAINS: see per_seed_frame
    ratios: pd.DataFrame  # one row a view and domain: see compute_ratio_frame
    fits: pd.DataFrame  # one row a size and domain: see fits_frame
    missing: pd.DataFrame  # what, why


def analyse(
    evaluations: pd.DataFrame,
    curves: pd.DataFrame,
    sizes: Sequence[str] = (),
    attacks: pd.DataFrame | None = None,
    declared: pd.DataFrame | None = None,
    unit: pd.DataFrame | None = None,
    own_baseline: bool = False,
) -> Analysis:
    """All tables of a study from tidy frames of stored losses.

    `evaluations`: one row a view with `method, size, seed, profile`, `retained` (its auxiliary domains, joined by
    commas) and a column `loss/<domain>` for each domain (nats a token); rows of method baseline and profile all are the
    reference; further columns (`run_id`, `eval_id`) are carried into `ratios`. `curves`: one row a point of the
    baselines' validation curves with `size, seed, step, domain, loss`, and `method` if other runs are among them.
    `sizes` gives the order of the rows. `attacks`: one row an attack on a view with `method, size, seed, profile`,
    `elicited` (the attacked domain) and `loss` (the best one, NaN while there is none). `declared`: the views that the
    study consists of, `method, size, seed, profile, retained`, so that absent ones are named and no mean is taken
    without them; by default those in `evaluations`. `unit`: the evaluations whose baselines are the reference, where
    these are not in `evaluations`. `own_baseline`: each seed is measured against its own baseline, as the paper's
    titration is, and `fits` has a row for each. ValueError for a missing column or a row that is there twice.
    """
    evaluations, curves = checked_evaluations(evaluations), checked_curves(curves)
    declared = evaluations if declared is None else checked_evaluations(declared)
    unit, attacks = evaluations if unit is None else checked_evaluations(unit), checked_attacks(attacks)
    frames = (evaluations, curves, attacks, unit)
    parts = [_compared(*frames)]
    if own_baseline and len(unit):
        seeds = dict.fromkeys([*unit["seed"], *evaluations["seed"]])
        parts = [_compared(*(f[f["seed"] == seed] for f in frames), seed) for seed in seeds]
    ratios = ordered(pd.concat([part.ratios for part in parts if len(part.ratios)] or [parts[0].ratios]), sizes)
    per_seed, incomplete = per_seed_frame(ratios, declared)
    per_seed = ordered(per_seed, sizes)
    absent = _absent_views(declared, evaluations, {size for part in parts for size in part.fits["size"]})
    notes = {*(note for part in parts for note in part.notes), *incomplete, *absent}
    missing = pd.DataFrame(sorted(notes), columns=["what", "why"])
    table, fits = ordered(over_seeds(per_seed), sizes), ordered(pd.concat([part.fits for part in parts]), sizes)
    return Analysis(table, per_seed, ratios, fits, missing)


@dataclass(frozen=True)
class _Compared:
    """Views against one set of references."""

    ratios: pd.DataFrame
    fits: pd.DataFrame
    notes: Notes


def _compared(
    evaluations: pd.DataFrame, curves: pd.DataFrame, attacks: pd.DataFrame, unit: pd.DataFrame, seed: str = ""
) -> _Compared:
    """The compute ratios of views and of the attacks on them, over the baselines of `unit`; all frames checked.

    `seed` names the only seed that is there, where each is measured against its own baseline.
    """
    references, notes = baseline_references(unit, curves)
    notes = _of_seed(notes, seed, set(evaluations["size"]) - {size for size, _ in references}) if seed else notes
    ratios, unknown = compute_ratio_frame(evaluations, references)
    elicited, unattacked = elicited_ratios(attacks, ratios, references)
    joined = pd.concat([ratios, elicited]) if len(elicited) else ratios
    joined = joined.assign(compute_ratio=joined["compute_ratio"].astype(float).where(np.isfinite))
    fits = fits_frame(references)
    return _Compared(joined, fits.assign(seed=seed) if seed else fits, [*notes, *unknown, *unattacked])


def _of_seed(notes: Notes, seed: str, lacking: set[str]) -> Notes:
    """Notes on references that are of one seed alone, and on the sizes at which it has none."""
    own = [*notes, *((f"all rows of size {size}", NO_BASELINE) for size in lacking)]
    return [(what if what.endswith(f" seed {seed}") else f"{what}, seed {seed}", why) for what, why in own]


def capability_table(evaluations: pd.DataFrame, curves: pd.DataFrame, sizes: Sequence[str] = ()) -> pd.DataFrame:
    """The rows of `table.csv`; see `analyse` for the inputs and for what else there is."""
    return analyse(evaluations, curves, sizes).table


def per_seed_frame(ratios: pd.DataFrame, declared: pd.DataFrame) -> tuple[pd.DataFrame, Notes]:
    """One row a method, size, profile and seed with the mean compute ratio of each class, and the `mean` profile's.

    A class of which one domain is unknown is unknown (NaN); the columns of NUM_DOMAINS count the domains of each class,
    known or not: 0 where the view does not have the class. `retained` is the view's (empty for `mean`), by which
    `averaged_profiles` tells which profiles the mean is of. `mean` is the mean over all pairs of a profile and a domain
    (`pair_means`) over the paper's profiles, core with at most one auxiliary domain, or over what there is for a method
    without these (the baseline's all); a seed that lacks a profile which is `declared` for its method is left out of it
    and noted.
    """
    by_class = ratios.groupby([*VIEW, "class"], sort=False)["compute_ratio"]
    wide = by_class.agg(lambda v: v.mean(skipna=False)).unstack("class").reindex(columns=list(CLASSES))
    counts = by_class.size().unstack("class").reindex(columns=list(CLASSES)).fillna(0).astype(int)
    retained = ratios.drop_duplicates(VIEW).set_index(VIEW)["retained"]
    values = wide.join([counts.rename(columns=NUM_DOMAINS), retained]).reset_index()
    parts, notes = [values], []
    views_of = dict(list(declared.groupby(["method", "size"])))
    for (method, size), group in values.groupby(["method", "size"], sort=False):
        of_method = views_of[method, size]
        few = of_method[~of_method["retained"].str.contains(",")]
        profiles = set((few if len(few) else of_method)["profile"])
        for seed, views in group[group["profile"].isin(profiles)].groupby("seed", sort=False):
            absent = sorted(profiles - set(views["profile"]))
            if absent:
                notes.append((f"{method} {size} {MEAN} seed {seed}", f"{', '.join(absent)} is not there"))
                continue
            own = {"method": method, "size": size, "profile": MEAN, "seed": seed, "retained": ""}
            counted = views[list(NUM_DOMAINS.values())].sum().to_dict()
            parts.append(pd.DataFrame([own | {name: pair_means(views, name) for name in CLASSES} | counted]))
    return pd.concat(parts, ignore_index=True)[[*ROW, "seed", *CLASSES, "retained", *NUM_DOMAINS.values()]], notes


def pair_means(views: pd.DataFrame, name: str) -> float:
    """The mean of a class over all pairs of a profile and a domain in a seed's rows of a `per_seed` frame.

    Each profile weighs as many times as it has domains of the class. NaN where none has it or where it is unknown of
    one that has.
    """
    of_class = views[views[NUM_DOMAINS[name]] > 0]
    counts = of_class[NUM_DOMAINS[name]]
    return float((of_class[name] * counts).sum(skipna=False) / counts.sum()) if len(of_class) else np.nan


def _absent_views(declared: pd.DataFrame, evaluations: pd.DataFrame, sizes: set[str]) -> Notes:
    """One note a size without a reference, and one a declared view that some seeds lack."""
    notes = [(f"all rows of size {s}", NO_BASELINE) for s in set(declared["size"]) - sizes]
    present = set(evaluations[VIEW].itertuples(index=False, name=None))
    is_lacking = [view not in present for view in declared[VIEW].itertuples(index=False, name=None)]
    lacking = declared[np.array(is_lacking, bool) & declared["size"].isin(sizes)]
    for (method, size, profile), group in lacking.groupby(ROW, sort=False):
        notes.append((f"{method} {size} {profile}", f"no evaluation of seed {', '.join(sorted(set(group['seed'])))}"))
    return notes


def over_seeds(per_seed: pd.DataFrame, names: Sequence[str] = ROW) -> pd.DataFrame:
    """TABLE_COLUMNS from a `per_seed` frame: means over seeds with their t-intervals, in its order of rows.

    `names`: the columns that name a row, in place of ROW. A class that the frame lacks is NaN.
    """
    rows = []
    for key, group in per_seed.reindex(columns=[*names, *CLASSES]).groupby(list(names), sort=False):
        row = dict(zip(names, key, strict=True))
        for name in CLASSES:
            values = group[name].dropna()
            ends = t_interval(values) if len(values) else (np.nan,) * 3
            row |= dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))
        rows.append({**row, "num_seeds": len(group)})
    return pd.DataFrame(rows, columns=[*names, *TABLE_COLUMNS[len(ROW) :]])


def averaged_profiles(rows: pd.DataFrame) -> frozenset[str]:
    """The profiles of core with at most one auxiliary domain in rows of a table or `per_seed` frame.

    With one auxiliary domain `all` is one of them: `per_seed` frames tell by `retained`. A table has names alone, and
    there it is left out.
    """
    all_domains = rows[rows["profile"] == ALL]
    is_one = "retained" in rows and len(all_domains) > 0 and not all_domains["retained"].str.contains(",").any()
    few = frozenset(p for p in rows["profile"] if p not in (ALL, MEAN) and p.count("+") < 2)
    return few | {ALL} if is_one else few


def domain_table(ratios: pd.DataFrame) -> pd.DataFrame:
    """One row a method, size, profile, domain and class: `compute_ratio, low, high` over seeds, `num_seeds, runs`.

    A row for each variant too, where there are any. `runs` joins the `run_id`s, where `ratios` has them. Rows without
    any known ratio are absent.
    """
    rows, keys = [], [*(c for c in (VARIANT,) if c in ratios), *ROW, "domain", "class"]
    known = ratios[ratios["compute_ratio"].notna()]
    for key, group in known.groupby(keys, sort=False):
        mean, low, high = t_interval(group["compute_ratio"])
        runs = ", ".join(dict.fromkeys(group["run_id"].astype(str))) if "run_id" in group else ""
        rows.append((*key, mean, low, high, len(group), runs))
    return pd.DataFrame(rows, columns=[*keys, "compute_ratio", "low", "high", "num_seeds", "runs"])


MOST = 6  # run ids that are named; a mean over profiles of many runs names the first and says how many more


def with_runs(table: pd.DataFrame, ratios: pd.DataFrame) -> pd.DataFrame:
    """The table with a column `runs`: the ids of the runs whose weights each row evaluates, joined by commas.

    A mean over profiles rests on the runs of all its profiles: core with at most one auxiliary domain. Empty where
    `ratios` has no `run_id`.
    """
    keys = [column for column in (VARIANT, *ROW) if column in table]
    if "run_id" not in ratios or table.empty:
        return table.assign(runs="")
    evaluated = ratios[ratios["class"] != "elicited"]
    is_few = ~evaluated["retained"].str.contains(",")  # as `per_seed_frame` decides
    in_mean = is_few | ~is_few.groupby([evaluated[key] for key in keys[:-1]]).transform("any")
    frame = pd.concat([evaluated, evaluated[in_mean].assign(profile=MEAN)])
    runs = frame.groupby(keys, sort=False)["run_id"].agg(run_names).rename("runs").reset_index()
    return table.merge(runs, on=keys, how="left").fillna({"runs": ""})


def run_names(run_ids: pd.Series) -> str:
    """Run ids joined by commas, each once, the first few and how many more there are."""
    found = list(dict.fromkeys(run_ids.astype(str)))
    rest = f" and {len(found) - MOST} more" if len(found) > MOST else ""
    return ", ".join(found[:MOST]) + rest


def table_csv(frame: pd.DataFrame) -> str:
    """The frame as CSV, the same text for the same values: six decimals, empty where there is no value."""
    return frame.to_csv(index=False, float_format="%.6f", lineterminator="\n", na_rep="")


def format_table(table: pd.DataFrame) -> str:
    """`table` for a terminal: aligned columns, `mean [low, high]` of each class that has a value, - for none."""
    classes, names = [name for name in CLASSES if table[name].notna().any()], naming_columns(table)
    rows = [
        [*(str(r[c]) for c in names), *(_cell(r, c) for c in classes), str(r["num_seeds"])]
        for r in table.to_dict("records")
    ]
    return aligned([[*names, *classes, "seeds"], *rows])


def naming_columns(table: pd.DataFrame) -> list[str]:
    """The columns that name a row: what a study varies, if anything, and method, size, profile."""
    return list(table.columns[: table.columns.get_loc(CLASSES[0])])


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Lines of cells as text, every column as wide as its widest cell."""
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    padded = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) for line in lines]
    return "\n".join(line.rstrip() for line in padded)


def _cell(row: dict, name: str) -> str:
    return interval_text(row[name], row[f"{name}_low"], row[f"{name}_high"]) or "-"


def interval_text(mean: float, low: float, high: float) -> str:
    """`mean [low, high]`, the mean alone where there is no interval, nothing where there is no mean."""
    if np.isnan(mean):
        return ""
    return f"{mean:.3f}" + ("" if np.isnan(low) else f" [{low:.3f}, {high:.3f}]")
