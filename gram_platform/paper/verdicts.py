"""Judges claims: agree, disagree, cannot tell, or not measurable here.

A claim states that a seed-paired difference, left - right, lies in a range. The verdict is "agree"
if the 90% t-interval of the mean difference lies entirely inside the range, "disagree" if entirely
outside, otherwise "cannot tell". The unit is the compute ratio. Its error is added in quadrature to
the interval's half-width. If this error reaches the claim's margin, the claim is "not measurable
here" and is also judged in nats. If the error is unknown, there is no verdict.

Published numbers are judged without the unit's error, as in the paper. One or two seeds have no
interval, so the mean difference and the unit's error decide. NO_INTERVAL then follows "agree" or
"disagree".
"""

import math
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import product

import numpy as np
import pandas as pd

from gram_platform.analysis.calibration import (
    NOT_KNOWN,
    NUM_SHARES,
    RATIO_LAGS,
    UnitErrors,
    effective_freedom,
    errors_by_class,
    load_errors,
)
from gram_platform.analysis.intervals import (
    Interval,
    level_factors,
    pseudo_frame,
    smallest_detectable,
    subtract_pairs,
    t_interval,
    widen,
)
from gram_platform.analysis.localization import CONTROL, FORGET, RETAIN
from gram_platform.analysis.ratios import ALL, MEAN
from gram_platform.analysis.recovery import REACHED, RECOVERY
from gram_platform.analysis.tables import (
    CLASSES,
    NATS,
    NUM_DOMAINS_OF,
    SLOPE,
    find_mean_profiles,
    interval_text,
    pair_means,
    short_text,
)
from gram_platform.analysis.trends import fall_weights
from gram_platform.config.identity import invalid
from gram_platform.methods import size_key
from gram_platform.methods.nodes import BASELINE, VARIANT
from gram_platform.paper.claims import (
    CLAIMS,
    COMPARED,
    FIRST,
    POSITIVE,
    Claim,
    Side,
    choose_value,
    paper_difference,
)
from gram_platform.paper.paper import JUDGED_BY, load_published

AGREE, DISAGREE, CANNOT_TELL = "agree", "disagree", "cannot tell"
NOT_MEASURABLE = "not measurable here"
NO_INTERVAL = " (no interval)"
ALWAYS_COUNTED = (AGREE, DISAGREE, CANNOT_TELL)
COUNTED = {AGREE: "confirmed here", DISAGREE: "contradicted", CANNOT_TELL: "undecided"}
COUNTED[NOT_MEASURABLE] = NOT_MEASURABLE
VERDICTS = (*ALWAYS_COUNTED, NOT_MEASURABLE, AGREE + NO_INTERVAL, DISAGREE + NO_INTERVAL)
IN_WORDS = {AGREE: "yes", DISAGREE: "no"}
IN_WORDS |= {
    verdict + NO_INTERVAL: f"{word}, without interval" for verdict, word in IN_WORDS.items()
}
UNJUDGED_PRESET = "smoke"
TOO_LITTLE = (
    "This preset shows that everything runs. Its models have seen too little text to judge a claim."
)
UNIT_ERROR, PROFILE, EXPLANATION, HOLM = "unit_error", "profile", "explanation", "holm_verdict"
WITHIN, POINTS, SAID, UNIT = "within", "points", "published_in_words", "unit"
UNWRITTEN = [WITHIN, POINTS, SAID, UNIT]
# {seed: value}.
Values = Mapping[Hashable, float]
VERDICT_COLUMNS = ["claim", PROFILE, "size", VARIANT, "verdict", "difference", "low", "high"]
# Text, value, and (method, class) of both sides; "" is the judged method.
LOCALIZATION_CLAIMS = (
    ("forgotten domains lose more than retained ones", "increase", ("", FORGET), ("", RETAIN)),
    (
        "increases on forgotten domains are less even than between two seeds of the baseline",
        "gini",
        ("", FORGET),
        (BASELINE, CONTROL),
    ),
)


