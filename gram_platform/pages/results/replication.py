"""Applies the analysis of the platform's own studies to losses that were measured elsewhere.

All else about a study comes from studies.json or from its declaration in the package.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from gram_platform.analysis.intervals import CURVE_FIXED
from gram_platform.analysis.ratios import (
    ALL,
    ATTACK_COLUMNS,
    ELICITED,
    FIT_COLUMNS,
    MEAN,
    PREFIX,
    VIEW,
)
from gram_platform.analysis.tables import (
    NATS_COLUMNS,
    TABLE_COLUMNS,
    Analysis,
    StudyLosses,
    frame_text,
)
from gram_platform.config import CORE
from gram_platform.config.identity import invalid, one_of
from gram_platform.config.plain import from_plain, overlaid
from gram_platform.methods import size_key
from gram_platform.methods.nodes import BASELINE, VARIANT
from gram_platform.methods.setting import profile_name
from gram_platform.pages.results.external import (
    CURVES_FILE,
    LOSSES_FILE,
    STUDIES_FILE,
    External,
    add_place,
    parameters_of,
)
from gram_platform.pages.results.record import Results, StudyRecord
from gram_platform.pages.results.results import analyse_study, judge_study, summary_text
from gram_platform.paper.claims import CLAIMS
from gram_platform.paper.paper import (
    JUDGED_BY,
    SOURCE,
    beside_published,
    load_published,
    tabulate_published,
)
from gram_platform.paper.verdicts import EXPLANATION, JUDGEMENT_COLUMNS

# `varies` must not have the name of another column.
NOT_NAMES = (*TABLE_COLUMNS, *JUDGEMENT_COLUMNS, "seed", "retained", "domain", "class")
NOT_NAMES += (*NATS_COLUMNS, "compute_ratio", "runs", "from", "paper", "published", EXPLANATION)


@dataclass(frozen=True)
class Declaration:
    """The fields of one study in studies.json, explained in `docs/replicate.md`."""

    title: str
    question: str = ""
    varies: str = VARIANT
    unit: str = ""
    own_baseline: bool = False
    baseline_from: str = ""
    compare_with: str = ""
    profile: str = ""
    by_modules: bool = False

    def record(
        self,
        name: str,
        sizes: tuple[str, ...],
        facts: Sequence[str],
        variants: tuple[str, ...],
        unit: str,
    ) -> StudyRecord:
        """Makes the record of a study without runs. `unit` is the reference variant."""
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
    """Returns {name: declaration} of the authors' studies, in the authors' order."""
    plain = json.loads(Path(__file__).with_name("known_studies.json").read_text(encoding="utf-8"))
    return from_plain(dict[str, Declaration], plain)


def declarations(external: External) -> dict[str, Declaration]:
    """Returns {study: declaration}, known studies first. Raises ValueError for invalid fields."""
    names, known = list(dict.fromkeys(external.losses["study"])), list(read_known_studies())
    names.sort(key=lambda name: known.index(name) if name in known else len(known))
    return {name: declaration(name, external.declared.get(name, {}), names) for name in names}


def declaration(name: str, given: Mapping, studies: list[str]) -> Declaration:
    """Returns the known declaration of a study, updated with the fields `given` in studies.json."""
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
    """The baseline losses and curves of one study, size and variant."""

    study: str
    losses: pd.DataFrame
    curves: pd.DataFrame
    curves_from: str

    @cached_property
    def domains(self) -> set[str]:
        return set(self.losses["domain"])


class BaselineRules:
    """Assigns the baselines of a folder to studies, sizes and variants."""

    def __init__(self, external: External, declared: Mapping[str, Declaration]) -> None:
        losses, keys = external.losses, ["study", "size", VARIANT]
        rows = losses[(losses["method"] == BASELINE) & ~losses[ELICITED]]
        self.losses = dict(list(rows.groupby(keys, sort=False)))
        self.curves = dict(list(external.curves.groupby(keys, sort=False)))
        self.empty, self.declared = external.curves.iloc[:0], declared

    def of(self, study: str, size: str, variant: str) -> Baseline:
        """Returns the baseline that a variant is compared with.

        Tries the study's baselines of this size in this order:

        1. that of the reference variant (see `unit`)
        2. that of `variant`
        3. one without a variant
        4. the only one

        If the study has none, tries another study's (see `baseline_from`). Raises ValueError if no
        baseline is found, or the choice is ambiguous.
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
        """Returns the reference variant, whose baseline defines the compute ratios.

        Prefers the declared `unit`. If that variant has no baseline, searches for `unit` in the
        names of the variants with baselines. If one name matches, returns it. Otherwise returns "".
        """
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
        """Returns (study that has the curves, curves) for the baseline of `variant`.

        Tries, in this order:

        1. the curves of `variant`
        2. curves without a variant, if the baseline is the reference or the study's only one
        3. the study's only curves, if the baseline is the study's only one
        4. the curves of a baseline with equal losses

        If there are none, returns an empty frame.
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
    ours, theirs = (frame.set_index(["seed", "domain"])["loss"] for frame in (losses, others))
    is_same_index = ours.index.sort_values().equals(theirs.index.sort_values())
    return is_same_index and np.allclose(ours, theirs[ours.index], rtol=1e-6)


NO_RUNS, NO_NOTES = pd.DataFrame({"id": []}), pd.DataFrame(columns=["what", "why"])
NO_CURVES = pd.DataFrame(columns=["size", "seed", "step", "domain", "loss"])


@dataclass(frozen=True)
class ExternalStudy:
    """A study read from a folder of losses, before its curves are fitted."""

    record: StudyRecord
    losses: StudyLosses
    notes: tuple[tuple[str, str], ...]


def prepare(external: External) -> list[ExternalStudy]:
    """Prepares a folder's studies. Raises ValueError for invalid baselines, domains or fields."""
    declared = declarations(external)
    baselines = BaselineRules(external, declared)
    return [_prepare(name, external, declared[name], baselines) for name in declared]


