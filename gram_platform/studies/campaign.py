"""Runs studies after the MaxEnt searches that set their parameters, and all of them at once.

Each node is trained once: the trials of a search start from the baselines of its study, and the
best trials are the study's runs.
"""

from collections.abc import Sequence
from dataclasses import fields, replace

from gram_platform.config.endings import FAILED, worst
from gram_platform.config.identity import invalid, require_choice
from gram_platform.config.terminal import say
from gram_platform.methods.nodes import unique
from gram_platform.planner import expected_hours
from gram_platform.store import Store
from gram_platform.studies import Study
from gram_platform.studies.build import Graph, build_graph, preset_of
from gram_platform.studies.device import price_line, settled
from gram_platform.studies.dry_run import describe
from gram_platform.studies.flag_values import split_list
from gram_platform.studies.flags import CampaignFlags, CommonFlags, Flags, checked, with_device
from gram_platform.studies.library.maxent_search import NUM_SEEDS, SEARCH, searched
from gram_platform.studies.mirror import open_tracker
from gram_platform.studies.packing import provide_data, reporter
from gram_platform.studies.run import lead_studies, run_study
from gram_platform.studies.searches.definition import (
    OptunaFlags,
    Search,
    SearchFlags,
    checked_flags,
)
from gram_platform.studies.searches.maxent_trials import METHOD, MaxEntWork
from gram_platform.studies.searches.run import build_search, run_search

NONE = "none"


def run_searched(study: Study, flags: Flags) -> int:
    """Runs the search that the preset needs, if it does, then the study; returns the exit code.

    ValueError for bad input, before anything trains.
    """
    needed = needed_search(study, flags)
    if needed is None:
        return run_study(study, flags)
    if not (flags.dry_run or needed.is_complete()):
        _require_ray(flags, needed.named)
    if not (flags.dry_run or flags.export_nodes):
        # Errors of the study must come before the search, and the price of both.
        store = Store(flags.storage).open_for_writing()
        graph, *_ = settled(_with_search(build_graph(study, flags, reporter()), needed), store)
        flags = with_device(flags, graph.flags.device)
        provide_data((graph,), store)
    ready, _, code = after_searches([(study, flags)])
    code = worst(code, *(run_study(*each) for each in ready))
    if flags.dry_run and not needed.is_complete():
        say("\nof both " + price_line(_with_search(build_graph(study, flags), needed)))
    return code


def _with_search(graph: Graph, needed: MaxEntWork) -> tuple[Graph, ...]:
    """Returns a study with the search that it begins with, unless that is complete."""
    return (graph,) if needed.is_complete() else (graph, needed.planned())


def needed_search(study: Study, flags: Flags) -> MaxEntWork | None:
    """Returns the search that a study needs first.

    None if its preset has none, --maxent names one, or no method is MaxEnt. ValueError for several
    sizes, since each has its own best parameters.
    """
    preset, flags, _ = preset_of(study, flags)
    if preset.maxent_search is None or flags.maxent or METHOD not in flags.methods:
        return None
    search = replace(SEARCH, presets={flags.preset: searched(preset)})
    common = {field.name: getattr(flags, field.name) for field in fields(CommonFlags)}
    search_flags = checked_flags(
        search, OptunaFlags(**{**common, "seeds": NUM_SEEDS, "changes": ()})
    )
    return build_search(search, search_flags)


def after_searches(
    submitted: Sequence[tuple[Study, Flags]],
) -> tuple[list[tuple[Study, Flags]], set[str], int]:
    """Runs the searches that presets need; returns the studies with the best trials, the searches'
    ids, the exit code.

    Leaves out a study whose search is not complete, since its runs depend on it. A dry run only
    describes the search, and keeps the preset's parameters.
    """
    ready, ids, code = [], set(), 0
    for study, flags in submitted:
        needed = needed_search(study, flags)
        if needed is None:
            ready.append((study, flags))
            continue
        if not needed.is_complete() and needed.search_id not in ids:
            seeds = ", ".join(str(setting.seed) for setting in needed.settings)
            trials = (
                f"{needed.target} trials of each of {len(needed.groups())} profiles on seed {seeds}"
            )
            say(f"{study.name} begins with the search {needed.named}: {trials}\n")
            code = worst(code, run_search(needed.study, needed.flags))
        ids.add(needed.search_id)
        if needed.is_complete():
            say(
                f"MaxEnt's parameters in {study.name}: the best trials of {needed.named}, which is"
                " complete\n"
            )
            ready.append((study, replace(flags, maxent=needed.search_id)))
        elif flags.dry_run:
            preset = needed.settings[0].options.maxent
            stand_ins = (
                f"learning rate {preset.peak_lr:g} and retain weight {preset.retain_weight:g}"
            )
            say(f"\nbelow, the preset's {stand_ins} stand in for what the search will find")
            say("what both list, such as baselines, is trained once\n")
            ready.append((study, flags))
        else:
            say(
                f"{study.name} waits for the search {needed.named}: some profile lacks trials;"
                " submit again to go on"
            )
            code = code or FAILED
    return ready, ids, code


