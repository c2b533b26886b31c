"""Does the kind of module matter, or the way it is trained? (the paper's "Architecture Ablation: MLP vs. LoRA")

GRAM's routing with MLPs and with LoRAs, finetuned branches with LoRAs and with MLPs, all of one module size.

    python experiments/architecture.py                          # demo: 2 CPU cores, not timed since 2026-11-23
    python experiments/architecture.py --preset smoke           # 2 CPU cores, under 2 minutes
    python experiments/architecture.py --preset paper --dry-run # 100M parameters

Expect (paper; core, retain, forget, elicited): GRAM (MLP) .88 .77 .69 .95, GRAM (LoRA) .89 .78 .70 .96, FT-MLP .85 .75
.58 .88, FT-LoRA .86 .81 .60 .90: the kind of module hardly matters, the way it is trained does.
"""

from gram_platform.study import Study, main
from gram_platform.study.scaling import AS_RUN, DEMO, PAPER, SMOKE, at_size

STUDY = Study(
    name="architecture",
    title="MLP or LoRA modules, routed or finetuned",
    question="Do capability profiles depend on the kind of module, or on whether it is routed or finetuned?",
    methods=("baseline", "gram", "gram_lora", "ft_lora", "ft_mlp"),
    presets={
        "smoke": at_size(SMOKE, "tiny"),
        "demo": at_size(DEMO, "0.15M", methods=(), aux_factor=DEMO.aux_factor),
        "paper": at_size(PAPER, "100M"),
        "as_run": at_size(AS_RUN, "100M", num_eval_points=200),
    },
    compare_with="architecture",
)

if __name__ == "__main__":
    main(STUDY)
