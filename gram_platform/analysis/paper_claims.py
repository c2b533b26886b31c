"""The paper's claims, literally: what each says is larger or equal, and where it says so.

A claim compares two sides. Of what a side leaves open (size, variant) the claim is judged at each value that a study
has; FIRST and LAST stand for a study's first and last one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gram_platform.analysis.paper import (
    ACCUMULATION,
    ARCHITECTURE,
    AUX_SCALING,
    PARTIAL_LABELS,
    STORIES,
    paper_value,
)
from gram_platform.analysis.tables import CLASSES

FIRST, LAST = "first", "last"
LABELS = (("gram", "GRAM"), ("filtering", "Filtering"), ("ft_lora", "FT-LoRA"))
SCALING, DUAL_USE, TITRATION = "scaling", "dual_use", "titration"


@dataclass(frozen=True)
class Side:
    """A class of a method's compute ratios, averaged within a seed over profiles."""

    method: str
    name: str  # of CLASSES
    profile: str = ""  # "": those of at most one auxiliary domain that both sides' methods have
    variant: str = ""  # "": each in turn
    size: str = ""  # "": each in turn


@dataclass(frozen=True)
class Claim:
    """`left - right > 0`, or with `matches` equal within the margin."""

    text: str
    left: Side
    right: Side
    source: str  # label in the paper
    matches: bool = False


def _matching(label: str, left: str, other: str, right: str, source: str, names: tuple[str, ...]) -> tuple[Claim, ...]:
    """ "LABEL matches OTHER on each class"."""
    text = {"elicited": "elicited forget"}
    return tuple(
        Claim(f"{label} matches {other} on {text.get(n, n)}", Side(left, n), Side(right, n), source, matches=True)
        for n in names
    )