def _require_ray(flags: Flags, named: str) -> None:
    """ValueError for flags that keep a study from Ray, on which the named search has to run
    first."""
    for name, value in (("in_process", flags.in_process), ("export_nodes", flags.export_nodes)):
        if value:
            expected = (
                f"a storage with the complete search {named} (searches need Ray), --maxent, or"
                " other --methods"
            )
            raise invalid(name, value, expected)


def run_campaign(studies: Sequence[Study], searches: Sequence[Search], flags: CampaignFlags) -> int:
    """Runs whatever is not done, or describes it; returns the exit code.

    ValueError for bad input, before all else.
    """
    if split_list(flags.sizes):
        raise invalid(
            "sizes",
            flags.sizes,
            "no value: each study has its own sizes; give --sizes to one study",
        )
    chosen = _chosen("studies", flags.studies, studies)
    common = {field.name: getattr(flags, field.name) for field in fields(CommonFlags)}
    of_search = [
        (s, checked_flags(s, s.flags_type(**common)))
        for s in _chosen("searches", flags.searches, searches)
    ]
    of_study = [(study, checked(study, Flags(**common))) for study in chosen]
    report = None if flags.dry_run else reporter()
    graphs = [build_graph(study, flags_of_study, report) for study, flags_of_study in of_study]
    planned = _planned(of_study, of_search, graphs)
    if planned and not flags.dry_run:
        device = settled(planned, Store(planned[0].flags.storage).open_for_writing())[
            0
        ].flags.device
        of_study, of_search = (
            [(one, with_device(its, device)) for one, its in some] for some in (of_study, of_search)
        )
        graphs = [replace(graph, flags=with_device(graph.flags, device)) for graph in graphs]
    codes, ids = [], set()
    if of_study:
        code, ids = (_describe_studies if flags.dry_run else _run_studies)(of_study, graphs)
        codes.append(code)
    for search, search_flags in of_search:
        # A study may have begun with it.
        if build_search(search, search_flags).search_id in ids:
            continue
        say(f"\n{search.title}")
        codes.append(run_search(search, search_flags))
    if planned and flags.dry_run:
        say("\nof all " + price_line(planned))
    return worst(*codes)


def _planned(
    of_study: Sequence[tuple[Study, Flags]],
    of_search: Sequence[tuple[Search, SearchFlags]],
    graphs: Sequence[Graph],
) -> tuple[Graph, ...]:
    """Returns all that is submitted: the studies' graphs, the searches that they begin with, and
    the other searches."""
    needed = [
        found
        for study, flags in of_study
        if (found := needed_search(study, flags)) and not found.is_complete()
    ]
    submitted = {work.search_id: work for work in needed}
    searches = (*submitted.values(), *(build_search(*each) for each in of_search))
    return (*graphs, *(work.planned() for work in searches))


def _describe_studies(
    of_study: list[tuple[Study, Flags]], graphs: list[Graph]
) -> tuple[int, set[str]]:
    """Describes needed searches, then all studies; returns 0 and the searches' ids."""
    ready, ids, _ = after_searches(of_study)
    graphs = graphs if ready == of_study else [build_graph(*each) for each in ready]
    say("\n\n".join([*map(describe, graphs), sharing(graphs)]))
    return 0, ids


def _run_studies(of_study: list[tuple[Study, Flags]], graphs: list[Graph]) -> tuple[int, set[str]]:
    """Runs needed searches, then all studies as one graph; returns the exit code and the searches'
    ids."""
    store = Store(graphs[0].flags.storage).open_for_writing()
    provide_data(graphs, store)
    ready, ids, code = after_searches(of_study)
    if ready != of_study:
        graphs = [build_graph(*each) for each in ready]
    say(f"storage {store.root}")
    if graphs:
        say(sharing(graphs))
        code = worst(code, lead_studies(graphs, store, open_tracker(graphs[0].flags.tracking_uri)))
    return code, ids


def sharing(graphs: Sequence[Graph]) -> str:
    """Returns the number of runs of all studies, and the saving by training each run once."""
    runs = [node for graph in graphs for node in graph.nodes if node.is_run]
    machine, union = graphs[0].flags.hardware, unique(runs)
    alone, together = (sum(expected_hours(node, machine) for node in of) for of in (runs, union))
    saved = (
        f"{len(runs) - len(union)} saved by sharing ({alone - together:,.2f} {machine.name} hours)"
    )
    return f"all studies: {len(union)} runs, {saved}"


def _chosen(field: str, names: tuple[str, ...], known: Sequence) -> list:
    names = split_list(names)
    if names == (NONE,):
        return []
    by_name = {one.name: one for one in known}
    for name in names:
        require_choice(field, name, (*by_name, NONE))
    return [by_name[name] for name in names or by_name]
