"""The claims of a study, judged on its seeds: each is a difference of sides that lies in a range (see `verdicts`)."""

import math
from collections.abc import Mapping

import pandas as pd

from gram_platform.analysis.localization import CONTROL, FORGET, RETAIN
from gram_platform.analysis.ratios import BASELINE, MEAN, VARIANT
from gram_platform.analysis.tables import NUM_DOMAINS, averaged_profiles, pair_means
from gram_platform.config.identity import invalid
from gram_platform.paper.paper_claims import CLAIMS, FIRST, chosen, paper_difference
from gram_platform.paper.verdicts import COLUMNS, Claim, Judgement, Side, claims_frame, judge

PAPER_COLUMNS = [*COLUMNS, "paper", "source", "size", VARIANT]


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
            judgements.append(judge(f"{method}, {size}: retain is above forget", retain, forget))
    return judgements


def paper_claims(per_seed: pd.DataFrame, study: str) -> pd.DataFrame:
    """Every claim of the paper's that belongs to a study (`paper_claims.CLAIMS`) and that `per_seed` has both sides of.

    One row a claim, and one for each size and variant that the claim leaves open, as `claims_frame`, with `paper` (the
    difference in the paper's table), `source`, and `size` and `variant` it was judged at. A side is the seed's mean
    over the profiles of at most one auxiliary domain that both methods have, or of one profile; a claim of which no
    seed has both sides is absent.
    """
    rows = []
    for claim in CLAIMS[study]:
        for size, variant in _places(per_seed, claim):
            left, right = _sides(per_seed, claim, size, variant)
            if set(left) & set(right):
                own = {"paper": _paper_difference(per_seed, study, claim, variant), "source": claim.source}
                rows.append(
                    {**vars(judge(claim.text, left, right, claim.within)), **own, "size": size, VARIANT: variant}
                )
    return pd.DataFrame(rows, columns=PAPER_COLUMNS)


def _paper_difference(per_seed: pd.DataFrame, study: str, claim: Claim, variant: str) -> float:
    """Claims about sizes are not in the paper's tables of one size."""
    return math.nan if claim.left.size else paper_difference(study, claim, variant, _values(per_seed, VARIANT))


def _places(per_seed: pd.DataFrame, claim: Claim) -> list[tuple[str, str]]:
    """Sizes and variants that a claim is judged at: "" where its sides name their own."""
    sizes, variants = _values(per_seed, "size"), _values(per_seed, VARIANT)
    return [
        (size, variant)
        for size in (("",) if claim.left.size else sizes)
        for variant in (("",) if claim.left.variant else variants)
    ]


def _values(per_seed: pd.DataFrame, column: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(per_seed[column])) if column in per_seed else ("",)


def _sides(per_seed: pd.DataFrame, claim: Claim, size: str, variant: str) -> tuple[dict, dict]:
    """`{seed: value}` of both sides of a claim.

    All that it compares is taken over the same profiles, unless it names one; the baseline's are its own. Of two
    classes each is taken over those of these profiles that have it. Empty where the first size, or variant, is also the
    last.
    """
    rows_of = {side: _where(per_seed, side, size, variant) for side in claim.terms}
    names_ends = any(FIRST in (side.size, side.variant) for side in rows_of)
    if names_ends and rows_of[claim.left].index.equals(rows_of[claim.right].index):
        return {}, {}
    averaged = {side: rows for side, rows in rows_of.items() if not side.profile and side.method != BASELINE}
    found = [profiles for profiles in map(averaged_profiles, averaged.values()) if profiles]
    shared = frozenset.intersection(*found) if found else frozenset()
    of_class = dict.fromkeys((side.name for side in averaged), shared)
    for side, rows in averaged.items():
        of_class[side.name] &= _having(rows, side.name)
    known = {side: _side(rows, side, of_class.get(side.name, shared)) for side, rows in rows_of.items()}
    left, right = (_less(known[side], known.get(side.less)) for side in (claim.left, claim.right))
    return left, right


def _less(values: Mapping[str, float], less: Mapping[str, float] | None) -> dict[str, float]:
    """`{seed: value - less}` over the seeds of both; the values where nothing is taken off."""
    return dict(values) if less is None else {seed: values[seed] - less[seed] for seed in values if seed in less}


def _having(rows: pd.DataFrame, name: str) -> frozenset[str]:
    """The profiles of rows of a `per_seed` frame that have a class, known or not."""
    return frozenset(rows.loc[rows[NUM_DOMAINS[name]] > 0, "profile"])


def _where(per_seed: pd.DataFrame, side: Side, size: str, variant: str) -> pd.DataFrame:
    """The rows of a side's method, size and variant."""
    rows = per_seed[per_seed["method"] == side.method]
    for column, value in (("size", side.size or size), (VARIANT, side.variant or variant)):
        if column in rows and value:
            rows = rows[rows[column] == chosen(value, _values(per_seed, column))]
    return rows


def _side(rows: pd.DataFrame, side: Side, profiles: frozenset[str]) -> dict[str, float]:
    """`{seed: mean of the class over the profiles' domains}`; a seed that lacks a profile, or of which one is unknown,
    is left out.
    """
    if side.profile or side.method == BASELINE:
        return seed_values(rows, side.name, profile=side.profile or MEAN)
    seeds = rows[rows["profile"].isin(profiles)].groupby("seed")
    means = {seed: pair_means(own, side.name) for seed, own in seeds if set(own["profile"]) == profiles}
    return {seed: mean for seed, mean in means.items() if not math.isnan(mean)}


def localization_claims(per_seed: pd.DataFrame) -> pd.DataFrame:
    """What the paper observes, for every method: the ablated capability's loss rises and sits on few tokens, and with
    the capability active the rise is gone. One row a claim, as `claims_frame`.
    """
    judgements, means = [], per_seed[per_seed["profile"] == MEAN]
    for method, size in dict.fromkeys(zip(means["method"], means["size"], strict=True)):
        of = lambda name, kind, who=method, size=size: seed_values(  # noqa: E731
            means, name, method=who, size=size, **{"class": kind}
        )
        sides = {
            "forgotten domains lose more than retained ones": (of("increase", FORGET), of("increase", RETAIN)),
            "increases on forgotten domains are less even than between two seeds of the baseline": (
                of("gini", FORGET),
                of("gini", CONTROL, BASELINE),
            ),
        }
        for text, (left, right) in sides.items():
            if set(left) & set(right):
                judgements.append(judge(f"{method}, {size}: {text}", left, right))
    return claims_frame(judgements)
