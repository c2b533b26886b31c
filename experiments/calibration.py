"""What is a compute ratio of .8? Baselines of .25 to 1.1 of the steps, rated as any model is.

The reference are the baselines of `scaling.py` at its seeds, whose runs it shares. The rated
baselines have a share of every domain's text, warm-up and decay in proportion, and seeds 100
higher. Two errors of the ratio, each for core and for the auxiliary domains: of finished baselines
(unit), and of the losses of a left-out reference seed before its decay (fit).

    # demo: 0.15M and 0.28M, an hour of a core
    python experiments/calibration.py
    # seconds on a CPU core
    python experiments/calibration.py --preset smoke --in-process
    # what ratios are worth on your own text
    python experiments/calibration.py --corpus FOLDER --core-label core

Expect in the demo (stories): half of the steps reads .61 for core and .58 for the auxiliary domains
at 0.15M, .80 and .76 at 0.28M, .8 of them .85 and .78, .90 and .99, all of them 1.00 and 1.02, 1.00
and 1.10; an unfinished baseline's loss at .8 of the steps reads .68 to .70. In the smoke preset
(seeds 0 and 1, 49 steps) half of the steps reads .54.
"""

from gram_platform.studies.library.calibration import STUDY
from gram_platform.studies.searches.command import main

if __name__ == "__main__":
    main(STUDY)
