"""Analyses studies of external losses like the platform's own, each with its baselines."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

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
from gram_platform.analysis.tables import Analysis, StudyLosses, frame_text
from gram_platform.config import CORE
from gram_platform.config.identity import invalid, one_of
from gram_platform.methods import size_key
from gram_platform.methods.nodes import BASELINE, VARIANT
from gram_platform.methods.setting import profile_name
from gram_platform.pages.results.declarations import (
    Baseline,
    BaselineRules,
    Declaration,
    declaration,
    declarations,
    read_known_studies,
)
from gram_platform.pages.results.external import (
    CURVES_FILE,
    LOSSES_FILE,
    STUDIES_FILE,
    External,
    parameters_of,
)
from gram_platform.pages.results.record import Results, StudyRecord
from gram_platform.pages.results.results import analyse_study, judge_study, summary_text
from gram_platform.paper.paper import (
    JUDGED_BY,
    SOURCE,
    beside_published,
    load_published,
    tabulate_published,
)

NO_RUNS, NO_NOTES = pd.DataFrame({"id": []}), pd.DataFrame(columns=["what", "why"])
NO_CURVES = pd.DataFrame(columns=["size", "seed", "step", "domain", "loss"])


@dataclass(frozen=True)
class ExternalStudy:
    """A study of the folder, before any fit."""

    record: StudyRecord
    losses: StudyLosses
    # Pairs of an omission and its reason.
    notes: tuple[tuple[str, str], ...]


def prepare(external: External) -> list[ExternalStudy]:
    """Prepares every study of a folder; ValueError for a domain or size without baselines."""
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
    for size, variant in dict.fromkeys(zip(losses["size"], losses[VARIANT], strict=True)):
        baseline = used[size, variant] = baselines.of(name, size, variant)
        here = losses[(losses["size"] == size) & (losses[VARIANT] == variant)]
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
    # The reference of all variants; "" if each has its own.
    unit = units.pop() if variants and len(units) == 1 else ""
    views = rows[~rows[ELICITED]]
    views = views.pivot(index=[VARIANT, *VIEW, "retained"], columns="domain", values="loss")
    views = views.add_prefix(PREFIX).reset_index().rename_axis(columns=None)
    profile = given.get("profile", "")
    profiles = dict.fromkeys([MEAN, *views["profile"]])
    if profile and profile not in profiles:
        raise invalid(f"{STUDIES_FILE}, {name}, profile", profile, one_of(profile, profiles))
    attacks, notes = _attacks(rows[rows[ELICITED]], views)
    dropped = [] if variants else [VARIANT]
    record = _record(name, external, declared, used, variants, unit, rows)
    points = pd.concat(curves, ignore_index=True)
    points["run_id"] = points["study"] + " " + points["size"] + " seed " + points["seed"]
    points = points[["run_id", VARIANT, "size", "seed", "step", "domain", "loss"]]
    views, points, attacks = (frame.drop(columns=dropped) for frame in (views, points, attacks))
    # Every profile of a method at a size is declared for all of its seeds there, so that `missing`
    # names the lost ones.
    names = [name for name in (VARIANT, "method", "size") if name in views]
    declared = views[[*names, "profile", "retained"]].drop_duplicates()
    declared = declared.merge(views[[*names, "seed"]].drop_duplicates(), on=names)
    return ExternalStudy(record, StudyLosses(views, points, attacks, declared), notes)


def replicate(prepared: ExternalStudy, is_beside: bool = True) -> Results:
    """Computes the tables and claims of a study, next to the published ones if `is_beside`.

    The intervals take the curve as fixed, like the published ones.
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
    parts = [summary_text(study.record, study)]
    if study.published is not None:
        rows = beside_published(study.analysis.table, study.published, study.main_profile)
        parts.append(f"beside the published\n\n{frame_text(rows)}")
    missing = study.analysis.missing
    return "\n\n".join([*parts, *([f"missing\n\n{frame_text(missing)}"] if len(missing) else [])])


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
    """Returns the variants: numbers sorted, names in the file's order."""
    names = list(filter(None, dict.fromkeys(rows[VARIANT])))
    try:
        return tuple(sorted(names, key=float))
    except ValueError:
        return tuple(names)


def _in_every_variant(losses: pd.DataFrame, variants: tuple[str, ...]) -> pd.DataFrame:
    """Copies the rows of methods that the variants do not change into every variant.

    Baselines without a variant are left out, since `BaselineRules` assigns them.
    """
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
    """Adds `profile`; a baseline retains every domain."""
    retained, profiles = [], []
    for row in rows.to_dict("records"):
        domains = tuple(sorted(used[row["size"], row[VARIANT]].domains - {CORE}))
        is_baseline = row["method"] == BASELINE
        kept = domains if is_baseline else tuple(filter(None, row["retained"].split(",")))
        retained.append(",".join(kept))
        profiles.append(ALL if is_baseline else profile_name(kept, domains))
    return rows.assign(retained=retained, profile=profiles)


def _attacks(rows: pd.DataFrame, views: pd.DataFrame) -> tuple[pd.DataFrame, tuple]:
    """Returns the attacks on forgotten domains of known views, and notes on the others."""
    keys, good, notes = [VARIANT, *VIEW], [], []
    present = set(views[keys].itertuples(index=False, name=None))
    for row in rows.to_dict("records"):
        domain, why = row["domain"], ""
        if tuple(row[key] for key in keys) not in present:
            why = "the view has no losses without the attack"
        elif domain == CORE or domain in row["retained"].split(","):
            why = "the view keeps the domain"
        if why:
            names = (row[VARIANT], row["method"], row["size"], row["profile"], "seed", row["seed"])
            notes.append((f"{' '.join(filter(None, names))}, attack on {domain}", why))
        else:
            good.append({**row, ELICITED: domain})
    return pd.DataFrame(good, columns=[VARIANT, *ATTACK_COLUMNS]), tuple(notes)


def _record(
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
