"""What does a larger attack give back: more sequences of the removed domain, or more steps?

Runs of GRAM and filtering at one size, attacked with every combination of a number of sequences and
a number of steps; `budget` is sequences x steps. The attack's learning rate and batch stay the
preset's.

    # demo: 0.28M, nine attacks each
    python experiments/attack_budget.py
    # 2 CPU cores, about 2 minutes
    python experiments/attack_budget.py --preset smoke
    gram run attack_budget --preset smoke --in-process       # the same by name, without Ray

Expect elicited to rise with sequences and steps, from forget on. It is the attacker's best step, so
more steps never lower it. In the smoke preset (49 steps of training, one seed): GRAM .912, .912,
.952, 1.044 and filtering .847, .847, .896, .989 for budgets 4x6, 4x24, 16x6, 16x24: more steps on
four sequences give nothing, on sixteen they do. The demo has not been measured yet.
"""

from gram_platform.studies.library.attack_budget import STUDY
from gram_platform.studies.searches.command import main

if __name__ == "__main__":
    main(STUDY)
