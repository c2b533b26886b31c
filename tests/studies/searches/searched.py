"""A study of runs of a second whose preset begins with a MaxEnt search, as a process that tests can
kill."""

from dataclasses import replace

from gram_platform.studies import Study
from gram_platform.studies.definition import MaxEntRanges
from gram_platform.studies.library import stories
from gram_platform.studies.library.stories import STORIES_SMOKE_SIZES
from gram_platform.studies.searches.command import main

NAME, OWN = next(iter(STORIES_SMOKE_SIZES.items()))
SIZE = replace(OWN, core_tokens=OWN.seq_len * OWN.batch_size * 12)
SMOKE = replace(
    stories.STORIES_SMOKE,
    sizes={NAME: SIZE},
    num_seeds=2,
    num_eval_points=6,
    num_eval_sequences=4,
    options=replace(stories.STORIES_SMOKE.options, elicitation=None),
    maxent_search=MaxEntRanges((5e-4, 4e-3), (2.0, 200.0), num_trials=2),
)

STUDY = Study(
    name="searched",
    title="A study after its search",
    question="Does the study train with what the search has found?",
    methods=("baseline", "maxent"),
    presets={"smoke": SMOKE},
    default_preset="smoke",
)

if __name__ == "__main__":
    main(STUDY)
