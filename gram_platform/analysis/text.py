"""Tables as text: `table.csv`, and aligned columns for a terminal."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from gram_platform.analysis.tables import CLASSES


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
