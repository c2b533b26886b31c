"""Where does the loss of a removed capability sit?

The paper's "Capability Removal Concentrates Loss ...".

The losses of every token of the auxiliary domains, over the baseline of the same seed: shaded texts
as in the paper's appendix `app:token-localization`, and in aggregate the Gini coefficient of the
increases and their share on a tenth of the tokens, with another seed's baseline as the control. All
runs are those of `stories.py`.

    # demo: a part of stories.py's runs
    python experiments/token_localization.py
    # 2 CPU cores, about a minute
    python experiments/token_localization.py --preset smoke
    # 800M parameters on the dual-use domains
    python experiments/token_localization.py --preset paper --dry-run

Expect (paper, by eye): with the capability removed the increase sits on few domain words, under all
of GRAM, FT-LoRA and MaxEnt; with it kept the increase on those words is near zero. The paper gives
no aggregate. In the demo the Gini of the increases is .89 to .90 for filtering, GRAM and FT-LoRA,
.87 for MaxEnt, .84 between two seeds of the baseline.
"""

from gram_platform.studies.library.token_localization import STUDY
from gram_platform.studies.searches.command import main

if __name__ == "__main__":
    main(STUDY)
