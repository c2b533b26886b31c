"""Which peak learning rate and batch are best at each size, and what laws run through them?

The paper's appendix "Learning Rate and Batch Size Scaling" (`app:lr-bs-scaling`): baselines on a
grid of rates and batches in powers of two at each size, a quadratic surface through their losses,
its minimum, and a power law in the parameter count through the minima. `paper` has the cells that
the authors ran (agencyenterprise/modular-pretraining, results/optimize: 12, 12, 16 and 12, three
seeds), with the batches that they ran: 264, 528 and 1,056 in place of the nominal 256, 512 and
1,024. They ran two trials of 200M twice, we run them once. `demo` and `smoke` are powers of two
around each size's rate and batch; in `smoke` that cell is the baseline of `experiments/scaling.py`.

A grid grows where its minimum lies at the border [ours]; the paper's grids are fixed, so `paper`
grows only with `--max-extensions 1`. If the size's micro-batch does not divide a batch, the largest
smaller one that does replaces it.

    # demo: 2 CPU cores, about 15 minutes
    python experiments/lr_bs_grid.py
    # 2 CPU cores, about 80 s
    python experiments/lr_bs_grid.py --preset smoke
    # fit again, to cells within 2% of the best
    python experiments/lr_bs_grid.py --report-only --window 0.02
    # 50M to 400M, 156 runs: the cost
    python experiments/lr_bs_grid.py --preset paper --dry-run
    ray job submit --working-dir . -- python experiments/lr_bs_grid.py --storage /absolute/path

Expect (paper, 50M to 400M): LR 0.311 N^-0.308 (R2 .991), batch 4.93e-5 N^0.799 (R2 .957). These are
fits of the log of the loss on sizes by name (50e6); ours, of the loss on parameter counts, gives
0.290 N^-0.304 (.982) and 7.6e-5 N^0.776 (.947) from the same trials. To analyse other trials, such
as the authors', without a run:

    import gram_platform as gram
    trials = gram.load_trials("trials.csv", named_sizes=True)
    print(gram.analyse_grid(trials, seq_len=1024, as_published=True).laws)

Expect in the demo (0.1M to 0.3M, 2 seeds): LR N^-0.61, 90% t-interval [-0.99, -0.23]; the best
batch stays at 6 sequences of 64 tokens at all three sizes, N^-0.004 [-1.29, 1.28]; no minimum at an
edge; the curvature at 0.1M is 1.8 standard errors, within the noise, so this is no law. In `smoke`
two sizes make none either. See FINDINGS.md.
"""

from gram_platform.studies.library.lr_bs_grid import SEARCH
from gram_platform.studies.searches.command import main

if __name__ == "__main__":
    main(SEARCH)
