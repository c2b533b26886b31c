"""Judges claims: whether the runs agree, disagree, or cannot tell.

A claim says that a seed-paired difference, left - right, lies in a range. The verdict is "agree" if the 90% t-interval
of the mean difference lies wholly inside the range, "disagree" if wholly outside. Most ranges are "above zero". "No
worse than" is one-sided, with the same margin in every study: core and retain may be a little lower, forget and
elicited a little higher. One seed has no interval: the verdict then rests on the difference alone, and says so. Each
verdict comes with the smallest true difference that as many seeds with this spread would show.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from gram_platform.analysis.intervals import Interval, paired_differences, smallest_detectable, t_interval
from gram_platform.analysis.ratios import ALL
from gram_platform.analysis.tables import CLASSES

AGREE, DISAGREE, CANNOT_TELL = "agree", "disagree", "cannot tell"
NO_INTERVAL = " (no interval)"  # appended to the verdict of one seed
VERDICTS = (AGREE, DISAGREE, CANNOT_TELL, AGREE + NO_INTERVAL, DISAGREE + NO_INTERVAL)
BELOW, ABOVE = 0.06, 0.10  # margins in compute ratio: this much worse still counts as no worse
MARGINS = {"core": BELOW, "retain": BELOW, "forget": ABOVE, "elicited": ABOVE}
WORDS = {"elicited": "elicited forget"}  # of a class in texts, if not its name
COLUMNS = ["claim", "verdict", "difference", "low", "high", "num_seeds", "detectable"]
EXPLANATION = "explanation"  # column of claims
Values = Mapping[Hashable, float]  # {seed: value}


POSITIVE = pd.Interval(0.0, math.inf, closed="neither")


def not_below(name: str) -> pd.Interval:
    """Returns the range "a class (usually core or retain) is no more than its margin below the other side"."""
    return pd.Interval(-MARGINS[name], math.inf, closed="neither")


def not_above(name: str) -> pd.Interval:
    """Returns the range "a class (usually forget or elicited) is no more than its margin above the other side"."""
    return pd.Interval(-math.inf, MARGINS[name], closed="neither")


def alike(name: str) -> pd.Interval:
    """Returns the range "a class differs by less than its margin, either way"."""
    return pd.Interval(-MARGINS[name], MARGINS[name], closed="neither")


@dataclass(frozen=True)
class Side:
    """A class of a method's compute ratios, averaged within a seed over profiles."""

    method: str
    name: str  # of CLASSES
    profile: str = ""  # "": the mean over profiles with at most one auxiliary domain that both sides' methods have
    variant: str = ""  # "": each in turn
    size: str = ""  # "": each in turn
    less: "Side | None" = None  # subtracted seed by seed: makes the side a drop or a gain


@dataclass(frozen=True)
class Claim:
    """The statement that `left - right` lies `within` the range."""

    text: str
    left: Side
    right: Side
    source: str  # label in the paper
    within: pd.Interval = POSITIVE

    @property
    def terms(self) -> tuple[Side, ...]:
        """The sides and the sides subtracted from them, each once."""
        return tuple(dict.fromkeys(t for side in (self.left, self.right) for t in (side, side.less) if t is not None))


def follows(label: str, left: str, other: str, right: str, source: str) -> tuple[Claim, ...]:
    """Claims by class that LABEL is no worse than OTHER: core and retain not below, forget and elicited not above."""
    ways = {n: ("below", not_below) if n in ("core", "retain") else ("above", not_above) for n in CLASSES}
    texts = {n: f"{label}'s {WORDS.get(n, n)} is no more than {MARGINS[n]:.2f} {ways[n][0]} {other}'s" for n in CLASSES}
    return tuple(Claim(texts[n], Side(left, n), Side(right, n), source, ways[n][1](n)) for n in CLASSES)


def same(label: str, left: str, other: str, right: str, source: str) -> tuple[Claim, ...]:
    """Claims by class that LABEL and OTHER differ by less than the margin, either way."""
    texts = {n: f"{label} and {other} have the same {WORDS.get(n, n)} within {MARGINS[n]:.2f}" for n in CLASSES}
    return tuple(Claim(texts[n], Side(left, n), Side(right, n), source, alike(n)) for n in CLASSES)


def drop(method: str, name: str) -> Side:
    """Returns the side "what a class loses from at most one module to all"."""
    return Side(method, name, less=Side(method, name, profile=ALL))


def gain(method: str, name: str) -> Side:
    """Returns the side "what a class gains by heterogeneous accumulation"."""
    return Side(method, name, variant="heterogeneous", less=Side(method, name, variant="uniform"))


@dataclass(frozen=True)
class Judgement:
    """A claim, the verdict, and the numbers behind it."""

    claim: str
    verdict: str  # one of VERDICTS
    difference: float  # mean of left - right over the seeds of both
    low: float  # of the t-interval; NaN with one seed
    high: float
    num_seeds: int
    detectable: float  # smallest true difference that is shown with power 0.8; NaN with one seed


def judge(claim: str, left: Values, right: Values, within: pd.Interval = POSITIVE) -> Judgement:
    """Judges whether left - right, both `{seed: value}`, lies in the range.

    ValueError if they share no seed or a value is not finite.
    """
    differences = list(paired_differences(left, right).values())
    interval = t_interval(differences)
    return Judgement(claim, _verdict(interval, within), *interval, len(differences), smallest_detectable(differences))


def _verdict(interval: Interval, within: pd.Interval) -> str:
    mean, low, high = interval
    low, high, ending = (mean, mean, NO_INTERVAL) if math.isnan(low) else (low, high, "")
    if within.left < low and high < within.right:
        return AGREE + ending
    return DISAGREE + ending if high < within.left or low > within.right else CANNOT_TELL


def verdict_counts(verdicts: Iterable[str]) -> str:
    """Counts verdicts: "9 agree, 1 disagree, 0 cannot tell", then those of one seed, if any."""
    counts = Counter(verdicts)
    return ", ".join(f"{counts[v]} {v}" for v in VERDICTS if counts[v] or not v.endswith(NO_INTERVAL))


def claims_frame(judgements: Sequence[Judgement]) -> pd.DataFrame:
    """Returns a row per judgement, in order, with COLUMNS."""
    return pd.DataFrame([vars(judgement) for judgement in judgements], columns=COLUMNS)


# {(study, preset, the claim's text): why it is disagreed, and the run or command that shows it, in sentences}
Explanations = Mapping[tuple[str, str, str], str]
EXPLANATIONS: Explanations = {
    ("stories", "demo", "MaxEnt recovers almost completely: elicited is no more than 0.10 below the baseline"): (
        "The demo's attack takes 1.3% of a domain; with 5% of it MaxEnt comes to .921 [.817, 1.025] on generated "
        "stories. Shown by the attacks with more text in FINDINGS.md, under every method on stories."
    ),
    ("stories", "demo", "DEMix recovers little: elicited is no more than 0.10 above forget"): (
        "The expert of core has all of core's text and a dense model's width, so it recovers as filtering's model "
        "does, which gains .187 on generated stories. Shown by the table of experiments/stories.py."
    ),
}


def explained(claims: pd.DataFrame, study: str, preset: str, explanations: Explanations = EXPLANATIONS) -> pd.DataFrame:
    """Adds a column `explanation`: the text beside verdicts of "disagree", if there is one, else empty."""
    texts = [
        explanations.get((study, preset, claim), "") if verdict.startswith(DISAGREE) else ""
        for claim, verdict in zip(claims["claim"], claims["verdict"], strict=True)
    ]
    return claims.assign(**{EXPLANATION: pd.Series(texts, claims.index, dtype=object)})
