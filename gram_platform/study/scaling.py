"""The scales of the ladder's studies: sizes, data and routing that the scaling study and the searches on it share."""

import dataclasses

from gram_platform.config import RoutingConfig
from gram_platform.ladder import DEMO_SIZES, PAPER_SIZES, SMOKE_SIZES
from gram_platform.study.definition import Preset

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
