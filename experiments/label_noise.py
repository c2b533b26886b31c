"""What if some labels are wrong? (beyond the paper, whose partial labels hide labels only)

At recall r a share 1 - r of every domain's training text carries the label core: filtering and
FT-LoRA's base train on it, and GRAM routes it as core. At precision p other text carries a domain's
label, (1/p - 1) times as much as the text that carries it rightly. It is adjacent text: of the
labels in --adjacent, by default of core. Validation and attacks use true labels, and the baseline
needs none.

    # demo: 2 CPU cores
    python experiments/label_noise.py
    # 2 CPU cores, about a minute
    python experiments/label_noise.py --preset smoke
    # a second text: recall 1 and .8
    python experiments/label_noise.py --corpus installed --recall 0.8 --seeds 3
    python experiments/label_noise.py --preset paper --dry-run

Expect of the smoke preset only that it works.
"""

from gram_platform.studies import main
from gram_platform.studies.library.label_noise import STUDY

if __name__ == "__main__":
    main(STUDY)
