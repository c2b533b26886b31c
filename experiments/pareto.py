"""How do routing, module width and learning rate trade core and retain against the attacker's gain in GRAM?

The paper sweeps p_cr and p_as one at a time ("Hyperparameter Appendix"). Here Optuna's multi-objective TPE moves both
together with the modules' width (d_aux) and the peak learning rate, at equal training compute (lambda), towards high
core, high retain and low elicited compute ratios. The Pareto front are the trials that no other beats in all three.

    python experiments/pareto.py                                      # demo
    python experiments/pareto.py --trials 60                          # continues to 60 trials
    python experiments/pareto.py --space p_cr=0.5 peak_lr=log:2e-3:6e-3   # holds one, narrows another
    python experiments/pareto.py --preset smoke
    python experiments/pareto.py --preset paper --dry-run             # 26M parameters on the hub's Simple Stories

Expect retain and elicited to rise together. In the demo before 2026-11-23 (0.3M parameters,
generated stories, one seed; 13 of its 24 trials) the preset has core 1.05, retain .86, elicited .85; p_as
.15 gives 1.01, .70, .70, and p_as .48 at a higher rate 1.10, .99, .92. Retain, forget and elicited follow p_as (three
quarters of their variance), core the learning rate; d_aux and p_cr matter little. The first ten trials are random
points. See FINDINGS.md.
"""

from gram_platform.studies.library.pareto import SEARCH
from gram_platform.studies.searches.command import main

if __name__ == "__main__":
    main(SEARCH)
