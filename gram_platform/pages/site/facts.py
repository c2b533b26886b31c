"""Reads the nodes, studies and searches of a storage once for a site: states, costs and claims, without histories."""

import contextlib
import csv
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from gram_platform.config import State
from gram_platform.config.identity import has_shape
from gram_platform.config.provenance import SUBMISSION
from gram_platform.pages.report.page import CLAIMS_FILE, REPORT_FILE
from gram_platform.pages.results.record import STUDY_FILE, StudyRecord, nodes_digest, readable_record
from gram_platform.pages.site.claims import csv_claim_rows
from gram_platform.pages.site.folder import UNWRITABLE
from gram_platform.planner import MACHINES
from gram_platform.store import EvaluationDirectory, Folder, RunDirectory, Store
from gram_platform.store.directories import NodeDirectory
from gram_platform.store.files import is_safe_name
from gram_platform.store.leases import is_fresh, read_lease

STATES = (State.COMPLETE, State.RUNNING, State.FAILED, State.INTERRUPTED, State.MISSING)
CORRUPT = {"message": "its config.json is corrupted: submit again"}
CACHE = "facts.json"
CACHED = {  # the facts of a complete node, as the cache keeps them
    **dict.fromkeys(("kind", "node_id", "status"), str),
    "tags": {str: str},
    "config": dict,
    "result": {"sha256": str},
    "timing": dict,
    "failure": lambda value: value is None,
    "progress": lambda value: value is None or has_shape(value, {"time": float}),
}
TABLE, TRIALS = "table.csv", "trials.csv"
SEARCH_TEXTS = {"title": str, "question": str}  # of a search; an earlier version did not write them


@dataclass(frozen=True)
class NodeFacts:
    """The stored state of a run or an evaluation."""

    kind: str
    node_id: str
    status: State  # of STATES, never missing
    tags: Mapping[str, str]
    config: Mapping  # {} if it is corrupted
    result: Mapping | None
    timing: Mapping
    failure: Mapping | None = None
    progress: Mapping | None = None  # of runs: the last heartbeat

    @property
    def error(self) -> str:
        """The message of a failed node; "" for any other."""
        return (self.failure or {}).get("message", "")

    @property
    def seconds(self) -> float:
        """Seconds of work in the committed history; NaN if unknown."""
        return _number(self.timing, "elapsed_s", float("nan"))

    @property
    def rank_hours(self) -> float:
        return self.seconds / 3600 * _number(self.timing, "num_ranks", 1)

    @property
    def dollars_per_rank_hour(self) -> float | None:
        """Price of one rank, by the planner's price of the machine with this device; None if unknown."""
        device = str(self.timing.get("device", "")).lower()
        machine = next((machine for name, machine in MACHINES.items() if name in device), None)
        if machine is None:
            return None
        slots = _number(self.timing, "num_threads", 1) if machine.name == "cpu" else 1  # CPUs are priced by core
        return machine.dollars_per_hour * slots

    @property
    def ended(self) -> float:
        """The time of the end, in seconds of the epoch; 0 if unknown."""
        return _number(self.timing, "ended", 0.0)

    @property
    def changed(self) -> float:
        """The time of the last event, in seconds of the epoch; 0 if unknown."""
        times = ((self.timing, "ended"), (self.failure or {}, "time"), (self.progress or {}, "time"))
        return max(_number(fields, name, 0.0) for fields, name in times)


def _number(stored: Mapping, name: str, default: float) -> float:
    """Reads a number of stored JSON, which may lack it or have something else there."""
    return float(stored[name]) if has_shape(stored, {name: float}) else default


@dataclass(frozen=True)
class StudyFacts:
    """A study or a search, read from its folder."""

    name: str
    title: str
    node_ids: tuple[str, ...]  # each once, in the order of the record or of the trials
    record: StudyRecord | None = None  # of studies
    search: Mapping = field(default_factory=dict)  # of searches: search.json
    driver: str = ""  # of searches: the owner of its lease, "" without a fresh one
    files: Mapping[str, int] = field(default_factory=dict)  # {name in its folder: bytes}
    rows: Sequence[Mapping[str, str]] = ()  # of a study's table, or of a search's trials
    history: tuple[str, ...] = ()  # dates of earlier pages, the newest first
    claims: Sequence[Mapping] = ()  # of `csv_claim_rows`
    problem: str = ""  # why its claims cannot be read

    @property
    def submissions(self) -> Sequence[Mapping]:
        """Those that executed nodes, the newest last; an earlier version kept none of a search."""
        if self.record is not None:
            return self.record.submissions
        return self.search["submissions"] if has_shape(self.search, {"submissions": [SUBMISSION]}) else ()