@dataclass(frozen=True)
class Judgement:
    """A claim, its verdict, and the numbers behind it."""

    claim: str
    # One of VERDICTS, or "".
    verdict: str
    # The mean of left - right over the shared seeds.
    difference: float
    # The interval over seeds, without the unit's error, or NaN.
    low: float
    high: float
    # The half-width of the unit's 90% interval, in compute ratio; NaN if unknown.
    unit_error: float
    num_seeds: int
    # The `smallest_detectable` difference, or NaN.
    detectable: float
    within: pd.Interval = POSITIVE
    # The differences, if there are two seeds.
    points: tuple[float, ...] = ()
    # The column of times; "" for compute ratios.
    unit: str = ""


JUDGEMENT_COLUMNS = [field.name for field in fields(Judgement)]
PAPER_COLUMNS = [*JUDGEMENT_COLUMNS, PROFILE, "paper", "source", "size", VARIANT, EXPLANATION]
NATS_VERDICT = "nats_verdict"
CLAIM_NATS = (NATS_VERDICT, "nats_difference", "nats_low", "nats_high", "nats_margin")
PAPER_COLUMNS += CLAIM_NATS


def judge(
    claim: str,
    left: Values,
    right: Values,
    within: pd.Interval = POSITIVE,
    unit_error: float | None = None,
    pseudo: tuple[Values, Values] | None = None,
) -> Judgement:
    """Judges the claim that the mean of `left - right` over seeds lies in the range `within`.

    `left` and `right` are `{seed: value}`. They must share a seed and have only finite values.
    `pseudo` has both sides' jackknife pseudo-values (default: `left` and `right`), which set the
    interval's width. If a seed has no pseudo-value, there is no interval. `unit_error`, in compute
    ratio, widens the interval. If it is NaN, there is no verdict.
    """
    differences = subtract_pairs(left, right)
    values = spread = list(differences.values())
    if pseudo is not None:
        spread = [
            pseudo[0].get(seed, math.nan) - pseudo[1].get(seed, math.nan) for seed in differences
        ]
    interval = t_interval(values, spread)
    error = math.nan if unit_error is None else unit_error
    verdict = _decide(widen(interval, error), within)
    if unit_error is not None and math.isnan(error):
        verdict = ""
    elif error >= margin(within):
        verdict = NOT_MEASURABLE
    elif math.isnan(interval.low) and verdict != CANNOT_TELL:
        verdict += NO_INTERVAL
    detectable = math.nan if math.isnan(interval.low) else smallest_detectable(spread, error)
    points = tuple(values) if len(values) == 2 else ()
    return Judgement(claim, verdict, *interval, error, len(values), detectable, within, points)


def judge_times(
    claim: str, left: Values, right: Values, reached: tuple[Values, Values], within: pd.Interval
) -> Judgement:
    """Judges the claim that `left - right`, a difference of recovery times, lies in `within`.

    The interval is over seeds only. `reached` has each side's {seed: share of the attacks that
    reached the mark of 50% or 90%}. If a share is below 1, the seed's time is a lower bound. The
    verdict is then "cannot tell" in three cases: both sides have bounds, a bound does not exceed
    all times of the other side, or longer times could change the verdict.
    """
    judgement, seeds = judge(claim, left, right, within), set(left) & set(right)
    bounds = [
        [side[seed] for seed in seeds if share[seed] < 1.0]
        for side, share in zip((left, right), reached, strict=True)
    ]
    if not any(bounds):
        return judgement
    difference, low, high = judgement.difference, judgement.low, judgement.high
    if is_single := math.isnan(low):
        low = high = difference
    if bounds[1] or min(bounds[0]) <= max(right[seed] for seed in seeds):
        low = -sys.float_info.max
    if bounds[0] or min(bounds[1]) <= max(left[seed] for seed in seeds):
        high = sys.float_info.max
    verdict = _decide(Interval(difference, low, high), within)
    if verdict == CANNOT_TELL:
        return replace(judgement, verdict=verdict, low=math.nan, high=math.nan, detectable=math.nan)
    return replace(judgement, verdict=verdict + NO_INTERVAL * is_single)


