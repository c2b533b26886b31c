"""Declares the study of token losses (the paper's "Capability Removal Concentrates Loss ...")."""

from dataclasses import replace

from gram_platform.methods.measurements import TokenIncreases
from gram_platform.studies import Preset, Study
from gram_platform.studies.library import dual_use, stories


def measure(preset: Preset) -> Preset:
    return replace(preset, measurement=TokenIncreases())


STUDY = Study(
    name="token_localization",
    title="Where the loss of removed capabilities sits",
    question=(
        "On how few tokens does a forgotten domain's loss rise over the baseline's, and is the rise"
        " gone where the domain is kept?"
    ),
    methods=("baseline", "filtering", "gram", "ft_lora", "maxent"),
    presets={
        "smoke": measure(stories.STORIES_SMOKE),
        "demo": measure(stories.STORIES_DEMO),
        "stories": measure(stories.STORIES_PAPER),
        "paper": measure(dual_use.DUAL_USE_PAPER),
    },
    paper={"Appendix L": "the loss rises on few tokens of a removed domain"},
)
