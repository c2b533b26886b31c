"""What a claim is: the difference of two sides, which lies in a range; and the forms that several claims have."""

from dataclasses import dataclass

from gram_platform.analysis.ratios import ALL
from gram_platform.analysis.tables import CLASSES
from gram_platform.paper.verdicts import MARGINS, POSITIVE, Range, alike, not_above, not_below

WORDS = {"elicited": "elicited forget"}


@dataclass(frozen=True)
class Side:
    """A class of a method's compute ratios, averaged within a seed over profiles."""

    method: str
    name: str  # of CLASSES
    profile: str = ""  # "": those of at most one auxiliary domain that both sides' methods have
    variant: str = ""  # "": each in turn
    size: str = ""  # "": each in turn
    less: "Side | None" = None  # what is taken off it, seed by seed: the side is then a drop, or a gain


@dataclass(frozen=True)
class Claim:
    """`left - right` lies `within` the range."""

    text: str
    left: Side
    right: Side
    source: str  # label in the paper
    within: Range = POSITIVE

    @property
    def terms(self) -> tuple[Side, ...]:
        """Everything that it compares, each once."""
        return tuple(dict.fromkeys(t for side in (self.left, self.right) for t in (side, side.less) if t is not None))


def follows(label: str, left: str, other: str, right: str, source: str) -> tuple[Claim, ...]:
    """ "LABEL is no worse than OTHER", by class: core and retain not below, forget and elicited not above."""
    ways = {n: ("below", not_below) if n in ("core", "retain") else ("above", not_above) for n in CLASSES}
    texts = {n: f"{label}'s {WORDS.get(n, n)} is no more than {MARGINS[n]:.2f} {ways[n][0]} {other}'s" for n in CLASSES}
    return tuple(Claim(texts[n], Side(left, n), Side(right, n), source, ways[n][1](n)) for n in CLASSES)


def same(label: str, left: str, other: str, right: str, source: str) -> tuple[Claim, ...]:
    """ "LABEL and OTHER are alike", by class, either way."""
    texts = {n: f"{label} and {other} have the same {WORDS.get(n, n)} within {MARGINS[n]:.2f}" for n in CLASSES}
    return tuple(Claim(texts[n], Side(left, n), Side(right, n), source, alike(n)) for n in CLASSES)


def drop(method: str, name: str) -> Side:
    """What a class loses from at most one module to all."""
    return Side(method, name, less=Side(method, name, profile=ALL))


def gain(method: str, name: str) -> Side:
    """What a class gains by heterogeneous accumulation."""
    return Side(method, name, variant="heterogeneous", less=Side(method, name, variant="uniform"))
