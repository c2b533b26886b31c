"""Averages compute ratios within seeds and then over seeds, and formats tables as CSV and text.

Source of the averages: the paper's appendix "Compute Ratio Methodology" and the numbers of
`tab:synthetic`. Within a seed, the ratio of a class is the mean over all pairs of a profile and a
domain. A mean of profile means would differ, since profiles forget different numbers of domains.
Tables have the mean of these ratios over seeds, with a 90% t-interval. The interval's width comes
from the jackknife's pseudo-values (JACKKNIFE) or, as in the paper, from the seeds' ratios
(CURVE_FIXED). `missing` lists the values that cannot be computed. Losses in nats are averaged
likewise.
"""

import itertools
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from gram_platform.analysis.columns import align_columns
from gram_platform.analysis.intervals import (
    ENDS,
    JACKKNIFE,
    PSEUDO_SUFFIX,
    interval_columns,
    pseudo_frame,
    t_interval,
)
from gram_platform.analysis.ratios import (
    ALL,
    ATTACK_COLUMNS,
    ELICITED,
    MEAN,
    NO_BASELINE,
    PER_NAT,
    PSEUDO,
    ROW,
    VIEW,
    Notes,
    baseline_references,
    compute_ratio_frame,
    fits_frame,
    pseudo_values,
    rate_attacks,
    require_once,
    slopes,
    sort_rows,
)
from gram_platform.analysis.recovery import RECOVERY, tabulate_recovery
from gram_platform.methods import method_label
from gram_platform.methods.nodes import BASELINE, VARIANT

CLASSES = ("core", "retain", "forget", ELICITED)
# The columns with the number of a class's domains in a view.
NUM_DOMAINS = {name: f"num_{name}" for name in CLASSES}
TABLE_COLUMNS = [*ROW, *(name + end for name in CLASSES for end in ENDS), "num_seeds"]
# Suffixes of a class's mean loss in nats, this loss minus filtering's, and mean PER_NAT.
NATS, MINUS_FILTERING, SLOPE = "_nats", "_nats_minus_filtering", "_ratio_per_nat"
FILTERING = "filtering"
NUM_DOMAINS_OF = NUM_DOMAINS | dict.fromkeys(RECOVERY, NUM_DOMAINS[ELICITED])
IN_NATS = tuple(name + suffix for suffix in (NATS, MINUS_FILTERING) for name in CLASSES)
NATS_COLUMNS = [name + end for name in IN_NATS for end in ENDS]
FORMULA = re.compile(r"[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20].", re.DOTALL)
# The suffix of columns with the values of two seeds, which have no interval. No file has them.
POINTS = "_points"
MOST_RUNS = 6


@dataclass(frozen=True)
class StudyLosses:
    """The stored losses of a study as tidy frames. Seeds are strings."""

    # A row per view: `method, size, seed, profile`, `retained` (auxiliary domains, joined by
    # commas) and `loss/<domain>` of each domain (in nats). The reference is method baseline
    # with profile all. Other columns (`run_id`, `eval_id`) are copied into `ratios`.
    evaluations: pd.DataFrame
    # A row per point of the baselines' validation curves: `size, seed, step, domain, loss`.
    curves: pd.DataFrame
    # A row per attack on a view: `method, size, seed, profile`, `elicited` (the attacked domain)
    # and the best `loss` or NaN. ATTACK_CURVE and `num_tokens` give RECOVERY.
    attacks: pd.DataFrame | None = None
    # The study's views: `method, size, seed, profile, retained`. `missing` lists absent views, and
    # no mean is taken without them. By default the views in `evaluations`.
    declared: pd.DataFrame | None = None

    @property
    def views(self) -> pd.DataFrame:
        return self.evaluations if self.declared is None else self.declared


@dataclass(frozen=True)
class Analysis:
    # TABLE_COLUMNS, NATS_COLUMNS and RECOVERY, as in table.csv.
    table: pd.DataFrame
    # The columns of per_seed_frame, CLASSES with PSEUDO_SUFFIX (JACKKNIFE only), NATS, SLOPE and
    # MINUS_FILTERING, and RECOVERY.
    per_seed: pd.DataFrame
    # The columns of compute_ratio_frame, PER_NAT, RECOVERY and PSEUDO (JACKKNIFE only).
    ratios: pd.DataFrame
    # The columns of fits_frame.
    fits: pd.DataFrame
    # Columns `what, why`.
    missing: pd.DataFrame


