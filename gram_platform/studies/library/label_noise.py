"""Declares the study of wrong labels, which is not in the paper."""

from dataclasses import replace

from gram_platform.studies import Preset, Study
from gram_platform.studies.definition import RECALL, mislabel
from gram_platform.studies.library import scaling


def sweep_labels(preset: Preset, size: str, *recalls: float, **changes) -> Preset:
    """Returns the preset at one size, with variants for true and wrong labels.

    Wrong labels have precision 0.5, or one of `recalls`. By default, there are 5 seeds.
    """
    changes = {"num_seeds": 5, "seeds_of_size": (), "methods": (), "maxent_search": None} | changes
    variants = (mislabel(), mislabel(precision=0.5), *map(mislabel, recalls))
    return replace(preset, sizes={size: preset.sizes[size]}, variants=variants, **changes)


STUDY = Study(
    name="label_noise",
    title="Wrong labels",
    question=(
        "Beyond the paper: how much does each method forget if some of a domain's text carries the"
        " label core (recall below 1), or other text carries its label (precision below 1)?"
    ),
    methods=("baseline", "filtering", "gram", "ft_lora", "sgtm"),
    presets={
        "smoke": sweep_labels(scaling.SMOKE, "tiny", 0.8, num_seeds=3),
        # Shares the runs at recall 1 with the scaling study.
        "demo": sweep_labels(scaling.SCALING_DEMO, "0.15M", 0.95, 0.8, 0.5),
        "paper": sweep_labels(scaling.PAPER, "800M", 0.95, 0.8, 0.5),
    },
    varies=RECALL,
    compare_with="label_noise",
)
