"""Every study of the paper, sharing every run that two of them have in common, and the site to browse them.

One graph holds the union of the studies; the searches follow, and reuse what the studies have trained. The preset
`paper` searches MaxEnt's parameters before that graph, since its studies train with them. Submitting again continues.
At the end the site stands in the storage's folder `site`.

    python experiments/all.py --preset smoke                      # 2 CPU cores, under 8 minutes
    python experiments/all.py --preset demo                       # a few hours
    python experiments/all.py --studies scaling dual_use --searches none
    python experiments/all.py --preset paper --dry-run            # what all of it would cost, and what sharing saves

Expect a table, a report and the paper's claims judged for each study, as their files say; of the smoke preset only that
it all works, since models of 0.1M parameters and 40,000 tokens show little.
"""

from gram_platform.studies.campaign import main
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

MODULES = (scaling, stories, dual_use, titration, composing, partial_labels, architecture, accumulation, aux_scaling)
MODULES += (token_localization, samples)
STUDIES = tuple(module.STUDY for module in MODULES)
SEARCHES = (lr_bs_grid.SEARCH, hyperparams.SEARCH, maxent_search.SEARCH)

if __name__ == "__main__":
    main(STUDIES, SEARCHES)
