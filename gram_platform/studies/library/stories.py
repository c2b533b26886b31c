"""Declares the study of all methods on stories, and presets of other studies."""

from dataclasses import replace

from gram_platform.config.ladder import SMOKE_SIZES, STORIES_AUX_SHARE, STORIES_SIZES, Size
from gram_platform.methods.setting import Branching, Demix, Elicitation, Options, Unlearning
from gram_platform.studies import Study
from gram_platform.studies.definition import (
    AS_RUN_FAMILY,
    PAPER_FAMILY,
    MaxEntRanges,
    Preset,
    Variant,
)
from gram_platform.studies.library import scaling
from gram_platform.studies.library.scaling import AS_RUN_ATTACK, AS_RUN_CONVENTIONS

# As the authors ran it: a full-width core beside the modules, one route a step.
STORIES_AS_RUN_SIZES = {"26M": replace(STORIES_SIZES["26M"], d_core=2048, micro_batch=128)}
# For minutes on a GPU [ours]: 10 core tokens per parameter, Simple Stories' context. As in the
# demo, modules are half as wide as the MLP, and a step has one route. The rates, below that of
# Simple Stories' 26M, are not searched.
STORIES_GPU_SIZES = {
    size.name: size
    for size in (
        Size("3M", 6, 192, 4, 2, 768, 768, 384, 64, 64, 28_370_000, 4e-3, 256, 1024),
        Size("10M", 8, 320, 4, 2, 1280, 1280, 640, 64, 64, 96_900_000, 3e-3, 256, 1024),
    )
}
STORIES_SMOKE_SIZES = {"tiny": replace(SMOKE_SIZES["tiny"], d_core=112)}

# p_ca is 2, p_lr is 1 [ours].
BRANCHING = Branching(core_ratio=2.0, lr_factor=1.0)

SMOKE_MAXENT = Unlearning(num_steps=10, peak_lr=2e-3, retain_weight=50.0)
STORIES_SMOKE_ATTACK = Elicitation(num_sequences=4, num_steps=6, patience=0, batch_size=4)

STORIES_PAPER = Preset(
    sizes=STORIES_SIZES,
    num_seeds=3,
    corpus="simple-stories",
    family=PAPER_FAMILY,
    aux_share=STORIES_AUX_SHARE,
    routing=scaling.STORIES_ROUTING,
    warmup_fraction=0.1,
    decay_fraction=0.1,
    num_eval_points=100,
    # All of every topic's test split; the authors' limit is 10,000.
    num_eval_sequences=440,
    equal_compute=False,
    every_single=True,
    machine="h100",
    options=Options(
        branch_full=BRANCHING,
        branch_module=BRANCHING,
        maxent=Unlearning(num_steps=2000, peak_lr=1e-4, retain_weight=200.0, batch_size=64),
        elicitation=Elicitation(num_sequences=128, num_steps=75, patience=0),
    ),
    # Ranges and trials of the authors' published settings; the paper prints none for stories.
    maxent_search=MaxEntRanges((3e-4, 1e-2), (5.0, 300.0), num_trials=30),
)
# As in the authors' settings and code; the search of `maxent_search.py` replaces rate and weight.
AS_RUN_MAXENT = Unlearning(
    num_steps=2000,
    peak_lr=2e-3,
    retain_weight=200.0,
    warmup_fraction=0.0,
    batch_size=64,
    core_share=0.75,
    stop_below=2.0,
    clip_norm=0.0,
)
STORIES_AS_RUN = replace(
    STORIES_PAPER,
    family=AS_RUN_FAMILY,
    sizes=STORIES_AS_RUN_SIZES,
    num_eval_points=200,
    equal_compute=True,
    conventions=AS_RUN_CONVENTIONS,
    masks_documents=True,
    options=replace(
        STORIES_PAPER.options,
        branch_full=Branching(core_ratio=2.0, lr_factor=0.25),
        demix=Demix(views="single_expert"),
        maxent=AS_RUN_MAXENT,
        elicitation=AS_RUN_ATTACK,
    ),
)
# The scaling demo's set-up at one size, with the same baselines.
STORIES_DEMO = replace(
    scaling.DEMO,
    sizes={"0.15M": scaling.DEMO.sizes["0.15M"]},
    methods=(),
    every_single=True,
    options=replace(
        STORIES_PAPER.options,
        # A quarter of the baseline's steps at three eighths of its rate: near the best trials of
        # every profile (docs/findings/attacks.md).
        maxent=Unlearning(num_steps=500, peak_lr=1.2e-3, retain_weight=25.0),
        elicitation=replace(scaling.DEMO_ATTACK, compared_only=False),
        **scaling.DEMO_UNLEARNING,
    ),
)
# The scaling demo's set-up for minutes on a GPU, one profile, one seed; rates are not searched.
GPU = replace(
    scaling.DEMO,
    sizes=STORIES_GPU_SIZES,
    num_seeds=1,
    methods=("baseline", "filtering", "gram", "maxent"),
    corpus="stories-100M",
    machine="h200",
    # MaxEnt's parameters were searched at 0.15M.
    options=replace(STORIES_DEMO.options, elicitation=scaling.DEMO_ATTACK),
)
STORIES_SMOKE = replace(
    scaling.SMOKE,
    sizes=STORIES_SMOKE_SIZES,
    equal_compute=False,
    every_single=True,
    options=replace(
        STORIES_PAPER.options,
        maxent=SMOKE_MAXENT,
        elicitation=STORIES_SMOKE_ATTACK,
        **scaling.SMOKE_UNLEARNING,
    ),
)


def divide(
    preset: Preset, numbers: tuple[int, ...], attacks_core_alone: bool = True, **changes
) -> Preset:
    """Returns a preset with a variant for each number of auxiliary domains in `numbers`.

    A variant's auxiliary domains together make up a fifth of all tokens.
    """
    elicitation = replace(preset.options.elicitation, compared_only=attacks_core_alone)
    return replace(
        preset.with_options(elicitation=elicitation),
        aux_share=0.25,
        every_single=False,
        core_only=True,
        variants=tuple(Variant(str(number), num_auxiliary=number) for number in numbers),
        # The best parameters depend on the number of domains.
        maxent_search=None,
        **changes,
    )


STUDY = Study(
    name="stories",
    title="Every method on stories",
    question=(
        "How close does one GRAM run come to separately filtered models on what is kept and"
        " removed, and on what an attacker gets back - and how do finetuned branches, unlearning"
        " and expert models do?"
    ),
    methods=("baseline", "filtering", "gram", "ft_full", "ft_lora", "maxent", "demix"),
    presets={
        "smoke": STORIES_SMOKE,
        "demo": STORIES_DEMO,
        "gpu": GPU,
        "paper": STORIES_PAPER,
        "as_run": STORIES_AS_RUN,
    },
    compare_with="stories",
    paper={
        "Figure 2": "GRAM beside a filtered model for each profile",
        "Figure 8": "every method, as bars",
        "Table 1": "every method, as numbers",
    },
)
