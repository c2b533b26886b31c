"""Declares the study of generated texts (the paper's "Sample Outputs ...")."""

from dataclasses import replace

from gram_platform.config import RoutingConfig
from gram_platform.config.ladder import GRID_DEMO_SIZES
from gram_platform.methods.measurements import Samples
from gram_platform.methods.setting import Options, Unlearning
from gram_platform.studies import Preset, Study
from gram_platform.studies.library import scaling, stories


def measure(preset: Preset, num_prompt_tokens: int, num_tokens: int) -> Preset:
    return replace(preset, num_seeds=1, measurement=Samples(num_prompt_tokens, num_tokens))


# A token of code is about 2.5 characters: 128 tokens hold a prompt of three lines and six more. At
# temperature 0.6 small models keep to common text [ours].
INSTALLED_DEMO = replace(
    scaling.DEMO,
    sizes={
        "0.3M": replace(
            GRID_DEMO_SIZES["0.3M"],
            seq_len=128,
            batch_size=4,
            micro_batch=4,
            core_tokens=3_000_000,
            peak_lr=3e-3,
        )
    },
    num_seeds=1,
    first_seed=0,
    methods=(),
    corpus="installed",
    aux_share=0.25,
    routing=RoutingConfig(p_core_robust=0.5, p_aux_spread=0.25),
    num_eval_points=25,
    num_eval_sequences=32,
    retain="cpp",
    every_single=True,
    # A quarter of the baseline's steps at half its rate; not searched with this loss.
    options=Options(
        stories.BRANCHING,
        stories.BRANCHING,
        Unlearning(num_steps=1600, peak_lr=1.5e-3, retain_weight=50.0),
    ),
    measurement=Samples(40, 88, documents=tuple(range(6)), temperature=0.6, compared_only=True),
)

STUDY = Study(
    name="samples",
    title="Samples with a topic kept and removed",
    question=(
        "How does every method continue a story of a topic that it has kept, and of one that it has"
        " removed?"
    ),
    methods=("baseline", "filtering", "maxent", "gram", "ft_lora", "ft_full", "demix"),
    presets={
        "smoke": measure(stories.STORIES_SMOKE, 20, 44),
        "demo": measure(stories.STORIES_DEMO, 20, 44),
        "installed": INSTALLED_DEMO,
        "paper": measure(stories.STORIES_PAPER, 32, 80),
    },
    paper={"Appendix K": "how every method continues a story"},
)
