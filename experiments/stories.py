"""How close does one GRAM run come to separately filtered models, and how do the alternatives do?

The paper's Simple Stories comparison (`sec:claim-approximation`, `app:stories`): every method on
one size, five profiles (core, and core with each of four auxiliary topics), three seeds, and every
forgotten topic attacked by finetuning. All methods train for the same number of steps; in the demo,
which shares the scaling demo's runs, for the same compute.

    # demo: 30 minutes on one busy core
    python experiments/stories.py
    # fewer methods
    python experiments/stories.py --methods gram filtering maxent
    # 2 CPU cores, about 1 minute
    python experiments/stories.py --preset smoke
    # beside selective gradient masking
    python experiments/stories.py --methods baseline filtering gram sgtm
    # 3M and 10M: minutes on a GPU, docs/cluster.md
    python experiments/stories.py --preset gpu --dry-run
    # 26M parameters on the hub; searches MaxEnt first
    python experiments/stories.py --preset paper --dry-run

Expect (paper, mean over profiles: core, retain, forget, elicited): GRAM .938 .952 .766 .855;
filtering .961 .962 .780 .870; FT-LoRA .841 .928 .692 .774; FT-Full .874 1.029 .722 .806; MaxEnt
.961 .934 .840 .983; DEMix .248 .183 .257 .302. In the demo (0.15M): GRAM .989 .896 .481 .630;
filtering 1.013 .975 .465 .651; FT-LoRA .966 .949 .445 .617; FT-Full .757 1.548 .391 .543; MaxEnt
1.019 1.068 .634 .888; DEMix 1.024 .537 .670 .847, with wide intervals (FINDINGS.md).
"""

from gram_platform.studies.library.stories import STUDY
from gram_platform.studies.searches.command import main

if __name__ == "__main__":
    main(STUDY)
