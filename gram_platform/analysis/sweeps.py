"""Sweeps of hyperparameters: `analyse` at every value of a knob, one table over the values, and claims. Pure.

A knob is what is swept (`p_cr`), a point one of its values; the baselines do not vary, and are the unit at every point.
Two knobs may share a run: their common point has a row for each.

Source of the classes and claims: the paper's "Hyperparameter Appendix" (`app:hyperparams`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gram_platform.analysis.claims import COLUMNS, MARGIN, judge_greater, judge_matches
from gram_platform.analysis.intervals import t_interval
from gram_platform.analysis.paper_sweeps import PAPER_SWEEPS, SWEEP_CLASSES, paper_means
from gram_platform.analysis.ratios import BASELINE
from gram_platform.analysis.tables import MEAN, Analysis, analyse
from gram_platform.identity import invalid

POINT = ["knob", "value", "method", "size"]
ENDS = ("", "_low", "_high")
SWEEP_COLUMNS = [*POINT, *(name + end for name in SWEEP_CLASSES for end in ENDS), "num_seeds", "runs"]
CLAIM_COLUMNS = [*COLUMNS, "paper", "source"]

Curve = pd.DataFrame  # of one seed, or the paper: indexed by the knob's value, ascending; a column for each class


@dataclass(frozen=True)
class SweepAnalysis:
    """Every table of a sweep."""

    table: pd.DataFrame  # SWEEP_COLUMNS: one row a knob, value, method and size
    per_seed: pd.DataFrame  # POINT, seed, SWEEP_CLASSES: what `table` averages
    fits: pd.DataFrame  # the baselines' curves: see fits_frame
    missing: pd.DataFrame  # what, why


def analyse_sweeps(
    evaluations: pd.DataFrame,
    curves: pd.DataFrame,
    sizes: Sequence[str] = (),
    attacks: pd.DataFrame | None = None,
    declared: pd.DataFrame | None = None,
) -> SweepAnalysis:
    """The tables of a sweep; the frames are those of `tables.analyse` with two more columns, `knob` and `value`.

    Rows of method baseline serve every point: their knob and value are not looked at. Every other view has a row for
    each knob that it belongs to. `runs` of the table joins the `run_id`s, where the evaluations have them. What is
    missing at some points only names them. ValueError for a missing column, a value that is not a finite number, or a
    view that a point has twice.
    """
    evaluations = _checked("evaluations", evaluations)
    declared = evaluations if declared is None else _checked("declared", declared)
    attacks = None if attacks is None else _checked("attacks", attacks)
    points = _points(evaluations, declared)
    parts, notes, fits = [], {}, analyse(evaluations[evaluations["method"] == BASELINE], curves, sizes).fits
    for knob, value in points:
        frames = [None if frame is None else _at(frame, knob, value) for frame in (evaluations, attacks, declared)]
        analysis = analyse(frames[0], curves, sizes, frames[1], frames[2])
        parts.append(_seed_rows(analysis, frames[2]).assign(knob=knob, value=value))
        for note in analysis.missing.itertuples(index=False, name=None):
            notes.setdefault(note, []).append((knob, value))
    per_seed = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["seed", *SWEEP_CLASSES])
    per_seed = per_seed.reindex(columns=[*POINT, "seed", *SWEEP_CLASSES])
    return SweepAnalysis(_summary(per_seed, evaluations), per_seed, fits, _missing(notes, points))


def sweep_claims(per_seed: pd.DataFrame) -> pd.DataFrame:
    """The paper's claims on its three sweeps, judged on the seeds that have every value of the knob.

    One row a claim, method and size, as `claims_frame`, with `paper` (the same difference in the paper's figure, NaN
    where that lacks a value) and `source`. A claim of which no seed has what it needs is absent.
    """
    rows, varied = [], per_seed.groupby(["knob", "method", "size"], sort=False)
    is_plain = per_seed.drop_duplicates(["knob", "method", "size"]).groupby("knob").size().max() == 1
    for (knob, method, size), group in varied:
        seeds = _complete_curves(group)
        for claim in (c for c in SWEEP_CLAIMS if c.knob == knob and seeds):
            suffix = "" if is_plain else f" ({method}, {size})"
            rows += _judged(claim, seeds, suffix, PAPER_SWEEPS[knob].method == method)
    return pd.DataFrame(rows, columns=CLAIM_COLUMNS)


# ------------------------------------------------------------------------------------------------------ points


def _checked(field: str, frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with `retained` never null and finite values; ValueError for a missing column or a view without."""
    absent = [name for name in ("knob", "value", "method") if name not in frame.columns]
    if absent:
        raise invalid(field, f"a frame without {', '.join(absent)}", "a frame with the columns knob, value, method")
    views = frame[frame["method"] != BASELINE]
    is_point = views["knob"].notna() & np.isfinite(pd.to_numeric(views["value"], errors="coerce"))
    if not is_point.all():
        first = views[~is_point].iloc[0]
        raise invalid(field, {n: first[n] for n in ("method", "knob", "value")}, "a knob and a finite value of it")
    return frame.assign(retained=frame["retained"].fillna("")) if "retained" in frame else frame


