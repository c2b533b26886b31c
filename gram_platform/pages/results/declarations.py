"""Declares what losses alone do not say about an external study: known by its name, or given in studies.json."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from gram_platform.analysis.ratios import MEAN, VARIANT
from gram_platform.analysis.tables import TABLE_COLUMNS
from gram_platform.config import CORE
from gram_platform.config.identity import invalid, require_choice
from gram_platform.pages.results.external import LOSSES_FILE, STUDIES_FILE, External
from gram_platform.paper.paper_claims import CLAIMS

NOT_NAMES = (*TABLE_COLUMNS, "seed", "retained", "domain")  # not allowed as `varies`


@dataclass(frozen=True)
class Declaration:
    """A study's fields in studies.json."""

    title: str
    question: str = ""
    varies: str = VARIANT
    unit: str = ""  # the variant whose baselines are the reference for all
    own_baseline: bool = False  # compare each seed with the same seed's baseline
    baseline_from: str = ""  # the study that lends baselines to sizes without any; "": the only one with baselines
    compare_with: str = ""  # the paper's study whose claims are judged
    profile: str = ""  # of the figures
    by_modules: bool = False  # the page leads with compute ratios against the number of active modules


KNOWN = {
    "scaling": Declaration("Scaling from 50M to 5B parameters", "Does isolation hold as models grow?"),
    "dual_use": Declaration(
        "Dual-use capabilities", "Does one run of GRAM match filtered models?", baseline_from="scaling"
    ),
    "composability": Declaration(
        "Arbitrary subsets of capabilities",
        "Does the model keep its compute ratios as more modules are switched on?",
        baseline_from="scaling",
        compare_with="dual_use",
        by_modules=True,
    ),
    "stories": Declaration("Simple Stories", "How do all methods compare on topics of short stories?", profile=MEAN),
    "titration": Declaration(
        "Continuous control of capabilities",
        "Does a module's domain rise steadily with the module's weight, while core stays?",
        varies="weight",
        own_baseline=True,
        baseline_from="scaling",
        profile=MEAN,
    ),
    "partial_labels": Declaration(
        "Half of the labels",
        "How much does each method forget when half of the training data carries no label?",
        varies="labelled",
        profile=CORE,
    ),
    "architecture": Declaration(
        "Modules as MLPs or as LoRAs", "Does it matter what a module is made of?", profile=MEAN
    ),
    "accumulation": Declaration(
        "Uniform and heterogeneous accumulation",
        "What does it change whether all micro-batches of a window share one route or each has its own?",
        varies="accumulation",
        unit="heterogeneous",
        profile=MEAN,
    ),
    "aux_scaling": Declaration(
        "The number of auxiliary domains",
        "Do core, retain and forget hold as one run separates more and more capabilities?",
        varies="num_auxiliary",
        profile=MEAN,
    ),
}


def declarations(external: External) -> dict[str, Declaration]:
    """Returns {study: declaration}, known studies first, then as in the file; ValueError for a bad studies.json."""
    names = list(dict.fromkeys(external.losses["study"]))
    names.sort(key=lambda name: list(KNOWN).index(name) if name in KNOWN else len(KNOWN))
    return {name: declaration(name, external.declared.get(name, {}), names) for name in names}


def declaration(name: str, given: Mapping, studies: list[str]) -> Declaration:
    """Returns the known declaration of that name, changed by the fields `given` in studies.json."""
    place = f"{STUDIES_FILE}, {name}"
    for key, value in given.items():
        require_choice(place, key, tuple(field.name for field in fields(Declaration)))
        kind = type(getattr(Declaration(name), key))
        if not isinstance(value, kind):
            raise invalid(f"{place}, {key}", value, "true or false" if kind is bool else "a text")
    if given.get("varies") in NOT_NAMES:
        raise invalid(f"{place}, varies", given["varies"], "a name that no other column of the table has")
    if given.get("baseline_from", "") not in ("", *studies):
        raise invalid(f"{place}, baseline_from", given["baseline_from"], f"a study of {LOSSES_FILE}")
    if given.get("compare_with", "") not in ("", *CLAIMS):
        raise invalid(f"{place}, compare_with", given["compare_with"], "one of " + ", ".join(CLAIMS))
    known = KNOWN.get(name, Declaration(name))
    known = known if known.compare_with else replace(known, compare_with=name if name in CLAIMS else "")
    return replace(known, **given)
