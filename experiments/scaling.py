"""Does capability isolation improve with scale? (the paper's figure "Capability Isolation Improves with Scale")

A ladder of sizes, each trained as a baseline, as one GRAM run, and as a dense model on core and one domain only
(filtering). Compute ratios of core, retained and forgotten domains against model size.

    python experiments/scaling.py                                       # demo: 2 CPU cores, about 7 minutes
    python experiments/scaling.py --preset smoke                        # 2 CPU cores, under 2 minutes
    python experiments/scaling.py --preset paper --dry-run              # 50M to 5B: what it would cost
    ray job submit --working-dir . -- python experiments/scaling.py --storage /absolute/path

Expect (paper): retain stays near 1 and forget falls with size, for GRAM as for filtering. Expect in the demo (generated
stories, 0.2M to 0.6M parameters), profile core+airport: filtering retain .93 to .97 and forget .51, .44, .31 from the
smallest to the largest size; GRAM retain .79, .76, .69, forget .72, .62, .47, core .97, .91, .94. See FINDINGS.md.
"""

import dataclasses

from gram_platform.config import RoutingConfig
from gram_platform.ladder import DEMO_SIZES, PAPER_SIZES, SMOKE_SIZES
from gram_platform.study import Preset, Study, main

# Simple Stories' routing, for auxiliary domains of several percent each
STORIES_ROUTING = RoutingConfig(p_core_robust=0.5, p_aux_spread=0.3)
# the dual-use routing; below 5B the paper's routed methods accumulate uniformly, with p_af 4/3
PAPER_ROUTING = RoutingConfig(p_core_robust=0.2, p_aux_spread=0.5)
UNIFORM_SIZES = tuple((name, "uniform") for name in PAPER_SIZES if name != "5B")

SMOKE = Preset(
    sizes=SMOKE_SIZES,
    num_seeds=2,
    corpus="stories-smoke",
    aux_share=0.25,
    routing=STORIES_ROUTING,
    warmup_fraction=0.1,
    decay_fraction=0.1,
    num_eval_points=8,
    num_eval_sequences=8,
    sample_bytes=1_000_000,
)
DEMO = Preset(
    sizes=DEMO_SIZES,
    num_seeds=3,
    corpus="stories",
    aux_share=0.25,
    routing=STORIES_ROUTING,
    warmup_fraction=0.1,
    decay_fraction=0.1,
    num_eval_points=25,
    num_eval_sequences=32,
    eval_sequences_of_size=(("0.2M", 24), ("0.6M", 40)),
)
PAPER_HET = Preset(  # all heterogeneous, p_af 1: ours, recommended
    sizes=PAPER_SIZES,
    num_seeds=3,
    corpus="dual-use",
    aux_share=0.01,
    routing=PAPER_ROUTING,
    warmup_fraction=0.02,
    decay_fraction=0.1,
    num_eval_points=100,
    num_eval_sequences=512,
    retain="virology",
    machine="h100",
)
PAPER = dataclasses.replace(PAPER_HET, aux_factor=4 / 3, accumulation_of_size=UNIFORM_SIZES)

STUDY = Study(
    name="scaling",
    title="Capability isolation against model size",
    question="Does one GRAM run stay close to separately filtered models as models grow, on the capability that is "
    "kept and on those that are removed?",
    methods=("baseline", "filtering", "gram"),
    presets={"smoke": SMOKE, "demo": DEMO, "paper": PAPER, "paper_het": PAPER_HET},
)

if __name__ == "__main__":
    main(STUDY)