def margin(within: pd.Interval) -> float:
    """Returns the distance from 0 to the nearest nonzero end of the range, or infinity."""
    return min(abs(end) for end in (within.left, within.right) if end)


def _decide(interval: Interval, within: pd.Interval) -> str:
    mean, low, high = interval
    low, high = (mean, mean) if math.isnan(low) else (low, high)
    if within.left < low and high < within.right:
        return AGREE
    return DISAGREE if high < within.left or low > within.right else CANNOT_TELL


def verdicts_text(counts: Mapping[str, int]) -> str:
    """Formats how many claims have each verdict: "Of 3 claims 2 are confirmed here, ..."."""
    total = sum(counts.values())
    numbers = {words: counts.get(verdict, 0) for verdict, words in COUNTED.items()}
    numbers["not judged"] = total - sum(numbers.values())
    parts = [
        f"{number or 'none'} {'are' if number > 1 else 'is'} {words}"
        for words, number in numbers.items()
        if number or words in (COUNTED[AGREE], COUNTED[DISAGREE])
    ]
    return f"Of {total} claim{'s' * (total != 1)} {', '.join(parts)}."


def claims_frame(judgements: Sequence[Judgement]) -> pd.DataFrame:
    return pd.DataFrame([vars(judgement) for judgement in judgements], columns=JUDGEMENT_COLUMNS)


def seed_values(per_seed: pd.DataFrame, name: str, **where: str) -> dict[str, float]:
    """Returns `{seed: value}` from the column `name` of the rows that match `where`.

    Omits unknown values. Raises ValueError if a seed has several rows.
    """
    rows = per_seed[per_seed[name].notna()]
    for column, value in where.items():
        rows = rows[rows[column] == value]
    if rows["seed"].duplicated().any():
        raise invalid("where", where, "columns that leave one row for each seed")
    return dict(zip(rows["seed"], rows[name].astype(float), strict=True))


def separation_claims(
    per_seed: pd.DataFrame, unit_error: UnitErrors | None = None
) -> list[Judgement]:
    """Judges for each method and size whether mean retain is above mean forget.

    For `unit_error` see `paper_claims`.
    """
    judgements, names = [], ("retain", "forget")
    frames = per_seed, pseudo_frame(per_seed, CLASSES)
    for method, size in dict.fromkeys(zip(per_seed["method"], per_seed["size"], strict=True)):
        where = {"method": method, "size": size, "profile": MEAN}
        sides, pseudo = ([seed_values(of, name, **where) for name in names] for of in frames)
        if sides[0].keys() & sides[1]:
            claim = separation(method, size)
            error = _unit_error(unit_error, claim, size, {})
            judgements.append(judge(claim.text, *sides, unit_error=error, pseudo=pseudo))
    return judgements


def separation(method: str, size: str) -> Claim:
    """Returns the claim "retain is above forget", for studies without claims in the paper."""
    text = f"{method}, {size}: retain is above forget"
    return Claim(text, Side(method, "retain"), Side(method, "forget"))


def choose_profile(rows: pd.DataFrame) -> str:
    """Returns the most frequent profile that retains a domain, or MEAN if there is none.

    `rows` are from a table or a `per_seed` frame. A profile counts once per method and size.
    Ignores the baseline and the profile of all modules.
    """
    rows = rows[
        ~rows["profile"].isin([ALL, MEAN]) & rows["retain"].notna() & (rows["method"] != BASELINE)
    ]
    counts = rows.drop_duplicates(["method", "size", "profile"]).groupby("profile").size()
    return MEAN if counts.empty else str(counts.idxmax())


