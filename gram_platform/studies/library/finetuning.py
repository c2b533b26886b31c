"""Declares the study of finetuning after pretraining."""

from dataclasses import replace

from gram_platform.corpora.stories import INSTRUCTIONS
from gram_platform.methods.setting import Elicitation
from gram_platform.studies import Preset, Study
from gram_platform.studies.definition import Variant
from gram_platform.studies.library import attack_kinds, stories

BEFORE, AFTER = "pretrained", "finetuned"
VARIANTS = (Variant(BEFORE, lambda setting: setting.with_options(finetuning=None)), Variant(AFTER))


def add_stage(preset: Preset, corpus: str, stage: Elicitation) -> Preset:
    preset = preset.with_options(finetuning=replace(stage, text=INSTRUCTIONS))
    return attack_kinds.vary_attack(replace(preset, corpus=corpus), VARIANTS)


STUDY = Study(
    name="finetuning",
    title="Finetuning after removal",
    question=(
        "Does removal survive supervised finetuning on instructions that never mention the removed"
        " domains, and does an attack regain more afterwards?"
    ),
    methods=("baseline", "filtering", "gram", "maxent", "rmu", "graddiff"),
    presets={
        "smoke": add_stage(
            replace(stories.STORIES_SMOKE, num_seeds=1),
            "stories-instructed-smoke",
            Elicitation(64, 16, 0, batch_size=8),
        ),
        # Two epochs at a tenth of the peak rate: at a half, core loses half of its compute ratio
        # [ours].
        "demo": add_stage(
            attack_kinds.ATTACKED_DEMO,
            "stories-instructed",
            Elicitation(512, 128, 0, batch_size=8, lr_factor=0.1),
        ),
    },
    varies="stage",
    unit=BEFORE,
)
