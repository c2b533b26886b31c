"""Declares the flags that searches alone have."""

from dataclasses import dataclass

from gram_platform.studies.flags import Amount, Number, Switch, Texts

AUTO_AXIS = "auto"


@dataclass(frozen=True)
class TrialFlags:
    """Of this search.

    Args:
        max_concurrent: at most so many trials at once (default: what the cluster holds; on one that
            can grow also the trials that depend on no result: all of a grid, the first ten of an
            Optuna study)
        report_only: build tables and report again from what is stored; start no trial
    """

    title = "search"

    max_concurrent: Number = 0
    report_only: Switch = False


@dataclass(frozen=True)
class OptunaFlags(TrialFlags):
    """Of this search.

    Args:
        trials: trials to be complete, in each Optuna study of the search (default: the preset's)
        space: ranges in place of the preset's: name=low:high, name=log:low:high, or name=value to
            hold one
    """

    trials: Number = 0
    space: Texts = ()


@dataclass(frozen=True)
class SweepFlags(TrialFlags):
    """Of this search.

    Args:
        knobs: knobs to sweep (default: all of the preset): p_cr, p_as, p_ca, or one with its values
            as p_cr=0:0.5:1
    """

    knobs: Texts = ()


@dataclass(frozen=True)
class GridFlags(TrialFlags):
    """Of this search.

    Args:
        lrs: peak learning rates for every size; auto: the preset's, around each size's own
        batches: batches in sequences for every size; auto: the preset's, around each size's own
        window: the fit uses cells within this fraction of the lowest loss (0.05: 5%; default: all
            cells)
        max_extensions: rows or columns that each side of a grid may grow by while its minimum lies
            there (default: the preset's)
    """

    lrs: tuple[str, ...] = (AUTO_AXIS,)
    batches: tuple[str, ...] = (AUTO_AXIS,)
    window: Amount = 0.0
    max_extensions: Number = -1