def paper_claims(
    per_seed: pd.DataFrame,
    study: str,
    compared: str = "",
    unit_error: UnitErrors | None = None,
    parameters: Mapping[str, float] | None = None,
) -> pd.DataFrame:
    """Judges the paper's claims on a study. Returns PAPER_COLUMNS.

    If a claim names no size or variant, judges it at every size or variant. `compared` replaces the
    profile COMPARED (default: `choose_profile`). `unit_error` has the known errors by size and
    class. If it is None, intervals are over seeds only. `parameters` has the parameter counts of
    sizes whose names do not contain them.

    The column `paper` is the left side minus the right side in the paper's table. If a claim is not
    measurable in this study, EXPLANATION lists corpora and sizes at which it would be. A claim has
    no row if no seed has both of its sides.
    """
    rows, spread = [], pseudo_frame(per_seed, CLASSES)
    in_nats = [
        per_seed.assign(**{n: per_seed.get(n + suffix, math.nan) for n in CLASSES})
        for suffix in (NATS, SLOPE)
    ]
    compared = compared or choose_profile(per_seed)
    sizes, variants = _values(per_seed, "size"), _values(per_seed, VARIANT)
    numbers = [(parameters or {}).get(size) or size_key(size)[1] for size in sizes]
    places = dict(zip(sizes, np.log(numbers) if all(numbers) else range(len(sizes)), strict=True))
    for claim in CLAIMS[study]:
        # Recovery times exist only for attacks with curves.
        if (name := claim.left.name) not in per_seed:
            continue
        claim = replace(claim, profile=compared) if claim.profile == COMPARED else claim
        # "" if the claim has its own.
        at_sizes = ("",) if claim.left.size else sizes
        at_variants = ("",) if claim.left.variant else variants
        for size, variant in product(at_sizes, at_variants):
            left, right = _sides(per_seed, claim, size, variant)
            pseudo, weights = _sides(spread, claim, size, variant), {}
            if claim.left.size and left and right:
                weights, falls = _falls((per_seed, spread), claim, places, variant)
                right = dict.fromkeys(falls[0], 0.0)
                left, pseudo = falls[0], (falls[1], right)
            if left.keys() & right:
                profiles = dict.fromkeys(side.profile or claim.profile for side in claim.terms)
                row = {PROFILE: " and ".join(profiles), "paper": math.nan, "source": claim.source}
                row |= {"size": size, VARIANT: variant, EXPLANATION: ""}
                # The paper's tables have one size.
                if not claim.left.size:
                    row["paper"] = paper_difference(study, claim, variant, variants)
                if name in RECOVERY:
                    reached = per_seed[REACHED + name.split("_")[-1]]
                    shares = _sides(per_seed.assign(**{name: reached}), claim, size, variant)
                    row |= vars(judge_times(claim.text, left, right, shares, claim.within))
                    row[UNIT] = name
                else:
                    error = _unit_error(unit_error, claim, size, weights)
                    row |= vars(judge(claim.text, left, right, claim.within, error, pseudo))
                nats = _judge_in_nats(in_nats, claim, size, variant)
                if row["verdict"] == NOT_MEASURABLE:
                    row[EXPLANATION] = _say_where_decidable(claim)
                else:
                    nats[NATS_VERDICT] = ""
                rows.append(row | nats)
    return pd.DataFrame(rows, columns=PAPER_COLUMNS)


def _unit_error(
    errors: UnitErrors | None, claim: Claim, size: str, weights: Mapping[str, float]
) -> float | None:
    """Returns the error that the unit adds to a claim's difference, or NaN if it is unknown.

    If the claim is about one class at one size and variant, both ratios are read off the same
    curves, so the error is `UnitError.difference`. Otherwise, adds both sides' errors in
    quadrature. For a fall over sizes, adds the errors of all sizes, multiplied by `weights`.
    """
    if errors is None:
        return None
    ends = [(size, end.name) for end in (claim.left, claim.right)]
    if weights:
        known = [errors.get((at, claim.left.name), NOT_KNOWN).ratio for at in weights]
        return math.hypot(*np.multiply(known, [*weights.values()]))
    if _is_one_class(claim):
        return errors.get(ends[0], NOT_KNOWN).difference
    return math.hypot(*(errors.get(end, NOT_KNOWN).ratio for end in ends))


