"""Declares the study of an attacker's budget of sequences and steps."""

from gram_platform.studies import Preset, Study
from gram_platform.studies.library import scaling
from gram_platform.studies.library.attack_kinds import attacking, vary_attack
from gram_platform.studies.library.scaling import at_size


def spending(preset: Preset, sequences: tuple[int, ...], steps: tuple[int, ...]) -> Preset:
    kinds = [
        attacking(f"{n}x{s}", num_sequences=n, num_steps=s, domain_share=0.0)
        for n in sequences
        for s in steps
    ]
    return vary_attack(preset, kinds)


STUDY = Study(
    name="attack_budget",
    title="The attacker's budget",
    question=(
        "How fast does the compute ratio on a removed domain rise with the sequences that an"
        " attacker has, and with the steps that the attack takes, for GRAM as for filtering?"
    ),
    methods=("baseline", "filtering", "gram"),
    presets={
        "smoke": spending(at_size(scaling.SMOKE, "tiny", num_seeds=1), (4, 16), (6, 24)),
        "demo": spending(
            at_size(scaling.DEMO, "0.28M", aux_factor=scaling.DEMO.aux_factor),
            (2, 8, 32),
            (5, 20, 80),
        ),
    },
    varies="budget",
)
