"""Defines a study's stored record and its results, and publishes tables and reports."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import NotRequired, TypedDict

import pandas as pd

from gram_platform.analysis.intervals import ENDS
from gram_platform.analysis.ratios import ELICITED, VIEW
from gram_platform.analysis.tables import CLASSES, Analysis, with_runs
from gram_platform.analysis.variants import by_number
from gram_platform.config import LOSSES
from gram_platform.config.identity import InvalidField, invalid, require_real, suggest
from gram_platform.config.plain import from_plain
from gram_platform.config.provenance import SubmissionRow, code_text, submissions_text
from gram_platform.config.terminal import warn
from gram_platform.methods.measurements import Description
from gram_platform.methods.nodes import BASELINE, VARIANT, Node
from gram_platform.pages.figures.style import METHOD_STYLES
from gram_platform.pages.report.page import Page, Section
from gram_platform.paper.verdicts import choose_profile
from gram_platform.store import Store
from gram_platform.tracking import Tracker, TrackingUnavailable
from gram_platform.tracking.connection import explain_opening
from gram_platform.tracking.views import Line, StudyLog, study_id, study_views

STUDY_FILE, SEARCH_FILE = "study.json", "search.json"
# Path, relative to a report, of the page that redirects to MLflow.
TO_DATABASE = "../../mlflow.html"


class Entry(TypedDict):
    """A node of a study with its tags for one method. One of the tags is `method`."""

    id: str
    kind: str
    tags: dict[str, str]


class ChosenRuns(TypedDict):
    params: dict[str, str]
    entries: list[Entry]


UnitError = TypedDict(
    "UnitError",
    {
        "size": str,
        "class": str,
        "ratio": float | int,
        "difference": float | int,
        "measured_on": str,
        "num_shares": NotRequired[int],
    },
)


@dataclass(frozen=True)
class Card:
    """Fields that a study or search shows in the index, besides its title and question."""

    # The main result in a sentence, or "".
    headline: str = ""
    state: str = ""
    verdicts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class StudyRecord(Description):
    """The content of study.json. A node that several methods share has an entry per method."""

    # Sentences on how the study was run.
    facts: tuple[str, ...]
    params: Mapping[str, str]
    sizes: tuple[str, ...]
    parameters: Mapping[str, int | float]
    # The compared profile, or `mean`.
    profile: str
    entries: tuple[Entry, ...]
    # Size, method and `method_costs`, over the baseline's.
    costs: tuple[Mapping, ...] = ()
    variants: tuple[str, ...] = ()
    measurement: str = LOSSES
    # Compares each seed with its own baseline, not with those of all seeds.
    own_baseline: bool = False
    # The ids of runs with probes (see `module_shares`).
    probed: tuple[str, ...] = ()
    # The page begins with compute ratios by number of active modules.
    by_modules: bool = False
    # See `analysis.calibration`.
    unit_errors: tuple[UnitError, ...] = ()
    # The submissions that executed nodes, newest last.
    submissions: tuple[SubmissionRow, ...] = ()
    card: Card = Card()

    @property
    def ids(self) -> set[str]:
        return {entry["id"] for entry in self.entries}

    @property
    def baseline_runs(self) -> list[str]:
        runs = self.tags("run")
        return runs.loc[runs["method"] == BASELINE, "id"].tolist()

    @property
    def curve_runs(self) -> list[str]:
        """The runs whose curves the tables need: baselines and attacks."""
        return [*self.baseline_runs, *self.tags("attack")["id"]]

    def tags(self, kind: str) -> pd.DataFrame:
        return tags_frame(self.entries, kind, [*([VARIANT] if self.variants else []), *VIEW])

    @property
    def preset(self) -> str:
        """The preset's name, or "" for losses that were measured elsewhere."""
        return self.params.get("preset", "")

    def to_json(self) -> bytes:
        return (json.dumps(asdict(self), indent=1, sort_keys=True) + "\n").encode()


def entries_of(nodes: Iterable[Node]) -> tuple[Entry, ...]:
    return tuple({"id": node.id, "kind": node.kind, "tags": node.names} for node in nodes)


