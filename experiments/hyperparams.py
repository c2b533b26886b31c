"""What do p_cr, p_as and p_ca trade off?

The paper's hyperparameter sweeps (`app:hyperparams`): GRAM's core robustness p_cr and auxiliary spread p_as, FT-LoRA's
ratio of core to auxiliary batches p_ca, one at a time on Simple Stories with the others at the preset's values, three
seeds, every forgotten topic attacked. The preset's own values are runs of `experiments/stories.py` and are shared.

    python experiments/hyperparams.py                               # demo: 2 CPU cores
    python experiments/hyperparams.py --knobs p_as=0:0.1:0.3:1      # one knob, at values of your own
    python experiments/hyperparams.py --preset smoke                # 2 CPU cores, about 1 minute
    python experiments/hyperparams.py --preset paper --dry-run      # 26M parameters on the hub's Simple Stories

Expect (paper, from the first to the last value): p_as 0 to 1 raises core .90 to .97, retain .88 to 1.04, forget .69 to
.89, elicited .78 to .97; at p_cr 0 the core without a module is .98 and with one .87, they meet in the middle, and at 1
they are .79 and .93; p_ca 0.25 to 4 raises core .82 to .90 and lowers retain 1.06 to .90, forget stays at .68 to .74.
The demo's set-up is the scaling demo's since 2026-11-23; these sweeps have not been run with it.
"""

import dataclasses

from gram_platform.methods.setting import Conventions
from gram_platform.searches.hyperparams import HyperparameterSweep
from gram_platform.searches.run import main
from gram_platform.study.stories import AS_RUN, DEMO, PAPER, SMOKE

# "p_ca reallocates a fixed parameter budget" (app:hyperparams): p_af 2 / (1 + p_ca) in the authors' settings
PAPER = dataclasses.replace(PAPER, conventions=Conventions(constant_branches=True))
AS_RUN = dataclasses.replace(AS_RUN, conventions=dataclasses.replace(AS_RUN.conventions, constant_branches=True))
PAPER_VALUES = {
    "p_cr": (0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
    "p_as": (0.0, 0.25, 0.5, 0.75, 1.0),
    "p_ca": (0.25, 0.5, 1.0, 2.0, 4.0),
}

SEARCH = HyperparameterSweep(
    name="hyperparams",
    title="What p_cr, p_as and p_ca trade off",
    question="How do GRAM's core robustness p_cr and auxiliary spread p_as, and FT-LoRA's ratio of core to auxiliary "
    "batches p_ca, move what is kept, what is removed, and what an attacker gets back?",
    presets={"smoke": dataclasses.replace(SMOKE, num_seeds=1), "demo": DEMO, "paper": PAPER, "as_run": AS_RUN},
    values={
        "smoke": {"p_cr": (0.0, 0.5), "p_as": (0.3, 1.0), "p_ca": (0.5, 2.0)},
        # at p_ca 4 the rehearsal of four branches would leave the demo's base nothing to train on
        "demo": {"p_cr": (0.0, 0.25, 0.5, 0.75, 1.0), "p_as": (0.0, 0.1, 0.3, 1.0), "p_ca": (0.25, 0.5, 1.0, 2.0)},
        "paper": PAPER_VALUES,
        "as_run": PAPER_VALUES,
    },
)

if __name__ == "__main__":
    main(SEARCH)
