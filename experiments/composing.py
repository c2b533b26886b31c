"""Do modules still work when several of them are on?

The paper's "Arbitrary subsets of capabilities", and ours.

Switches on every subset of the modules of a GRAM run, of a GRAM run with random subsets of
companions (ours), and of FT-LoRA's summed adapters; shows core and the kept domains against the
number of modules. With more than five auxiliary domains it draws ten subsets of each number. A
profile costs one evaluation and no training: `dual_use.py` trains all runs but those of
`gram_subsets`.

    python experiments/composing.py                 # demo: 2 CPU cores, about 10 minutes
    python experiments/composing.py --preset smoke  # 2 cores, two seeds: 1 to 2 minutes
    python experiments/composing.py --preset paper --dry-run

Expect (paper): GRAM keeps its compute ratios with all modules on, summed LoRAs lose core and
retain. Expect in the demo (0.28M, three seeds), from one module on to all four: core falls by .22
with GRAM, whose batches never see two modules, by .01 with random subsets, by .33 with summed
LoRAs; retain by .09, .15, .47. See FINDINGS.md.
"""

from gram_platform.studies.library.composing import STUDY
from gram_platform.studies.searches.command import main

if __name__ == "__main__":
    main(STUDY)
