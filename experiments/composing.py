"""Do modules still work when several of them are on? (the paper's "Arbitrary subsets of capabilities", and ours)

Every subset of the modules is switched on: of one run of GRAM, of one of GRAM with random subsets of companions (ours),
and of FT-LoRA's adapters, summed. Core, and the domains that are kept, against the number of modules that are on. With
more than five auxiliary domains ten subsets of each number are drawn. A profile costs one evaluation and no training:
everything but the runs of `gram_subsets` is trained by `dual_use.py` too.

    python experiments/composing.py                          # demo: 2 CPU cores, 8 minutes after scaling.py
    python experiments/composing.py --preset smoke           # 2 CPU cores, 1 to 2 minutes
    python experiments/composing.py --preset paper --dry-run

Expect (paper): GRAM keeps its compute ratios with all modules on, summed LoRAs lose core and retain. Expect in the demo
(0.28M, three seeds), from one module on to all four: core falls by .22 with GRAM, whose batches never see two modules,
by .01 with random subsets, by .33 with summed LoRAs; retain by .09, .15, .47. See FINDINGS.md.
"""

from gram_platform.studies.campaign import study_main
from gram_platform.studies.library.composing import STUDY

if __name__ == "__main__":
    study_main(STUDY)
