"""The trials of a learning-rate and batch grid from a file, ours or others'."""

import re
from pathlib import Path

import numpy as np
import pandas as pd

from gram_platform.analysis.lr_grid import STATES
from gram_platform.analysis.trials import COMPLETE, RUNNING, STATE, WAITING
from gram_platform.config.identity import invalid

CORE_LOSS, DOMAIN_LOSS = "loss_core", "loss_"
NUMBERS = ("lr", "batch", "loss")
SIZE = re.compile(r"(\d+(?:\.\d+)?)([kMB])")
UNITS = {"k": 1e3, "M": 1e6, "B": 1e9}


def load_trials(path: str | Path, named_sizes: bool = False) -> pd.DataFrame:
    """The trials of a csv as `analyse_grid` takes them, in the file's order.

    Columns: `size`, `parameters`, `seed`, `lr`, `batch` (sequences), and the loss in nats a token: either `loss`, or
    `loss_core` and a `loss_<domain>` for every auxiliary domain, of which it is half core and half their mean. `state`
    is complete unless given; trials that are running or waiting are left out, so that a search's own `trials.csv` can
    be read. Other columns are dropped. `named_sizes` takes the parameters from the names of the sizes, 50M as 50e6, as
    the authors' laws do: exact counts move an exponent by a hundredth. ValueError that names line and column for what
    is not there or no number; which trials make a grid is `analyse_grid`'s to check.
    """
    table = pd.read_csv(path, dtype={"size": str, "seed": str})
    domains = [name for name in table if name.startswith(DOMAIN_LOSS) and name != CORE_LOSS]
    losses = ["loss"] if "loss" in table else [CORE_LOSS, *domains]
    needed = ["size", "seed", "lr", "batch", *losses, *([] if named_sizes else ["parameters"])]
    absent = [name for name in needed if name not in table]
    if absent or losses == [CORE_LOSS]:
        also = ", ".join(absent) or f"{DOMAIN_LOSS}<domain>"
        raise invalid("trials", list(table.columns), f"a table with the columns {also} too")
    states = table[STATE] if STATE in table else pd.Series(COMPLETE, table.index)
    ended = ~states.isin((RUNNING, WAITING))
    table, states = table[ended], states[ended]
    for name in needed:
        _require(table, name, states, name in losses)
    frame = table[["size", "seed", "lr", "batch"]].astype({"lr": float, "batch": float})
    counts = [_named_count(line, size) for line, size in table["size"].items()] if named_sizes else table["parameters"]
    values = table[losses].astype(float)
    loss = values["loss"] if losses == ["loss"] else 0.5 * values[CORE_LOSS] + 0.5 * values[domains].mean(axis=1)
    return frame.assign(parameters=np.asarray(counts, float), loss=loss, state=states).reset_index(drop=True)


def _require(table: pd.DataFrame, name: str, states: pd.Series, is_loss: bool) -> None:
    """ValueError for the first row without a usable value; a loss counts only where the trial is complete."""
    rows = table[states == COMPLETE] if is_loss else table
    if name in ("size", "seed"):
        is_bad = rows[name].isna()
    else:
        values = pd.to_numeric(rows[name], errors="coerce")
        is_bad = ~(np.isfinite(values) & (values > 0.0))
    if is_bad.any():
        place = is_bad.idxmax()
        allowed = "a name" if name in ("size", "seed") else "a finite positive number"
        raise invalid(f"line {place + 2}, {name}", rows.loc[place, name], allowed)
    unknown = ~states.isin(STATES)
    if unknown.any():
        raise invalid(f"line {unknown.idxmax() + 2}, {STATE}", states[unknown.idxmax()], "one of " + ", ".join(STATES))


def _named_count(line: int, size: str) -> float:
    found = SIZE.fullmatch(size)
    if not found:
        raise invalid(f"line {line + 2}, size", size, "a number of parameters such as 50M")
    return float(found[1]) * UNITS[found[2]]