def analyse(
    losses: StudyLosses,
    sizes: Sequence[str] = (),
    unit: pd.DataFrame | None = None,
    own_baseline: bool = False,
    intervals: str = JACKKNIFE,
) -> Analysis:
    """Returns all tables of a study.

    Rows are in the order of `sizes`. Ratios are measured against the baselines in the frame `unit`,
    by default those in `losses`. With `own_baseline`, each seed is compared with its own baseline,
    as in the paper's titration. Then `fits` has rows for each seed, and the `intervals` JACKKNIFE
    and CURVE_FIXED give equal results. Raises ValueError if a view or an attack occurs twice.
    """
    evaluations, attacks, declared = losses.evaluations, losses.attacks, losses.views
    unit = evaluations if unit is None else unit
    attacks = pd.DataFrame(columns=ATTACK_COLUMNS) if attacks is None else attacks
    for name, views in (("evaluations", evaluations), ("declared", declared), ("unit", unit)):
        require_once(name, views, VIEW)
    require_once("attacks", attacks, [*VIEW, ELICITED])
    frames = (evaluations, losses.curves, attacks, unit)
    compared = [_compare(frames, intervals)]
    if own_baseline and len(unit):
        seeds = dict.fromkeys([*unit["seed"], *evaluations["seed"]])
        compared = [
            _compare([f[f["seed"] == seed] for f in frames], intervals, seed) for seed in seeds
        ]
    all_ratios, all_fits, all_notes = zip(*compared, strict=True)
    ratios = sort_rows(
        pd.concat([part for part in all_ratios if len(part)] or all_ratios[:1]), sizes
    )
    fits = sort_rows(pd.concat(all_fits), sizes)
    per_seed, incomplete = per_seed_frame(ratios, declared)
    suffixes = {PSEUDO: PSEUDO_SUFFIX, "loss": NATS, PER_NAT: SLOPE}
    for name in [name for name in (*suffixes, *RECOVERY) if name in ratios]:
        means, _ = per_seed_frame(ratios, declared, name)
        names = {n: n + suffixes[name] for n in CLASSES} if name in suffixes else {ELICITED: name}
        per_seed = per_seed.assign(**{column: means[n] for n, column in names.items()})
    per_seed = per_seed.merge(_minus_filtering(ratios, declared), "left", VIEW)
    per_seed = sort_rows(per_seed, sizes)
    notes = {
        *itertools.chain(*all_notes),
        *incomplete,
        *_absent_views(declared, evaluations, set(fits["size"])),
    }
    missing = pd.DataFrame(sorted(notes), columns=["what", "why"])
    in_nats = over_seeds(per_seed, values=IN_NATS).drop(columns="num_seeds")
    table = sort_rows(over_seeds(per_seed).merge(in_nats, "left", ROW), sizes)
    if RECOVERY[0] in per_seed:
        table = table.merge(tabulate_recovery(per_seed, ROW), "left", ROW)
    return Analysis(table, per_seed, ratios, fits, missing)


def _minus_filtering(ratios: pd.DataFrame, declared: pd.DataFrame) -> pd.DataFrame:
    columns = {name: name + MINUS_FILTERING for name in CLASSES}
    is_theirs, same = ratios["method"] == FILTERING, ["size", "seed", "profile", "domain", "class"]
    both = ratios[~is_theirs].merge(
        ratios.loc[is_theirs, [*same, "loss"]], on=same, suffixes=("", "_filtering")
    )
    if both.empty:
        return pd.DataFrame(columns=[*VIEW, *columns.values()])
    both = both.assign(difference=both["loss"] - both["loss_filtering"])
    theirs = declared.loc[declared["method"] == FILTERING, ["size", "profile"]]
    views = declared.merge(theirs.drop_duplicates())
    differences, _ = per_seed_frame(both, views, "difference")
    return differences[[*VIEW, *CLASSES]].rename(columns=columns)


def _compare(
    frames: Sequence[pd.DataFrame], intervals: str, seed: str = ""
) -> tuple[pd.DataFrame, pd.DataFrame, Notes]:
    evaluations, curves, attacks, unit = frames
    references, notes = baseline_references(
        unit, curves, leave_out=intervals == JACKKNIFE, only_seed=seed
    )
    lacking = set(evaluations["size"]) - {size for size, _ in references} if seed else ()
    notes += [(f"all rows of size {size}, seed {seed}", NO_BASELINE) for size in lacking]
    ratios, unknown = compute_ratio_frame(evaluations, references)
    elicited, unattacked = rate_attacks(attacks, ratios, references)
    joined = pd.concat([ratios, elicited]) if len(elicited) else ratios
    numbers = {n: joined[n].astype(float).where(np.isfinite) for n in ("loss", "compute_ratio")}
    joined = joined.assign(**numbers)
    joined = joined.assign(**{PER_NAT: slopes(joined, references)})
    if intervals == JACKKNIFE:
        joined = joined.assign(**{PSEUDO: pseudo_values(joined, references)})
    fits = fits_frame(references)
    return joined, fits.assign(seed=seed) if seed else fits, [*notes, *unknown, *unattacked]


