"""Lists published claims by study.

Most are the paper's. Those about SGTM are by Shilov and others (2025), restated in compute ratios
[ours] except for recovery times.

No claim is stronger than the authors' numbers. So "matches" means "no worse by more than a margin".
"Retain stays above elicited" is claimed only for Simple Stories, because elicited is above retain
at 50M and 100M in the paper's scaling study. A claim that names no size or variant is judged at all
sizes or variants of its study. FIRST and LAST name the study's first and last size or variant.

Every claim has one profile, chosen before there were results. It is the paper's if the paper gives
one, otherwise the mean over profiles. In the paper, the scaling study uses core+virology, and the
partial-label study uses only core. The composability figure compares core+virology with all modules
on. We compare all modules on with the mean [ours], because the retain of both covers every domain.
The paper's other figures and tables show means.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from gram_platform.analysis.ratios import ALL, MEAN
from gram_platform.analysis.tables import CLASSES
from gram_platform.config import CORE
from gram_platform.methods import method_label
from gram_platform.paper.paper import (
    ACCUMULATION,
    ARCHITECTURE,
    AUX_SCALING,
    PARTIAL_LABELS,
    STORIES,
    paper_value,
)

# Margins in compute ratio. A class within its margin is no worse.
BELOW, ABOVE = 0.06, 0.10
MARGINS = {"core": BELOW, "retain": BELOW, "forget": ABOVE, "elicited": ABOVE}
IN_TEXTS = {"elicited": "elicited forget"}
POSITIVE = pd.Interval(0.0, math.inf, closed="neither")


def not_below(name: str) -> pd.Interval:
    return pd.Interval(-MARGINS[name], math.inf, closed="neither")


def not_above(name: str) -> pd.Interval:
    return pd.Interval(-math.inf, MARGINS[name], closed="neither")


def alike(name: str) -> pd.Interval:
    return pd.Interval(-MARGINS[name], MARGINS[name], closed="neither")


# The profile of core and the study's retained domain (virology in the paper).
COMPARED = "compared"


@dataclass(frozen=True)
class Side:
    """A method's compute ratio or recovery time, on one side of a claim."""

    method: str
    # One of CLASSES, or a time such as steps_to_90, which is compared without `less` and `size`.
    name: str
    # "": each variant or size of the study.
    variant: str = ""
    size: str = ""
    # "": the claim's.
    profile: str = ""
    # Subtracted seed by seed, if the side is a drop or a gain.
    less: "Side | None" = None


@dataclass(frozen=True)
class Claim:
    """States that `left - right` lies in the range `within`.

    If a side's size is FIRST or LAST, its value is read off a least-squares line over all sizes.
    """

    text: str
    left: Side
    right: Side
    within: pd.Interval = POSITIVE
    # MEAN is over both sides' shared profiles with at most one auxiliary domain.
    profile: str = MEAN
    # Label in the paper, or another paper.
    source: str = ""

    @property
    def terms(self) -> tuple[Side, ...]:
        """Both sides, and the sides `less` subtracted from them, without duplicates."""
        sides = (self.left, self.right, self.left.less, self.right.less)
        return tuple(dict.fromkeys(filter(None, sides)))


def compare(text: str, left: str, right: str, within: pd.Interval = POSITIVE) -> Claim:
    """Creates a claim from two sides such as "gram core" or, with a variant, "gram core 0.5"."""
    return Claim(text, Side(*left.split()), Side(*right.split()), within)


def follows(label: str, method: str) -> tuple[Claim, ...]:
    """Creates a claim per class, that a method is worse than filtering by at most the margin."""
    claims = []
    for n in CLASSES:
        way, within = ("below", not_below) if n in ("core", "retain") else ("above", not_above)
        text = f"{label}'s {IN_TEXTS.get(n, n)} is no more than {MARGINS[n]:.2f} {way} filtering's"
        claims.append(compare(text, f"{method} {n}", f"filtering {n}", within(n)))
    return tuple(claims)


def same(label: str, left: str, other: str, right: str) -> tuple[Claim, ...]:
    """Creates a claim per class, that two methods' ratios differ by less than the margin."""
    claims = []
    for n in CLASSES:
        text = f"{label} and {other} have the same {IN_TEXTS.get(n, n)} within {MARGINS[n]:.2f}"
        claims.append(compare(text, f"{left} {n}", f"{right} {n}", alike(n)))
    return tuple(claims)


def cite(source: str, claims: Iterable[Claim], profile: str = MEAN) -> tuple[Claim, ...]:
    return tuple(replace(claim, source=source, profile=profile) for claim in claims)


def drop(method: str, name: str) -> Side:
    """Returns one side of a claim: class `name`'s ratio minus its ratio with all modules on."""
    return Side(method, name, less=Side(method, name, profile=ALL))


def gain(method: str) -> Side:
    """Returns one side of a claim: retain under heterogeneous minus under uniform accumulation."""
    much, little = (Side(method, "retain", kind) for kind in KINDS)
    return replace(much, less=little)


