"""Declares the study of several modules on at once (the paper's "Arbitrary subsets of capabilities", and ours)."""

from gram_platform.studies import Study
from gram_platform.studies.library.dual_use import AS_RUN, DEMO, PAPER, SMOKE, composed

STUDY = Study(
    name="composing",
    title="Several modules on at once",
    question="What do core and the domains that are kept lose as more modules are on: routed with one companion at a "
    "time, routed with random subsets, and as summed LoRAs?",
    methods=("baseline", "gram", "gram_subsets", "ft_lora"),
    presets={"smoke": composed(SMOKE), "demo": composed(DEMO), "paper": composed(PAPER), "as_run": composed(AS_RUN)},
    compare_with="dual_use",
)
