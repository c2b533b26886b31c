"""Declares the sweeps of GRAM's core robustness (p_cr) and auxiliary spread (p_as), and of
FT-LoRA's ratio of core to auxiliary batches (p_ca).

Source: the paper's "Hyperparameter Appendix".
"""

from dataclasses import replace

from gram_platform.studies.library.stories import (
    STORIES_AS_RUN,
    STORIES_DEMO,
    STORIES_PAPER,
    STORIES_SMOKE,
)
from gram_platform.studies.searches.definition import Search
from gram_platform.studies.searches.flags import SweepFlags, read_knobs

# "p_ca reallocates a fixed parameter budget" (app:hyperparams): p_af 2 / (1 + p_ca) in the authors'
# settings.
SWEPT_PAPER, SWEPT_AS_RUN = (
    replace(preset, conventions=replace(preset.conventions, constant_branches=True))
    for preset in (STORIES_PAPER, STORIES_AS_RUN)
)
PAPER_VALUES = {
    "p_cr": (0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
    "p_as": (0.0, 0.25, 0.5, 0.75, 1.0),
    "p_ca": (0.25, 0.5, 1.0, 2.0, 4.0),
}

SEARCH = Search(
    name="hyperparams",
    title="What p_cr, p_as and p_ca trade off",
    question=(
        "How do GRAM's core robustness p_cr and auxiliary spread p_as, and FT-LoRA's ratio of core"
        " to auxiliary batches p_ca, move what is kept, what is removed, and what an attacker gets"
        " back?"
    ),
    kind="gram_platform.studies.searches.hyperparams:HyperparameterSweep",
    flags_type=SweepFlags,
    read=read_knobs,
    presets={
        "smoke": replace(STORIES_SMOKE, num_seeds=1),
        "demo": STORIES_DEMO,
        "paper": SWEPT_PAPER,
        "as_run": SWEPT_AS_RUN,
    },
    points={
        "smoke": {"p_cr": (0.0, 0.5), "p_as": (0.3, 1.0), "p_ca": (0.5, 2.0)},
        # Without p_ca 4: rehearsal in four branches would leave the demo's base nothing to train on
        "demo": {
            "p_cr": (0.0, 0.25, 0.5, 0.75, 1.0),
            "p_as": (0.0, 0.1, 0.3, 1.0),
            "p_ca": (0.25, 0.5, 1.0, 2.0),
        },
        "paper": PAPER_VALUES,
        "as_run": PAPER_VALUES,
    },
    paper={
        "Figure 10": "what p_cr trades off",
        "Figure 11": "what p_as trades off",
        "Figure 12": "what p_ca trades off",
    },
)
