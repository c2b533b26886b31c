"""What do p_cr, p_as and p_ca trade off?

The paper's hyperparameter sweeps (`app:hyperparams`): GRAM's core robustness p_cr and auxiliary
spread p_as, FT-LoRA's ratio of core to auxiliary batches p_ca, one at a time on Simple Stories with
the others at the preset's values, three seeds, every forgotten topic attacked. At the preset's
values the runs are those of `experiments/stories.py`.

    # demo: 2 CPU cores
    python experiments/hyperparams.py
    # one knob, at your values
    python experiments/hyperparams.py --knobs p_as=0:0.1:0.3:1
    # 2 CPU cores, about 1 minute
    python experiments/hyperparams.py --preset smoke
    # 26M parameters on the hub's Simple Stories
    python experiments/hyperparams.py --preset paper --dry-run

Expect (paper, from the first to the last value): p_as 0 to 1 raises core .90 to .97, retain .88 to
1.04, forget .69 to .89, elicited .78 to .97; at p_cr 0 the core without a module is .98 and with
one .87, they meet in the middle, and at 1 they are .79 and .93; p_ca 0.25 to 4 raises core .82 to
.90 and lowers retain 1.06 to .90, forget stays at .68 to .74. Since 2026-11-23 the demo has the
scaling demo's set-up; these sweeps have not been run with it.
"""

from gram_platform.studies.library.hyperparams import SEARCH
from gram_platform.studies.searches.command import main

if __name__ == "__main__":
    main(SEARCH)
