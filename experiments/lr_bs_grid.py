"""Which peak learning rate and batch are best at each size, and what laws run through them?

The paper's appendix "Learning Rate and Batch Size Scaling" (`app:lr-bs-scaling`): baselines on a grid of rates and
batches in powers of two at each size, a quadratic surface through their losses, its minimum, and a power law in the
parameter count through the minima. A grid whose minimum lies at its border grows there. The cell of a size's own rate
and batch is the baseline of `experiments/scaling.py` and shared with it.

    python experiments/lr_bs_grid.py                                    # demo: 2 CPU cores, about 15 minutes
    python experiments/lr_bs_grid.py --preset smoke                     # 2 CPU cores, about 80 s
    python experiments/lr_bs_grid.py --report-only --window 0.02        # fit again, from cells within 2% of the best
    python experiments/lr_bs_grid.py --preset paper --dry-run           # 50M to 400M: what it would cost
    ray job submit --working-dir . -- python experiments/lr_bs_grid.py --storage /absolute/path

Expect (paper, 50M to 400M): LR 0.311 N^-0.308 (R2 .991), batch 4.93e-5 N^0.799 (R2 .957). Expect in the demo (0.1M to
0.3M, 2 seeds): LR N^-0.61, 90% t-interval [-0.99, -0.23]; the best batch stays at 6 sequences of 64 tokens at all three
sizes, N^-0.004 [-1.29, 1.28]; no minimum at an edge; every surface's curvature passed for noise before each seed had
its own level in the fit (not yet run again since). See FINDINGS.md.
"""

import dataclasses

from gram_platform.ladder import GRID_DEMO_SIZES
from gram_platform.searches.lr_batch import GridShape, LrBatchGrid
from gram_platform.searches.run import main
from gram_platform.study.scaling import DEMO, PAPER_HET, SMOKE

FITTED = ("50M", "100M", "200M", "400M")  # the paper's law rests on these
PAPER = dataclasses.replace(PAPER_HET, sizes={name: PAPER_HET.sizes[name] for name in FITTED})

SEARCH = LrBatchGrid(
    name="lr_bs_grid",
    title="Learning rate and batch against size",
    question="Which peak learning rate and batch are best at each size, what power laws run through them, and how far "
    "are these to be trusted?",
    presets={
        "smoke": dataclasses.replace(SMOKE, num_seeds=1),
        "demo": dataclasses.replace(DEMO, sizes=GRID_DEMO_SIZES, num_seeds=2),
        "paper": PAPER,
    },
    grids={
        "smoke": GridShape(lr_factors=(0.5, 1.0, 2.0), batch_factors=(0.25, 0.5, 1.0), max_extensions=0),
        "demo": GridShape(lr_factors=(0.5, 1.0, 2.0), batch_factors=(0.125, 0.25, 0.5, 1.0), max_extensions=2),
        # the paper prints the step, powers of two, and the number of cells, 12, but not their places: these are ours
        "paper": GridShape(lr_factors=(0.5, 1.0, 2.0, 4.0), batch_factors=(0.5, 1.0, 2.0), max_extensions=1),
    },
)

if __name__ == "__main__":
    main(SEARCH)