FIRST, LAST = "first", "last"
SGTM = "arXiv 2512.05648"
# The authors' SGTM takes 350 steps, their RMU 50.
SGTM_RECOVERS_LATER = cite(
    SGTM,
    [
        compare(
            "The attack needs more steps to recover 90% from SGTM than from RMU",
            "sgtm steps_to_90",
            "rmu steps_to_90",
        )
    ],
)
# A claim's text begins with its method's label.
LABELS = tuple(
    (m, method_label(m)[:1].upper() + method_label(m)[1:]) for m in ("gram", "filtering", "ft_lora")
)


GRAM_SEPARATES = compare("GRAM: retain is above forget", "gram retain", "gram forget")
FILTERING_SEPARATES = compare(
    "Filtering: retain is above forget", "filtering retain", "filtering forget"
)
ATTACK_UNDOES_MAXENT = compare(
    "The attack undoes MaxEnt: elicited is above forget", "maxent elicited", "maxent forget"
)
GRAM_IS_MORE_ROBUST = compare(
    "MaxEnt is less robust than GRAM: its elicited is above", "maxent elicited", "gram elicited"
)
STORIES_CLAIMS = (
    *cite("fig:grmoe_vs_filtering", [GRAM_SEPARATES, FILTERING_SEPARATES]),
    *cite("tab:synthetic", follows("GRAM", "gram")),
    *cite(
        "app:stories",
        [
            compare(
                "GRAM after the attack: retain is above elicited", "gram retain", "gram elicited"
            ),
            ATTACK_UNDOES_MAXENT,
            compare(
                f"MaxEnt recovers almost completely: elicited is no more than {ABOVE:.2f} below the"
                " baseline",
                "maxent elicited",
                "baseline retain",
                not_below("elicited"),
            ),
            GRAM_IS_MORE_ROBUST,
            compare(
                "MaxEnt is less robust than filtering: its elicited is above",
                "maxent elicited",
                "filtering elicited",
            ),
            compare("FT-LoRA has a lower core than GRAM", "gram core", "ft_lora core"),
            compare("FT-Full has a lower core than GRAM", "gram core", "ft_full core"),
            compare("DEMix is poor on core: below GRAM", "gram core", "demix core"),
            compare("DEMix is poor on retain: below GRAM", "gram retain", "demix retain"),
            compare(
                f"DEMix recovers little: elicited is no more than {ABOVE:.2f} above forget",
                "demix elicited",
                "demix forget",
                not_above("elicited"),
            ),
        ],
    ),
    *SGTM_RECOVERS_LATER,
)
SCALING_CLAIMS = cite(
    "fig:scaling",
    [
        GRAM_SEPARATES,
        FILTERING_SEPARATES,
        *(
            Claim(
                f"{label}'s {IN_TEXTS.get(name, name)} falls with size",
                Side(method, name, size=FIRST),
                Side(method, name, size=LAST),
            )
            for name in ("forget", "elicited")
            for method, label in LABELS
        ),
        *follows("GRAM", "gram"),
        *follows("FT-LoRA", "ft_lora"),
    ],
    profile=COMPARED,
)
DUAL_USE_CLAIMS = (
    *cite(
        "fig:realistic-results",
        [GRAM_SEPARATES, *follows("GRAM", "gram"), *follows("FT-LoRA", "ft_lora")],
    ),
    *cite("sec:claim-realistic", [ATTACK_UNDOES_MAXENT, GRAM_IS_MORE_ROBUST]),
    *cite(
        "fig:arbsub-forget",
        [
            *(
                Claim(
                    f"GRAM composes: from at most one module to all its {name} drops less than"
                    " summed LoRAs'",
                    drop("ft_lora", name),
                    drop("gram", name),
                )
                for name in ("core", "retain")
            ),
            *(
                Claim(
                    f"Summed LoRAs lose {name}",
                    Side("ft_lora", name),
                    Side("ft_lora", name, profile=ALL),
                )
                for name in ("core", "retain")
            ),
        ],
    ),
    *SGTM_RECOVERS_LATER,
)
AUX_SCALING_CLAIMS = cite(
    "fig:aux-scaling-main",
    [
        compare("Retain is above forget", "gram retain", "gram forget"),
        compare("Retain is above elicited", "gram retain", "gram elicited"),
        *(
            compare(
                f"{name.capitalize()} stays as domains are added: no more than {MARGINS[name]:.2f}"
                " below",
                f"gram {name} {LAST}",
                f"gram {name} {FIRST}",
                not_below(name),
            )
            for name in ("core", "retain")
        ),
        compare("Forget rises as domains are added", f"gram forget {LAST}", f"gram forget {FIRST}"),
    ],
)
# A share of the labels.
HALF = "0.5"
PARTIAL_LABELS_CLAIMS = (
    *cite(
        "fig:partial-labels",
        [
            *(
                compare(
                    f"Half the labels: {label} has more {IN_TEXTS.get(name, name)} than GRAM",
                    f"{method} {name} {HALF}",
                    f"gram {name} {HALF}",
                )
                for method, label in LABELS[1:]
                for name in ("forget", "elicited")
            ),
            compare(
                f"Half the labels: GRAM's core is no more than {BELOW:.2f} below filtering's",
                f"gram core {HALF}",
                f"filtering core {HALF}",
                not_below("core"),
            ),
        ],
        profile=CORE,
    ),
    *cite(
        "fig:partial-full",
        [
            compare(
                "Filtering forgets less with half the labels than with all",
                f"filtering forget {HALF}",
                "filtering forget 1",
            )
        ],
        profile=CORE,
    ),
)
ARCHITECTURE_CLAIMS = cite(
    "fig:expert-arch",
    [
        *same("GRAM with MLPs", "gram", "GRAM with LoRAs", "gram_lora"),
        *same("Finetuning with MLPs", "ft_mlp", "finetuning with LoRAs", "ft_lora"),
    ],
)
# Kinds of accumulation, and where the paper compares them.
KINDS, ACCUMULATED = ("heterogeneous", "uniform"), "tab:hetacc-200m"
ACCUMULATION_CLAIMS = (
    *cite(
        ACCUMULATED,
        [
            *(
                compare(
                    f"GRAM: heterogeneous accumulation {text}",
                    f"gram {name} {KINDS[0]}",
                    f"gram {name} {KINDS[1]}",
                    within,
                )
                for name, text, within in (
                    ("core", "raises core", POSITIVE),
                    ("retain", "raises retain", POSITIVE),
                    ("forget", f"leaves forget within {ABOVE:.2f}", alike("forget")),
                )
            ),
            Claim("GRAM gains more retain by it than FT-LoRA", gain("gram"), gain("ft_lora")),
        ],
    ),
    *cite(
        ACCUMULATED,
        [
            compare(
                "Baseline: uniform accumulation lowers auxiliary domains",
                f"baseline retain {KINDS[0]}",
                f"baseline retain {KINDS[1]}",
            )
        ],
        profile=ALL,
    ),
)
TITRATION_CLAIMS = cite(
    "fig:titration",
    [
        compare(f"{label}: {text}", f"{method} {left}", f"{method} {right}", within)
        for method, label in LABELS[::2]
        for text, left, right, within in (
            ("half a module is above none on its domain", "retain 0.5", "retain 0", POSITIVE),
            (
                "a whole module is above half of one on its domain",
                "retain 1",
                "retain 0.5",
                POSITIVE,
            ),
            (
                f"core stays as a module is turned up: no more than {BELOW:.2f} below",
                "core 1",
                "core 0",
                not_below("core"),
            ),
        )
    ],
)
# Recalls, which are variants of label noise.
NEARLY_ALL, ALL_LABELS = "0.95", "1"
LABEL_NOISE_CLAIMS = cite(
    SGTM,
    [
        compare(
            f"SGTM: at recall {NEARLY_ALL} forget is no more than {ABOVE:.2f} above recall 1's",
            f"sgtm forget {NEARLY_ALL}",
            f"sgtm forget {ALL_LABELS}",
            not_above("forget"),
        ),
        compare(
            f"Filtering: at recall {NEARLY_ALL} forget is above recall 1's",
            f"filtering forget {NEARLY_ALL}",
            f"filtering forget {ALL_LABELS}",
        ),
        compare(
            f"At recall {NEARLY_ALL} filtering's forget is above SGTM's",
            f"filtering forget {NEARLY_ALL}",
            f"sgtm forget {NEARLY_ALL}",
        ),
    ],
)
CLAIMS: dict[str, tuple[Claim, ...]] = {
    STORIES: STORIES_CLAIMS,
    "scaling": SCALING_CLAIMS,
    "dual_use": DUAL_USE_CLAIMS,
    AUX_SCALING: AUX_SCALING_CLAIMS,
    PARTIAL_LABELS: PARTIAL_LABELS_CLAIMS,
    ARCHITECTURE: ARCHITECTURE_CLAIMS,
    ACCUMULATION: ACCUMULATION_CLAIMS,
    "titration": TITRATION_CLAIMS,
    "label_noise": LABEL_NOISE_CLAIMS,
}


def choose_value(name: str, values: Sequence[str]) -> str:
    """Returns `name`. If it is FIRST or LAST, returns the first or last of `values`, or ""."""
    return next(iter({FIRST: values[:1], LAST: values[-1:]}.get(name, (name,))), "")


def paper_difference(
    study: str, claim: Claim, variant: str = "", variants: Sequence[str] = ("",)
) -> float:
    """Returns a claim's left side minus its right side in the paper's table.

    If the table lacks a number, returns NaN. FIRST and LAST are the first and last of `variants`.
    """
    at = {side: choose_value(side.variant or variant, variants) for side in claim.terms}
    values = {side: paper_value(study, at[side], side.method, side.name) for side in claim.terms}
    left, right = (
        values[s] - (values[s.less] if s.less else 0.0) for s in (claim.left, claim.right)
    )
    return left - right
