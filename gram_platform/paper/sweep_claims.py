"""The paper's claims on its three hyperparameter sweeps, judged on ours. Pure.

Source: the text of the paper's "Hyperparameter Appendix" (`app:hyperparams`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gram_platform.paper.paper_sweeps import PAPER_SWEEPS, paper_means
from gram_platform.paper.verdicts import COLUMNS, MARGINS, POSITIVE, Range, alike, judge

CLAIM_COLUMNS = [*COLUMNS, "paper", "source"]

Curve = pd.DataFrame  # of one seed, or the paper: indexed by the knob's value, ascending; a column for each class


@dataclass(frozen=True)
class SweepClaim:
    """Each seed's curve has a difference, which lies in the range."""

    knob: str
    text: str  # {first}, {middle} and {last} are values of the knob
    names: tuple[str, ...]  # the classes that it needs
    difference: Callable[[Curve], float]  # NaN where the sweep lacks a value that it needs
    within: Range = POSITIVE


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
        SweepClaim(
            "p_ca",
            f"p_ca {{first}} and {{last}} have the same {name} within {MARGINS[name]:.2f}",
            (name,),
            _rise(name),
            alike(name),
        )
        for name in ("forget", "elicited")
    ),
)


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
    text = claim.text.format(**{name: f"{value:g}" for name, value in named.items()}) + suffix
    in_paper = claim.difference(paper_means(claim.knob).reindex(values)) if is_papers_method else np.nan
    own = {"paper": in_paper, "source": PAPER_SWEEPS[claim.knob].source}
    return [{**vars(judge(text, found, dict.fromkeys(found, 0.0), claim.within)), **own}]