def tags_frame(entries: Iterable[Mapping], kind: str, view: Sequence[str] = VIEW) -> pd.DataFrame:
    """Returns a frame of all entries of a kind: `run`, `attack` or `evaluation`.

    The columns are `id`, `retained`, `elicited` and the tags that `view` names. Missing tags are
    "". Attacks are not of the kind `run`.
    """
    of_kind = [e for e in entries if ("attack" if ELICITED in e["tags"] else e["kind"]) == kind]
    rows = [{"retained": "", ELICITED: "", **entry["tags"], "id": entry["id"]} for entry in of_kind]
    columns = ["id", *view, "retained", ELICITED]
    return pd.DataFrame(rows, columns=columns).fillna("").drop_duplicates(ignore_index=True)


def load_record(store: Store, name: str) -> StudyRecord:
    """Reads a study's record. Raises ValueError if it is missing or damaged."""
    folder = store.study_dir(name)
    plain = folder.read_json(STUDY_FILE)
    if plain is None:
        studies = store.list_studies()
        known = [other for other in studies if store.study_dir(other).exists(STUDY_FILE)]
        submitted = f"{', '.join(known) or 'none yet'}{suggest(name, known)}"
        raise invalid("study", name, f"a study that was submitted to {store.root}: {submitted}")
    return record_from_plain(plain, f"{folder.path}/{STUDY_FILE}")


def readable_record(store: Store, name: str) -> StudyRecord | None:
    """Reads a study's record. Returns None for a search. If damaged, warns and returns None."""
    try:
        return load_record(store, name) if store.study_dir(name).exists(STUDY_FILE) else None
    except ValueError as error:
        warn(f"{error}: the study is left out", stacklevel=2)
        return None


def record_from_plain(plain: Mapping, place: str = STUDY_FILE) -> StudyRecord:
    """Decodes study.json. Raises InvalidField with `place` and the name of the wrong field."""
    try:
        record = from_plain(StudyRecord, plain)
        for entry in record.entries:
            if "method" not in entry["tags"]:
                raise invalid("entries", entry, "entries whose tags have a method")
        for row in record.unit_errors:
            for name in ("ratio", "difference"):
                require_real(f"unit_errors.{name}", row[name], 0.0)
    except InvalidField as error:
        raise error.at(place) from error
    return record


@dataclass(frozen=True)
class Results:
    """The analysed results of a study, which may be incomplete.

    `runs` has a row for each node that has begun: runs, then evaluations, then attacks. Its column
    `elicited` is an attack's domain, otherwise "".
    """

    record: StudyRecord
    analysis: Analysis
    curves: pd.DataFrame
    runs: pd.DataFrame
    # As `claims_frame` makes them.
    claims: pd.DataFrame
    # Where the numbers come from, as in `Frames`.
    source: str
    # Made by `module_shares`, in a study whose runs have probes.
    absorption: pd.DataFrame | None = None
    # ERROR_COLUMNS, in the study `calibration`.
    errors: pd.DataFrame | None = None
    # Published table of the same methods, as table.csv. Its sizes are in `record.parameters`.
    published: pd.DataFrame | None = None

    @cached_property
    def table(self) -> pd.DataFrame:
        return with_runs(self.analysis.table, self.analysis.ratios)

    @cached_property
    def by_number(self) -> pd.DataFrame | None:
        if not self.record.by_modules:
            return None
        declared = self.record.tags("evaluation") if self.record.entries else None
        return by_number(self.analysis.per_seed, declared)

    @property
    def main_profile(self) -> str:
        """The record's profile if it has rows in the table, otherwise `choose_profile(table)`."""
        profile = self.record.profile
        return profile if (self.table["profile"] == profile).any() else choose_profile(self.table)


