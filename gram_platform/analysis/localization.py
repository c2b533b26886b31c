"""Where a removed capability's loss sits: increases of single tokens over the baseline, and how few carry them. Pure.

Source: the paper's appendix "Capability Removal Concentrates Loss on Domain-Relevant Tokens". Increases are taken over
the baseline of the same size and seed. The paper shows sentences; the aggregate over whole validation sequences is
ours: the Gini coefficient of the positive increases (of the tokens that have one), the share of tokens that have one,
and the part of their sum that sits on the tenth of all tokens that increase most. Mere noise is unevenly spread too, so
every table has a control: the baseline of another seed in the place of a view.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gram_platform.analysis.intervals import t_interval
from gram_platform.analysis.ratios import BASELINE, MEAN, METHODS, profile_key
from gram_platform.analysis.tables import run_names
from gram_platform.config.identity import invalid

TOP = 0.1  # of the tokens
CONTROL, FORGET, RETAIN = "control", "forget", "retain"
MEASURES = ("gini", "top_share", "positive", "increase")
ROW = ["method", "size", "profile", "domain", "class"]
TABLE_COLUMNS = [*ROW, *(name + end for name in MEASURES for end in ("", "_low", "_high")), "num_tokens", "num_seeds"]
NUM_POINTS = 101  # of a curve

Losses = Mapping[str, np.ndarray]  # {domain: losses [N, T] in nats}
View = tuple[str, str, str, str]  # method, size, seed, profile


@dataclass(frozen=True)
class Measured:
    """The token losses of one view."""

    method: str
    size: str
    seed: str
    profile: str
    retained: tuple[str, ...]
    losses: Losses
    run_id: str = ""


@dataclass(frozen=True)
class Localization:
    """Every table of the study."""

    table: pd.DataFrame  # TABLE_COLUMNS, which are table.csv's, and `runs`: the ids of those behind a row
    per_seed: pd.DataFrame  # ROW, seed, MEASURES, num_tokens, runs: what `table` averages
    curves: pd.DataFrame  # method, size, class, tokens, share, runs: mean over seeds of the `mean` rows' curves
    missing: pd.DataFrame  # what, why


# ------------------------------------------------------------------------------------------- of one set of tokens


def gini(values: np.ndarray) -> float:
    """Gini coefficient of values >= 0, any shape: 0 all equal, (n - 1) / n one holds all; NaN where all are zero."""
    ordered = np.sort(_not_negative(values))
    num, total = len(ordered), ordered.sum()
    return float(2.0 * (np.arange(1, num + 1) @ ordered) / (num * total) - (num + 1) / num) if total else np.nan


def top_share(values: np.ndarray, share: float = TOP) -> float:
    """The part of the sum of values >= 0 that the largest `share` of them hold; NaN where all are zero."""
    return float(np.interp(share, *_concentration(values)))


def concentration_curve(values: np.ndarray) -> np.ndarray:
    """The part of the sum that the largest 0%, 1%, ... 100% of values >= 0 hold: [NUM_POINTS], NaN where all are 0."""
    return np.interp(np.linspace(0.0, 1.0, NUM_POINTS), *_concentration(values))


def _concentration(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(shares of the values, largest first, [n + 1]; shares of their sum that these hold [n + 1])."""
    ordered = np.sort(_not_negative(values))[::-1]
    held = np.concatenate([[0.0], np.cumsum(ordered)])
    with np.errstate(invalid="ignore"):
        return np.linspace(0.0, 1.0, len(held)), held / held[-1]


def _not_negative(values: np.ndarray) -> np.ndarray:
    flat = np.asarray(values, float).reshape(-1)
    if len(flat) == 0 or not (flat >= 0.0).all():
        raise invalid("values", flat[:4].tolist(), "one or more numbers, none of them negative")
    return flat


# ------------------------------------------------------------------------------------------------------- tables


def localize(views: Sequence[Measured], references: Mapping[tuple[str, str], Measured]) -> pd.DataFrame:
    """One row a view and domain: ROW, `retained`, seed, MEASURES, num_tokens, `runs` and `curve`.

    `references` are baselines by (size, seed). Views without one have no rows. ValueError when it has other tokens.
    """
    rows = []
    for view in views:
        reference = references.get((view.size, view.seed))
        if reference is None:
            continue
        is_control = view.method == BASELINE
        names = {"method": view.method, "size": view.size, "seed": view.seed, "profile": view.profile}
        for domain, losses in view.losses.items():
            kind = CONTROL if is_control else RETAIN if domain in view.retained else FORGET
            own = {**names, "retained": ",".join(view.retained), "domain": domain, "class": kind, "runs": view.run_id}
            rows.append({**own, **_measures(losses, reference.losses[domain])})
    columns = [*ROW, "retained", "seed", *MEASURES, "num_tokens", "runs", "curve"]
    return pd.DataFrame(rows, columns=columns)