def _is_one_class(claim: Claim) -> bool:
    places = {(side.size, side.variant, side.name) for side in claim.terms}
    return len(places) == 1 and claim.left.name in CLASSES


def _judge_in_nats(
    frames: Sequence[pd.DataFrame], claim: Claim, size: str, variant: str
) -> dict[str, str | float]:
    """Judges a claim in nats. Returns {column: value} for CLAIM_NATS.

    If the claim has no margin, or is not about one class at one size and variant, the verdict is ""
    and the numbers are NaN. `frames` are two frames like `per_seed`. In place of ratios, the first
    has losses, and the second has slopes (ratio per nat). The claim's range is converted to nats:
    its ends are divided by the right side's mean slope, and negated as a lower loss is better.
    """
    numbers = ("", *[math.nan] * 4)
    if math.isfinite(margin(claim.within)) and _is_one_class(claim):
        (left, right), (_, slopes) = (_sides(frame, claim, size, variant) for frame in frames)
        if slopes and left.keys() & right:
            slope = float(np.mean([*slopes.values()]))
            ends = -claim.within.right / slope, -claim.within.left / slope
            within = pd.Interval(*ends, closed="neither")
            nats = judge("", left, right, within)
            numbers = nats.verdict, nats.difference, nats.low, nats.high, margin(within)
    return dict(zip(CLAIM_NATS, numbers, strict=True))


def _say_where_decidable(claim: Claim) -> str:
    places = []
    for (corpus, size), rows in load_errors().groupby(["corpus", "size"], sort=False):
        errors = errors_by_class(rows.to_dict("records"))
        if _unit_error(errors, claim, size, {}) < margin(claim.within):
            places.append(f"{corpus} at {size}")
    return f"The unit is fine enough on {', '.join(places) or 'no text and size measured so far'}."


def _falls(
    frames: Sequence[pd.DataFrame], claim: Claim, places: Mapping[str, float], variant: str
) -> tuple[dict[str, float], list[dict[str, float]]]:
    """Computes how far a least-squares line through a claim's left side falls over the sizes.

    The fall is a weighted sum of the values. Returns ({size: weight}, a list with {seed: fall} for
    each frame). Uses only sizes with values in the first frame, and seeds with all these sizes.
    """
    sides = {size: replace(claim.left, size=size) for size in places}
    claims = {size: replace(claim, left=side, right=side) for size, side in sides.items()}
    values = [{z: _sides(of, claims[z], z, variant)[0] for z in places} for of in frames]
    sizes = [size for size in places if values[0][size]]
    weights = dict(zip(sizes, fall_weights([places[size] for size in sizes]), strict=True))
    falls = []
    for of in values:
        seeds = set.intersection(*(set(of[size]) for size in sizes))
        falls.append({seed: sum(of[z][seed] * w for z, w in weights.items()) for seed in seeds})
    return weights, falls


def _values(per_seed: pd.DataFrame, column: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(per_seed[column])) if column in per_seed else ("",)


