"""One route a window, or one a micro-batch? (the paper's "Heterogeneous Accumulation")

Baseline, GRAM and FT-LoRA with uniform and with heterogeneous gradient accumulation over equal
windows. Every compute ratio is against the heterogeneous baseline.

    python experiments/accumulation.py                          # demo: 15 minutes of one CPU core
    python experiments/accumulation.py --preset smoke           # 2 cores, two seeds: under a minute
    python experiments/accumulation.py --preset paper --dry-run # 200M parameters

Expect (paper, one seed): heterogeneous accumulation raises GRAM's core from .94 to .99 and its
retain from .75 to 1.11, forget stays (.70, .69); FT-LoRA's retain goes from .83 to .90, the
baseline's auxiliary domains from .76 to 1. Expect in the demo (0.15M, three seeds): GRAM's core
from .89 to .96, its retain from .55 to .69, its forget from .48 to .55.
"""

from gram_platform.studies import main
from gram_platform.studies.library.accumulation import STUDY

if __name__ == "__main__":
    main(STUDY)
