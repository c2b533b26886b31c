"""Declares the study of the number of auxiliary domains.

Source: the paper's "Scaling the number of auxiliary capabilities".
"""

from gram_platform.config import RoutingConfig
from gram_platform.studies import Study
from gram_platform.studies.library.scaling import STORIES_ROUTING
from gram_platform.studies.library.stories import (
    STORIES_AS_RUN,
    STORIES_DEMO,
    STORIES_PAPER,
    STORIES_SMOKE,
    divide,
)

STUDY = Study(
    name="aux_scaling",
    title="The number of auxiliary domains",
    question="Do core, retain and forget hold as one run separates more and more capabilities?",
    methods=("baseline", "gram"),
    presets={
        "smoke": divide(STORIES_SMOKE, (2, 4)),
        # Drawing the domains, a fifth of all tokens, twice would take too much from core.
        "demo": divide(
            STORIES_DEMO,
            (4, 8, 12, 16, 20),
            num_eval_sequences=64,
            aux_factor=1.0,
            routing=STORIES_ROUTING,
        ),
        "paper": divide(STORIES_PAPER, (4, 8, 12, 16, 20)),
        # p_as is .2, and .3 in the text; every profile is attacked.
        "as_run": divide(
            STORIES_AS_RUN,
            (4, 8, 12, 16, 20),
            attacks_core_alone=False,
            routing=RoutingConfig(0.5, 0.2),
        ),
    },
    compare_with="aux_scaling",
    varies="num_auxiliary",
    profile="mean",
    paper={"Figure 3": "retain stays above forget from 4 to 20 domains"},
)
