"""Declares the grids for the paper's appendix "Learning Rate and Batch Size Scaling"."""

from dataclasses import replace

from gram_platform.analysis.lr_extension import Grid
from gram_platform.config.ladder import GRID_DEMO_SIZES
from gram_platform.studies.library.scaling import DEMO, PAPER_HET, SMOKE
from gram_platform.studies.searches.definition import Search
from gram_platform.studies.searches.flags import GridFlags, Grids, read_grids

SMALL_GRID = Grid(lrs=(4e-4, 8e-4, 1.6e-3), batches=(32, 64, 128, 264))
# The paper's law rests on these sizes.
PUBLISHED_GRIDS = {
    "50M": SMALL_GRID,
    "100M": SMALL_GRID,
    "200M": Grid(lrs=(2e-4, 4e-4, 8e-4, 1.6e-3), batches=(64, 128, 264, 528)),
    "400M": Grid(lrs=(2e-4, 4e-4, 8e-4), batches=(128, 256, 528, 1056)),
}

# The runs of the law `demo`; the validation split is made for 40 sequences.
GRID_DEMO = replace(
    SMOKE,
    sizes=GRID_DEMO_SIZES,
    num_seeds=2,
    corpus="stories-96",
    num_eval_points=25,
    num_eval_sequences=32,
    eval_sequences_of_size=(("0.2M", 24), ("0.6M", 40)),
    sample_bytes=DEMO.sample_bytes,
    options=DEMO.options,
)

SEARCH = Search(
    name="lr_bs_grid",
    title="Learning rate and batch against size",
    question=(
        "Which peak learning rate and batch are best at each size, what power laws run through"
        " them, and how far are these to be trusted?"
    ),
    kind="gram_platform.studies.searches.lr_bs_grid:LrBatchGrid",
    flags_type=GridFlags,
    read=read_grids,
    presets={
        "smoke": replace(SMOKE, num_seeds=1),
        "demo": GRID_DEMO,
        "paper": replace(
            PAPER_HET, sizes={name: PAPER_HET.sizes[name] for name in PUBLISHED_GRIDS}
        ),
    },
    points={
        "smoke": Grids(
            lr_factors=(0.5, 1.0, 2.0), batch_factors=(0.25, 0.5, 1.0), max_extensions=0
        ),
        "demo": Grids(
            lr_factors=(0.5, 1.0, 2.0), batch_factors=(0.125, 0.25, 0.5, 1.0), max_extensions=2
        ),
        "paper": Grids(max_extensions=0, of_size=PUBLISHED_GRIDS),
    },
    paper={
        "Figure 14": "the loss against learning rate and batch",
        "Figure 15": "the power laws of the best ones",
    },
)
