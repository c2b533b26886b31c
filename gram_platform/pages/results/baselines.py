"""Finds the baselines in a folder of external losses that each study is measured against."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gram_platform.analysis.ratios import BASELINE, ELICITED, VARIANT
from gram_platform.config.identity import invalid
from gram_platform.pages.results.declarations import Declaration
from gram_platform.pages.results.external import LOSSES_FILE, STUDIES_FILE, External


@dataclass(frozen=True)
class Baseline:
    """The baselines of a study, size and variant."""

    study: str
    variant: str
    losses: pd.DataFrame
    curves: pd.DataFrame  # empty if the folder has none
    curves_from: str  # the study of the curves

    @property
    def domains(self) -> set[str]:
        return set(self.losses["domain"])


class BaselineRules:
    """Every baseline of a folder, with the rules that assign them to studies."""

    def __init__(self, external: External, declared: Mapping[str, Declaration]) -> None:
        losses, keys = external.losses, ["study", "size", VARIANT]
        rows = losses[(losses["method"] == BASELINE) & ~losses[ELICITED]]
        self.losses = dict(list(rows.groupby(keys, sort=False)))
        self.curves = dict(list(external.curves.groupby(keys, sort=False)))
        self.empty, self.declared = external.curves.iloc[:0], declared

    def of(self, study: str, size: str, variant: str) -> Baseline:
        """Returns the first of: the unit's baselines, the variant's, those without variant, the only ones.

        A study without baselines at a size takes those of a lender, by the same rules. ValueError naming study and size
        if there are none, or several to choose from.
        """
        source = study if self._variants(self.losses, study, size) else self._lender(study, size)
        options = self._variants(self.losses, source, size)
        wanted = (self.unit(source, size), *((variant,) if source == study else ()), "", *options[: len(options) == 1])
        found = next((option for option in wanted if option in options), None)
        if found is None:
            what = ", ".join(f"{key} {value}" for key, value in (("study", study), ("size", size)))
            what += f", variant {variant}" if variant else ""
            allowed = f"a baseline of the variant, one without a variant, or a unit in {STUDIES_FILE}: "
            raise invalid(LOSSES_FILE, what, f"{allowed}{source} has baselines of {', '.join(options)}")
        losses = self.losses[source, size, found]
        curves_from, curves = self._curves(source, size, found, losses)
        return Baseline(source, found, losses, curves, curves_from)

    def unit(self, study: str, size: str) -> str:
        """Returns the declared unit, else the only variant with it in the name, if it has baselines; "" for none."""
        unit, options = self.declared[study].unit, self._variants(self.losses, study, size)
        similar = [option for option in options if unit and unit in option]
        return unit if unit in options else similar[0] if len(similar) == 1 else ""

    def _lender(self, study: str, size: str) -> str:
        """Returns the study that lends its baselines to a study without any at a size."""
        wanted = self.declared[study].baseline_from
        having = list(dict.fromkeys(s for s, z, _ in self.losses if z == size))
        if wanted in having:
            return wanted
        with_curves = [name for name in having if self._variants(self.curves, name, size)]
        found = with_curves or having
        if len(found) == 1:
            return found[0]
        allowed = f"rows of method {BASELINE}, in this study or in one other study of that size"
        allowed += f": choose with baseline_from in {STUDIES_FILE} from {', '.join(found)}" if found else ""
        raise invalid(LOSSES_FILE, f"study {study}, size {size}", allowed)

    def _curves(self, study: str, size: str, variant: str, losses: pd.DataFrame) -> tuple[str, pd.DataFrame]:
        """Returns (study, curves) of a baseline: of its variant, without variant if unambiguous, or of equal losses."""
        is_only = len(self._variants(self.losses, study, size)) == 1
        options = self._variants(self.curves, study, size)
        wanted = [variant]
        wanted += [""] if is_only or variant == self.unit(study, size) else []
        wanted += options if is_only and len(options) == 1 else []
        for option in wanted:
            if option in options:
                return study, self.curves[study, size, option]
        for (other, z, name), theirs in self.losses.items():
            if z == size and (other, z, name) in self.curves and _is_equal(losses, theirs):
                return other, self.curves[other, z, name]
        return study, self.empty

    @staticmethod
    def _variants(groups: Mapping, study: str, size: str) -> list[str]:
        return [variant for s, z, variant in groups if (s, z) == (study, size)]


def _is_equal(losses: pd.DataFrame, others: pd.DataFrame) -> bool:
    """Tells whether these are the same models, by the final losses of every seed and domain."""
    both = losses.merge(others, on=["seed", "domain"], how="outer", suffixes=("", "_other"))
    return len(both) == len(losses) == len(others) and np.allclose(both["loss"], both["loss_other"], rtol=1e-6)
