"""Declares the study of combined modules (the paper's "Arbitrary subsets of capabilities")."""

from gram_platform.studies import Study
from gram_platform.studies.library import dual_use

STUDY = Study(
    name="composing",
    title="Several modules on at once",
    question=(
        "What do core and the domains that are kept lose as more modules are on: routed with one"
        " companion at a time, routed with random subsets, and as summed LoRAs?"
    ),
    methods=("baseline", "gram", "gram_subsets", "ft_lora"),
    presets={name: dual_use.compose(each) for name, each in dual_use.STUDY.presets.items()},
    compare_with="dual_use",
    paper={"Figure 5": "GRAM loses less than FT-LoRA with all modules on"},
)
