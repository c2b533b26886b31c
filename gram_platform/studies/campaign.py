"""Runs MaxEnt searches, the studies that use their results, and other searches.

A MaxEnt search starts from the study's baselines, and the study reuses the best trials' runs.
"""

from collections.abc import Sequence
from dataclasses import replace

from gram_platform.config.endings import DONE, FAILED, worst
from gram_platform.config.identity import invalid
from gram_platform.config.terminal import say
from gram_platform.store import Store
from gram_platform.studies.build import with_nodes
from gram_platform.studies.drive import approve_cost, drive
from gram_platform.studies.library.maxent_search import NUM_SEEDS, SEARCH, prepare_search
from gram_platform.studies.packing import pack_corpora, require_supply
from gram_platform.studies.plan import Plan, StudyPlan, predict, sharing, work_left
from gram_platform.studies.searches.definition import optuna_place, search_plan_of
from gram_platform.studies.searches.flags import OptunaFlags
from gram_platform.studies.searches.maxent import METHOD
from gram_platform.studies.searches.search_plan import SearchPlan
from gram_platform.studies.workplace import (
    choose_device,
    find_device,
    find_ended,
    require_gpu,
    with_ranks,
)


def drive_campaign(plan: Plan, searches: Sequence[Plan] = ()) -> int:
    """Runs the MaxEnt searches that the studies need, then the studies, then `searches`.

    Returns the exit code. A dry run only describes this work. Raises ValueError for bad input
    before training starts.
    """
    needed = [search for part in plan.studies if (search := find_search(plan, part))]
    uses_optuna = needed or any(search.studies[0].study.needs_optuna for search in searches)
    if plan.optuna_uri and not uses_optuna:
        expected = "no value: no Optuna search comes before these studies"
        raise invalid("optuna_uri", plan.optuna_uri, expected)
    if not (needed or searches) and len(plan.studies) == 1:
        return drive(plan)
    left = {search.search_id: search for search in needed if not search.kind.is_complete(search)}
    for search in left.values() if not plan.dry_run else ():
        _require_ray(plan, search)
    others = (part for search in searches for part in search.studies)
    known = (*plan.studies, *(search.with_nodes() for search in left.values()), *others)
    everything = replace(plan, studies=known)
    if not (plan.dry_run or plan.export_nodes):
        # Errors in a study and the total price must appear before a search starts.
        plan = _prepare(plan, everything)
    plan, ids, code = after_searches(plan)
    codes = [code, drive(plan)] if plan.studies else [code]
    if plan.dry_run and len(plan.studies) > 1:
        say(sharing(plan.studies))
    for search in searches:
        (part,) = search.studies
        # A study may have run this search.
        if part.search_id not in ids:
            say(f"\n{part.study.title}")
            codes.append(drive(replace(search.on(plan.device), is_approved=plan.is_approved)))
    if plan.dry_run and len(everything.studies) > 1:
        say(f"\nof all {predict_all(everything)}")
    return worst(*codes)


def _prepare(plan: Plan, everything: Plan) -> Plan:
    require_supply(everything.studies)
    store = Store(everything.storage).open_for_writing()
    everything = everything.on(choose_device(everything, store))
    approve_cost(everything, store)
    require_gpu(everything, store)
    plan, _ = with_ranks(replace(plan.on(everything.device), is_approved=True), store)
    pack_corpora(plan, store)
    return plan


def find_search(plan: Plan, part: StudyPlan) -> SearchPlan | None:
    """Returns the MaxEnt search that must run before a study.

    Returns None if the study does not train MaxEnt, its preset has no search, or --maxent is given.
    Raises the errors of `read_ranges`.
    """
    preset = part.preset
    if preset.maxent_search is None or "maxent" in part.sources or METHOD not in part.methods:
        return None
    name, preset = part.preset_name, prepare_search(preset)
    search = replace(SEARCH, presets={name: preset})
    choice = replace(part.choice, seeds=NUM_SEEDS, instructions="")
    of_search = StudyPlan(search, name, (), preset, choice, part.ranks)
    given = search.read(search, OptunaFlags(), of_search)
    uri = optuna_place(plan.optuna_uri, plan.storage, not plan.dry_run)
    return search_plan_of(of_search, given, uri, plan.dry_run)


def after_searches(plan: Plan) -> tuple[Plan, set[str], int]:
    """Runs the MaxEnt searches that the studies need.

    Returns (plan with the best trials' parameters, ids of the searches, exit code). Drops studies
    whose search is incomplete, but a dry run keeps them with the preset's parameters.
    """
    ready, ids, code = [], set(), DONE
    for part in plan.studies:
        needed = find_search(plan, part)
        if needed is None:
            ready.append(part)
            continue
        if not needed.kind.is_complete(needed) and needed.search_id not in ids:
            seeds = ", ".join(str(setting.seed) for setting in needed.settings)
            say(
                f"{part.name} begins with the search {needed.label}: {needed.kind.target} trials of"
                f" each of {len(needed.kind.profiles)} profiles on seed {seeds}\n"
            )
            code = worst(code, drive(replace(plan, studies=(needed.with_nodes(),))))
        ids.add(needed.search_id)
        if needed.kind.is_complete(needed):
            say(f"{part.name} has the best trials of {needed.label}, which is complete\n")
            sources = {**part.sources, "maxent": needed.search_id}
            ready.append(with_nodes(replace(part, sources=sources)))
        elif plan.dry_run:
            maxent = needed.settings[0].options.maxent
            values = f"learning rate {maxent.peak_lr:g} and retain weight {maxent.retain_weight:g}"
            say(f"\nbelow, the preset's {values} replace the parameters that the search will find")
            say("runs of both, such as baselines, are trained once\n")
            ready.append(part)
        else:
            say(
                f"{part.name} waits for the search {needed.label}, which lacks trials; submit again"
            )
            code = code or FAILED
    return replace(plan, studies=tuple(ready)), ids, code


def _require_ray(plan: Plan, needed: SearchPlan) -> None:
    for name in ("in_process", "export_nodes"):
        if value := getattr(plan, name):
            allowed = "--maxent, or other --methods (searches need Ray)"
            raise invalid(name, value, f"a storage with the search {needed.label}, {allowed}")


def predict_all(plan: Plan) -> str:
    """Predicts the price of the unfinished nodes without connecting to Ray."""
    store = Store(plan.storage)
    ended = find_ended(plan, store)
    known = [part.on(plan.device or find_device(part, store, ended)) for part in plan.studies]
    return predict(work_left(known, ended))
