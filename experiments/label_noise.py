"""What if some labels are wrong? (beyond the paper, whose partial labels hide labels only)

At recall r, a share 1 - r of every domain's training text carries the label core. Filtering and
FT-LoRA's base train on it, and GRAM and SGTM route it as core. At precision p, other text carries a
domain's label, (1/p - 1) times as much as the text that carries it correctly. This adjacent text
has the labels of --adjacent, by default all of core. Validation and attacks use true labels, and
the baseline uses none.

    # demo: 25 minutes of 2 CPU cores by the dry run, 76 minutes on busy ones
    python experiments/label_noise.py
    # 2 CPU cores, 1 to 3 minutes
    python experiments/label_noise.py --preset smoke
    # a second text: recall 1 and .8
    python experiments/label_noise.py --corpus installed --recall 0.8 --seeds 3
    python experiments/label_noise.py --preset paper --dry-run

Expect little of the smoke preset, whose models forget almost nothing. Over three seeds, forget at
recall 1, recall .8 and precision .5 is .85, .90, .72 for filtering, .92, .94, .88 for GRAM, .88,
.90, .73 for SGTM, and .63, .74, .22 for FT-LoRA. FT-LoRA's base is shorter the more text carries a
domain's label, because the branches train on that text.

In the demo (0.15M, five seeds) forget at recall 1, .95, .8, .5 and precision .5 is .36, .51, .72,
.85, .35 for filtering, .55, .64, .77, .90, .56 for GRAM, .34, .48, .67, .83, .31 for FT-LoRA, and
.52, .63, .81, .92, .44 for SGTM.
"""

from gram_platform.studies import main
from gram_platform.studies.library.label_noise import STUDY

if __name__ == "__main__":
    main(STUDY)