def per_seed_frame(
    ratios: pd.DataFrame, declared: pd.DataFrame, value: str = "compute_ratio"
) -> tuple[pd.DataFrame, Notes]:
    """Averages the column `value` over domains by view and class. Returns (rows, notes).

    The columns are ROW, `seed`, CLASSES, `retained` and NUM_DOMAINS (the number of domains of each
    class). A class's mean is NaN if the value of one of its domains is NaN.

    Each method, size and seed also has a row with the profile `mean` and an empty `retained`. Its
    values are `pair_means` over profiles that retain at most one auxiliary domain, as in the paper.
    Methods without such profiles, such as the baseline, use all profiles. A seed that lacks one of
    the profiles gets a note instead of this row.
    """
    by_class = ratios.groupby([*VIEW, "class"], sort=False)[value]
    means, counts = (
        values.unstack("class").reindex(columns=list(CLASSES))
        for values in (by_class.agg(lambda v: v.mean(skipna=False)), by_class.size())
    )
    counts = counts.fillna(0).astype(int)
    retained = ratios.drop_duplicates(VIEW).set_index(VIEW)["retained"]
    values = means.join([counts.rename(columns=NUM_DOMAINS), retained]).reset_index()
    parts, notes = [values], []
    views_of = dict(list(declared.groupby(["method", "size"])))
    for (method, size), group in values.groupby(["method", "size"], sort=False):
        of_method = views_of[method, size]
        few = of_method[~of_method["retained"].str.contains(",")]
        profiles = set((few if len(few) else of_method)["profile"])
        for seed, views in group[group["profile"].isin(profiles)].groupby("seed", sort=False):
            if absent := sorted(profiles - set(views["profile"])):
                what = f"{method} {size} {MEAN} seed {seed}"
                notes.append((what, f"{', '.join(absent)} is missing"))
                continue
            mean = {"method": method, "size": size, "profile": MEAN, "seed": seed, "retained": ""}
            mean |= {name: pair_means(views, name) for name in CLASSES}
            mean |= views[list(NUM_DOMAINS.values())].sum().to_dict()
            parts.append(pd.DataFrame([mean]))
    columns = [*ROW, "seed", *CLASSES, "retained", *NUM_DOMAINS.values()]
    return pd.concat(parts, ignore_index=True)[columns], notes


def pair_means(views: pd.DataFrame, name: str) -> float:
    """Returns the mean of the class `name` over all pairs of a profile and a domain.

    `views` are one seed's rows of `per_seed_frame`. Each row's mean over its domains counts once
    per domain. Returns NaN if no row has domains of the class, or if a row with domains is NaN.
    """
    of_class = views[views[NUM_DOMAINS_OF[name]] > 0]
    if of_class.empty:
        return np.nan
    counts = of_class[NUM_DOMAINS_OF[name]]
    return float((of_class[name] * counts).sum(skipna=False) / counts.sum())


def _absent_views(declared: pd.DataFrame, evaluations: pd.DataFrame, sizes: set[str]) -> Notes:
    notes = [(f"all rows of size {s}", NO_BASELINE) for s in set(declared["size"]) - sizes]
    seeds: dict[str, set[str]] = {}
    present = set(evaluations[VIEW].itertuples(index=False, name=None))
    for view in declared[VIEW].itertuples(index=False, name=None):
        method, size, seed, profile = view
        if view not in present and size in sizes:
            seeds.setdefault(f"{method} {size} {profile}", set()).add(seed)
    absent = seeds.items()
    return notes + [(v, f"no evaluation of seed {', '.join(sorted(of))}") for v, of in absent]


