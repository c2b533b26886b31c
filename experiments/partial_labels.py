"""What if half of the labels are missing? (the paper's "Partial Labeling Details")

Half of every domain's sequences lose their label. Filtering and FT-LoRA treat them as core; GRAM
activates and trains everything on them. They are compared on the profile of core alone, beside
filtering with all labels. Probes between GRAM's steps measure which module learns from a domain's
unlabelled batches (absorption).

    # demo: 2 CPU cores, not timed since 2026-11-23
    python experiments/partial_labels.py
    # 11 minutes
    python experiments/partial_labels.py --corpus installed --methods filtering gram
    # 2 CPU cores, under a minute
    python experiments/partial_labels.py --preset smoke
    python experiments/partial_labels.py --preset paper --dry-run

Expect (paper, half the labels): forget GRAM .60, filtering .85, FT-LoRA .85, filtering with all
labels .54; core .96, .99, .99, .92. In the demo on installed code (three seeds): forget GRAM .35,
filtering .71, filtering with all labels .16; GRAM's core .94. See FINDINGS.md.
"""

from gram_platform.studies import main
from gram_platform.studies.library.partial_labels import STUDY

if __name__ == "__main__":
    main(STUDY)
