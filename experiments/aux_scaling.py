"""How many capabilities can one run separate?

The paper's "Scaling the number of auxiliary capabilities".

GRAM with 4 to 20 auxiliary topics, the first by name, so that the sets are nested; other topics are
core. The auxiliary topics together have a fifth of the tokens. Each number has a baseline; attacks
are on the core profile.

    python experiments/aux_scaling.py                          # demo: 40 minutes on one busy core
    python experiments/aux_scaling.py --preset smoke           # 2 cores, two seeds: under 2 minutes
    python experiments/aux_scaling.py --preset paper --dry-run

Expect (paper, 4 to 20): core about .88 throughout, retain .89 to .91, forget .65 to .74, elicited
.71 to .84. In the demo core .85 to .95, retain .84 to .90, forget .44 to .54, elicited .61 to .70
(FINDINGS.md).
"""

from gram_platform.studies import main
from gram_platform.studies.library.aux_scaling import STUDY

if __name__ == "__main__":
    main(STUDY)