def _prepare(
    name: str, external: External, declared: Declaration, baselines: BaselineRules
) -> ExternalStudy:
    losses = external.losses[external.losses["study"] == name]
    variants = _variants_of(losses)
    losses = _in_every_variant(losses, variants)
    used, parts, curves = {}, [], []
    for (size, variant), here in losses.groupby(["size", VARIANT], sort=False):
        baseline = used[size, variant] = baselines.of(name, size, variant)
        _require_domains(here, baseline, size)
        if not (here["method"] == BASELINE).any():
            parts.append(baseline.losses.assign(study=name, **{VARIANT: variant}))
        parts.append(here)
        curves.append(baseline.curves.assign(**{VARIANT: variant}))
    rows = _name_profiles(pd.concat(parts, ignore_index=True), used)
    units = {baselines.unit(name, size) for size, _ in used}
    given = external.declared.get(name, {})
    is_own = (losses["method"] == BASELINE).any()
    if given.get("unit") and is_own and not any(units):
        allowed = f"a variant of {LOSSES_FILE} with baselines"
        raise invalid(f"{STUDIES_FILE}, {name}, unit", given["unit"], allowed)
    # The reference of all variants, or "" if each has its own.
    unit = units.pop() if variants and len(units) == 1 else ""
    views = rows[~rows[ELICITED]]
    views = views.pivot(index=[VARIANT, *VIEW, "retained"], columns="domain", values="loss")
    views = views.add_prefix(PREFIX).reset_index().rename_axis(columns=None)
    profile = given.get("profile", "")
    profiles = dict.fromkeys([MEAN, *views["profile"]])
    if profile and profile not in profiles:
        raise invalid(f"{STUDIES_FILE}, {name}, profile", profile, one_of(profile, profiles))
    attacks, notes = _select_attacks(rows[rows[ELICITED]], views)
    dropped = [] if variants else [VARIANT]
    record = _make_record(name, external, declared, used, variants, unit, rows)
    points = pd.concat(curves, ignore_index=True)
    points["run_id"] = points["study"] + " " + points["size"] + " seed " + points["seed"]
    points = points[["run_id", VARIANT, "size", "seed", "step", "domain", "loss"]]
    views, points, attacks = (frame.drop(columns=dropped) for frame in (views, points, attacks))
    # Expects every profile for all seeds of a method and size, so that `missing` lists lost ones.
    names = [name for name in (VARIANT, "method", "size") if name in views]
    declared = views[[*names, "profile", "retained"]].drop_duplicates()
    declared = declared.merge(views[[*names, "seed"]].drop_duplicates(), on=names)
    return ExternalStudy(record, StudyLosses(views, points, attacks, declared), notes)


def replicate(prepared: ExternalStudy, is_beside: bool = True) -> Results:
    """Computes a study's tables and claims.

    If `is_beside` is true, adds the authors' published table to a study that has no variants and
    shares a method with this table. Intervals treat the fitted curve as exact, as the published
    intervals do.
    """
    record, notes = prepared.record, pd.DataFrame(prepared.notes, columns=NO_NOTES.columns)
    analysis = analyse_study(record, prepared.losses, CURVE_FIXED)
    analysis = replace(analysis, missing=pd.concat([analysis.missing, notes], ignore_index=True))
    claims, curves = judge_study(record, analysis), prepared.losses.curves
    results = Results(record, analysis, curves, NO_RUNS, claims, "the folder")
    if record.varies or not is_beside:
        return results
    domains = set(analysis.ratios["domain"])
    source = record.name if record.name in JUDGED_BY else record.compare_with
    published = tabulate_published(source, domains)
    if published is None or not set(published["method"]) & set(analysis.table["method"]):
        return results
    parameters = {size: parameters_of(size) for size in published["size"]} | record.parameters
    return replace(results, record=replace(record, parameters=parameters), published=published)


def replication_text(study: Results) -> str:
    parts, missing = [summary_text(study.record, study)], study.analysis.missing
    if study.published is not None:
        rows = beside_published(study.analysis.table, study.published, study.main_profile)
        parts += ["beside the published", frame_text(rows)]
    if len(missing):
        parts += ["missing", frame_text(missing)]
    return "\n\n".join(parts)


