"""Declares the study of what an attacker can spend: how many sequences of the removed domain, and how many steps."""

from dataclasses import replace

from gram_platform.studies import Preset, Study
from gram_platform.studies.definition import Variant
from gram_platform.studies.library import scaling
from gram_platform.studies.library.scaling import at_size


def spending(num_sequences: int, num_steps: int) -> Variant:
    """Returns the variant whose attacks finetune on so many sequences for at most so many steps."""

    def changed(setting):
        budget = {"num_sequences": num_sequences, "num_steps": num_steps, "domain_share": 0.0}
        return setting.with_options(elicitation=replace(setting.options.elicitation, **budget))

    return Variant(f"{num_sequences}x{num_steps}", changed)


def attacked(preset: Preset, sequences: tuple[int, ...], steps: tuple[int, ...]) -> Preset:
    """Returns the preset with attacks of every number of sequences and of steps on the compared profile alone."""
    elicitation = replace(preset.options.elicitation, compared_only=True)
    variants = tuple(spending(number, length) for number in sequences for length in steps)
    return replace(preset.with_options(elicitation=elicitation), every_single=False, variants=variants)


STUDY = Study(
    name="attack_budget",
    title="The attacker's budget",
    question="How fast does the compute ratio on a removed domain rise with the sequences that an attacker has, and "
    "with the steps that the attack takes, for GRAM as for filtering?",
    methods=("baseline", "filtering", "gram"),
    presets={
        "smoke": attacked(at_size(scaling.SMOKE, "tiny", num_seeds=1), (4, 16), (6, 24)),
        "demo": attacked(at_size(scaling.DEMO, "0.28M", aux_factor=scaling.DEMO.aux_factor), (2, 8, 32), (5, 20, 80)),
    },
    varies="budget",
)
