"""Does the kind of module matter, or the way it is trained?

The paper's "Architecture Ablation: MLP vs. LoRA".

GRAM's routing with MLPs and with LoRAs, finetuned branches with LoRAs and with MLPs, all with
modules of one size.

    python experiments/architecture.py                          # demo: 18 minutes of one CPU core
    python experiments/architecture.py --preset smoke           # 2 cores, 2 seeds: under 2 minutes
    python experiments/architecture.py --preset paper --dry-run # 100M parameters

Expect (paper; core, retain, forget, elicited): GRAM (MLP) .88 .77 .69 .95, GRAM (LoRA) .89 .78 .70
.96, FT-MLP .85 .75 .58 .88, FT-LoRA .86 .81 .60 .90: the kind of module hardly matters, the way it
is trained does. Expect in the demo (0.15M, three seeds): GRAM (MLP) .99 .90 .48 .63, GRAM (LoRA)
1.01 .90 .49 .66, FT-MLP .98 1.03 .46 .63, FT-LoRA .99 1.04 .46 .62; with all modules on core .82
.87 .56 .66.
"""

from gram_platform.studies import main
from gram_platform.studies.library.architecture import STUDY

if __name__ == "__main__":
    main(STUDY)
