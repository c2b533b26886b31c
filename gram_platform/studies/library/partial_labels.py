"""Declares the study with half of the labels missing (the paper's "Partial Labeling Details")."""

from gram_platform.config.ladder import PAPER_SIZES
from gram_platform.studies import Study
from gram_platform.studies.library.dual_use import (
    AS_RUN_PARTIAL,
    DEMO_PARTIAL,
    DEMO_WIDTHS,
    DUAL_USE_AS_RUN,
    DUAL_USE_DEMO,
    DUAL_USE_PAPER,
    DUAL_USE_SMOKE,
    core_alone,
)
from gram_platform.studies.library.scaling import AS_RUN_SIZES

STUDY = Study(
    name="partial_labels",
    title="Half of the labels",
    question="How much does each method forget when half of the training data carries no label?",
    methods=("baseline", "filtering", "gram", "ft_lora"),
    presets={
        "smoke": core_alone(DUAL_USE_SMOKE),
        "demo": core_alone(DUAL_USE_DEMO, DEMO_WIDTHS, **DEMO_PARTIAL),
        "paper": core_alone(DUAL_USE_PAPER, sizes={"400M": PAPER_SIZES["400M"]}),
        "as_run": core_alone(
            DUAL_USE_AS_RUN, sizes={"400M": AS_RUN_SIZES["400M"]}, **AS_RUN_PARTIAL
        ),
    },
    compare_with="partial_labels",
    varies="labelled",
    profile="core",
    paper={
        "Figure 6": "GRAM forgets most with half of the labels",
        "Figure 13": "half of the labels, beside filtering with all",
    },
)
