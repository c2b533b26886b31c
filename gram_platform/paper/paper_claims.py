"""Lists the paper's claims by study: a text, two sides whose difference is judged, and where the paper says so.

No claim says more than the paper's numbers show: "matches" is "no worse by more than a margin". That retain stays above
elicited is claimed only on Simple Stories: in the paper's scaling study it holds from 200M on, while at 50M and 100M
elicited is above retain. If a side names no size or variant, the claim is judged at each of the study's. FIRST and LAST
stand for a study's first and last.
"""

from collections.abc import Sequence

import pandas as pd

from gram_platform.paper.paper import (
    ACCUMULATION,
    ARCHITECTURE,
    AUX_SCALING,
    PARTIAL_LABELS,
    STORIES,
    paper_value,
)
from gram_platform.paper.verdicts import (
    ABOVE,
    BELOW,
    MARGINS,
    POSITIVE,
    WORDS,
    Claim,
    Side,
    alike,
    drop,
    follows,
    gain,
    not_above,
    not_below,
    same,
)

FIRST, LAST = "first", "last"
LABELS = (("gram", "GRAM"), ("filtering", "Filtering"), ("ft_lora", "FT-LoRA"))
SCALING, DUAL_USE, TITRATION = "scaling", "dual_use", "titration"


def _classes(text: str, method: str, left: str, right: str, source: str, within: pd.Interval = POSITIVE) -> Claim:
    return Claim(text, Side(method, left), Side(method, right), source, within)


def _methods(text: str, name: str, left: str, right: str, source: str) -> Claim:
    return Claim(text, Side(left, name), Side(right, name), source)


STORIES_CLAIMS = (  # on means over the profiles of core with at most one auxiliary domain
    _classes("GRAM: retain is above forget", "gram", "retain", "forget", "fig:grmoe_vs_filtering"),
    _classes("Filtering: retain is above forget", "filtering", "retain", "forget", "fig:grmoe_vs_filtering"),
    *follows("GRAM", "gram", "filtering", "filtering", "tab:synthetic"),
    _classes("GRAM after the attack: retain is above elicited", "gram", "retain", "elicited", "app:stories"),
    _classes("The attack undoes MaxEnt: elicited is above forget", "maxent", "elicited", "forget", "app:stories"),
    Claim(
        f"MaxEnt recovers almost completely: elicited is no more than {ABOVE:.2f} below the baseline",
        Side("maxent", "elicited"),
        Side("baseline", "retain"),
        "app:stories",
        not_below("elicited"),
    ),
    _methods("MaxEnt is less robust than GRAM: its elicited is above", "elicited", "maxent", "gram", "app:stories"),
    _methods(
        "MaxEnt is less robust than filtering: its elicited is above", "elicited", "maxent", "filtering", "app:stories"
    ),
    _methods("FT-LoRA has a lower core than GRAM", "core", "gram", "ft_lora", "app:stories"),
    _methods("FT-Full has a lower core than GRAM", "core", "gram", "ft_full", "app:stories"),
    _methods("DEMix is poor on core: below GRAM", "core", "gram", "demix", "app:stories"),
    _methods("DEMix is poor on retain: below GRAM", "retain", "gram", "demix", "app:stories"),
    _classes(
        f"DEMix recovers little: elicited is no more than {ABOVE:.2f} above forget",
        "demix",
        "elicited",
        "forget",
        "app:stories",
        not_above("elicited"),
    ),
)
SCALING_CLAIMS = (
    _classes("GRAM: retain is above forget", "gram", "retain", "forget", "fig:scaling"),
    _classes("Filtering: retain is above forget", "filtering", "retain", "forget", "fig:scaling"),
    *(
        Claim(
            f"{label}'s {WORDS.get(name, name)} falls with size",
            Side(method, name, size=FIRST),
            Side(method, name, size=LAST),
            "fig:scaling",
        )
        for name in ("forget", "elicited")
        for method, label in LABELS
    ),
    *follows("GRAM", "gram", "filtering", "filtering", "fig:scaling"),
    *follows("FT-LoRA", "ft_lora", "filtering", "filtering", "fig:scaling"),
)
DUAL_USE_CLAIMS = (
    _classes("GRAM: retain is above forget", "gram", "retain", "forget", "fig:realistic-results"),
    *follows("GRAM", "gram", "filtering", "filtering", "fig:realistic-results"),
    *follows("FT-LoRA", "ft_lora", "filtering", "filtering", "fig:realistic-results"),
    _classes(
        "The attack undoes MaxEnt: elicited is above forget", "maxent", "elicited", "forget", "sec:claim-realistic"
    ),
    _methods(
        "MaxEnt is less robust than GRAM: its elicited is above", "elicited", "maxent", "gram", "sec:claim-realistic"
    ),
    *(
        Claim(
            f"GRAM composes: from at most one module to all its {name} drops less than summed LoRAs'",
            drop("ft_lora", name),
            drop("gram", name),
            "fig:arbsub-forget",
        )
        for name in ("core", "retain")
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
    _classes("Retain is above forget", "gram", "retain", "forget", "fig:aux-scaling-main"),
    _classes("Retain is above elicited", "gram", "retain", "elicited", "fig:aux-scaling-main"),
    *(
        Claim(
            f"{name.capitalize()} stays as domains are added: no more than {MARGINS[name]:.2f} below",
            Side("gram", name, variant=LAST),
            Side("gram", name, variant=FIRST),
            "fig:aux-scaling-main",
            not_below(name),
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
        f"Half the labels: GRAM's core is no more than {BELOW:.2f} below filtering's",
        Side("gram", "core", "core", "0.5"),
        Side("filtering", "core", "core", "0.5"),
        "fig:partial-labels",
        not_below("core"),
    ),
    Claim(
        "Filtering forgets less with half the labels than with all",
        Side("filtering", "forget", "core", "0.5"),
        Side("filtering", "forget", "core", "1"),
        "fig:partial-full",
    ),
)
ARCHITECTURE_CLAIMS = (
    *same("GRAM with MLPs", "gram", "GRAM with LoRAs", "gram_lora", "fig:expert-arch"),
    *same("Finetuning with MLPs", "ft_mlp", "finetuning with LoRAs", "ft_lora", "fig:expert-arch"),
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
        f"GRAM: heterogeneous accumulation leaves forget within {ABOVE:.2f}",
        Side("gram", "forget", variant="heterogeneous"),
        Side("gram", "forget", variant="uniform"),
        "tab:hetacc-200m",
        alike("forget"),
    ),
    Claim(
        "GRAM gains more retain by it than FT-LoRA",
        gain("gram", "retain"),
        gain("ft_lora", "retain"),
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
            f"{label}: core stays as a module is turned up: no more than {BELOW:.2f} below",
            Side(method, "core", variant="1"),
            Side(method, "core", variant="0"),
            "fig:titration",
            not_below("core"),
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
    """Returns the size or variant that a side names among a study's `values`: resolves FIRST and LAST."""
    return {FIRST: values[:1], LAST: values[-1:]}.get(name, (name,))[0]


def paper_difference(study: str, claim: Claim, variant: str = "", variants: Sequence[str] = ("",)) -> float:
    """Returns left - right in the paper's table of the study at a variant; NaN unless the paper prints both.

    `variants` are our study's, of which sides may name the first and last.
    """
    at = {side: chosen(side.variant or variant, variants) for side in claim.terms}
    values = {side: paper_value(study, at[side], side.method, side.name)[0] for side in claim.terms}
    left, right = (values[s] - (values[s.less] if s.less else 0.0) for s in (claim.left, claim.right))
    return left - right
