"""Declares the study of module weights.

Source: the paper's "Continuous Control of Capability Profiles".
"""

from gram_platform.studies import Study
from gram_platform.studies.library.dual_use import (
    DUAL_USE_AS_RUN,
    DUAL_USE_DEMO,
    DUAL_USE_PAPER,
    DUAL_USE_SMOKE,
    titrate,
)

WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)

STUDY = Study(
    name="titration",
    title="Continuous control of capabilities",
    question=(
        "Does the compute ratio on a module's domain rise steadily with the module's weight, while"
        " core stays?"
    ),
    methods=("baseline", "gram", "ft_lora"),
    presets={
        "smoke": titrate(DUAL_USE_SMOKE, (0.0, 0.5, 1.0)),
        "demo": titrate(DUAL_USE_DEMO, WEIGHTS),
        "paper": titrate(DUAL_USE_PAPER, tuple(step / 10 for step in range(11))),
        # The authors' code pools the seeds' baselines, unlike the paper's text.
        "as_run": titrate(DUAL_USE_AS_RUN, WEIGHTS, own_baseline=False),
    },
    compare_with="titration",
    varies="weight",
    paper={"Figure 16": "retain rises with a module's weight"},
)
