"""What if some labels are wrong? (beyond the paper, whose partial labels hide labels only)

At recall r a share 1 - r of every domain's training text carries the label core: filtering and
FT-LoRA's base train on it, and GRAM routes it as core. At precision p other text carries a domain's
label, (1/p - 1) times as much as the text that carries it rightly. It is adjacent text: of the
labels in --adjacent, by default of core. Validation and attacks use true labels, and the baseline
needs none.

    # demo: 20 minutes of 2 CPU cores, by the dry run
    python experiments/label_noise.py
    # 2 CPU cores, 68 s
    python experiments/label_noise.py --preset smoke
    # a second text: recall 1 and .8
    python experiments/label_noise.py --corpus installed --recall 0.8 --seeds 3
    python experiments/label_noise.py --preset paper --dry-run

Expect little of the smoke preset, whose models forget next to nothing (three seeds; forget at
recall 1, recall .8 and precision .5): filtering .85, .90, .72, GRAM .92, .94, .88, FT-LoRA .63,
.74, .22. FT-LoRA's base is shorter the more text carries a domain's label, since the branches train
on it. The demo is not measured yet.
"""

from gram_platform.studies import main
from gram_platform.studies.library.label_noise import STUDY

if __name__ == "__main__":
    main(STUDY)
