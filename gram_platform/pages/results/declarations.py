"""What a study of a folder is beyond its numbers: known by its name, or declared in studies.json."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from gram_platform.analysis.ratios import MEAN, VARIANT
from gram_platform.analysis.tables import TABLE_COLUMNS
from gram_platform.config import CORE
from gram_platform.config.identity import invalid, require_choice
from gram_platform.pages.results.external import LOSSES_FILE, STUDIES_FILE, External
from gram_platform.paper.paper_claims import CLAIMS

NOT_NAMES = (*TABLE_COLUMNS, "seed", "retained", "domain")  # of what a study varies


@dataclass(frozen=True)
class Declaration:
    """What a study is, beyond its numbers: the fields of studies.json."""

    title: str
    question: str = ""
    varies: str = VARIANT
    unit: str = ""  # the variant whose baselines are the reference for all
    own_baseline: bool = False  # each seed against its own
    baseline_from: str = ""  # the study whose baselines it takes where it has none; "": the only one that has some
    compare_with: str = ""  # of the paper's studies: whose claims are judged
    profile: str = ""  # that figures show
    by_modules: bool = False  # its page leads with compute ratios against the number of modules that are on


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
    """{study: what it is}, in the order of the known ones, then of the file; ValueError for a bad studies.json."""
    names = list(dict.fromkeys(external.losses["study"]))
    names.sort(key=lambda name: list(KNOWN).index(name) if name in KNOWN else len(KNOWN))
    return {name: declaration(name, external.declared.get(name, {}), names) for name in names}


def declaration(name: str, given: Mapping, studies: list[str]) -> Declaration:
    """What a study is: the known one of that name, changed by what is `given` of it in studies.json."""
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
    own = KNOWN.get(name, Declaration(name))
    own = own if own.compare_with else replace(own, compare_with=name if name in CLAIMS else "")
    return replace(own, **given)
