"""What does GRAM trade? Routing, module width and learning rate against core, retain and what an attacker gets back.

The paper sweeps p_cr and p_as one at a time ("Hyperparameter Appendix"). Here Optuna's multi-objective TPE moves both
together with the modules' width (d_aux) and the peak learning rate, at equal training compute (lambda), towards high
core, high retain and low elicited compute ratios; what no trial beats in all three is the Pareto front.

    python experiments/pareto.py                                      # demo
    python experiments/pareto.py --trials 60                          # goes on where it stopped, to 60 trials
    python experiments/pareto.py --space p_cr=0.5 peak_lr=log:2e-3:6e-3   # holds one, narrows another
    python experiments/pareto.py --preset smoke
    python experiments/pareto.py --preset paper --dry-run             # 26M parameters on the hub's Simple Stories

Expect that what raises retain raises elicited with it. In the demo as it was before 2026-11-23 (0.3M parameters,
generated stories, one seed; 13 of its 24 trials) the preset's own point has core 1.05, retain .86, elicited .85; p_as
.15 gives 1.01, .70, .70, and p_as .48 at a higher rate 1.10, .99, .92. Retain, forget and elicited follow p_as (three
quarters of their variance), core the learning rate; d_aux and p_cr matter little. The first ten trials are random
points. See FINDINGS.md.
"""

import dataclasses

from gram_platform.searches.pareto import ParetoSearch
from gram_platform.searches.run import main
from gram_platform.study.stories import DEMO, PAPER, SMOKE

# the stories study's data and baselines; GRAM at equal compute, so that a wider module is paid for with fewer tokens
ONE_SEED, EQUAL = {"num_seeds": 1}, {"equal_compute": True}

SEARCH = ParetoSearch(
    name="pareto",
    title="GRAM's trade-off",
    question="How high can core and retain go, and how little can an attacker get back, when routing, module width and "
    "learning rate are chosen together at the same training compute?",
    presets={
        "smoke": dataclasses.replace(SMOKE, **ONE_SEED, **EQUAL),
        "demo": dataclasses.replace(DEMO, **ONE_SEED, **EQUAL),
        "paper": dataclasses.replace(PAPER, **EQUAL),
    },
    num_trials={"smoke": 4, "demo": 24, "paper": 60},  # ours: the paper has no such search
)

if __name__ == "__main__":
    main(SEARCH)