def _points(*frames: pd.DataFrame) -> list[tuple[str, float]]:
    """Every knob and value: the paper's knobs first, values ascending."""
    views = pd.concat([frame.loc[frame["method"] != BASELINE, ["knob", "value"]] for frame in frames])
    known = list(PAPER_SWEEPS)
    found = {(str(knob), float(value)) for knob, value in views.itertuples(index=False, name=None)}
    return sorted(found, key=lambda p: (known.index(p[0]) if p[0] in known else len(known), p))


def _at(frame: pd.DataFrame, knob: str, value: float) -> pd.DataFrame:
    """The rows of a point and the baselines', as `analyse` takes them."""
    is_here = (frame["knob"] == knob) & (frame["value"] == value)
    return frame[is_here | (frame["method"] == BASELINE)].drop(columns=["knob", "value"])


def _seed_rows(analysis: Analysis, declared: pd.DataFrame) -> pd.DataFrame:
    """`method, size, seed` and the classes: of the mean over profiles, and the core with one module and with none."""
    rows, view, seed = analysis.per_seed, ["method", "size", "profile"], ["method", "size", "seed"]
    rows = rows[rows["method"] != BASELINE]
    means = rows[rows["profile"] == MEAN]
    if means.empty:
        return pd.DataFrame(columns=[*seed, *SWEEP_CLASSES])
    views = rows.merge(declared[[*view, "retained"]].drop_duplicates(view), on=view)
    is_single = (views["retained"] != "") & ~views["retained"].str.contains(",")
    full = views[views["retained"] == ""].set_index(seed)["core"].rename("core_full")
    partial = views[is_single].groupby(seed)["core"].agg(lambda v: v.mean(skipna=False)).rename("core_partial")
    return means.join(full, on=seed).join(partial, on=seed)[[*seed, *SWEEP_CLASSES]]


