"""Does the kind of module matter, or the way it is trained? (the paper's "Architecture Ablation: MLP vs. LoRA")

GRAM's routing with MLPs and with LoRAs, finetuned branches with LoRAs and with MLPs, all with modules of one size.

    python experiments/architecture.py                          # demo: 2 CPU cores, not timed since 2026-11-23
    python experiments/architecture.py --preset smoke           # 2 CPU cores, under 2 minutes
    python experiments/architecture.py --preset paper --dry-run # 100M parameters

Expect (paper; core, retain, forget, elicited): GRAM (MLP) .88 .77 .69 .95, GRAM (LoRA) .89 .78 .70 .96, FT-MLP .85 .75
.58 .88, FT-LoRA .86 .81 .60 .90: the kind of module hardly matters, the way it is trained does.
"""

from gram_platform.studies import main
from gram_platform.studies.library.architecture import STUDY

if __name__ == "__main__":
    main(STUDY)
