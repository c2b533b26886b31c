"""Declares the study of all methods on dual-use domains, and presets of other studies."""

from dataclasses import replace

from gram_platform.config import RoutingConfig
from gram_platform.config.ladder import SMOKE_SIZES
from gram_platform.methods.setting import Branching, Options, Unlearning
from gram_platform.studies import Study
from gram_platform.studies.definition import MaxEntRanges, Preset, Variant
from gram_platform.studies.library import scaling
from gram_platform.studies.library.stories import (
    AS_RUN_MAXENT,
    SMOKE_MAXENT,
    STORIES_DEMO,
    STORIES_SMOKE_ATTACK,
)

# FT-Full: p_ca 4, p_lr 0.2 (app:realistic); the attack: up to 200 epochs of batches of 32.
OPTIONS = replace(
    scaling.PAPER_OPTIONS,
    branch_full=Branching(core_ratio=4.0, lr_factor=0.2),
    # 48 forgotten and 48 retained sequences a step, as published; whole batches would cost 1.85
    # times the compute.
    maxent=Unlearning(num_steps=2000, peak_lr=1e-4, retain_weight=200.0, batch_size=48),
    elicitation=replace(scaling.PAPER_ATTACK, compared_only=False),
)


# The ranges of app:realistic, the trials of the authors' searches.
MAXENT_SEARCH = MaxEntRanges(
    (5e-5, 2e-4), (50.0, 600.0), num_trials=30, search="maxent_search_dual_use"
)


def every_profile(preset: Preset, options: Options) -> Preset:
    return replace(
        preset,
        sizes={"800M": preset.sizes["800M"]},
        options=options,
        maxent_search=MAXENT_SEARCH,
        every_single=True,
        retain="",
    )


DUAL_USE_PAPER = every_profile(scaling.PAPER, OPTIONS)
DUAL_USE_AS_RUN = every_profile(
    scaling.AS_RUN,
    replace(
        OPTIONS,
        maxent=replace(AS_RUN_MAXENT, batch_size=48),
        elicitation=scaling.AS_RUN_ATTACK,
    ),
)
# The scaling demo's set-up at its largest size, every method and profile. FT-Full gets p_ca 1 and
# half the rate [ours]: p_ca 4 would leave its base too little of so short a run.
DUAL_USE_DEMO = replace(
    STORIES_DEMO,
    sizes={"0.28M": scaling.DEMO.sizes["0.28M"]},
    options=replace(
        STORIES_DEMO.options,
        branch_full=Branching(core_ratio=1.0, lr_factor=0.5),
        branch_module=Branching(core_ratio=1.0, lr_factor=1.0),
        # The stories demo's share of the baseline's rate, and its weight; not searched here.
        maxent=Unlearning(num_steps=500, peak_lr=8e-4, retain_weight=25.0),
    ),
)
DUAL_USE_SMOKE = replace(
    scaling.SMOKE,
    sizes={"tiny": SMOKE_SIZES["tiny"]},
    aux_share=0.2,
    every_single=True,
    options=replace(DUAL_USE_DEMO.options, maxent=SMOKE_MAXENT, elicitation=STORIES_SMOKE_ATTACK),
)


def titrate(preset: Preset, weights: tuple[float, ...], own_baseline: bool = True) -> Preset:
    def at(weight: float) -> Variant:
        return Variant(f"{weight:g}", lambda setting: setting.with_options(module_weight=weight))

    variants = tuple(map(at, weights))
    preset = preset.with_options(elicitation=None)
    return replace(preset, own_baseline=own_baseline, variants=variants)


def compose(preset: Preset) -> Preset:
    return replace(preset.with_options(elicitation=None), every_subset=True)


def partly_labelled(widths: tuple[float, float]) -> Variant:
    """Returns a variant in which half of the sequences have no label.

    `widths` is (GRAM's core width, a module's width), as shares of the dense MLP's width. GRAM runs
    also measure each module's gradients.
    """
    options = {"unlabelled_share": 0.5, "routed_widths": widths, "probes": True}
    return Variant("0.5", lambda setting: setting.with_options(**options))


# 1.25% of the demo's width is two hidden units.
PAPER_WIDTHS, DEMO_WIDTHS = (0.95, 0.0125), (0.9, 0.125)
# The authors' partial runs have p_as 0 and p_af 1 for all methods.
PARTIAL = {"routing": RoutingConfig(p_core_robust=0.2, p_aux_spread=0.0), "aux_factor": 1.0}
AS_RUN_PARTIAL = {
    **PARTIAL,
    "aux_factor_of": (),
    "num_eval_points": 200,
    "options": replace(DUAL_USE_AS_RUN.options, branch_module=Branching()),
}
# A fifth of core's tokens for the domains, since a module sees half of them.
DEMO_PARTIAL = {
    **PARTIAL,
    "aux_share": 0.2,
    "options": replace(DUAL_USE_DEMO.options, branch_module=Branching()),
}


def core_alone(preset: Preset, widths: tuple[float, float] = PAPER_WIDTHS, **changes) -> Preset:
    """Returns a preset that trains with half of the labels and compares only the core profile.

    The baseline and filtering are also trained with all labels.
    """
    preset = replace(preset, **changes)
    return replace(
        preset.with_options(elicitation=replace(preset.options.elicitation, compared_only=True)),
        routing=replace(preset.routing, accumulation="heterogeneous"),
        accumulation_of_size=(),
        every_single=False,
        core_only=True,
        variants=(Variant("1", methods=("filtering",)), partly_labelled(widths)),
        # MaxEnt is not defined for partial labels.
        maxent_search=None,
    )


STUDY = Study(
    name="dual_use",
    title="Dual-use capabilities",
    question=(
        "Does one GRAM run isolate dual-use capabilities as well as a filtered model for each"
        " profile does, what does an attacker get back, and does it still work when several modules"
        " are on?"
    ),
    methods=("baseline", "filtering", "gram", "ft_full", "ft_lora", "maxent"),
    presets={
        "smoke": DUAL_USE_SMOKE,
        "demo": DUAL_USE_DEMO,
        "paper": DUAL_USE_PAPER,
        "as_run": DUAL_USE_AS_RUN,
    },
    compare_with="dual_use",
    paper={"Figure 4": "every method on real domains, 800M"},
)
