"""Declares the search of MaxEnt's learning rate and retain weight.

The search uses a study's preset with one seed. Its trials start from the study's baselines, and the
study reuses the best trial of each profile as its run for this seed.
"""

from dataclasses import replace

from gram_platform.studies import Preset
from gram_platform.studies.definition import MaxEntRanges
from gram_platform.studies.library import dual_use, stories
from gram_platform.studies.searches.definition import Search
from gram_platform.studies.searches.flags import OptunaFlags, read_ranges

# Seeds of a search [ours]; the authors searched for every seed.
NUM_SEEDS = 1
# For 500 steps, not 2,000: rates up to the baseline's, not 1 to 4% of it as in the paper [ours].
OUR_RANGES = (5e-4, 4e-3), (2.0, 200.0)


def prepare_search(preset: Preset, ranges: MaxEntRanges | None = None) -> Preset:
    return replace(preset, num_seeds=NUM_SEEDS, maxent_search=ranges or preset.maxent_search)


SEARCH = Search(
    name="maxent_search",
    title="MaxEnt's learning rate and retain weight",
    question=(
        "Which learning rate and retain weight let MaxEnt forget most without losing more than 5%"
        " of core's and the retained domains' compute, for each profile?"
    ),
    kind="gram_platform.studies.searches.maxent:MaxEntSearch",
    flags_type=OptunaFlags,
    read=read_ranges,
    needs_optuna=True,
    presets={
        "smoke": prepare_search(stories.STORIES_SMOKE, MaxEntRanges(*OUR_RANGES, num_trials=2)),
        "demo": prepare_search(stories.STORIES_DEMO, MaxEntRanges(*OUR_RANGES, num_trials=16)),
        "paper": prepare_search(stories.STORIES_PAPER),
        "dual_use": prepare_search(dual_use.DUAL_USE_PAPER),
    },
)