def over_seeds(
    per_seed: pd.DataFrame, names: Sequence[str] = ROW, values: Sequence[str] = CLASSES
) -> pd.DataFrame:
    """Averages the columns `values` of a `per_seed` frame over seeds, grouped by `names`.

    Returns `names`, means with t-intervals, and `num_seeds`, the smallest number of seeds of any
    mean in the row. Intervals come from pseudo-values if the frame has any. A column that the frame
    lacks has mean NaN.
    """
    columns, rows = [*names, *values], []
    frame, spread = (f.reindex(columns=columns) for f in (per_seed, pseudo_frame(per_seed, values)))
    for key, group in frame.groupby(list(names), sort=False):
        row = dict(zip(names, key, strict=True))
        for name in values:
            row |= interval_columns(name, group[name], spread.loc[group.index, name])
            known = tuple(group[name].dropna())
            row[name + POINTS] = known if len(known) == 2 else ()
        counts = group[list(values)].count()
        row["num_seeds"] = int(counts[counts > 0].min()) if counts.any() else len(group)
        rows.append(row)
    means = [name + end for name in values for end in (*ENDS, POINTS)]
    return pd.DataFrame(rows, columns=[*names, *means, "num_seeds"])


def join_notes(
    missing: Mapping[Hashable, pd.DataFrame], named: Callable[[list], str]
) -> pd.DataFrame:
    """Merges the frames of notes in `missing`, {key: frame with the columns `what, why`}.

    If a note is not in all frames, prefixes its `what` with `named(keys)`. The `keys` are those of
    the frames that contain the note.
    """
    places: dict[tuple[str, str], list] = {}
    for place, frame in missing.items():
        for note in frame.itertuples(index=False, name=None):
            places.setdefault(note, []).append(place)
    rows = [
        (what if len(at) == len(missing) else f"{named(at)}: {what}", why)
        for (what, why), at in places.items()
    ]
    return pd.DataFrame(rows, columns=["what", "why"])


def find_mean_profiles(rows: pd.DataFrame) -> frozenset[str]:
    """Returns the profiles in `rows` that retain at most one auxiliary domain.

    Without the column `retained`, the profile `all` is left out, as its domains are unknown.
    """
    few = frozenset(p for p in rows["profile"] if p not in (ALL, MEAN) and p.count("+") < 2)
    if "retained" not in rows:
        return few
    of_all = rows.loc[rows["profile"] == ALL, "retained"]
    return few if of_all.empty or of_all.str.contains(",").any() else few | {ALL}


def domain_table(ratios: pd.DataFrame) -> pd.DataFrame:
    """Averages known compute ratios over seeds by ROW, domain, class and, if present, variant."""
    keys = [*(c for c in (VARIANT,) if c in ratios), *ROW, "domain", "class"]
    return average_rows(ratios[ratios["compute_ratio"].notna()], keys, "compute_ratio")


def average_rows(frame: pd.DataFrame, keys: Sequence[str], value: str) -> pd.DataFrame:
    """Averages the column `value` over seeds by `keys`. Adds intervals, `num_seeds` and `runs`."""
    rows = []
    for key, group in frame.groupby(list(keys), sort=False):
        runs = ", ".join(dict.fromkeys(group["run_id"].astype(str))) if "run_id" in group else ""
        rows.append((*key, *t_interval(group[value], group.get(PSEUDO)), len(group), runs))
    return pd.DataFrame(rows, columns=[*keys, value, "low", "high", "num_seeds", "runs"])


def with_runs(table: pd.DataFrame, ratios: pd.DataFrame) -> pd.DataFrame:
    """Adds a column `runs` with the `run_names` of the runs evaluated for each row, or ""."""
    keys = [column for column in (VARIANT, *ROW) if column in table]
    if "run_id" not in ratios or table.empty:
        return table.assign(runs="")
    evaluated = ratios[ratios["class"] != ELICITED]
    # As in `per_seed_frame`.
    is_few = ~evaluated["retained"].str.contains(",")
    in_mean = is_few | ~is_few.groupby([evaluated[key] for key in keys[:-1]]).transform("any")
    frame = pd.concat([evaluated, evaluated[in_mean].assign(profile=MEAN)])
    runs = frame.groupby(keys, sort=False)["run_id"].agg(run_names).rename("runs").reset_index()
    return table.merge(runs, on=keys, how="left").fillna({"runs": ""})


def run_names(run_ids: pd.Series) -> str:
    """Joins the first MOST_RUNS distinct run ids with commas, and counts the rest."""
    names = list(dict.fromkeys(run_ids.astype(str)))
    rest = f" and {len(names) - MOST_RUNS} more" if len(names) > MOST_RUNS else ""
    return ", ".join(names[:MOST_RUNS]) + rest


def table_csv(frame: pd.DataFrame, fractions: str | None = "%.6f") -> str:
    """Returns the frame as CSV, without the POINTS columns, which hold the values of two seeds.

    `fractions` is a format for floats, or None for all digits. Text that a spreadsheet would run
    as a formula gets a leading apostrophe.
    """
    frame = frame.loc[:, [not str(name).endswith(POINTS) for name in frame]]
    texts = frame.select_dtypes(exclude=["number", "bool"])
    frame = frame.assign(**{name: texts[name].map(_no_formula) for name in texts})
    frame = frame.rename(columns=_no_formula)
    return frame.to_csv(index=False, float_format=fractions, lineterminator="\n", na_rep="")


