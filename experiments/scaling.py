"""Does capability isolation improve with scale? (the paper's figure "Capability Isolation Improves with Scale")

A ladder of sizes, each trained as a baseline, as one GRAM run, as a base with a finetuned adapter (FT-LoRA), and as a
dense model on core and one domain only (filtering); every forgotten domain is attacked by finetuning. Compute ratios of
core, retained, forgotten and attacked domains against model size.

    python experiments/scaling.py                                       # demo: 2 CPU cores, about 15 minutes
    python experiments/scaling.py --preset smoke                        # 2 CPU cores, under 2 minutes
    python experiments/scaling.py --preset paper --dry-run              # 50M to 5B: what it would cost
    python experiments/scaling.py --preset as_run --dry-run             # as the authors ran it: docs/studies.md
    ray job submit --working-dir . -- python experiments/scaling.py --storage /absolute/path

Expect (paper): retain stays near 1 and forget falls with size, for GRAM as for filtering. Expect in the demo (generated
stories, 0.2M to 0.6M parameters), profile core+airport: filtering retain .93 to .97 and forget .51, .44, .31 from the
smallest to the largest size; GRAM retain .79, .76, .69, forget .72, .62, .47, core .97, .91, .94. See FINDINGS.md.
"""

from gram_platform.study import Study, main
from gram_platform.study.scaling import AS_RUN, DEMO, PAPER, PAPER_HET, SMOKE
from gram_platform.study.scaling import STUDY as LONG

STUDY = Study(
    name="scaling",
    title="Capability isolation against model size",
    question="Does one GRAM run stay close to separately filtered models as models grow, on the capability that is "
    "kept and on those that are removed?",
    methods=("baseline", "filtering", "gram", "ft_lora"),
    presets={"smoke": SMOKE, "demo": DEMO, "study": LONG, "paper": PAPER, "as_run": AS_RUN, "paper_het": PAPER_HET},
    compare_with="scaling",
)

if __name__ == "__main__":
    main(STUDY)
