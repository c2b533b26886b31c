"""Declares the study of kinds of attack: what the attacker trains, and on which text."""

from collections.abc import Sequence
from dataclasses import replace

from gram_platform.config import CORE
from gram_platform.config.identity import invalid
from gram_platform.methods.setting import NEIGHBOUR
from gram_platform.studies import Preset, Study
from gram_platform.studies.definition import Variant
from gram_platform.studies.library import stories


def attacking(name: str, **kind) -> Variant:
    def change(setting):
        attack = setting.options.elicitation
        if attack is None:
            raise invalid("options.elicitation", False, "an attack, which this study varies")
        return setting.with_options(elicitation=replace(attack, **kind))

    return Variant(name, change)


def vary_attack(preset: Preset, kinds: Sequence[Variant]) -> Preset:
    elicitation = replace(preset.options.elicitation, compared_only=True)
    preset = preset.with_options(elicitation=elicitation)
    return replace(preset, every_single=False, variants=tuple(kinds))


def every_kind(rank: int) -> tuple[Variant, ...]:
    return (
        attacking("full"),
        attacking("lora", rank=rank, lr_factor=2.5),
        attacking("neighbour", text=NEIGHBOUR),
        attacking("core", text=CORE),
    )


# 5% of a removed domain: with the other demos' 1.3% MaxEnt stays far below the baseline
# (FINDINGS.md).
ATTACKED_DEMO = stories.STORIES_DEMO.with_options(
    elicitation=replace(stories.STORIES_DEMO.options.elicitation, domain_share=0.05)
)

STUDY = Study(
    name="attack_kinds",
    title="Kinds of attack",
    question=(
        "Does a removed capability come back if the attacker trains adapters, or on text near the"
        " removed domain, for GRAM and filtering as for unlearning?"
    ),
    methods=("baseline", "filtering", "gram", "maxent", "rmu", "graddiff"),
    presets={
        "smoke": vary_attack(replace(stories.STORIES_SMOKE, num_seeds=1), every_kind(rank=4)),
        "demo": vary_attack(ATTACKED_DEMO, every_kind(rank=8)),
    },
    varies="attack",
)
