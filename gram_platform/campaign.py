"""All studies at once: the union of their graphs as one graph, then the searches, each node trained once."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated

import tyro

from gram_platform.identity import invalid, require_choice
from gram_platform.nodes import unique
from gram_platform.planner import MACHINES, needs
from gram_platform.searches.definition import Search
from gram_platform.searches.run import checked_flags, run_search
from gram_platform.store import Store
from gram_platform.study import Study
from gram_platform.study.build import Graph, build_graph
from gram_platform.study.dry_run import UTILISATION, described
from gram_platform.study.flags import CommonFlags, Flags, checked, split_list
from gram_platform.study.run import GraphsRun, provide_data
from gram_platform.study.session import exit_with, one_site, open_tracker, reporter, say

NONE = "none"


@dataclass(frozen=True)
class CampaignFlags(CommonFlags):
    """The flags of all studies together."""

    studies: tuple[str, ...] = ()
    """names of studies (default: all), or none"""
    searches: tuple[str, ...] = ()
    """names of searches that follow the studies (default: all), or none"""


def main(studies: Sequence[Study], searches: Sequence[Search], arguments: list[str] | None = None) -> None:
    """The entrypoint of an experiment file."""
    about = "Every study as one graph, then the searches: what any of them has trained is not trained again."
    exit_with(lambda: run_campaign(studies, searches, _parsed(about, arguments)))


def _parsed(description: str, arguments: list[str] | None) -> CampaignFlags:
    unnamed = Annotated[CampaignFlags, tyro.conf.arg(name="")]
    return tyro.cli(unnamed, args=arguments, description=description, config=(tyro.conf.OmitArgPrefixes,))


def run_campaign(studies: Sequence[Study], searches: Sequence[Search], flags: CampaignFlags) -> int:
    """Runs what is not done yet; returns the exit code. ValueError for bad input, before anything trains."""
    if split_list(flags.sizes):
        raise invalid("sizes", flags.sizes, "nothing: studies have sizes of their own, give them to one study")
    chosen = _chosen("studies", flags.studies, studies)
    common = {field.name: getattr(flags, field.name) for field in fields(CommonFlags)}
    of_search = [(s, checked_flags(s, s.flags_type(**common))) for s in _chosen("searches", flags.searches, searches)]
    of_study = [(study, checked(study, Flags(**common))) for study in chosen]
    report = None if flags.dry_run else reporter()
    graphs = [build_graph(study, own, report) for study, own in of_study]
    if flags.dry_run:
        say("\n\n".join([*map(described, graphs), "\n".join(sharing(graphs))]))
        return 0
    codes, parts = [], [own for _, own in (*of_study, *of_search)]
    with one_site(parts[0], say) if parts else contextlib.nullcontext():
        codes += [_run_studies(graphs)] if graphs else []
        for search, own in of_search:
            say(f"\n{search.title}")
            codes.append(run_search(search, own))
    return max(codes, default=0)


def _run_studies(graphs: Sequence[Graph]) -> int:
    flags = graphs[0].flags
    store = Store(flags.storage).open_for_writing()
    provide_data(graphs, store)
    say("\n".join(sharing(graphs)))
    say(f"storage {store.root}")
    return GraphsRun(graphs, flags, store, open_tracker(flags)).run()


def sharing(graphs: Sequence[Graph]) -> list[str]:
    """What the studies need together, and what training every run once saves against one study after the other."""
    if not graphs:
        return []
    runs = {graph.study.name: [n for n in graph.nodes if n.kind == "run"] for graph in graphs}
    union = unique(node for own in runs.values() for node in own)
    machine = MACHINES[graphs[0].flags.machine]
    hours = {node.id: needs(node.config, 1, machine, UTILISATION).gpu_hours for node in union}
    alone = sum(hours[node.id] for own in runs.values() for node in own)
    num_alone = sum(map(len, runs.values()))
    lines = [f"{name}: {len(own)} runs" for name, own in runs.items()]
    saved = f"{num_alone - len(union)} saved by sharing ({alone - sum(hours.values()):,.2f} {machine.name} hours)"
    return [*lines, f"all studies: {len(union)} runs, {saved}"]


def _chosen(field: str, names: tuple[str, ...], known: Sequence) -> list:
    """Those that are named, all by default; ValueError for an unknown name."""
    names = split_list(names)
    if names == (NONE,):
        return []
    by_name = {one.name: one for one in known}
    for name in names:
        require_choice(field, name, (*by_name, NONE))
    return [by_name[name] for name in names or by_name]
