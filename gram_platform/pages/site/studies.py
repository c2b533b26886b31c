"""Reads the studies and searches of a storage: their nodes, states and costs."""

import csv
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gram_platform.config import State
from gram_platform.pages.results.record import StudyRecord, load_record
from gram_platform.pages.site.facts import STATES, Facts, NodeFacts
from gram_platform.store import CorruptFile, Store
from gram_platform.store.leases import is_fresh, read_lease

REPORT, TRIALS, TABLE, CLAIMS = "report.html", "trials.csv", "table.csv", "claims.csv"


@dataclass(frozen=True)
class StudyFacts:
    """A study or a search, read from its folder."""

    name: str
    title: str
    node_ids: tuple[str, ...]  # each once, in the order of the record or of the trials
    record: StudyRecord | None = None  # of studies
    search: Mapping | None = None  # of searches: search.json
    driver: str = ""  # of searches: the owner of its lease, "" without a fresh one
    files: Mapping[str, int] | None = None  # {name in its folder: bytes}
    trials: Mapping[str, int] | None = None  # of searches: {state: number}


@dataclass(frozen=True)
class Totals:
    """The nodes of a study by state, and their costs."""

    counts: Mapping[str, int]  # a number for each of STATES
    rank_hours: float
    dollars: float | None  # None if the machine of a node is not known
    busy_s: float  # time in which at least one node was at work
    compute_units: float
    changed: float  # seconds of the epoch; 0 if no node has begun

    @property
    def num_nodes(self) -> int:
        return sum(self.counts.values())


def read_studies(store: Store) -> list[StudyFacts]:
    """Reads every study and search of the storage, sorted by name, including searches without any file yet."""
    written = [_study_facts(store, name) for name in store.list_studies()]
    found = {study.name: study for study in written if study is not None}
    for search_id in store.list_searches():
        facts = _json(store.search_dir(search_id), "search.json")
        lease = read_lease(store.search_dir(search_id))
        name = facts.get("name", search_id)
        driver = f"led by {lease['owner']}" if is_fresh(lease) else ""
        known = found.get(name)
        if known is None:
            found[name] = StudyFacts(name, name, (), search={"search_id": search_id, **facts}, driver=driver)
        elif driver:
            found[name] = replace(known, driver=driver)
    return [found[name] for name in sorted(found)]


def _study_facts(store: Store, name: str) -> StudyFacts | None:
    folder = store.study_dir(name)
    files = {file: folder.size(file) for file in folder.list() if "." in file}
    if "study.json" in files:
        record = load_record(store, name)
        ids = tuple(dict.fromkeys(entry["id"] for entry in record.entries))
        return StudyFacts(name, record.title, ids, record, files=files)
    if "search.json" not in files:
        return None
    rows = list(csv.DictReader(io.StringIO(folder.read(TRIALS).decode()))) if TRIALS in files else []
    ids = tuple(dict.fromkeys(run for row in rows for run in row.get("runs", "").split()))
    states = dict(Counter(row.get("state", "") for row in rows))
    return StudyFacts(name, name, ids, search=_json(folder, "search.json"), files=files, trials=states)


def _json(folder, name: str) -> Mapping:
    try:
        return folder.read_json(name) or {}
    except CorruptFile:
        return {}


def uses(studies: Sequence[StudyFacts]) -> dict[str, tuple[str, ...]]:
    """Returns {node id: names of the studies and searches that have it}."""
    names: dict[str, list[str]] = {}
    for study in studies:
        for node_id in study.node_ids:
            names.setdefault(node_id, []).append(study.name)
    return {node_id: tuple(found) for node_id, found in names.items()}


def totals(node_ids: Iterable[str], facts: Facts) -> Totals:
    """Sums over these nodes, each once; an evaluation is priced by the machine of its run."""
    ids = list(dict.fromkeys(node_ids))
    nodes = [node for node_id in ids if (node := facts.node(node_id)) is not None]
    counts = Counter(node.status for node in nodes) + Counter({State.MISSING: len(ids) - len(nodes)})
    worked = [node for node in nodes if node.seconds == node.seconds]
    costs = [_dollars(node, facts) for node in worked]
    return Totals(
        counts={state: counts[state] for state in STATES},
        rank_hours=sum(node.rank_hours for node in worked),
        dollars=None if None in costs else sum(costs),
        busy_s=_covered([_interval(node) for node in worked if "ended" in node.timing]),
        compute_units=sum((n.result or {}).get("compute_units", 0) for n in nodes if n.status == State.COMPLETE),
        changed=max((node.changed for node in nodes), default=0.0),
    )


def _dollars(node: NodeFacts, facts: Facts) -> float | None:
    machine = node
    if node.kind == "evaluation":
        machine = facts.runs.get(node.config.get("view", {}).get("run_id", ""), node)
    price = machine.dollars_per_hour
    return None if price is None else node.seconds / 3600 * price


def _interval(node: NodeFacts) -> tuple[float, float]:
    ended = node.timing["ended"]
    return ended - node.seconds, ended


def _covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Returns the length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
