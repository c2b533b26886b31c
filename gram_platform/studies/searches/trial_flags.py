"""Declares the flags that searches alone have."""

from dataclasses import dataclass, replace
from typing import Self

from gram_platform.config.identity import require_int
from gram_platform.studies.flags import FlagGroup, Number, Switch, Texts, split_list


@dataclass(frozen=True)
class TrialFlags(FlagGroup):
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

    def checked(self) -> Self:
        """Returns the flags with their lists read; ValueError naming flag and value."""
        require_int("max_concurrent", self.max_concurrent, 0)
        return self


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

    def checked(self) -> Self:
        require_int("trials", self.trials, 0)
        return replace(super().checked(), space=split_list(self.space))
