"""Which learning rate and retain weight unlearn best?

The paper tunes MaxEnt "per profile via Bayesian optimization".

MaxEnt forgets by maximising the entropy on forgotten domains while `retain_weight` x cross entropy
holds core and the profile's domains. For each profile an Optuna study (TPE) searches both for the
lowest forget, with a penalty on core and retain below 0.95 of the baseline. `experiments/stories.py
--maxent SEARCH_ID` trains with the best trials. The presets `paper` of `stories.py` and
`dual_use.py` start with these searches, here `paper` and `dual_use`.

    # demo: 80 trials of 15 s on a quiet core
    python experiments/maxent_search.py
    # continues to 40 trials a profile
    python experiments/maxent_search.py --trials 40
    # 2 CPU cores, under a minute
    python experiments/maxent_search.py --preset smoke
    # 26M parameters on the hub's Simple Stories
    python experiments/maxent_search.py --preset paper --dry-run
    # 800M parameters
    python experiments/maxent_search.py --preset dual_use --dry-run

Expect (paper, Simple Stories): core .961, retain .934, forget .840, and .983 after the attack.
Expect in the demo before 2026-11-23 (one seed, 0.3M parameters): best objectives of .34 (core) and
.51 to .53 (core and one topic) at weights of 10 to 50 and rates of 1.5e-3 to 3.9e-3, hardly any
penalty; below a weight of 7 core is under .79 at every rate.
"""

from gram_platform.studies.library.maxent_search import SEARCH
from gram_platform.studies.searches.command import main

if __name__ == "__main__":
    main(SEARCH)
