"""Which learning rate and retain weight unlearn best? (the paper tunes MaxEnt "per profile via Bayesian optimization")

MaxEnt forgets by maximising the entropy on forgotten domains while `retain_weight` x cross entropy holds core and the
profile's domains. For each profile an Optuna study (TPE) searches both: forget as low as it goes, with a price on core
and retain below 0.95 of the baseline. `experiments/stories.py --maxent SEARCH_ID` trains with what was found.

    python experiments/maxent_search.py                                # demo: 80 trials of 15 s on a quiet core
    python experiments/maxent_search.py --trials 40                    # goes on where it stopped, to 40 a profile
    python experiments/maxent_search.py --preset smoke                 # 2 CPU cores, under a minute
    python experiments/maxent_search.py --preset paper --dry-run       # 26M parameters on the hub's Simple Stories
    python experiments/maxent_search.py --preset dual_use --dry-run    # 800M parameters

Expect (paper, Simple Stories, tuned so): core .961, retain .934, forget .840, and .983 after the attack. Expect in the
demo (one seed, 0.3M parameters): best objectives of .34 (core) and .51 to .53 (core and one topic) at weights of 10 to
50 and rates of 1.5e-3 to 3.9e-3, hardly any penalty left; below a weight of 7 core falls under .79 at every rate.
"""

import dataclasses

from gram_platform.ladder import PAPER_SIZES
from gram_platform.methods.setting import MaxEnt, Options
from gram_platform.searches.maxent import MaxEntSearch, paper_space, space_of
from gram_platform.searches.run import main
from gram_platform.study import scaling, stories

# the preset's own data, baselines and evaluations: trials start from the very baselines of the studies
SMOKE, DEMO, PAPER = (dataclasses.replace(p, num_seeds=1) for p in (stories.SMOKE, stories.DEMO, stories.PAPER))
DUAL_USE = dataclasses.replace(
    scaling.PAPER,
    sizes={"800M": PAPER_SIZES["800M"]},
    num_seeds=1,
    retain="",
    every_single=True,
    options=Options(maxent=MaxEnt(num_steps=2000, peak_lr=1e-4, retain_weight=200.0)),
)

SEARCH = MaxEntSearch(
    name="maxent_search",
    title="MaxEnt's learning rate and retain weight",
    question="Which learning rate and retain weight let MaxEnt forget most without losing more than 5% of core's and "
    "the retained domains' compute, for each profile?",
    presets={"smoke": SMOKE, "demo": DEMO, "paper": PAPER, "dual_use": DUAL_USE},
    num_trials={"smoke": 2, "demo": 16, "paper": 30, "dual_use": 20},  # ours: the paper does not say
    # the demo's 75 steps stand for 2,000: rates up to the baseline's 4e-3, not the paper's 1 to 4% of it [ours]
    spaces={
        "smoke": space_of((5e-4, 4e-3), (2.0, 200.0)),
        "demo": space_of((5e-4, 4e-3), (2.0, 200.0)),
        "paper": paper_space(),
        "dual_use": paper_space(),
    },
)

if __name__ == "__main__":
    main(SEARCH)
