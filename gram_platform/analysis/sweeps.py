"""Analyses hyperparameter sweeps by calling `tables.analyse` at every value of a knob.

A knob is a swept hyperparameter such as `p_cr`, and a point is one value of a knob. All points are
compared with the same baselines.

Source of SWEEP_CLASSES: the paper's "Hyperparameter Appendix" (`app:hyperparams`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from gram_platform.analysis.intervals import ENDS, PSEUDO_SUFFIX, pseudo_frame, with_pseudo_values
from gram_platform.analysis.ratios import MEAN
from gram_platform.analysis.tables import (
    CLASSES,
    TABLE_COLUMNS,
    StudyLosses,
    analyse,
    join_notes,
    over_seeds,
    pair_means,
)
from gram_platform.methods.nodes import BASELINE

POINT = ["knob", "value", "method", "size"]
SWEEP_CLASSES = ("core", "core_partial", "core_full", "retain", "forget", "elicited")
# The paper's knobs, in the order of tables.
KNOBS = ("p_cr", "p_as", "p_ca")
# Core with one module and with none, which a study's tables lack.
CORES = ("core_partial", "core_full")
SWEEP_COLUMNS = [*POINT, *(name + end for name in SWEEP_CLASSES for end in ENDS)]
SWEEP_COLUMNS += ["num_seeds", "runs"]
CORE_COLUMNS = [name + end for name in CORES for end in ENDS]
PROFILE_COLUMNS = ["knob", "value", *TABLE_COLUMNS[:-1], *CORE_COLUMNS, "num_seeds", "runs"]


@dataclass(frozen=True)
class SweepAnalysis:
    """All tables of a sweep."""

    # SWEEP_COLUMNS, means over profiles with a row per POINT.
    table: pd.DataFrame
    # PROFILE_COLUMNS of the baselines, then of every profile of every point.
    profiles: pd.DataFrame
    # `table` before averaging: POINT, seed, and SWEEP_CLASSES, also with PSEUDO_SUFFIX.
    per_seed: pd.DataFrame
    # The baselines' curves, with the columns of fits_frame.
    fits: pd.DataFrame
    # Columns `what, why`.
    missing: pd.DataFrame


def analyse_sweeps(losses: StudyLosses, sizes: Sequence[str] = ()) -> SweepAnalysis:
    """Returns all tables of a sweep.

    Views and attacks also need the columns `knob` and `value`, which are ignored for the baseline.
    A view that belongs to points of several knobs has one row per knob. A note names the points
    that it concerns, unless it concerns all points. Raises ValueError like `tables.analyse`.
    """
    evaluations, attacks = losses.evaluations, losses.attacks
    views = pd.concat([evaluations, losses.views])
    views = views[views["method"] != BASELINE]
    points = set(zip(views["knob"].astype(str), views["value"].astype(float), strict=True))
    points = sorted(points, key=lambda p: (KNOBS.index(p[0]) if p[0] in KNOBS else len(KNOBS), p))
    of_baselines = evaluations[evaluations["method"] == BASELINE]
    baselines = analyse(StudyLosses(of_baselines, losses.curves), sizes)
    parts, tables, notes = [], [baselines.table], {}
    for knob, value in points:
        of_point = StudyLosses(
            _at(evaluations, knob, value),
            losses.curves,
            None if attacks is None else _at(attacks, knob, value),
            _at(losses.views, knob, value),
        )
        analysis = analyse(of_point, sizes)
        rows, pseudo = (
            _seed_rows(f) for f in (analysis.per_seed, pseudo_frame(analysis.per_seed, CLASSES))
        )
        parts.append(with_pseudo_values(rows, pseudo, SWEEP_CLASSES).assign(knob=knob, value=value))
        methods = analysis.table[analysis.table["method"] != BASELINE]
        tables.append(methods.assign(knob=knob, value=value))
        notes[knob, value] = analysis.missing
    per_seed = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    pseudo = [name + PSEUDO_SUFFIX for name in SWEEP_CLASSES]
    per_seed = per_seed.reindex(columns=[*POINT, "seed", *SWEEP_CLASSES, *pseudo])
    table = over_seeds(per_seed, POINT, SWEEP_CLASSES)
    table = table.assign(runs=[_runs(evaluations, row) for row in table.to_dict("records")])
    table = table[SWEEP_COLUMNS].astype({"knob": object, "value": float})
    missing = join_notes(notes, _point_names).sort_values(["what", "why"], ignore_index=True)
    rows = pd.concat([part for part in tables if len(part)] or tables[:1], ignore_index=True)
    rows = rows.reindex(columns=["knob", "value", *TABLE_COLUMNS])
    rows = rows.astype({"knob": object, "value": float})
    # Only `table` has CORE_COLUMNS and runs, for the rows of `mean`.
    means = table[[*POINT, *CORE_COLUMNS, "runs"]].assign(profile=MEAN)
    rows = rows.merge(means, on=[*POINT, "profile"], how="left")[PROFILE_COLUMNS]
    profiles = rows.astype({"runs": object}).fillna({"knob": "", "runs": ""})
    return SweepAnalysis(table, profiles, per_seed, baselines.fits, missing)


def _at(frame: pd.DataFrame, knob: str, value: float) -> pd.DataFrame:
    is_here = (frame["knob"] == knob) & (frame["value"] == value)
    return frame[is_here | (frame["method"] == BASELINE)].drop(columns=["knob", "value"])


def _seed_rows(per_seed: pd.DataFrame) -> pd.DataFrame:
    rows, seed = per_seed[per_seed["method"] != BASELINE], ["method", "size", "seed"]
    means = rows[rows["profile"] == MEAN]
    if means.empty:
        return pd.DataFrame(columns=[*seed, *SWEEP_CLASSES])
    views = rows[rows["profile"] != MEAN]
    is_single = (views["retained"] != "") & ~views["retained"].str.contains(",")
    full = views[views["retained"] == ""].set_index(seed)["core"].rename("core_full")
    groups = views[is_single].groupby(seed)
    single = [(*key, pair_means(of_seed, "core")) for key, of_seed in groups]
    partial = pd.DataFrame(single, columns=[*seed, "core_partial"]).set_index(seed)
    return means.join(full, on=seed).join(partial, on=seed)[[*seed, *SWEEP_CLASSES]]


def _runs(evaluations: pd.DataFrame, row: dict) -> str:
    if "run_id" not in evaluations:
        return ""
    is_here = (evaluations[POINT] == [row[name] for name in POINT]).all(axis=1)
    return " ".join(dict.fromkeys(evaluations.loc[is_here, "run_id"].astype(str)))


def _point_names(points: Sequence[tuple[str, float]]) -> str:
    knobs = {knob: [f"{value:g}" for other, value in points if other == knob] for knob, _ in points}
    return "; ".join(f"{knob} {', '.join(values)}" for knob, values in knobs.items())
