"""Declares the study of the errors of compute ratios.

A baseline that trains for half of the steps should have a compute ratio of 0.5.
"""

from collections.abc import Sequence
from dataclasses import replace

from gram_platform.config.ladder import CALIBRATED_SIZES
from gram_platform.methods import Setting
from gram_platform.methods.measurements import Calibration
from gram_platform.studies import Preset, Study
from gram_platform.studies.definition import Variant
from gram_platform.studies.library import scaling, stories

# The baselines to which all others are compared.
REFERENCE = "reference"
SHARES = (0.25, 0.35, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1)
OTHER_SEEDS = 100
BASES = {
    "demo": scaling.DEMO,
    "study": scaling.LONG,
    "gpu": stories.GPU,
    "stories": stories.STORIES_PAPER,
    "paper": scaling.PAPER,
}


def rate(share: float) -> Variant:
    """Returns a variant that trains baselines on the fraction `share` of the text and steps.

    Its seeds differ from those of REFERENCE. Warm-up and decay take the same fractions of the
    steps. The learning curve's points keep their spacing.
    """

    def change(setting: Setting) -> Setting:
        lengths = {domain: round(share * n) for domain, n in setting.num_sequences.items()}
        return replace(
            setting,
            seed=setting.seed + OTHER_SEEDS,
            num_sequences=lengths,
            num_eval_points=max(1, round(share * setting.num_eval_points)),
        )

    return Variant(f"{share:g}", change)


def calibrate(preset: Preset, sizes: Sequence[str], shares: Sequence[float] = SHARES) -> Preset:
    variants = (Variant(REFERENCE), *map(rate, shares))
    of_sizes = {name: preset.sizes[name] for name in sizes}
    return replace(preset, methods=(), sizes=of_sizes, variants=variants, measurement=Calibration())


STUDY = Study(
    name="calibration",
    title="What a compute ratio is worth",
    question=(
        "How far is the compute ratio of a baseline that was trained for a known share of the steps"
        " from that share, and how far is that of an unfinished run's loss?"
    ),
    methods=("baseline",),
    presets={
        "smoke": calibrate(scaling.SMOKE, ["tiny"], shares=(0.5, 1.0)),
        **{name: calibrate(BASES[name], sizes) for name, sizes in CALIBRATED_SIZES.items()},
    },
    varies="share",
    unit=REFERENCE,
    profile="all",
)
