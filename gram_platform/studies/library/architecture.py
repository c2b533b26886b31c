"""Declares the study of module types (the paper's "Architecture Ablation: MLP vs. LoRA")."""

from gram_platform.studies import Study
from gram_platform.studies.library.scaling import AS_RUN, DEMO, PAPER, SMOKE, at_size

STUDY = Study(
    name="architecture",
    title="MLP or LoRA modules, routed or finetuned",
    question=(
        "Do capability profiles depend on the kind of module, or on whether it is routed or"
        " finetuned?"
    ),
    methods=("baseline", "gram", "gram_lora", "ft_lora", "ft_mlp"),
    presets={
        "smoke": at_size(SMOKE, "tiny"),
        "demo": at_size(DEMO, "0.15M", methods=(), aux_factor=DEMO.aux_factor),
        "paper": at_size(PAPER, "100M"),
        "as_run": at_size(AS_RUN, "100M", num_eval_points=200),
    },
    compare_with="architecture",
    paper={"Figure 9": "MLP and LoRA modules have similar profiles"},
)