def _summary(per_seed: pd.DataFrame, evaluations: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds with their t-intervals, and the runs behind them."""
    rows = []
    for key, group in per_seed.groupby(POINT, sort=False):
        row = dict(zip(POINT, key, strict=True))
        for name in SWEEP_CLASSES:
            values = group[name].dropna().astype(float)
            ends = t_interval(values) if len(values) else (np.nan,) * 3
            row |= {name + end: number for end, number in zip(ENDS, ends, strict=True)}
        rows.append({**row, "num_seeds": len(group), "runs": _runs(evaluations, row)})
    return pd.DataFrame(rows, columns=SWEEP_COLUMNS)


def _runs(evaluations: pd.DataFrame, row: dict) -> str:
    """The run ids of a point, each once, joined by blanks."""
    if "run_id" not in evaluations:
        return ""
    is_here = np.logical_and.reduce([evaluations[name] == row[name] for name in POINT])
    return " ".join(dict.fromkeys(evaluations.loc[is_here, "run_id"].astype(str)))


def _missing(notes: dict, points: list[tuple[str, float]]) -> pd.DataFrame:
    """One row a note, with the points that it is about unless these are all."""
    rows = []
    for (what, why), lacking in notes.items():
        knobs = {knob: [f"{value:g}" for own, value in lacking if own == knob] for knob, _ in lacking}
        text = "; ".join(f"{knob} {', '.join(values)}" for knob, values in knobs.items())
        rows.append((what if len(lacking) == len(points) else f"{text}: {what}", why))
    return pd.DataFrame(sorted(rows), columns=["what", "why"])


# ------------------------------------------------------------------------------------------------------ claims


@dataclass(frozen=True)
class SweepClaim:
    """`difference > 0` in every seed's curve, or with `matches` equal to 0 within the margin."""

    knob: str
    text: str  # {first}, {middle} and {last} are values of the knob
    names: tuple[str, ...]  # the classes that it needs
    difference: Callable[[Curve], float]  # NaN where the sweep lacks a value that it needs
    matches: bool = False


def _rise(name: str) -> Callable[[Curve], float]:
    return lambda curve: curve[name].iloc[-1] - curve[name].iloc[0]


def _fall(name: str) -> Callable[[Curve], float]:
    return lambda curve: curve[name].iloc[0] - curve[name].iloc[-1]


def _gap(curve: Curve, value: float) -> float:
    """Core-full - core-partial at a value."""
    return curve["core_full"].get(value, np.nan) - curve["core_partial"].get(value, np.nan)


def _middle(curve: Curve) -> float:
    """The value nearest to 0.5 between the ends, NaN where there is none."""
    return min(curve.index[1:-1], key=lambda value: (abs(value - 0.5), value), default=np.nan)


def _ends(knob: str, verb: str, names: Sequence[str], trend: Callable) -> tuple[SweepClaim, ...]:
    text = f"{knob} from {{first}} to {{last}} {verb} "
    return tuple(SweepClaim(knob, text + name, (name,), trend(name)) for name in names)


CORES = ("core_partial", "core_full")
SWEEP_CLAIMS = (
    SweepClaim("p_cr", "at p_cr 0 core-full is above core-partial", CORES, lambda curve: _gap(curve, 0.0)),
    SweepClaim(
        "p_cr",
        "core-full and core-partial converge: they are closer at p_cr {middle} than at 0",
        CORES,
        lambda curve: abs(_gap(curve, 0.0)) - abs(_gap(curve, _middle(curve))),
    ),
    SweepClaim("p_cr", "at p_cr 1 core-full is below core-partial", CORES, lambda curve: -_gap(curve, 1.0)),
    *_ends("p_cr", "lowers", ("retain", "forget", "elicited"), _fall),
    *_ends("p_as", "raises", ("core", "retain", "forget", "elicited"), _rise),
    SweepClaim(
        "p_as",
        "retain is above forget at every p_as from {first} to {last}",
        ("retain", "forget"),
        lambda curve: (curve["retain"] - curve["forget"]).min(),
    ),
    *_ends("p_ca", "raises", ("core",), _rise),
    *_ends("p_ca", "lowers", ("retain",), _fall),
    *(
        SweepClaim("p_ca", f"p_ca {{first}} and {{last}} have the same {name}", (name,), _rise(name), True)
        for name in ("forget", "elicited")
    ),
)


def _complete_curves(group: pd.DataFrame) -> dict[str, Curve]:
    """`{seed: curve}` over all values of the group, NaN where the seed lacks one."""
    values = pd.Index(sorted(set(group["value"])), name="value")
    return {seed: own.set_index("value").reindex(values) for seed, own in group.groupby("seed", sort=False)}


def _judged(claim: SweepClaim, seeds: dict[str, Curve], suffix: str, is_papers_method: bool) -> list[dict]:
    values = next(iter(seeds.values())).index
    whole = {seed: curve[list(claim.names)].astype(float) for seed, curve in seeds.items()}
    found = {seed: float(claim.difference(curve)) for seed, curve in whole.items() if curve.notna().all(axis=None)}
    found = {seed: difference for seed, difference in found.items() if np.isfinite(difference)}
    if len(values) < 2 or not found:
        return []
    named = {"first": values[0], "middle": _middle(next(iter(whole.values()))), "last": values[-1]}
    text = claim.text.format(**{name: f"{value:g}" for name, value in named.items()})
    text += (f" within {MARGIN}" if claim.matches else "") + suffix
    judge = judge_matches if claim.matches else judge_greater
    in_paper = claim.difference(paper_means(claim.knob).reindex(values)) if is_papers_method else np.nan
    own = {"paper": in_paper, "source": PAPER_SWEEPS[claim.knob].source}
    return [{**vars(judge(text, found, dict.fromkeys(found, 0.0))), **own}]
