"""Measures how strongly the loss increase concentrates on few tokens when a domain is removed.

Source: the paper's appendix "Capability Removal Concentrates Loss on Domain-Relevant Tokens". A
token's increase is its loss minus that of the baseline of the same size and seed. The paper shades
sentences by it. We summarise validation sequences by

- the Gini coefficient of the positive increases,
- the share of tokens with a positive increase, and
- the fraction of all positive increases that falls on the top tenth of tokens.

The control is the baseline of another seed. Its increases show how concentrated noise is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gram_platform.analysis.intervals import ENDS
from gram_platform.analysis.ratios import MEAN, VIEW, sort_rows
from gram_platform.analysis.tables import over_seeds, run_names
from gram_platform.config.identity import invalid
from gram_platform.methods.nodes import BASELINE

# `top_share` is the part of the increases on this share of tokens.
TOP = 0.1
# The quantile of increases that is shaded in full colour.
CALIBRATION = 0.9
CONTROL, FORGET, RETAIN = "control", "forget", "retain"
STATISTICS = ("gini", "top_share", "positive", "increase")
TOKEN_ROW = ["method", "size", "profile", "domain", "class"]
LOCALIZATION_COLUMNS = [*TOKEN_ROW, *(name + end for name in STATISTICS for end in ENDS)]
LOCALIZATION_COLUMNS += ["num_tokens", "num_seeds"]
NUM_POINTS = 101
TOKEN_SHARES = np.linspace(0.0, 1.0, NUM_POINTS)


@dataclass(frozen=True)
class MeasuredTokens:
    """The losses of one view (method, size, seed and profile) on each validation token."""

    method: str
    size: str
    seed: str
    profile: str
    retained: tuple[str, ...]
    # The losses [N, T] in nats, by domain.
    losses: Mapping[str, np.ndarray]
    run_id: str = ""
    # The losses [T] of chosen texts, in order.
    texts: tuple[np.ndarray, ...] = ()


@dataclass(frozen=True)
class Localization:
    """The result of `localization_tables`."""

    # LOCALIZATION_COLUMNS as in table.csv, and `runs`: the `run_names` of a row.
    table: pd.DataFrame
    # `table` before averaging: TOKEN_ROW, seed, STATISTICS, num_tokens, runs.
    per_seed: pd.DataFrame
    # `method, size, class, tokens, share, runs`, the curves of the `mean` rows over seeds.
    curves: pd.DataFrame
    # Columns `what, why`.
    missing: pd.DataFrame

    @property
    def means(self) -> pd.DataFrame:
        """The rows of `table` that are means over domains and profiles."""
        return self.table[self.table["profile"] == MEAN]


def gini(values: np.ndarray) -> float:
    """Returns the Gini coefficient of values >= 0, or NaN if their sum is 0."""
    ordered = np.sort(values, axis=None)
    num, total = len(ordered), ordered.sum()
    if not total:
        return np.nan
    return float(2.0 * (np.arange(1, num + 1) @ ordered) / (num * total) - (num + 1) / num)


def concentration_curve(values: np.ndarray) -> np.ndarray:
    """Returns the fraction of the sum of `values` that falls on the largest values.

    For point i of the result [NUM_POINTS], the fraction TOKEN_SHARES[i] of all values counts as the
    largest. Values are >= 0. The result is NaN if all values are 0.
    """
    held = np.concatenate([[0.0], np.cumsum(np.sort(values, axis=None)[::-1])])
    with np.errstate(invalid="ignore"):
        return np.interp(TOKEN_SHARES, np.linspace(0.0, 1.0, len(held)), held / held[-1])


def localize(
    views: Sequence[MeasuredTokens], references: Mapping[tuple[str, str], MeasuredTokens]
) -> pd.DataFrame:
    """Compares each view's token losses with its baseline's. Returns one row per view and domain.

    The columns are TOKEN_ROW, `retained`, `seed`, STATISTICS, `num_tokens`, `runs` and `curve`.
    `references` maps (size, seed) to the baseline. Views without a baseline have no rows. Raises
    ValueError if losses differ in shape.
    """
    rows = []
    for view in views:
        reference = references.get((view.size, view.seed))
        if reference is None:
            continue
        names = {name: getattr(view, name) for name in VIEW}
        names |= {"retained": ",".join(view.retained), "runs": view.run_id}
        for domain, losses in view.losses.items():
            kind = RETAIN if domain in view.retained else FORGET
            kind = {"domain": domain, "class": CONTROL if view.method == BASELINE else kind}
            rows.append(names | kind | _measure(losses, reference.losses[domain]))
    columns = [*TOKEN_ROW, "retained", "seed", *STATISTICS, "num_tokens", "runs", "curve"]
    return pd.DataFrame(rows, columns=columns)


def _measure(losses: np.ndarray, reference: np.ndarray) -> dict:
    if losses.shape != reference.shape:
        allowed = f"the shape of the reference's tokens, {reference.shape}"
        raise invalid("losses", f"shape {losses.shape}", allowed)
    increases = losses.astype(float) - reference
    positive = np.maximum(increases, 0.0)
    curve = concentration_curve(positive)
    return {
        "gini": gini(positive[positive > 0.0]),
        "top_share": float(np.interp(TOP, TOKEN_SHARES, curve)),
        "positive": float((positive > 0.0).mean()),
        "increase": float(increases.mean()),
        "num_tokens": increases.size,
        "curve": curve,
    }


def localization_tables(rows: pd.DataFrame, missing: Sequence[tuple] = ()) -> Localization:
    """Returns all tables from the rows of `localize`.

    For each method, size, class and seed, a row with profile and domain `mean` averages over all
    pairs of a profile and a domain. It leaves out profiles that retain several domains, except in
    the class CONTROL. There is no such row if a view of this method, size and seed is in `missing`.
    """
    is_few = ~rows["retained"].str.contains(",") | (rows["class"] == CONTROL)
    lacking = {view[:3] for view in missing}
    is_whole = [key not in lacking for key in zip(*(rows[n] for n in VIEW[:3]), strict=True)]
    few = rows[is_few & np.array(is_whole, bool)]
    averages = dict.fromkeys(STATISTICS, lambda values: values.mean(skipna=False))
    groups = few.groupby(["method", "size", "class", "seed"], sort=False, as_index=False)
    means = groups.agg({**averages, "num_tokens": "sum", "runs": run_names})
    means = means.assign(profile=MEAN, domain=MEAN)
    columns = [*TOKEN_ROW, "seed", *STATISTICS, "num_tokens", "runs"]
    per_seed = pd.concat([rows[columns], means], ignore_index=True)
    order = ["method", "size", "profile", "class", "domain"]
    per_seed = sort_rows(per_seed, per_seed["size"].unique().tolist(), order)
    rest = per_seed.groupby(TOKEN_ROW, sort=False).agg({"num_tokens": "first", "runs": run_names})
    table = over_seeds(per_seed, TOKEN_ROW, STATISTICS).merge(rest.reset_index(), on=TOKEN_ROW)
    what = [f"{m} {size} {profile} seed {seed}" for m, size, seed, profile in missing]
    lost = pd.DataFrame({"what": what, "why": "its token losses are missing"}, dtype=object)
    return Localization(table[[*LOCALIZATION_COLUMNS, "runs"]], per_seed, _curves(few), lost)


def _curves(few: pd.DataFrame) -> pd.DataFrame:
    keys = ["method", "size", "class"]
    parts = [pd.DataFrame(columns=[*keys, "tokens", "share", "runs"])]
    for key, group in few.groupby(keys, sort=False):
        share = np.mean(np.stack(list(group["curve"])), axis=0)
        points = {"tokens": TOKEN_SHARES, "share": share, "runs": run_names(group["runs"])}
        parts.append(pd.DataFrame({**dict(zip(keys, key, strict=True)), **points}))
    return pd.concat(parts[1:] or parts, ignore_index=True)


@dataclass(frozen=True)
class ShadedText:
    """A text to be shaded by the loss increase of each token under several views."""

    domain: str
    # The texts of the tokens [T + 1].
    pieces: tuple[str, ...]
    # The baseline's loss on every token but the first [T], in nats.
    baseline: np.ndarray
    # The increase in full colour, in nats. If it is NaN, nothing is shaded.
    scale: float
    # The increases over the baseline [T], in nats, by label.
    views: Mapping[str, np.ndarray]


def shading_scale(increases: np.ndarray) -> float:
    """Returns the CALIBRATION quantile of loss increases [T], which is the `scale` of `shades`.

    If it is <= 0, returns NaN.
    """
    scale = float(np.quantile(increases, CALIBRATION))
    return scale if scale > 0.0 else np.nan


def shades(increases: np.ndarray, scale: float) -> np.ndarray:
    """Returns increase / scale, clipped to [0, 1], as shades. If `scale` is NaN, all are 0."""
    return np.clip(increases / scale, 0.0, 1.0) if scale == scale else np.zeros(np.shape(increases))
