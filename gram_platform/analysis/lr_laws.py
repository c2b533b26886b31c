"""Laws of learning rate and batch from a grid: which optima enter, both laws, how they move with the window.

An optimum at the edge of its grid is an extrapolation: a law leaves it out when two or more others remain, and says so;
where fewer remain it takes them all and is marked `rests_on_edges`.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gram_platform.analysis.lr_grid import POOLED, cells, optima_table, surface_table, used_trials
from gram_platform.analysis.power_law import LawBootstrap, bootstrap_laws
from gram_platform.config.flops import total_parameters
from gram_platform.config.ladder import PAPER_LAW, Law, Size

QUANTITIES = ("lr", "batch")
WINDOWS = (None, 0.2, 0.1, 0.05, 0.02, 0.01)
LAW_COLUMNS = ["quantity", "coefficient", "exponent", "r2", "t_low", "t_high", "bootstrap_low", "bootstrap_high"]
LAW_COLUMNS += ["num_resamples", "num_failed", "num_sizes", "sizes", "left_out", "rests_on_edges", "reason"]
LINE_POINTS = 40


@dataclass(frozen=True)
class GridAnalysis:
    """Every table of a grid; the functions of their names, below and in `lr_grid`, describe them."""

    cells: pd.DataFrame
    optima: pd.DataFrame
    surfaces: pd.DataFrame
    laws: pd.DataFrame
    windows: pd.DataFrame
    # `quantity, parameters, value, low, high, paper` over the span of the sizes: our laws (NaN without them), their
    # 90% bootstrap band, and the paper's law; batches in the trials' sequences
    lines: pd.DataFrame


def analyse_grid(
    trials: pd.DataFrame,
    seq_len: int,
    window: float | None = None,
    include_edge: bool = False,
    num_resamples: int = 200,
    as_published: bool = False,
) -> GridAnalysis:
    """All tables of the trials (see `lr_grid`); `seq_len` is the length of the sequences that `batch` counts.

    `as_published` fits as the authors did, which their text does not say: the logarithm of the loss instead of the
    loss, no levels of seeds, and a trial that is there twice counts twice (else it is an error). Their laws come back
    to the last digit when `parameters` holds the sizes' names as numbers too (see `lr_grid.load_trials`).
    """
    optima = optima_table(trials, window, as_published)
    entry = _entry(optima, include_edge)
    found = _bootstrap(trials, entry, window, num_resamples, as_published)
    return GridAnalysis(
        cells=cells(trials, as_published),
        optima=optima,
        surfaces=surface_table(trials, window, as_published=as_published),
        laws=_law_rows(entry, found),
        windows=window_table(trials, (window, *WINDOWS), include_edge, as_published),
        lines=_line_rows(optima, found, seq_len),
    )


def laws_table(
    trials: pd.DataFrame,
    window: float | None = None,
    include_edge: bool = False,
    num_resamples: int = 200,
    as_published: bool = False,
) -> pd.DataFrame:
    """LAW_COLUMNS, a row for `lr` and one for `batch`: t-interval and bootstrap interval (over seeds) of the exponent.

    The bootstrap's is widened for few seeds and needs two of them; `power_law.LawBootstrap` has its measured coverage.
    `sizes` are those whose optimum entered, `left_out` the others with why. Without two sizes to fit, the numbers are
    NaN and `reason` says why.
    """
    entry = _entry(optima_table(trials, window, as_published), include_edge)
    return _law_rows(entry, _bootstrap(trials, entry, window, num_resamples, as_published))


def window_table(
    trials: pd.DataFrame,
    windows: Iterable[float | None] = WINDOWS,
    include_edge: bool = False,
    as_published: bool = False,
) -> pd.DataFrame:
    """One row a window (NaN: all cells), widest first: both exponents with t-intervals and R2, and the sizes used.

    How far the exponents move down this table is how far they are to be trusted.
    """
    rows = []
    for window in sorted(set(windows), key=lambda w: -math.inf if w is None else -w):
        laws = laws_table(trials, window, include_edge, 1, as_published).set_index("quantity")
        row = {"window": math.nan if window is None else window}
        for quantity in QUANTITIES:
            law = laws.loc[quantity]
            names = {"exponent": "exponent", "t_low": "low", "t_high": "high", "r2": "r2"}
            row |= {f"{quantity}_{name}": law[field] for field, name in names.items()}
        shared = ("num_sizes", "sizes", "left_out", "rests_on_edges", "reason")
        rows.append({**row, **{name: laws.loc["lr", name] for name in shared}})
    return pd.DataFrame(rows)


def fitted_law(laws: pd.DataFrame, name: str, seq_len: int, source: str) -> Law | None:
    """The two rows of `laws_table` as a law of the ladder; None where they could not be fitted."""
    rows = laws.set_index("quantity")
    if rows["reason"].astype(bool).any():
        return None
    numbers = [float(rows.loc[quantity, field]) for quantity in QUANTITIES for field in ("coefficient", "exponent")]
    return Law(name, *numbers, seq_len, source)


def law_json(law: Law | None, laws: pd.DataFrame) -> dict:
    """A law file, as `ladder.load_law` reads it, with the evidence of `laws_table` beside it; NaN becomes null.

    Without a law only the evidence, with the reason: a file that `load_law` refuses.
    """
    evidence = [{key: _plain(value) for key, value in row.items()} for row in laws.to_dict("records")]
    return {**({} if law is None else dataclasses.asdict(law)), "evidence": evidence}


def predictions(law: Law | None, sizes: Sequence[Size]) -> pd.DataFrame:
    """One row a size: LR and batch by our law (NaN without one), by the paper's law, and the ladder's own.

    Batches are in the size's own sequences: laws are converted by tokens.
    """
    rows = []
    for size in sizes:
        num_parameters = total_parameters(size.dense())
        row = {"size": size.name, "parameters": num_parameters, "seq_len": size.seq_len}
        for name, source in (("", law), ("paper_", PAPER_LAW)):
            row[f"{name}lr"] = source.lr(num_parameters) if source else math.nan
            row[f"{name}batch"] = source.batch(num_parameters, size.seq_len) if source else math.nan
        rows.append({**row, "ladder_lr": size.peak_lr, "ladder_batch": size.batch_size})
    return pd.DataFrame(rows)


# ---------------------------------------------------------------------------------------------- what enters a law


@dataclass(frozen=True)
class _Entry:
    """The sizes whose pooled optimum enters, the others with why, and whether edges had to be taken."""

    sizes: tuple[str, ...]
    left_out: Mapping[str, str]
    rests_on_edges: bool


def _entry(optima: pd.DataFrame, include_edge: bool) -> _Entry:
    pooled = optima[optima["seed"] == POOLED].set_index("size")
    left_out = {size: _why_no_optimum(row) for size, row in pooled.iterrows()}
    usable = [size for size, why in left_out.items() if not why]
    inside = [size for size in usable if not pooled.loc[size, "on_edge"]]
    entered = usable if include_edge or len(inside) < 2 else inside
    reasons = {size: why or "at the edge" for size, why in left_out.items() if size not in entered}
    return _Entry(tuple(entered), reasons, len(inside) < len(entered))


def _why_no_optimum(row: pd.Series) -> str:
    if row["reason"]:
        return f"no fit ({row['reason']})"
    if not row["convex"]:
        return "not convex"
    is_place = all(math.isfinite(row[name]) and row[name] > 0.0 for name in QUANTITIES)
    return "" if is_place else "its minimum lies beyond all numbers"


def _bootstrap(
    trials: pd.DataFrame, entry: _Entry, window: float | None, num_resamples: int, as_published: bool
) -> tuple[LawBootstrap | None, str]:
    """The laws of the sizes that enter, or None and why."""
    used = used_trials(trials, as_published)
    used = used[used["size"].isin(entry.sizes)]
    if used["parameters"].nunique() < 2:
        return None, f"cannot be fitted: two sizes with a minimum are needed, there are {used['parameters'].nunique()}"
    return bootstrap_laws(used, window, num_resamples, as_published=as_published), ""


def _law_rows(entry: _Entry, found: tuple[LawBootstrap | None, str]) -> pd.DataFrame:
    laws, reason = found
    shared = {
        "num_sizes": len(entry.sizes),
        "sizes": " ".join(entry.sizes),
        "left_out": "; ".join(f"{size}: {why}" for size, why in entry.left_out.items()),
        "rests_on_edges": entry.rests_on_edges,
        "reason": reason,
    }
    rows = []
    for quantity in QUANTITIES:
        row = {"quantity": quantity, **dict.fromkeys(LAW_COLUMNS[1:8], math.nan), "num_resamples": 0, "num_failed": 0}
        if laws is not None:
            law, interval = getattr(laws, quantity), getattr(laws, f"{quantity}_exponent")
            ends = (*law.exponent_interval, interval.low, interval.high)
            row |= dict(zip(LAW_COLUMNS[1:8], (law.coefficient, law.exponent, law.r2, *ends), strict=True))
            row |= {"num_resamples": laws.num_resamples, "num_failed": laws.num_failed}
        rows.append({**row, **shared})
    return pd.DataFrame(rows, columns=LAW_COLUMNS)


def _line_rows(optima: pd.DataFrame, found: tuple[LawBootstrap | None, str], seq_len: int) -> pd.DataFrame:
    parameters = optima["parameters"].astype(float)
    along = np.geomspace(parameters.min(), parameters.max(), LINE_POINTS) if len(optima) else []
    laws, rows = found[0], []
    for quantity in QUANTITIES:
        for n in along:
            unknown = (math.nan,) * 3
            value, low, high = unknown if laws is None else laws.predict(quantity, n)
            paper = PAPER_LAW.lr(n) if quantity == "lr" else PAPER_LAW.batch(n, seq_len)
            rows.append((quantity, float(n), value, low, high, float(paper)))
    return pd.DataFrame(rows, columns=["quantity", "parameters", "value", "low", "high", "paper"])


def _plain(value: object) -> object:
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value
