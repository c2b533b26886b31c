"""Tabulates grids of learning rates and batches: cells, optima with warnings, fitted surfaces.

Every function takes `trials`, with one row per run and the columns
`size, parameters, seed, lr, batch` (in sequences), `loss`, `state` (complete, diverged or failed)
and optionally `run_id`. Only losses of complete runs are used. Our fits leave out cells with a
diverged seed, because the mean over their other seeds would be too good. Fits to all seeds of a
size include an additive constant for each seed, called its level (see `surface`).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gram_platform.analysis.surface import (
    EDGE_FRACTION,
    OUR_FIT,
    SAME_CELL,
    Fit,
    Optimum,
    fit_surface,
    subtract_levels,
)
from gram_platform.analysis.trials import STATE
from gram_platform.config import State
from gram_platform.config.identity import invalid
from gram_platform.methods import seed_key, size_key

ENDED = (State.COMPLETE, State.DIVERGED, State.FAILED)
TRIAL_FIELDS = ["size", "parameters", "seed", "lr", "batch", "loss"]
SURFACE_INPUTS = ["lr", "batch", "loss", "seed"]
CELL = ["size", "parameters", "lr", "batch"]
NUM_ENDED = ["num_seeds", "num_diverged", "num_failed"]
# Stands for all seeds of a size together.
POOLED = "pooled"
OPTIMUM = [field.name for field in fields(Optimum)]
OPTIMA_COLUMNS = ["size", "parameters", "seed", *OPTIMUM, "num_diverged"]
OPTIMA_COLUMNS += ["best_lr", "best_batch", "best_loss", "edges", "notes", "reason"]
# A curvature below this many standard errors may be only noise.
NOISE_T = 2.0
SURFACE_POINTS = 25
CORE_LOSS, DOMAIN_LOSS = "loss_core", "loss_"


def cells(trials: pd.DataFrame, may_repeat: bool = False) -> pd.DataFrame:
    """Returns one row per size, lr and batch.

    - `loss, loss_low, loss_high`: the mean, smallest and largest loss of complete seeds
    - `num_seeds, num_diverged, num_failed`: how many seeds are complete, diverged and failed
    - `used`: True if the cell has a complete seed and no diverged seed, so that fits use it
    - `runs`: the run ids
    """
    frame = check_trials(trials, may_repeat)
    frame["measured"] = frame["loss"].where(frame["state"] == State.COMPLETE)
    for name, state in zip(NUM_ENDED, ENDED, strict=True):
        frame[name] = frame["seed"].where(frame["state"] == state)
    grouped = frame.groupby(["parameters", "size", "lr", "batch"])
    table = grouped[NUM_ENDED].nunique()
    table["loss"], table["loss_low"], table["loss_high"] = (
        grouped["measured"].agg(how) for how in ("mean", "min", "max")
    )
    table["used"] = (table["num_seeds"] > 0) & (table["num_diverged"] == 0)
    table["runs"] = grouped["run_id"].agg(lambda runs: " ".join(filter(None, runs.astype(str))))
    columns = [*CELL, "loss", "loss_low", "loss_high", *NUM_ENDED, "used", "runs"]
    return table.reset_index()[columns]


def select_trials(trials: pd.DataFrame, may_repeat: bool = False) -> pd.DataFrame:
    frame, table = check_trials(trials, may_repeat), cells(trials, may_repeat)
    kept = frame.merge(table.loc[table["used"], CELL], on=CELL)
    return kept[kept["state"] == State.COMPLETE].reset_index(drop=True)


def optima_table(trials: pd.DataFrame, fit: Fit = OUR_FIT) -> pd.DataFrame:
    """Returns a table with OPTIMA_COLUMNS: per size, a row for all seeds, then one for each seed.

    - `best_*`: the used cell with the lowest mean loss. If a cell lacks a seed, the levels of the
      seeds (see `surface`) are first subtracted from the losses.
    - `edges`: the `edge_names` of the minimum or, if there is none, of the best cell
    - `notes`: warnings
    - `reason`: why the fit failed. A row with a reason has no optimum.
    - `num_diverged`: the number of the size's cells with a diverged seed
    """
    table, used = cells(trials, fit.as_published), select_trials(trials, fit.as_published)
    rows = []
    for (parameters, size), of_size in table.groupby(["parameters", "size"], sort=True):
        pooled = used[used["size"] == size]
        for seed in (POOLED, *sorted(set(pooled["seed"]), key=seed_key)):
            group = pooled if seed == POOLED else pooled[pooled["seed"] == seed]
            row = {"size": size, "parameters": parameters, "seed": seed}
            row["num_diverged"] = int((of_size["num_diverged"] > 0).sum())
            rows.append(row | _optimum_row(group, fit))
    return pd.DataFrame(rows, columns=OPTIMA_COLUMNS)


def surface_table(trials: pd.DataFrame, fit: Fit = OUR_FIT) -> pd.DataFrame:
    """Evaluates each size's fit to all seeds on a log-spaced mesh over the grid.

    Returns the columns `size, lr, batch, loss`. Sizes whose fit fails have no rows.
    """
    parts = [pd.DataFrame(columns=["size", "lr", "batch", "loss"])]
    for (_, size), group in select_trials(trials, fit.as_published).groupby(["parameters", "size"]):
        try:
            surface = fit_surface(*(group[name] for name in SURFACE_INPUTS), fit)
        except ValueError:
            continue
        rates, batches = (
            np.geomspace(group[name].min(), group[name].max(), SURFACE_POINTS)
            for name in ("lr", "batch")
        )
        lr, batch = (mesh.ravel() for mesh in np.meshgrid(rates, batches))
        points = {"size": size, "lr": lr, "batch": batch, "loss": surface.loss(lr, batch)}
        parts.append(pd.DataFrame(points))
    return pd.concat(parts[1:] or parts, ignore_index=True)


def load_trials(path: str | Path, named_sizes: bool = False) -> pd.DataFrame:
    """Reads trials for `analyse_grid` from a CSV file, in the file's order.

    The columns are `size`, `parameters`, `seed`, `lr`, `batch` (in sequences), `state` (default:
    complete), and losses in nats per token. The loss is `loss` or, without this column, half of
    `loss_core` plus half of the mean of the other columns `loss_<domain>`. Running and waiting
    trials are left out. With `named_sizes`, parameter counts come from size names such as 50M, as
    in the authors' laws. Raises ValueError for missing columns, unknown states, and values that are
    not finite and positive.
    """
    table = pd.read_csv(path, dtype={"size": str, "seed": str})
    domains = [name for name in table if name.startswith(DOMAIN_LOSS) and name != CORE_LOSS]
    losses = ["loss"] if "loss" in table else [CORE_LOSS, *domains]
    needed = ["size", "seed", "lr", "batch", *losses, *([] if named_sizes else ["parameters"])]
    absent = [name for name in needed if name not in table]
    if absent or losses == [CORE_LOSS]:
        also = ", ".join(absent) or f"{DOMAIN_LOSS}<domain>"
        raise invalid("trials", list(table.columns), f"a table with the columns {also} too")
    states = table[STATE] if STATE in table else pd.Series(State.COMPLETE, table.index)
    has_ended = ~states.isin((State.RUNNING, State.WAITING))
    table, states = table[has_ended], states[has_ended]
    _require_values(table.assign(state=states), needed, lambda row, name: f"line {row + 2}, {name}")
    if named_sizes:
        for line, size in table["size"].items():
            if size_key(size)[0]:
                allowed = "a number of parameters such as 50M"
                raise invalid(f"line {line + 2}, size", size, allowed)
        table = table.assign(parameters=[size_key(size)[1] for size in table["size"]])
    values = table[losses].astype(float)
    loss = values[losses[0]]
    if losses != ["loss"]:
        loss = 0.5 * values[CORE_LOSS] + 0.5 * values[domains].mean(axis=1)
    frame = table[["size", "seed", "lr", "batch", "parameters"]].assign(loss=loss, state=states)
    return frame.astype(dict.fromkeys(("lr", "batch", "parameters"), float)).reset_index(drop=True)


def _require_values(
    trials: pd.DataFrame, names: Sequence[str], field: Callable[[Any, str], str]
) -> None:
    for name in names:
        rows = trials[trials[STATE] == State.COMPLETE] if name.startswith("loss") else trials
        if name in ("size", "seed"):
            is_bad, allowed = rows[name].isna(), "a name"
        else:
            values = pd.to_numeric(rows[name], errors="coerce")
            is_bad, allowed = ~(np.isfinite(values) & (values > 0.0)), "a finite positive number"
        if is_bad.any():
            raise invalid(field(is_bad.idxmax(), name), rows[name][is_bad].iloc[0], allowed)
    for row, state in trials[STATE].items():
        if state not in ENDED:
            raise invalid(field(row, STATE), state, f"one of {', '.join(ENDED)}")


def check_trials(trials: pd.DataFrame, may_repeat: bool = False) -> pd.DataFrame:
    """Sorts the trials, merges cells that differ only by rounding, and fills missing `run_id`s.

    Raises ValueError for missing columns, invalid values, and repeated trials unless `may_repeat`.
    """
    needed = [*TRIAL_FIELDS, STATE]
    if absent := ", ".join(sorted({*needed} - {*trials})):
        allowed = f"a frame with the columns {', '.join(needed)}"
        raise invalid("trials", f"a frame without {absent}", allowed)
    _require_values(trials, TRIAL_FIELDS, lambda _, name: f"trials.{name}")
    frame = trials.assign(
        run_id=trials["run_id"].fillna("") if "run_id" in trials else "",
        loss=pd.to_numeric(trials["loss"], errors="coerce").astype(float),
        size=trials["size"].astype(str),
        seed=trials["seed"].astype(str),
    )
    frame["parameters"] = pd.to_numeric(frame["parameters"])
    for name in ("lr", "batch"):
        frame[name] = pd.to_numeric(frame[name])
        same = np.log(frame[name].to_numpy(float)).round(SAME_CELL)
        frame[name] = frame[name].groupby(same).transform("min")
    pairs = frame[["size", "parameters"]].drop_duplicates()
    if not (pairs["size"].is_unique and pairs["parameters"].is_unique):
        counts = sorted(set(frame["parameters"]))
        raise invalid("trials.parameters", counts, "one count per size, no two equal")
    key = ["parameters", "size", "lr", "batch", "seed"]
    twice = frame[frame.duplicated(key)]
    if len(twice) and not may_repeat:
        allowed = "one row for each size, lr, batch and seed (fits as published take repeated rows)"
        raise invalid("trials", twice[key].iloc[0].to_dict(), allowed)
    return frame.sort_values(key, kind="stable").reset_index(drop=True)


def _optimum_row(group: pd.DataFrame, fit: Fit) -> dict:
    axes = ["lr", "batch"]
    by_cell = group.groupby(axes)
    lacking = int((by_cell["seed"].nunique() < group["seed"].nunique()).sum())
    losses = group["loss"]
    if lacking:
        losses = subtract_levels(by_cell.ngroup().to_numpy(), losses.to_numpy(), group["seed"])
    means = group.assign(loss=losses).groupby(axes)["loss"].mean().reset_index()
    best = means.loc[means["loss"].idxmin()] if len(means) else dict.fromkeys(means, math.nan)
    row = {f"best_{name}": float(best[name]) for name in (*axes, "loss")}
    lr, batch, optimum, reason = row["best_lr"], row["best_batch"], None, ""
    try:
        optimum = fit_surface(*(group[name] for name in SURFACE_INPUTS), fit).optimum()
    except ValueError as error:
        row |= dict.fromkeys(OPTIMUM, math.nan) | {"convex": False, "on_edge": False}
        row |= {"num_cells": len(means), "num_points": len(group)}
        reason = str(error)
    else:
        row |= vars(optimum)
        if optimum.convex:
            lr, batch = optimum.lr, optimum.batch
    edges = edge_names(lr, batch, means)
    notes = _flags(optimum, edges) if optimum else ["no fit: best cell shown"]
    notes += [f"{lacking} of {len(means)} cells lack a seed"] if lacking else []
    return {**row, "edges": edges, "notes": "; ".join(notes), "reason": reason}


def edge_names(lr: float, batch: float, grid: pd.DataFrame) -> str:
    """Lists the sides of a grid that a point touches or exceeds, such as `lr high, batch low`."""
    sides = []
    for name, value in (("lr", lr), ("batch", batch)):
        if not len(grid) or math.isnan(value):
            continue
        low, high = math.log(grid[name].min()), math.log(grid[name].max())
        margin, place = EDGE_FRACTION * (high - low), math.log(value) if value > 0.0 else -math.inf
        sides += [f"{name} low"] * (place <= low + margin)
        sides += [f"{name} high"] * (place >= high - margin)
    return ", ".join(sides)


def is_flat(curvature_t: float) -> bool:
    """Returns True if a surface's smallest curvature may be noise, or if its error is unknown."""
    return not curvature_t >= NOISE_T


def _flags(optimum: Optimum, edges: str) -> list[str]:
    if not optimum.convex:
        return ["not convex: best cell shown"]
    outside = ["outside the cells used"] if optimum.on_edge else []
    flags = [f"at the edge: {edges}"] if edges else outside
    if math.isnan(optimum.curvature_t):
        flags.append("as many losses as coefficients: an exact fit tells nothing of its error")
    elif is_flat(optimum.curvature_t):
        flags.append("curvature within the noise")
    return flags