def _sides(per_seed: pd.DataFrame, claim: Claim, size: str, variant: str) -> tuple[dict, dict]:
    """Returns two dicts `{seed: value}`, for the left and the right side of a claim.

    If a side's profile is MEAN, averages over the profiles that all sides share. They have at most
    one auxiliary domain, and a domain of the side's class. A baseline's values are from its row
    `mean` instead. If the claim compares the first and last size or variant, but the study has only
    one, both dicts are empty.
    """
    rows_of = {side: _select_side(per_seed, side, size, variant) for side in claim.terms}
    names_ends = any(FIRST in (side.size, side.variant) for side in rows_of)
    if names_ends and rows_of[claim.left].index.equals(rows_of[claim.right].index):
        return {}, {}
    at = {side: side.profile or claim.profile for side in rows_of}
    averaged = {s: rows for s, rows in rows_of.items() if at[s] == MEAN and s.method != BASELINE}
    profiles = list(filter(None, map(find_mean_profiles, averaged.values())))
    shared = frozenset.intersection(*profiles) if profiles else frozenset()
    of_class = dict.fromkeys((side.name for side in averaged), shared)
    for side, rows in averaged.items():
        of_class[side.name] &= frozenset(rows.loc[rows[NUM_DOMAINS_OF[side.name]] > 0, "profile"])
    known = {
        side: _average_profiles(rows, side, of_class[side.name])
        if side in averaged
        else seed_values(rows, side.name, profile=at[side])
        for side, rows in rows_of.items()
    }
    left, right = (
        subtract_pairs(known[side], known[side.less]) if side.less else known[side]
        for side in (claim.left, claim.right)
    )
    return left, right


def _select_side(per_seed: pd.DataFrame, side: Side, size: str, variant: str) -> pd.DataFrame:
    rows = per_seed[per_seed["method"] == side.method]
    for column, value in (("size", side.size or size), (VARIANT, side.variant or variant)):
        if column in rows and value:
            rows = rows[rows[column] == choose_value(value, _values(per_seed, column))]
    return rows


def _average_profiles(rows: pd.DataFrame, side: Side, profiles: frozenset[str]) -> dict[str, float]:
    seeds = rows[rows["profile"].isin(profiles)].groupby("seed")
    whole = {seed: views for seed, views in seeds if set(views["profile"]) == profiles}
    means = {seed: pair_means(views, side.name) for seed, views in whole.items()}
    return {seed: mean for seed, mean in means.items() if not math.isnan(mean)}


def localization_claims(per_seed: pd.DataFrame) -> pd.DataFrame:
    """Judges LOCALIZATION_CLAIMS for each method and size, on the profile MEAN."""
    judgements, means = [], per_seed[per_seed["profile"] == MEAN]
    for method, size in dict.fromkeys(zip(means["method"], means["size"], strict=True)):
        for text, name, *sides in LOCALIZATION_CLAIMS:
            left, right = (
                seed_values(means, name, method=who or method, size=size, **{"class": kind})
                for who, kind in sides
            )
            if left.keys() & right:
                judgements.append(judge(f"{method}, {size}: {text}", left, right))
    return claims_frame(judgements).assign(profile=MEAN)


@cache
def judge_published(study: str) -> pd.DataFrame:
    """Judges a study's claims on the published numbers. Returns VERDICT_COLUMNS.

    For a claim without published numbers in `study`, uses the numbers of the studies that
    JUDGED_BY maps to `study`.
    """
    others = [name for name, claims in JUDGED_BY.items() if claims == study]
    rows = pd.concat([paper_claims(load_published(n), study) for n in (study, *others)])
    rows = rows.drop_duplicates(["claim", "size", VARIANT], ignore_index=True)
    return rows[VERDICT_COLUMNS]


def with_published(claims: pd.DataFrame, study: str) -> pd.DataFrame:
    """Adds the published verdicts to `claims`.

    The column `published` has the verdict and difference. SAID has the same in the report's words.
    If the claim's size is not published, both cover all published sizes. If there is a published
    difference, the column `paper` (from the printed means) becomes NaN.
    """
    theirs = judge_published(study)
    keys = list(zip(claims["claim"], claims["size"], claims[VARIANT], strict=True))
    words = [_say_published(theirs, *key) for key in keys]
    plain = theirs.replace({"verdict": IN_WORDS})
    said = [_say_published(plain, *key, short_text) for key in keys]
    paper = claims["paper"].astype(float).where([not text for text in words])
    columns = {"published": words, SAID: said}
    texts = {n: pd.Series(of, claims.index, dtype=object) for n, of in columns.items()}
    return claims.assign(paper=paper, **texts)


