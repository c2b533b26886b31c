"""Can a capability be turned up continuously?

The paper's "Continuous Control of Capability Profiles".

The dual-use runs of GRAM and FT-LoRA, evaluated with a module's output scaled by t from 0 to 1, all
others off. All runs are those of `dual_use.py`. Each seed is measured against its own baseline, as
the paper's text says; the preset as_run pools the baselines, as the published figure does.

    python experiments/titration.py                          # demo: 20 minutes, 6 after dual_use.py
    python experiments/titration.py --preset smoke           # 2 cores, two seeds: under a minute
    python experiments/titration.py --preset paper --dry-run

Expect (paper): the module's domain rises monotonically with t to about 1, core stays flat at about
1. In the demo on abstracts (0.28M, t 0, .5, 1): GRAM .622, .688, .852, core falls by .013; FT-LoRA
.675, .833, 1.169 (FINDINGS.md).
"""

from gram_platform.studies.library.titration import STUDY
from gram_platform.studies.searches.command import main

if __name__ == "__main__":
    main(STUDY)
