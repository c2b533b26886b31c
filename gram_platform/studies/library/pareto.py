"""What does GRAM trade? Routing, module width and learning rate against core, retain and what an attacker gets back."""

import dataclasses

from gram_platform.studies.library.stories import DEMO, PAPER, SMOKE
from gram_platform.studies.searches.pareto import ParetoSearch

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