def _say_published(
    theirs: pd.DataFrame, claim: str, size: str, variant: str, write: Callable = interval_text
) -> str:
    rows = theirs[(theirs["claim"] == claim) & (theirs[VARIANT] == variant)]
    if (rows["size"] == size).any():
        rows = rows[rows["size"] == size]
    if len(rows) > 1:
        sizes = rows.groupby("verdict", sort=False)["size"].agg(", ".join)
        judged = "; ".join(f"{verdict} at {names}" for verdict, names in sizes.items())
        return f"{judged}; {rows['difference'].min():.3f} to {rows['difference'].max():.3f}"
    rows = rows[["verdict", "difference", "low", "high"]].itertuples(index=False)
    return "".join(f"{verdict}, {write(*numbers)}" for verdict, *numbers in rows)


def conclude(claims: pd.DataFrame, preset: str) -> pd.DataFrame:
    """Appends EXPLANATION, HOLM (corrected verdicts) and CLAIM_NATS as last columns.

    If `preset` is UNJUDGED_PRESET, clears verdicts and explanations.
    """
    if preset == UNJUDGED_PRESET:
        judged = claims.columns.intersection(["verdict", EXPLANATION, NATS_VERDICT])
        claims = claims.assign(**dict.fromkeys(judged, ""))
    last = {EXPLANATION: claims.get(EXPLANATION, ""), HOLM: _correct_verdicts(claims)}
    last |= {name: claims[name] for name in CLAIM_NATS if name in claims}
    return claims.drop(columns=[*last], errors="ignore").assign(**last)


def in_family(claims: pd.DataFrame) -> pd.Series:
    """Returns a mask of the claims judged by an interval. Holm's correction counts only these."""
    return claims["verdict"].isin(ALWAYS_COUNTED) & claims["low"].notna()


def _correct_verdicts(claims: pd.DataFrame) -> pd.Series:
    """Returns the verdicts corrected for the number of claims. Source: Holm (1979).

    The claims of `in_family` are one family. At most 5% of families have a false "agree", and at
    most 5% a false "disagree". A claim passes level j if it keeps its verdict with an interval
    widened for j comparisons (`level_factors`). The k-th strongest of n claims must pass level
    n + 1 - k. If a claim or any stronger claim fails, its verdict becomes CANNOT_TELL.
    """
    verdicts = claims["verdict"].mask(claims["verdict"].str.endswith(NO_INTERVAL), CANNOT_TELL)
    family = claims[in_family(claims)]
    number = len(family)
    # Widths by claim and level, [n, n].
    seeds, unit = family[["num_seeds"]].to_numpy() - 1, effective_freedom(NUM_SHARES, RATIO_LAGS)
    of_seeds, of_unit = level_factors(number, seeds), level_factors(number, unit)
    spread = (family[["high"]].to_numpy() - family[["low"]].to_numpy()) / 2.0
    halves = np.hypot(spread * of_seeds, family[[UNIT_ERROR]].fillna(0.0).to_numpy() * of_unit)
    ends = np.reshape([(within.left, within.right) for within in family[WITHIN]], (-1, 2))
    inside = ((family[["difference"]].to_numpy() - ends) * (1.0, -1.0)).min(axis=1)
    verdicts[family.index] = CANNOT_TELL
    for verdict, gap in ((AGREE, inside), (DISAGREE, -inside)):
        passed = (gap[:, None] > halves).sum(axis=1)
        order = np.argsort(-passed, kind="stable")
        stays = np.logical_and.accumulate(passed[order] >= number - np.arange(number))
        verdicts[family.index[order[stays]]] = verdict
    return verdicts
