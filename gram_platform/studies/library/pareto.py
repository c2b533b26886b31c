"""Declares the search of GRAM's trade-off between core, retain and elicited forget."""

import dataclasses

from gram_platform.studies.library.stories import STORIES_DEMO, STORIES_PAPER, STORIES_SMOKE
from gram_platform.studies.searches.pareto import ParetoSearch

# the stories study's data and baselines; at equal compute a wider module costs tokens
ONE_SEED, EQUAL = {"num_seeds": 1}, {"equal_compute": True}

SEARCH = ParetoSearch(
    name="pareto",
    title="GRAM's trade-off",
    question="How high can core and retain go, and how little can an attacker get back, when routing, module width and "
    "learning rate are chosen together at the same training compute?",
    presets={
        "smoke": dataclasses.replace(STORIES_SMOKE, **ONE_SEED, **EQUAL),
        "demo": dataclasses.replace(STORIES_DEMO, **ONE_SEED, **EQUAL),
        "paper": dataclasses.replace(STORIES_PAPER, **EQUAL),
    },
    # Ours: the paper has no such search.
    num_trials={"smoke": 4, "demo": 24, "paper": 60},
)