def study_log(
    record: StudyRecord,
    files: Mapping[str, bytes],
    figures: Mapping[str, object],
    lines: Sequence[Line],
    ratios: Mapping[str, Mapping[str, float]],
) -> StudyLog:
    """Collects what a study logs to MLflow: `files`, study.json, figures, charts and metrics.

    The charts show `lines`. `ratios` is {evaluation id: {metric: value}}.
    """
    files = {**files, STUDY_FILE: record.to_json()}
    is_drawn = any(line.tags["profile"] == record.profile for line in lines)
    profile = {"profile": record.profile} if is_drawn else {}
    metrics = {name for line in lines for point in line.points.values() for name in point}
    ends = [[name + end for end in ENDS if name + end in metrics] for name in CLASSES]
    charts = list(filter(None, ends))
    views = study_views(record.name, study_id(record.name, record.params), profile, charts)
    tags, code = {node_id: {} for node_id in record.ids}, code_text(record.submissions)
    return StudyLog(record.name, files, figures, record.params, lines, tags, views, code, ratios)


def publish_files(study: StudyLog, store: Store, tracker: Tracker | None) -> dict[str, str]:
    """Writes a study's or search's files, and logs them to `tracker`. Returns {file name: path}."""
    folder = store.study_dir(study.name)
    folder.write_whole(study.files)
    if tracker is not None:
        colours = {name: style.colour for name, style in METHOD_STYLES.items()}
        tracker.log_study(replace(study, colours=colours))
    return {file: folder.address(file) for file in study.files}


def write_or_log(
    write: Callable[[Tracker | None], dict[str, str]],
    tracker: Tracker | None,
    say: Callable[[str], None],
) -> dict[str, str]:
    """Calls `write(tracker)`. If MLflow is unreachable, calls `write(None)` instead."""
    try:
        return write(tracker)
    except TrackingUnavailable as error:
        say(f"the tables are not in MLflow ({error}); submit again to log them")
        return write(None)


def with_links(
    runs: pd.DataFrame, failures: Mapping[str, str], links: Mapping[str, str]
) -> pd.DataFrame:
    """Adds columns to `runs`: `run_id`, `run_id_url` (from `links`), `error` (from `failures`)."""
    errors = [failures.get(node_id, "") for node_id in runs["id"]]
    return runs.assign(run_id_url=runs["id"].map(links), run_id=runs["id"], error=errors)


def mlflow_links(tracker: Tracker | None, pages: str = TO_DATABASE) -> dict[str, str]:
    """Returns {node id: MLflow URL}. `pages` is the base of the URLs if MLflow has no server."""
    runs = {} if tracker is None else tracker.runs()
    return {node_id: tracker.run_url(run.info.run_id, pages) for (_, node_id), run in runs.items()}


def run_links(tracker: Tracker | None) -> tuple[dict[str, str], str]:
    """Returns (links, note). The note explains how to open the links, or why there are none."""
    why = "no server was named, and the storage has no database"
    if tracker is not None:
        try:
            return mlflow_links(tracker), links_note(tracker.tracking_uri)
        except TrackingUnavailable as error:
            why = f"it is away ({error})"
    return {}, f"There are no links to MLflow: {why}."


def links_note(tracking_uri: str) -> str:
    """Explains how to open links into an MLflow database. Returns "" for a server."""
    if tracking_uri.startswith("http"):
        return ""
    return f"Links to MLflow open while this command runs: {explain_opening(tracking_uri)}"


def sizes_text(parameters: Mapping[str, float]) -> str:
    """Lists the parameter count of each size. Returns "" if there are no sizes."""
    counts = ", ".join(f"{size}: {count:,.0f} parameters" for size, count in parameters.items())
    return f"Sizes are names, of dense models with these counts: {counts}." if counts else ""


def study_report(
    record: StudyRecord,
    sections: Sequence[Section],
    source: str,
    tracker: Tracker | None,
    claims: pd.DataFrame | None = None,
    answers: Sequence[str] = (),
    lead: Sequence[Section] = (),
) -> Page:
    note = "" if tracker is None else links_note(tracker.tracking_uri)
    about = [*record.facts, sizes_text(record.parameters), f"Read from {source}.", note]
    claims = None if claims is None else claims.rename(columns={VARIANT: record.varies})
    source, facts = submissions_text(record.submissions), " ".join(about).strip()
    return Page(record.title, record.question, sections, claims, source, facts, answers, lead)
