"""The scales of the ladder's studies: sizes, data and routing that the scaling study and the searches on it share."""

import dataclasses

from gram_platform.config import RoutingConfig
from gram_platform.ladder import DEMO_SIZES, PAPER_SIZES, SMOKE_SIZES
from gram_platform.methods.setting import Branching, Elicitation, Options
from gram_platform.study.definition import Preset, Variant

# Simple Stories' routing, for auxiliary domains of several percent each
STORIES_ROUTING = RoutingConfig(p_core_robust=0.5, p_aux_spread=0.3)
# the dual-use routing; below 5B the paper's routed methods accumulate uniformly, with p_af 4/3
PAPER_ROUTING = RoutingConfig(p_core_robust=0.2, p_aux_spread=0.5)
UNIFORM_SIZES = tuple((name, "uniform") for name in PAPER_SIZES if name != "5B")

PAPER_ATTACK = Elicitation(num_sequences=512, num_steps=3200, patience=5, compared_only=True)
PAPER_OPTIONS = Options(branch_module=Branching(aux_factor_of=(("lisp", 2.0),)), elicitation=PAPER_ATTACK)
DEMO_ATTACK = Elicitation(num_sequences=8, num_steps=19, patience=0, batch_size=8, compared_only=True)
SMOKE_ATTACK = Elicitation(num_sequences=4, num_steps=6, patience=0, batch_size=4, compared_only=True)

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
    options=Options(elicitation=SMOKE_ATTACK),
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
    options=Options(elicitation=DEMO_ATTACK),
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
    options=PAPER_OPTIONS,
)
PAPER = dataclasses.replace(PAPER_HET, aux_factor=4 / 3, accumulation_of_size=UNIFORM_SIZES)


# -------------------------------------------------------------------- one size of the ladder, every profile


def at_size(preset: Preset, name: str, **changes) -> Preset:
    """One size of a ladder, compared on core and on core with each domain, p_af 1 and heterogeneous as in the paper's
    studies of architecture and accumulation.
    """
    elicitation = dataclasses.replace(preset.options.elicitation, compared_only=False)
    options = Options(elicitation=elicitation)  # p_ca, p_lr and p_af 1
    parts = {"sizes": {name: preset.sizes[name]}, "every_single": True, "aux_factor": 1.0, "options": options}
    return dataclasses.replace(preset, **{**parts, "accumulation_of_size": (), **changes})


def accumulating(kind: str) -> Variant:
    """Every method, the baseline too, with one route a window or one a micro-batch."""

    def changed(setting):
        routing = dataclasses.replace(setting.routing, accumulation=kind)
        return dataclasses.replace(setting, routing=routing, baseline_accumulation=kind)

    return Variant(kind, changed)


def accumulated(preset: Preset) -> Preset:
    """The preset with either accumulation, without attacks."""
    variants = (accumulating("uniform"), accumulating("heterogeneous"))
    return dataclasses.replace(preset, options=dataclasses.replace(preset.options, elicitation=None), variants=variants)
