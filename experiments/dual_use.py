"""Does GRAM isolate dual-use capabilities learnt from real text?

The paper's `sec:claim-realistic`.

Virology, cybersecurity, nuclear physics and Lisp beside general text: five profiles, every method,
every forgotten domain attacked by finetuning, and all modules on at once (arbitrary subsets of
capabilities).

    # demo on your text: 81 minutes on one busy core
    python experiments/dual_use.py --corpus FOLDER --core-label core
    # the same on generated stories
    python experiments/dual_use.py
    # 2 CPU cores, 1 to 2 minutes
    python experiments/dual_use.py --preset smoke
    # beside selective gradient masking
    python experiments/dual_use.py --methods baseline filtering gram sgtm
    # MaxEnt with a search's best trials
    python experiments/dual_use.py --maxent SEARCH_ID
    # 800M, 16B tokens; searches MaxEnt first
    python experiments/dual_use.py --preset paper --dry-run

Expect (paper): GRAM and FT-LoRA close to filtering on core, retain and forget; the attack undoes
MaxEnt; with all modules on GRAM keeps its compute ratios and summed LoRAs lose. In the demo on
abstracts (0.28M; core, retain, forget, elicited): filtering .976 1.034 .691 .827; GRAM .847 .852
.614 .693; FT-LoRA .898 1.031 .636 .772; MaxEnt .999 1.114 .805 .977; with all modules on GRAM .768
.810, summed LoRAs .683 .817 (FINDINGS.md).
"""

from gram_platform.studies.library.dual_use import STUDY
from gram_platform.studies.searches.command import main

if __name__ == "__main__":
    main(STUDY)