@dataclass(frozen=True)
class Totals:
    """The nodes of a study by state, and their costs."""

    counts: Mapping[str, int]  # a number for each of STATES
    rank_hours: float
    dollars: float | None  # None if the machine of a node is not known
    busy_s: float  # time in which at least one node was at work
    changed: float  # seconds of the epoch; 0 if no node has begun

    @property
    def num_nodes(self) -> int:
        return sum(self.counts.values())


@dataclass(frozen=True)
class Facts:
    """The nodes of a storage by id, and its studies and searches by name."""

    runs: Mapping[str, NodeFacts]
    evaluations: Mapping[str, NodeFacts]
    studies: tuple[StudyFacts, ...] = ()

    def node(self, node_id: str) -> NodeFacts | None:
        return self.runs.get(node_id) or self.evaluations.get(node_id)

    def status(self, node_id: str) -> State:
        node = self.node(node_id)
        return node.status if node else State.MISSING

    def is_shown(self, study: StudyFacts) -> bool:
        """Tells whether a study's report shows exactly the nodes that are complete now."""
        complete = [node_id for node_id in study.node_ids if self.status(node_id) == State.COMPLETE]
        return REPORT_FILE in study.files and study.record.shown == nodes_digest(complete)

    @property
    def key(self) -> str:
        """Equal for two reads between which nothing has changed."""
        return repr(self)


def read_facts(store: Store, cache: Folder | None = None) -> Facts:
    """Reads every run with an attempt, every evaluation with a result, and every study and search.

    A complete node never changes but for its tags: the folder `cache` keeps what was read of it, in one file.
    """
    nodes = store.nodes()
    finished = store.finished((node.kind, node.node_id) for node in nodes)
    cached = _read_cache(cache)

    def facts_of(node: NodeDirectory) -> NodeFacts | None:
        known, now = cached.get(f"{node.kind}/{node.node_id}"), finished.get(node.node_id)
        if known and now and known["result"]["sha256"] == now.sha256:
            return NodeFacts(**{**known, "status": State.COMPLETE, "tags": now.tags})
        return _run_facts(node) if isinstance(node, RunDirectory) else _evaluation_facts(node)

    found = [facts for facts in store.concurrently(facts_of, nodes) if facts is not None]
    complete = {f"{facts.kind}/{facts.node_id}": vars(facts) for facts in found if facts.status == State.COMPLETE}
    if cache is not None and complete != cached:
        with contextlib.suppress(*UNWRITABLE):  # the first page reports it
            cache.write_json(CACHE, complete, durable=False)
    runs, evaluations = ({f.node_id: f for f in found if f.kind == kind} for kind in ("run", "evaluation"))
    return Facts(runs, evaluations, tuple(_read_studies(store)))


def _read_cache(cache: Folder | None) -> dict[str, dict]:
    """Reads the facts of complete nodes; {} if the file is damaged or of a version with other fields."""
    names = {field.name for field in fields(NodeFacts)}
    shape = {str: lambda known: has_shape(known, CACHED) and known.keys() == names}
    return cache.read_spare(CACHE, shape) if cache else {}


def _run_facts(run: RunDirectory) -> NodeFacts | None:
    status = run.status()
    if status == State.ABSENT:
        return None
    config = _config(run)
    return NodeFacts(
        kind="run",
        node_id=run.run_id,
        status=status if config else State.FAILED,
        tags=run.tags(),
        config=config,
        result=run.result(),
        timing=run.timing(),
        failure=(run.failure() if status == State.FAILED else None) if config else CORRUPT,
        progress=run.progress(),
    )


def _evaluation_facts(evaluation: EvaluationDirectory) -> NodeFacts | None:
    result = evaluation.result()
    if result is None:
        return None
    config = _config(evaluation)
    return NodeFacts(
        kind="evaluation",
        node_id=evaluation.eval_id,
        status=State.COMPLETE if config else State.FAILED,
        tags=evaluation.tags(),
        config=config,
        result=result,
        timing=evaluation.timing(),
        failure=None if config else CORRUPT,
    )


