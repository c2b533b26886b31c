"""Runs every study and search of the paper, trains shared runs once, and builds the site.

All studies run as one graph; the searches follow and reuse its runs. The preset `paper` first
searches MaxEnt's parameters, with which its studies train. Submitting again continues. The site is
in the storage's folder `site`.

    # 2 CPU cores, under 8 minutes
    python experiments/all.py --preset smoke
    # a few hours
    python experiments/all.py --preset demo
    python experiments/all.py --studies scaling dual_use --searches none
    # the cost of everything, and the saving by sharing
    python experiments/all.py --preset paper --dry-run

Expect a table, a report and the paper's claims judged for each study, as their files say; of the
smoke preset only that it works, since models of 0.1M parameters and 40,000 tokens show little.
"""

from gram_platform.studies.library import (
    accumulation,
    architecture,
    aux_scaling,
    composing,
    dual_use,
    hyperparams,
    lr_bs_grid,
    maxent_search,
    partial_labels,
    samples,
    scaling,
    stories,
    titration,
    token_localization,
)
from gram_platform.studies.searches.command import campaign_main

MODULES = (
    scaling,
    stories,
    dual_use,
    titration,
    composing,
    partial_labels,
    architecture,
    accumulation,
    aux_scaling,
)
MODULES += (token_localization, samples)
STUDIES = tuple(module.STUDY for module in MODULES)
SEARCHES = (lr_bs_grid.SEARCH, hyperparams.SEARCH, maxent_search.SEARCH)

if __name__ == "__main__":
    campaign_main(STUDIES, SEARCHES)