def load_published_studies() -> list[Results]:
    """Returns the studies whose per-seed compute ratios ship with the package."""
    return [
        _load_published(name)
        for name in read_known_studies()
        if tabulate_published(name) is not None
    ]


def _load_published(name: str) -> Results:
    table, per_seed = tabulate_published(name), load_published(name)
    variants = _variants_of(per_seed)
    per_seed = per_seed if variants else per_seed.drop(columns=VARIANT)
    declared, sizes = declaration(name, {}, []), tuple(dict.fromkeys(table["size"]))
    record = declared.record(name, sizes, [f"{SOURCE}."], variants, declared.unit)
    columns = [*([VARIANT] if variants else []), *VIEW, "retained", "domain", "class"]
    ratios = pd.DataFrame(columns=[*columns, "compute_ratio"])
    analysis = Analysis(table, per_seed, ratios, pd.DataFrame(columns=FIT_COLUMNS), NO_NOTES)
    return Results(
        record, analysis, NO_CURVES, NO_RUNS, judge_study(record, analysis), "the shipped file"
    )


def _variants_of(rows: pd.DataFrame) -> tuple[str, ...]:
    names = list(filter(None, dict.fromkeys(rows[VARIANT])))
    try:
        return tuple(sorted(names, key=float))
    except ValueError:
        return tuple(names)


def _in_every_variant(losses: pd.DataFrame, variants: tuple[str, ...]) -> pd.DataFrame:
    plain = losses[losses[VARIANT] == ""]
    if not variants or plain.empty:
        return losses
    shared = plain[plain["method"] != BASELINE]
    return pd.concat(
        [losses[losses[VARIANT] != ""], *(shared.assign(**{VARIANT: name}) for name in variants)]
    )


def _require_domains(rows: pd.DataFrame, baseline: Baseline, size: str) -> None:
    known = baseline.domains | {CORE}
    allowed = f"a domain of the baselines of {baseline.study} {size}: {', '.join(sorted(known))}"
    retained = rows.assign(retained=rows["retained"].str.split(",")).explode("retained")
    retained = retained[retained["retained"] != ""]
    for file, frame, column in (
        (LOSSES_FILE, rows, "domain"),
        (LOSSES_FILE, retained, "retained"),
        (CURVES_FILE, baseline.curves, "domain"),
    ):
        for number, domain in frame.loc[~frame[column].isin(known), ["row", column]].to_numpy():
            raise invalid(f"{file}, row {number}, {column}", domain, allowed)


def _name_profiles(rows: pd.DataFrame, used: Mapping[tuple[str, str], Baseline]) -> pd.DataFrame:
    retained, profiles = [], []
    for row in rows.to_dict("records"):
        domains = tuple(sorted(used[row["size"], row[VARIANT]].domains - {CORE}))
        is_baseline = row["method"] == BASELINE
        kept = domains if is_baseline else tuple(filter(None, row["retained"].split(",")))
        retained.append(",".join(kept))
        profiles.append(ALL if is_baseline else profile_name(kept, domains))
    return rows.assign(retained=retained, profile=profiles)


def _select_attacks(rows: pd.DataFrame, views: pd.DataFrame) -> tuple[pd.DataFrame, tuple]:
    keys, attacks, notes = [VARIANT, *VIEW], [], []
    present = set(views[keys].itertuples(index=False, name=None))
    for row in rows.to_dict("records"):
        domain, why = row["domain"], ""
        if tuple(row[key] for key in keys) not in present:
            why = "the view has no losses without the attack"
        elif domain in (CORE, *row["retained"].split(",")):
            why = "the view keeps the domain"
        else:
            attacks.append({**row, ELICITED: domain})
        if why:
            names = (row[VARIANT], row["method"], row["size"], row["profile"], "seed", row["seed"])
            notes.append((f"{' '.join(filter(None, names))}, attack on {domain}", why))
    return pd.DataFrame(attacks, columns=[VARIANT, *ATTACK_COLUMNS]), tuple(notes)


def _make_record(
    name: str,
    external: External,
    declared: Declaration,
    used: Mapping[tuple[str, str], Baseline],
    variants: tuple[str, ...],
    unit: str,
    rows: pd.DataFrame,
) -> StudyRecord:
    sizes = tuple(sorted(dict.fromkeys(rows["size"]), key=size_key))
    seeds = sorted(set(rows["seed"]), key=lambda seed: (len(seed), seed))
    facts = [f"Losses measured elsewhere, from {external.folder}: seeds {', '.join(seeds)}."]
    borrowed = dict.fromkeys((b.study, size) for (size, _), b in used.items() if b.study != name)
    facts += [f"The baseline of {size} is that of the study {study}." for study, size in borrowed]
    copied = {(b.curves_from, size): b for (size, _), b in used.items()}
    facts += [
        f"The curves of {size} are those of {study}, whose losses are the same."
        for (study, size), baseline in copied.items()
        if study != baseline.study
    ]
    if unit:
        facts.append(f"Every ratio is against the baseline of {unit}.")
    if declared.own_baseline:
        facts.append("Each seed is measured against the baseline of the same seed.")
    return declared.record(name, sizes, facts, variants, unit)