def _no_formula(cell: Any) -> Any:
    if isinstance(cell, str) and FORMULA.match(cell):
        try:
            float(cell)
        except ValueError:
            return f"'{cell}"
    return cell


def readable_table(table: pd.DataFrame) -> pd.DataFrame:
    """Formats the ratio of each class in a table.csv as `mean [low, high]`. Omits empty classes."""
    names = table.columns[: table.columns.get_loc(CLASSES[0])]
    classes = [name for name in CLASSES if table[name].notna().any()]
    return with_intervals(table, names, classes).assign(num_seeds=table["num_seeds"])


def in_reading_order(table: pd.DataFrame) -> pd.DataFrame:
    """Moves baselines of a table.csv to the end. Drops `mean` rows of methods with one profile."""
    names = list(table.columns[: table.columns.get_loc(CLASSES[0])])
    names.remove("profile")
    is_mean = table["profile"] == MEAN
    num_others = (~is_mean).groupby([table[name] for name in names]).transform("sum")
    rows = table[~is_mean | (num_others != 1)]
    return rows.sort_values("method", key=lambda names: names == BASELINE, kind="stable")


def nats_table(table: pd.DataFrame) -> pd.DataFrame:
    known, write = [n for n in IN_NATS if table[n].notna().any()], partial(interval_text, digits=4)
    texts = {name.replace("_", " "): interval_texts(table, name, write) for name in known}
    return table.loc[:, : CLASSES[0]].iloc[:, :-1].assign(**texts)


def with_intervals(
    frame: pd.DataFrame, names: Sequence[str], values: Sequence[str]
) -> pd.DataFrame:
    """Selects the columns `names`, and formats the columns `values` as `mean [low, high]`."""
    return frame[list(names)].assign(**{name: interval_texts(frame, name) for name in values})


def frame_text(frame: pd.DataFrame, digits: str = ".3f", missing: str = "-") -> str:
    """Formats the result of `text_frame` as aligned columns for a log."""
    cells = text_frame(frame, digits, missing)
    return align_columns([list(cells.columns), *cells.itertuples(index=False)])


def text_frame(frame: pd.DataFrame, digits: str = ".3f", missing: str = "-") -> pd.DataFrame:
    """Converts all cells to text. Floats get the format `digits`, and NaN becomes `missing`."""

    def cell(value: object) -> str:
        if isinstance(value, bool):
            return "yes" if value else "no"
        if pd.isna(value):
            return missing
        return f"{value:{digits}}" if isinstance(value, float) else str(value) or "-"

    return label_methods(frame).map(cell)


def label_methods(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(method=frame["method"].map(method_label)) if "method" in frame else frame


def points_of(frame: pd.DataFrame, name: str) -> Sequence[tuple[float, ...]]:
    return frame.get(name + POINTS, [()] * len(frame))


def interval_text(
    mean: float, low: float, high: float, points: Sequence[float] = (), digits: int = 3
) -> str:
    """Returns `mean [low, high]`, or "" if the mean is NaN.

    Without an interval, returns `mean`, or `mean (point, point)` if two `points` are given.
    """
    if np.isnan(mean):
        return ""
    mean, low, high, *listed = (f"{number:.{digits}f}" for number in (mean, low, high, *points))
    if low == "nan":
        return mean + (f" ({', '.join(listed)})" if listed else "")
    return f"{mean} [{low}, {high}]"


def short_text(mean: float, low: float, high: float, points: Sequence[float] = ()) -> str:
    """Returns `mean ±half` for a narrow terminal, or `interval_text` if there is no interval."""
    if np.isnan(low):
        return interval_text(mean, low, high, points)
    half = f" \u00b1{(high - low) / 2:.3f}".replace("\u00b10.", "\u00b1.")
    return f"{mean:.3f}{half}"


def interval_cell(row: Mapping, name: str) -> str:
    return interval_text(*(row[name + end] for end in ENDS), row.get(name + POINTS, ()))


def interval_texts(
    frame: pd.DataFrame, name: str, write: Callable[..., str] = interval_text
) -> list[str]:
    """Formats the means and intervals of the column `name` by `interval_text` or `short_text`."""
    return list(map(write, *(frame[name + end] for end in ENDS), points_of(frame, name)))
