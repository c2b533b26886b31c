"""Claims and what the runs say about them: agree, disagree, or cannot tell.

A claim is a signed contrast of seed-paired values, "left - right > 0"; it is agreed or disagreed when the 90%
t-interval of the mean difference lies wholly on one side of zero. "Matches" is equivalence: the interval lies wholly
within a stated margin. Beside each stands the smallest true difference that so many seeds with this spread would show.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from gram_platform.analysis.elicited import ELICITED
from gram_platform.analysis.intervals import CONFIDENCE, is_equivalent, paired_contrast, smallest_detectable
from gram_platform.analysis.paper import STORIES_CLAIMS, Claim, paper_difference
from gram_platform.analysis.ratios import BASELINE
from gram_platform.analysis.tables import MEAN, averaged_profiles
from gram_platform.identity import invalid

AGREE, DISAGREE, CANNOT_TELL = "agree", "disagree", "cannot tell"
MARGIN = 0.05  # of "matches", in compute ratio
COLUMNS = ["claim", "verdict", "difference", "low", "high", "num_seeds", "detectable"]

Values = Mapping[Hashable, float]  # {seed: value}


@dataclass(frozen=True)
class Judgement:
    """A claim, the verdict, and the numbers it rests on."""

    claim: str
    verdict: str  # agree, disagree or cannot tell
    difference: float  # mean of left - right over the seeds that both have
    low: float  # of its t-interval; NaN with one seed
    high: float
    num_seeds: int
    detectable: float  # smallest true difference shown with power 0.8; NaN with one seed


def judge_greater(claim: str, left: Values, right: Values, confidence: float = CONFIDENCE) -> Judgement:
    """Judge "left - right > 0", both `{seed: value}`; ValueError when they share no seed or a value is not finite."""
    contrast = paired_contrast(left, right, confidence)
    verdict = AGREE if contrast.interval.low > 0.0 else DISAGREE if contrast.interval.high < 0.0 else CANNOT_TELL
    return _judgement(claim, verdict, contrast, confidence)


def judge_matches(
    claim: str, left: Values, right: Values, margin: float = MARGIN, confidence: float = CONFIDENCE
) -> Judgement:
    """Judge "left matches right within the margin": agreed inside it, disagreed when the interval lies wholly outside.

    ValueError as in `judge_greater`, and for a margin that is not positive.
    """
    contrast = paired_contrast(left, right, confidence)
    low, high = contrast.interval.low, contrast.interval.high
    outside = DISAGREE if low > margin or high < -margin else CANNOT_TELL
    verdict = AGREE if is_equivalent(contrast.interval, margin) else outside
    return _judgement(claim, verdict, contrast, confidence)


def seed_values(per_seed: pd.DataFrame, name: str, **where: str) -> dict[str, float]:
    """`{seed: value}` of column `name` in the rows that match, e.g. `method="gram", size="50M", profile="mean"`.

    Unknown values are left out. ValueError when a seed occurs twice: the match does not name one view.
    """
    rows = per_seed[per_seed[name].notna()]
    for column, value in where.items():
        rows = rows[rows[column] == value]
    if rows["seed"].duplicated().any():
        raise invalid("where", where, "columns that leave one row for each seed")
    return dict(zip(rows["seed"], rows[name].astype(float), strict=True))


def separation_claims(per_seed: pd.DataFrame, profile: str = "mean") -> list[Judgement]:
    """ "Retain - forget > 0" for every method and size of `per_seed` (see `tables.analyse`) that has both classes."""
    judgements = []
    for method, size in dict.fromkeys(zip(per_seed["method"], per_seed["size"], strict=True)):
        where = {"method": method, "size": size, "profile": profile}
        retain, forget = (seed_values(per_seed, name, **where) for name in ("retain", "forget"))
        if set(retain) & set(forget):
            judgements.append(judge_greater(f"{method}, {size}: retain is above forget", retain, forget))
    return judgements


def stories_claims(per_seed: pd.DataFrame) -> pd.DataFrame:
    """Every claim of the paper's Stories section (`paper.STORIES_CLAIMS`) that `per_seed` has both sides of.

    One row a claim and size, as `claims_frame`, with `paper` (the difference in the paper's table) and `source`. A side
    is the seed's mean over the profiles of at most one auxiliary domain that both methods have; a claim of which no
    seed has both sides is absent.
    """
    rows, sizes = [], tuple(dict.fromkeys(per_seed["size"]))
    for size in sizes:
        for claim in STORIES_CLAIMS:
            left, right = _sides(per_seed, claim, size)
            if set(left) & set(right):
                judge = judge_matches if claim.matches else judge_greater
                text = claim.text + (f" within {MARGIN}" if claim.matches else "") + f" ({size})" * (len(sizes) > 1)
                own = {"paper": paper_difference(claim), "source": claim.source}
                rows.append({**vars(judge(text, left, right)), **own})
    return pd.DataFrame(rows, columns=[*COLUMNS, "paper", "source"])


def _sides(per_seed: pd.DataFrame, claim: Claim, size: str) -> tuple[dict, dict]:
    """`{seed: value}` of both sides of a claim, over the same profiles; the baseline's are its own."""
    profiles = [averaged_profiles(per_seed, method, size) for method, _ in (claim.left, claim.right)]
    shared = frozenset.intersection(*(p for p in profiles if p)) if any(profiles) else frozenset()
    return _side(per_seed, claim.left, size, shared), _side(per_seed, claim.right, size, shared)


def _side(per_seed: pd.DataFrame, side: tuple[str, str], size: str, profiles: frozenset[str]) -> dict[str, float]:
    """`{seed: mean of the class over the profiles that define it}`; a seed that lacks one of these is left out."""
    method, name = side
    if method == BASELINE:
        return seed_values(per_seed, name, method=method, size=size, profile=MEAN)
    rows = per_seed[(per_seed["method"] == method) & (per_seed["size"] == size) & per_seed["profile"].isin(profiles)]
    defining = "forget" if name == ELICITED else name  # every view that forgets is attacked
    rows = rows[rows["profile"].isin(set(rows["profile"][rows[defining].notna()]))]
    wide = rows.pivot(index="seed", columns="profile", values=name)
    return wide.dropna().mean(axis="columns").to_dict() if len(wide.columns) else {}


def claims_frame(judgements: Sequence[Judgement]) -> pd.DataFrame:
    """One row a claim, in their order."""
    return pd.DataFrame([vars(judgement) for judgement in judgements], columns=COLUMNS)


def _judgement(claim: str, verdict: str, contrast, confidence: float) -> Judgement:
    mean, low, high = contrast.interval
    detectable = smallest_detectable(contrast.differences, confidence) if len(contrast.seeds) > 1 else math.nan
    return Judgement(claim, verdict, mean, low, high, len(contrast.seeds), detectable)
