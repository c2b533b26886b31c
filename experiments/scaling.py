"""Does capability isolation improve with scale?

The paper's figure "Capability Isolation Improves with Scale".

A ladder of sizes, each trained as a baseline, as one GRAM run, as a base with a finetuned adapter
(FT-LoRA; not in the demo), and as a dense model on core and one domain only (filtering); every
forgotten domain is attacked by finetuning. Compute ratios of core, retained, forgotten and attacked
domains against model size.

    # demo: 2 CPU cores, 12 to 14 minutes
    python experiments/scaling.py
    # 2 shared CPU cores, 2 to 3 minutes
    python experiments/scaling.py --preset smoke
    # 0.1M to 3M, 5 seeds: below
    python experiments/scaling.py --preset study --corpus installed
    # 50M to 5B: the cost
    python experiments/scaling.py --preset paper --dry-run
    # as the authors ran it: docs/studies.md
    python experiments/scaling.py --preset as_run --dry-run
    ray job submit --working-dir . -- python experiments/scaling.py --storage /absolute/path

Expect (paper): retain stays near 1 and forget falls with size, for GRAM as for filtering. Expect in
the demo (generated stories, 0.15M, nine seeds), profile core+airport: filtering .98 core, .98
retain, .36 forget, .54 after the attack; GRAM .93, .91, .54 and .67. See FINDINGS.md. The preset
`study` has five methods and seeds: by `--dry-run` 5 core hours up to 0.6M, 14 more for 1.2M (a
night of two cores), 83 for 3M.
"""

from gram_platform.studies import main
from gram_platform.studies.library.scaling import STUDY

if __name__ == "__main__":
    main(STUDY)
