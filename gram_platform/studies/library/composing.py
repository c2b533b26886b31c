"""Declares the study of several modules on at once.

In the paper: "Arbitrary subsets of capabilities", and ours.
"""

from gram_platform.studies import Study
from gram_platform.studies.library.dual_use import (
    DUAL_USE_AS_RUN,
    DUAL_USE_DEMO,
    DUAL_USE_PAPER,
    DUAL_USE_SMOKE,
    composed,
)

STUDY = Study(
    name="composing",
    title="Several modules on at once",
    question=(
        "What do core and the domains that are kept lose as more modules are on: routed with one"
        " companion at a time, routed with random subsets, and as summed LoRAs?"
    ),
    methods=("baseline", "gram", "gram_subsets", "ft_lora"),
    presets={
        "smoke": composed(DUAL_USE_SMOKE),
        "demo": composed(DUAL_USE_DEMO),
        "paper": composed(DUAL_USE_PAPER),
        "as_run": composed(DUAL_USE_AS_RUN),
    },
    compare_with="dual_use",
)
