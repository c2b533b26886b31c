"""What is a compute ratio of .8? Baselines that were trained for .25 to 1.1 of the steps, rated as any model is.

The reference are the baselines of `scaling.py` at its seeds, whose runs it shares. The rated baselines have a share of
every domain's text, warm-up and decay in proportion, and seeds 100 higher. Two errors of the ratio, each for core and
for the auxiliary domains: of finished baselines (unit), and of the losses of a left-out reference seed before its decay
(fit).

    python experiments/calibration.py                                   # demo: 0.15M and 0.28M, 40 minutes of a core
    python experiments/calibration.py --preset smoke --in-process       # seconds on a CPU core
    python experiments/calibration.py --corpus FOLDER --core-label core # what ratios are worth on your own text

Expect (smoke; two seeds of 49 steps): half of the steps reads .54 for core and for the auxiliary domains, all of them
.99 and 1.00.
"""

from gram_platform.studies.campaign import study_main
from gram_platform.studies.library.calibration import STUDY

if __name__ == "__main__":
    study_main(STUDY)