def _config(node: RunDirectory | EvaluationDirectory) -> Mapping:
    try:
        return node.config()
    except ValueError:
        return {}


def _read_studies(store: Store) -> list[StudyFacts]:
    """Reads every study and search of the storage, sorted by name, including searches without any file yet."""
    written = [_study_facts(store, name) for name in store.list_studies()]
    found = {study.name: study for study in written if study is not None}
    for search_id in store.list_searches():
        facts = store.search_dir(search_id).read_spare("search.json", {"name": is_safe_name})
        lease = read_lease(store.search_dir(search_id))
        name = facts.get("name", search_id)
        driver = f"led by {lease['owner']}" if is_fresh(lease) else ""
        known = found.get(name)
        if known is None:
            about = {"search_id": search_id, **facts}
            found[name] = StudyFacts(name, _title(about, name), (), search=about, driver=driver)
        elif driver:
            found[name] = replace(known, driver=driver)
    return [found[name] for name in sorted(found)]


def _study_facts(store: Store, name: str) -> StudyFacts | None:
    folder = store.study_dir(name)
    files = {file: folder.size(file) for file in folder.list() if "." in file}
    if STUDY_FILE in files:
        record = readable_record(store, name)
        if record is None:
            return None
        ids = tuple(dict.fromkeys(entry["id"] for entry in record.entries))
        rows = _csv_rows(folder.read(TABLE)) if TABLE in files else []
        dates = tuple(date for date, place in store.history_dirs(name).items() if place.exists(REPORT_FILE))[::-1]
        found = StudyFacts(name, record.title, ids, record, files=files, rows=rows, history=dates)
        scale, varies = record.scale, record.varies
    elif "search.json" in files:
        rows = _csv_rows(folder.read(TRIALS)) if TRIALS in files else []
        ids = tuple(dict.fromkeys(run for row in rows for run in (row.get("runs") or "").split()))
        search = folder.read_spare("search.json")
        found = StudyFacts(name, _title(search, name), ids, search=search, files=files, rows=rows)
        scale, varies = f"preset {search.get('preset', '?')}", ""
    else:
        return None
    if CLAIMS_FILE not in files:
        return found
    try:
        return replace(found, claims=csv_claim_rows(folder.read(CLAIMS_FILE), scale, varies))
    except ValueError as error:
        return replace(found, problem=f"{name}: its {CLAIMS_FILE} cannot be read: {error}")


def _title(search: Mapping, name: str) -> str:
    return search["title"] if has_shape(search, SEARCH_TEXTS) else name


def _csv_rows(data: bytes) -> list[dict]:
    """Reads the rows of a stored CSV file; none of one in another form."""
    try:
        return list(csv.DictReader(io.StringIO(data.decode())))
    except (UnicodeDecodeError, csv.Error):
        return []


def uses(studies: Sequence[StudyFacts]) -> dict[str, tuple[str, ...]]:
    """Returns {node id: names of the studies and searches that have it}."""
    names: dict[str, list[str]] = {}
    for study in studies:
        for node_id in study.node_ids:
            names.setdefault(node_id, []).append(study.name)
    return {node_id: tuple(found) for node_id, found in names.items()}


def totals(node_ids: Iterable[str], facts: Facts) -> Totals:
    """Sums over these nodes, each once; an evaluation, of one rank, is priced by the machine of its run."""
    ids = list(dict.fromkeys(node_ids))
    nodes = [node for node_id in ids if (node := facts.node(node_id)) is not None]
    counts = Counter(node.status for node in nodes) + Counter({State.MISSING: len(ids) - len(nodes)})
    worked = [node for node in nodes if node.seconds == node.seconds]
    costs = [_dollars(node, facts) for node in worked]
    return Totals(
        counts={state: counts[state] for state in STATES},
        rank_hours=sum(node.rank_hours for node in worked),
        dollars=None if None in costs else sum(costs),
        busy_s=_covered([(n.ended - n.seconds, n.ended) for n in worked if n.ended]),
        changed=max((node.changed for node in nodes), default=0.0),
    )


def _dollars(node: NodeFacts, facts: Facts) -> float | None:
    machine = node
    if node.kind == "evaluation":
        view = node.config.get("view")
        machine = facts.runs.get(view["run_id"], node) if has_shape(view, {"run_id": str}) else node
    price = machine.dollars_per_rank_hour
    return None if price is None else node.rank_hours * price


def _covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Returns the length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
