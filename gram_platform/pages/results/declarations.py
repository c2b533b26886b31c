"""Declares what losses do not say about an external study, and finds its baselines.

A declaration follows from the study's name or from studies.json.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from gram_platform.analysis.ratios import ELICITED
from gram_platform.analysis.tables import NATS_COLUMNS, TABLE_COLUMNS
from gram_platform.config.identity import invalid, one_of
from gram_platform.config.plain import from_plain, overlaid
from gram_platform.methods.nodes import BASELINE, VARIANT
from gram_platform.pages.results.external import (
    LOSSES_FILE,
    STUDIES_FILE,
    External,
    add_place,
    parameters_of,
)
from gram_platform.pages.results.record import StudyRecord
from gram_platform.paper.claims import CLAIMS
from gram_platform.paper.verdicts import EXPLANATION, JUDGEMENT_COLUMNS

# Names that `varies` may not have, since its tables have such columns.
NOT_NAMES = (*TABLE_COLUMNS, *JUDGEMENT_COLUMNS, "seed", "retained", "domain", "class")
NOT_NAMES += (*NATS_COLUMNS, "compute_ratio", "runs", "from", "paper", "published", EXPLANATION)


@dataclass(frozen=True)
class Declaration:
    """A study's fields in studies.json."""

    title: str
    question: str = ""
    varies: str = VARIANT
    # The variant whose baselines are the reference of all variants.
    unit: str = ""
    # Each seed is compared with its own baseline.
    own_baseline: bool = False
    # The study that lends baselines to sizes without any; "": the only study that has some.
    baseline_from: str = ""
    # The paper's study whose claims are judged.
    compare_with: str = ""
    profile: str = ""
    # The page leads with compute ratios against the number of active modules.
    by_modules: bool = False

    def record(
        self,
        name: str,
        sizes: tuple[str, ...],
        facts: Sequence[str],
        variants: tuple[str, ...],
        unit: str,
    ) -> StudyRecord:
        """Makes the record of a study without runs of ours, against the baselines of `unit`."""
        fields = {**vars(self), "unit": unit, "varies": self.varies if variants else ""}
        del fields["baseline_from"]
        return StudyRecord(
            name,
            facts=tuple(facts),
            params={},
            sizes=sizes,
            parameters={size: parameters_of(size) for size in sizes},
            entries=(),
            variants=variants,
            **fields,
        )


@cache
def read_known_studies() -> dict[str, Declaration]:
    """Reads the declarations of the authors' studies, by name in their order."""
    plain = json.loads(Path(__file__).with_name("known_studies.json").read_text(encoding="utf-8"))
    return from_plain(dict[str, Declaration], plain)


def declarations(external: External) -> dict[str, Declaration]:
    """Returns {study: declaration}, known studies first; ValueError for a bad studies.json."""
    names, known = list(dict.fromkeys(external.losses["study"])), list(read_known_studies())
    names.sort(key=lambda name: known.index(name) if name in known else len(known))
    return {name: declaration(name, external.declared.get(name, {}), names) for name in names}


def declaration(name: str, given: Mapping, studies: list[str]) -> Declaration:
    """Returns the known declaration of a name, changed by the fields `given` in studies.json."""
    known = read_known_studies().get(name, Declaration(name))
    if name in CLAIMS and not known.compare_with:
        known = replace(known, compare_with=name)
    with add_place(f"{STUDIES_FILE}, {name}"):
        declared = from_plain(Declaration, overlaid(known, given))
        varies, lender = given.get("varies"), given.get("baseline_from", "")
        if varies in NOT_NAMES:
            raise invalid("varies", varies, "a name that no other column of the table has")
        if lender not in ("", *studies):
            raise invalid("baseline_from", lender, f"a study of {LOSSES_FILE}")
        if (paper := given.get("compare_with", "")) not in ("", *CLAIMS):
            raise invalid("compare_with", paper, one_of(paper, CLAIMS))
    return declared


@dataclass(frozen=True)
class Baseline:
    """The baselines of a study, size and variant."""

    study: str
    losses: pd.DataFrame
    # Empty if the folder has none.
    curves: pd.DataFrame
    # The study that the curves come from.
    curves_from: str

    @cached_property
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
        """Returns the unit's baseline, the variant's, the one without a variant or the only one.

        A study without baselines at a size borrows them by the same rules. ValueError if there are
        none, or several to choose from.
        """
        source = study if self._variants(self.losses, study, size) else self._lender(study, size)
        options = self._variants(self.losses, source, size)
        wanted = [self.unit(source, size), *([variant] if source == study else []), ""]
        wanted += options if len(options) == 1 else []
        chosen = next((option for option in wanted if option in options), None)
        if chosen is None:
            what = f"study {study}, size {size}" + f", variant {variant}" * bool(variant)
            allowed = (
                f"a baseline of the variant, one without a variant, or a unit in {STUDIES_FILE}:"
                f" {source} has baselines of {', '.join(options)}"
            )
            raise invalid(LOSSES_FILE, what, allowed)
        losses = self.losses[source, size, chosen]
        curves_from, curves = self._curves(source, size, chosen, losses)
        return Baseline(source, losses, curves, curves_from)

    def unit(self, study: str, size: str) -> str:
        """Returns the variant with baselines that is the declared unit, or the only one with it in
        its name; "" for none."""
        unit, options = self.declared[study].unit, self._variants(self.losses, study, size)
        similar = [option for option in options if unit and unit in option]
        return unit if unit in options else similar[0] if len(similar) == 1 else ""

    def _lender(self, study: str, size: str) -> str:
        wanted = self.declared[study].baseline_from
        having = list(dict.fromkeys(s for s, z, _ in self.losses if z == size))
        if wanted in having:
            return wanted
        with_curves = [name for name in having if self._variants(self.curves, name, size)]
        lenders = with_curves or having
        if len(lenders) == 1:
            return lenders[0]
        allowed = f"rows of method {BASELINE}, in this study or in one other study of that size"
        if lenders:
            allowed += f": choose with baseline_from in {STUDIES_FILE} from {', '.join(lenders)}"
        raise invalid(LOSSES_FILE, f"study {study}, size {size}", allowed)

    def _curves(
        self, study: str, size: str, variant: str, losses: pd.DataFrame
    ) -> tuple[str, pd.DataFrame]:
        """Returns (study, curves) of the first of these baselines that has curves.

        They are the variant's, the one without a variant if it is unambiguous, and another study's
        with equal losses.
        """
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
    """Tells whether these are the same models, by their final losses."""
    both = losses.merge(others, on=["seed", "domain"], how="outer", suffixes=("", "_other"))
    return len(both) == len(losses) == len(others) and np.allclose(
        both["loss"], both["loss_other"], rtol=1e-6
    )