STORIES_CLAIMS = (  # of means over the profiles of core with at most one domain
    Claim("GRAM: retain is above forget", Side("gram", "retain"), Side("gram", "forget"), "fig:grmoe_vs_filtering"),
    Claim(
        "Filtering: retain is above forget",
        Side("filtering", "retain"),
        Side("filtering", "forget"),
        "fig:grmoe_vs_filtering",
    ),
    *_matching("GRAM", "gram", "filtering", "filtering", "tab:synthetic", CLASSES),
    Claim(
        "GRAM resists the attack: retain is above elicited",
        Side("gram", "retain"),
        Side("gram", "elicited"),
        "app:stories",
    ),
    Claim(
        "The attack undoes MaxEnt: elicited is above forget",
        Side("maxent", "elicited"),
        Side("maxent", "forget"),
        "app:stories",
    ),
    Claim(
        "MaxEnt recovers almost completely: elicited matches the baseline",
        Side("maxent", "elicited"),
        Side("baseline", "retain"),
        "app:stories",
        matches=True,
    ),
    Claim(
        "MaxEnt is less robust than GRAM: its elicited is above",
        Side("maxent", "elicited"),
        Side("gram", "elicited"),
        "app:stories",
    ),
    Claim(
        "MaxEnt is less robust than filtering: its elicited is above",
        Side("maxent", "elicited"),
        Side("filtering", "elicited"),
        "app:stories",
    ),
    Claim("FT-LoRA has a lower core than GRAM", Side("gram", "core"), Side("ft_lora", "core"), "app:stories"),
    Claim("FT-Full has a lower core than GRAM", Side("gram", "core"), Side("ft_full", "core"), "app:stories"),
    Claim("DEMix is poor on core: below GRAM", Side("gram", "core"), Side("demix", "core"), "app:stories"),
    Claim("DEMix is poor on retain: below GRAM", Side("gram", "retain"), Side("demix", "retain"), "app:stories"),
    Claim(
        "DEMix recovers little: elicited matches forget",
        Side("demix", "elicited"),
        Side("demix", "forget"),
        "app:stories",
        matches=True,
    ),
)
SCALING_CLAIMS = (
    Claim("GRAM: retain is above forget", Side("gram", "retain"), Side("gram", "forget"), "fig:scaling"),
    Claim("Filtering: retain is above forget", Side("filtering", "retain"), Side("filtering", "forget"), "fig:scaling"),
    *(
        Claim(
            f"{label}'s forget falls with size",
            Side(method, "forget", size=FIRST),
            Side(method, "forget", size=LAST),
            "fig:scaling",
        )
        for method, label in LABELS
    ),
    *_matching("GRAM", "gram", "filtering", "filtering", "fig:scaling", CLASSES),
    *_matching("FT-LoRA", "ft_lora", "filtering", "filtering", "fig:scaling", CLASSES),
)
DUAL_USE_CLAIMS = (
    Claim("GRAM: retain is above forget", Side("gram", "retain"), Side("gram", "forget"), "fig:realistic-results"),
    *_matching("GRAM", "gram", "filtering", "filtering", "fig:realistic-results", CLASSES),
    *_matching("FT-LoRA", "ft_lora", "filtering", "filtering", "fig:realistic-results", CLASSES),
    Claim(
        "The attack undoes MaxEnt: elicited is above forget",
        Side("maxent", "elicited"),
        Side("maxent", "forget"),
        "sec:claim-realistic",
    ),
    Claim(
        "MaxEnt is less robust than GRAM: its elicited is above",
        Side("maxent", "elicited"),
        Side("gram", "elicited"),
        "sec:claim-realistic",
    ),
    Claim(
        "GRAM composes: core with all modules matches core with at most one",
        Side("gram", "core", profile="all"),
        Side("gram", "core"),
        "fig:arbsub-forget",
        matches=True,
    ),
    Claim(
        "GRAM composes: retain with all modules matches retain with one",
        Side("gram", "retain", profile="all"),
        Side("gram", "retain"),
        "fig:arbsub-forget",
        matches=True,
    ),
    Claim(
        "Summed LoRAs lose core",
        Side("ft_lora", "core"),
        Side("ft_lora", "core", profile="all"),
        "fig:arbsub-forget",
    ),
    Claim(
        "Summed LoRAs lose retain",
        Side("ft_lora", "retain"),
        Side("ft_lora", "retain", profile="all"),
        "fig:arbsub-forget",
    ),
)
AUX_SCALING_CLAIMS = (
    Claim("Retain is above forget", Side("gram", "retain"), Side("gram", "forget"), "fig:aux-scaling-main"),
    Claim("Retain is above elicited", Side("gram", "retain"), Side("gram", "elicited"), "fig:aux-scaling-main"),
    *(
        Claim(
            f"{name.capitalize()} stays as domains are added",
            Side("gram", name, variant=LAST),
            Side("gram", name, variant=FIRST),
            "fig:aux-scaling-main",
            matches=True,
        )
        for name in ("core", "retain")
    ),
    Claim(
        "Forget rises as domains are added",
        Side("gram", "forget", variant=LAST),
        Side("gram", "forget", variant=FIRST),
        "fig:aux-scaling-main",
    ),
)
PARTIAL_LABELS_CLAIMS = (
    *(
        Claim(
            f"Half the labels: {label} has more {text} than GRAM",
            Side(method, name, "core", "0.5"),
            Side("gram", name, "core", "0.5"),
            "fig:partial-labels",
        )
        for method, label in LABELS[1:]
        for name, text in (("forget", "forget"), ("elicited", "elicited forget"))
    ),
    Claim(
        "Half the labels: GRAM's core matches filtering's",
        Side("gram", "core", "core", "0.5"),
        Side("filtering", "core", "core", "0.5"),
        "fig:partial-labels",
        matches=True,
    ),
    Claim(
        "Filtering forgets less with half the labels than with all",
        Side("filtering", "forget", "core", "0.5"),
        Side("filtering", "forget", "core", "1"),
        "fig:partial-full",
    ),
)
ARCHITECTURE_CLAIMS = (
    *_matching("GRAM with MLPs", "gram", "GRAM with LoRAs", "gram_lora", "fig:expert-arch", CLASSES),
    *_matching("Finetuning with MLPs", "ft_mlp", "finetuning with LoRAs", "ft_lora", "fig:expert-arch", CLASSES),
)
ACCUMULATION_CLAIMS = (
    *(
        Claim(
            f"GRAM: heterogeneous accumulation raises {name}",
            Side("gram", name, variant="heterogeneous"),
            Side("gram", name, variant="uniform"),
            "tab:hetacc-200m",
        )
        for name in ("core", "retain")
    ),
    Claim(
        "GRAM: heterogeneous accumulation leaves forget",
        Side("gram", "forget", variant="heterogeneous"),
        Side("gram", "forget", variant="uniform"),
        "tab:hetacc-200m",
        matches=True,
    ),
    Claim(
        "GRAM gains more retain by it than FT-LoRA: heterogeneous GRAM is above",
        Side("gram", "retain", variant="heterogeneous"),
        Side("ft_lora", "retain", variant="heterogeneous"),
        "tab:hetacc-200m",
    ),
    Claim(
        "Baseline: uniform accumulation lowers auxiliary domains",
        Side("baseline", "retain", "all", "heterogeneous"),
        Side("baseline", "retain", "all", "uniform"),
        "tab:hetacc-200m",
    ),
)
TITRATION_CLAIMS = tuple(
    claim
    for method, label in (("gram", "GRAM"), ("ft_lora", "FT-LoRA"))
    for claim in (
        Claim(
            f"{label}: half a module is above none on its domain",
            Side(method, "retain", variant="0.5"),
            Side(method, "retain", variant="0"),
            "fig:titration",
        ),
        Claim(
            f"{label}: a whole module is above half of one on its domain",
            Side(method, "retain", variant="1"),
            Side(method, "retain", variant="0.5"),
            "fig:titration",
        ),
        Claim(
            f"{label}: core stays as a module is turned up",
            Side(method, "core", variant="1"),
            Side(method, "core", variant="0"),
            "fig:titration",
            matches=True,
        ),
    )
)
CLAIMS: dict[str, tuple[Claim, ...]] = {
    STORIES: STORIES_CLAIMS,
    SCALING: SCALING_CLAIMS,
    DUAL_USE: DUAL_USE_CLAIMS,
    AUX_SCALING: AUX_SCALING_CLAIMS,
    PARTIAL_LABELS: PARTIAL_LABELS_CLAIMS,
    ARCHITECTURE: ARCHITECTURE_CLAIMS,
    ACCUMULATION: ACCUMULATION_CLAIMS,
    TITRATION: TITRATION_CLAIMS,
}


def chosen(name: str, values: Sequence[str]) -> str:
    """What a side's size or variant names among a study's: FIRST and LAST are the first and the last of them."""
    return {FIRST: values[:1], LAST: values[-1:]}.get(name, (name,))[0]


def paper_difference(study: str, claim: Claim, variant: str = "", variants: Sequence[str] = ("",)) -> float:
    """left - right in the paper's own table of the study at a variant; NaN where it does not print both.

    `variants` are our study's, of which sides may name the first and the last.
    """
    sides = ((side, chosen(side.variant or variant, variants)) for side in (claim.left, claim.right))
    left, right = (paper_value(study, at, side.method, side.name)[0] for side, at in sides)
    return left - right
