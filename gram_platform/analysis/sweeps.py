"""Sweeps of hyperparameters: `analyse` at every value of a knob, and one table over the values. Pure.

A knob is what is swept (`p_cr`), a point one of its values; the baselines do not vary, and are the unit at every point.
Two knobs may share a run: their common point has a row for each.

Source of the classes: the paper's "Hyperparameter Appendix" (`app:hyperparams`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gram_platform.analysis.intervals import t_interval
from gram_platform.analysis.ratios import BASELINE, MEAN
from gram_platform.analysis.tables import TABLE_COLUMNS, Analysis, analyse, pair_means
from gram_platform.config.identity import invalid

POINT = ["knob", "value", "method", "size"]
SWEEP_CLASSES = ("core", "core_partial", "core_full", "retain", "forget", "elicited")
KNOBS = ("p_cr", "p_as", "p_ca")  # in the order of tables
ENDS = ("", "_low", "_high")
CORES = ("core_partial", "core_full")  # what studies' tables do not have
SWEEP_COLUMNS = [*POINT, *(name + end for name in SWEEP_CLASSES for end in ENDS), "num_seeds", "runs"]
PROFILE_COLUMNS = ["knob", "value", *TABLE_COLUMNS[:-1], *(n + end for n in CORES for end in ENDS), "num_seeds", "runs"]


@dataclass(frozen=True)
class SweepAnalysis:
    """Every table of a sweep."""

    table: pd.DataFrame  # SWEEP_COLUMNS: one row a knob, value, method and size, means over profiles
    profiles: pd.DataFrame  # PROFILE_COLUMNS: the baselines, then every profile of every point, `mean` as in `table`
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
    baselines = analyse(evaluations[evaluations["method"] == BASELINE], curves, sizes)
    parts, tables, notes = [], [baselines.table], {}
    for knob, value in points:
        frames = [None if frame is None else _at(frame, knob, value) for frame in (evaluations, attacks, declared)]
        analysis = analyse(frames[0], curves, sizes, frames[1], frames[2])
        parts.append(_seed_rows(analysis).assign(knob=knob, value=value))
        own = analysis.table[analysis.table["method"] != BASELINE]
        tables.append(own.assign(knob=knob, value=value))
        for note in analysis.missing.itertuples(index=False, name=None):
            notes.setdefault(note, []).append((knob, value))
    per_seed = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["seed", *SWEEP_CLASSES])
    per_seed = per_seed.reindex(columns=[*POINT, "seed", *SWEEP_CLASSES])
    table = _summary(per_seed, evaluations)
    return SweepAnalysis(table, _with_cores(tables, table), per_seed, baselines.fits, _missing(notes, points))


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
    found = {(str(knob), float(value)) for knob, value in views.itertuples(index=False, name=None)}
    return sorted(found, key=lambda p: (KNOBS.index(p[0]) if p[0] in KNOBS else len(KNOBS), p))


def _at(frame: pd.DataFrame, knob: str, value: float) -> pd.DataFrame:
    """The rows of a point and the baselines', as `analyse` takes them."""
    is_here = (frame["knob"] == knob) & (frame["value"] == value)
    return frame[is_here | (frame["method"] == BASELINE)].drop(columns=["knob", "value"])


def _seed_rows(analysis: Analysis) -> pd.DataFrame:
    """`method, size, seed` and the classes: of the mean over profiles, and the core with one module and with none."""
    rows, seed = analysis.per_seed, ["method", "size", "seed"]
    rows = rows[rows["method"] != BASELINE]
    means = rows[rows["profile"] == MEAN]
    if means.empty:
        return pd.DataFrame(columns=[*seed, *SWEEP_CLASSES])
    views = rows[rows["profile"] != MEAN]
    is_single = (views["retained"] != "") & ~views["retained"].str.contains(",")
    full = views[views["retained"] == ""].set_index(seed)["core"].rename("core_full")
    single = [(*key, pair_means(own, "core")) for key, own in views[is_single].groupby(seed)]
    partial = pd.DataFrame(single, columns=[*seed, "core_partial"]).set_index(seed)
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
    return pd.DataFrame(rows, columns=SWEEP_COLUMNS).astype({"knob": object, "value": float})


def _with_cores(tables: Sequence[pd.DataFrame], table: pd.DataFrame) -> pd.DataFrame:
    """The rows of all tables, with what only `table` has in those of the mean."""
    extra = [column for column in SWEEP_COLUMNS if column in ("runs", *(n + end for n in CORES for end in ENDS))]
    rows = pd.concat([part for part in tables if len(part)] or tables[:1], ignore_index=True)
    rows = rows.reindex(columns=["knob", "value", *TABLE_COLUMNS]).astype({"knob": object, "value": float})
    own = table[[*POINT, *extra]].assign(profile=MEAN)
    rows = rows.merge(own, on=[*POINT, "profile"], how="left")
    return rows.reindex(columns=PROFILE_COLUMNS).fillna({"knob": "", "runs": ""})


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
