"""What if half of the labels are missing? (the paper's "Partial Labeling Details")

Half of every domain's sequences lose their label. Filtering and FT-LoRA treat them as core; GRAM activates and trains
everything on them. Compared on the profile of core alone, beside filtering that has all labels. Probes between GRAM's
steps say which module a domain's unlabelled batches pull at (absorption).

    python experiments/partial_labels.py                          # demo: 2 CPU cores, not timed since 2026-11-23
    python experiments/partial_labels.py --corpus installed --methods filtering gram  # 11 minutes
    python experiments/partial_labels.py --preset smoke           # 2 CPU cores, under a minute
    python experiments/partial_labels.py --preset paper --dry-run

Expect (paper, half the labels): forget GRAM .60, filtering .85, FT-LoRA .85, filtering with all labels .54; core .96,
.99, .99, .92. In the demo on installed code (three seeds): forget GRAM .35, filtering .71, filtering with all labels
.16; GRAM's core .94. See FINDINGS.md.
"""

from gram_platform.ladder import AS_RUN_SIZES, PAPER_SIZES
from gram_platform.study import Study, main
from gram_platform.study.dual_use import (
    AS_RUN,
    AS_RUN_PARTIAL,
    DEMO,
    DEMO_PARTIAL,
    DEMO_WIDTHS,
    PAPER,
    SMOKE,
    core_alone,
)

STUDY = Study(
    name="partial_labels",
    title="Half of the labels",
    question="How much does each method forget when half of the training data carries no label?",
    methods=("baseline", "filtering", "gram", "ft_lora"),
    presets={
        "smoke": core_alone(SMOKE),
        "demo": core_alone(DEMO, DEMO_WIDTHS, **DEMO_PARTIAL),
        "paper": core_alone(PAPER, sizes={"400M": PAPER_SIZES["400M"]}),
        "as_run": core_alone(AS_RUN, sizes={"400M": AS_RUN_SIZES["400M"]}, **AS_RUN_PARTIAL),
    },
    compare_with="partial_labels",
    varies="labelled",
    profile="core",
)

if __name__ == "__main__":
    main(STUDY)