def _measures(losses: np.ndarray, reference: np.ndarray) -> dict:
    if losses.shape != reference.shape:
        raise invalid("losses", losses.shape, f"those of the reference's tokens, {reference.shape}")
    increases = losses.astype(float) - reference
    positive = np.maximum(increases, 0.0)
    return {
        "gini": gini(positive[positive > 0.0]) if positive.any() else np.nan,
        "top_share": top_share(positive),
        "positive": float((positive > 0.0).mean()),
        "increase": float(increases.mean()),
        "num_tokens": increases.size,
        "curve": concentration_curve(positive),
    }


def tables(rows: pd.DataFrame, missing: Sequence[View] = ()) -> Localization:
    """All tables from the rows of `localize`.

    `mean` rows (profile and domain) average a class within a seed over all its pairs of a profile and a domain, of the
    profiles of core with at most one auxiliary domain, before seeds are averaged; a seed that lacks one of its method's
    views (`missing`) has none.
    """
    is_few = ~rows["retained"].str.contains(",") | (rows["class"] == CONTROL)
    lacking = {view[:3] for view in missing}
    is_whole = [key not in lacking for key in rows[["method", "size", "seed"]].itertuples(index=False, name=None)]
    few = rows[is_few & np.array(is_whole, bool)]
    keys = ["method", "size", "class", "seed"]
    means = few.groupby(keys, sort=False).agg(
        {**dict.fromkeys(MEASURES, _mean), "num_tokens": "sum", "runs": run_names}
    )
    means = means.reset_index().assign(profile=MEAN, domain=MEAN)
    per_seed = _ordered(pd.concat([rows[[*ROW, "seed", *MEASURES, "num_tokens", "runs"]], means], ignore_index=True))
    notes = [
        (f"{m} {size} {profile} seed {seed}", "its token losses are not there") for m, size, seed, profile in missing
    ]
    return Localization(_summary(per_seed), per_seed, _curves(few), pd.DataFrame(notes, columns=["what", "why"]))


def _curves(few: pd.DataFrame) -> pd.DataFrame:
    """The means of curves over domains, profiles and seeds."""
    keys, parts = ["method", "size", "class"], []
    for key, group in few.groupby(keys, sort=False):
        share = np.mean(np.stack(list(group["curve"])), axis=0)
        points = {"tokens": np.linspace(0.0, 1.0, NUM_POINTS), "share": share, "runs": run_names(group["runs"])}
        parts.append(pd.DataFrame({**dict(zip(keys, key, strict=True)), **points}))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=[*keys, "tokens", "share", "runs"])


def _mean(values: pd.Series) -> float:
    return float(values.mean(skipna=False))


def _summary(per_seed: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds with their 90% t-intervals; a value that no seed has stays empty."""
    rows = []
    for key, group in per_seed.groupby(ROW, sort=False):
        row = dict(zip(ROW, key, strict=True))
        for name in MEASURES:
            known = group[name].dropna()
            ends = t_interval(known) if len(known) else (np.nan,) * 3
            row |= dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))
        own = {"num_tokens": int(group["num_tokens"].iloc[0]), "num_seeds": len(group)}
        rows.append({**row, **own, "runs": run_names(group["runs"])})
    return pd.DataFrame(rows, columns=[*TABLE_COLUMNS, "runs"])


def _ordered(frame: pd.DataFrame) -> pd.DataFrame:
    """By method, then in the order of sizes, then by profile, class and domain."""
    sizes = list(dict.fromkeys(frame["size"]))
    ranks = [
        (METHODS.index(m) if m in METHODS else len(METHODS), sizes.index(s), profile_key(p), k, d)
        for m, s, p, k, d in frame[[*ROW[:3], "class", "domain"]].itertuples(index=False, name=None)
    ]
    return frame.iloc[sorted(range(len(frame)), key=ranks.__getitem__)].reset_index(drop=True)


CALIBRATION = 0.9  # quantile


@dataclass(frozen=True)
class ShadedView:
    """One view of a text: a label, and the increase of every token but the first, over the baseline, in nats."""

    label: str
    increases: np.ndarray  # [T]


@dataclass(frozen=True)
class ShadedText:
    """One text under several views, and the increase that is drawn in full colour."""

    domain: str
    pieces: tuple[str, ...]  # [T + 1]: what each token adds to the text
    baseline: np.ndarray  # [T]: the losses that increases are over
    scale: float  # nats; NaN: nothing is shaded
    views: Sequence[ShadedView]


def shading_scale(increases: np.ndarray) -> float:
    """The increase in full colour, from those of the filtered model on the text [T]; NaN where it is not above 0."""
    scale = float(np.quantile(increases, CALIBRATION))
    return scale if scale > 0.0 else np.nan


def shades(increases: np.ndarray, scale: float) -> np.ndarray:
    """Increases as colour between 0 and 1; 0 without a scale."""
    return np.clip(increases / scale, 0.0, 1.0) if scale == scale else np.zeros(np.shape(increases))
