"""A study in its storage, `study.json`: its nodes by name. Tables and reports are built from it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields

import pandas as pd

from gram_platform.analysis.ratios import ELICITED
from gram_platform.config import LOSSES
from gram_platform.config.identity import invalid
from gram_platform.store import Store
from gram_platform.tracking import Tracker


@dataclass(frozen=True)
class Description:
    """What a study is about, and how its results are compared."""

    name: str
    title: str
    question: str  # plain text of the report's head
    compare_with: str = field(default="", kw_only=True)  # the paper's study whose tables and claims stand beside ours
    varies: str = field(default="", kw_only=True)  # the column of the variants, such as "accumulation"
    # the variant whose baselines are the reference of all; "": each variant's own
    unit: str = field(default="", kw_only=True)
    # compute ratios against the baseline of the same seed, not against all seeds' pooled
    own_baseline: bool = field(default=False, kw_only=True)

    @property
    def description(self) -> dict:
        """The fields of the description by name."""
        return {field.name: getattr(self, field.name) for field in fields(Description)}


@dataclass(frozen=True)
class StudyRecord(Description):
    """A study as its tables need it. `entries` has every node as each method names it: id, kind and tags."""

    facts: tuple[str, ...]  # how it was run, in sentences
    params: Mapping[str, str]  # what it was asked for, as MLflow shows it
    sizes: tuple[str, ...]
    parameters: Mapping[str, int]  # of each size's dense model
    profile: str  # the compared one, or mean
    entries: tuple[Mapping, ...]
    costs: tuple[Mapping, ...] = ()  # size, method, and `method_costs` of it: over the baseline's
    variants: tuple[str, ...] = ()  # in order; () in studies that vary nothing beside method, size and profile
    measurement: str = LOSSES  # what is measured of every view: a name in the table of measurements
    probed: tuple[str, ...] = ()  # the ids of runs with probes: see `analysis/absorption.py`
    by_modules: bool = False  # its page leads with compute ratios against the number of modules that are on

    @property
    def ids(self) -> set[str]:
        return {entry["id"] for entry in self.entries}

    @property
    def baseline_runs(self) -> list[str]:
        runs = [e for e in self.entries if e["kind"] == "run" and ELICITED not in e["tags"]]
        return [e["id"] for e in runs if e["tags"]["method"] == "baseline"]

    @property
    def preset(self) -> str:
        """ "" for a study whose losses were measured elsewhere."""
        return self.params.get("preset", "")

    def to_json(self) -> bytes:
        """The same bytes for the same study."""
        return (json.dumps(asdict(self), indent=1, sort_keys=True) + "\n").encode()


def load_record(store: Store, name: str) -> StudyRecord:
    """The record of a study in the storage; ValueError when there is none."""
    plain = store.study_dir(name).read_json("study.json")
    if plain is None:
        raise invalid("study", name, f"a study that was submitted to {store.root}")
    tuples = {key: tuple(plain.get(key, ())) for key in ("facts", "sizes", "entries", "costs", "variants", "probed")}
    return StudyRecord(**{**plain, **tuples})


LOCAL_UI = "http://127.0.0.1:5000"  # where `mlflow ui` listens unless told otherwise


def publish(
    record: StudyRecord,
    store: Store,
    table: str,
    report: str,
    figures: Mapping[str, object],
    tracker: Tracker | None,
) -> dict[str, str]:
    """Writes table.csv, report.html and study.json and logs them to MLflow if there is one; the paths by name."""
    folder = store.study_dir(record.name)
    files = {"table.csv": table.encode(), "report.html": report.encode(), "study.json": record.to_json()}
    for name, data in files.items():
        folder.write(name, data)
    if tracker is not None:
        with folder.local_copy("table.csv") as table_path, folder.local_copy("report.html") as report_path:
            tracker.log_study(record.name, table_path, report_path, figures, record.params)
    return {name: folder.file(name) for name in files}


def with_links(runs: pd.DataFrame, failures: Mapping[str, str], tracker: Tracker | None) -> pd.DataFrame:
    """`run_id_url`: the page of each node in MLflow, at the server or where `mlflow ui` would serve the database; and
    `error`: what is in `failures` under its id.
    """
    links: dict[str, str | None] = {}
    if tracker is not None:
        ui_url = None if tracker.tracking_uri.startswith("http") else LOCAL_UI
        links = {node_id: tracker.run_url(run.info.run_id, ui_url) for (_, node_id), run in tracker.runs().items()}
    errors = [failures.get(node_id, "") for node_id in runs["id"]]
    return runs.assign(run_id_url=runs["id"].map(links), run_id=runs["id"], error=errors)


def intro_text(record: StudyRecord, source: str, tracker: Tracker | None) -> str:
    """The question, how the study was run, where its numbers were read from, and what links need."""
    facts = [*record.facts, f"Read from {source}."]
    if tracker is not None and not tracker.tracking_uri.startswith("http"):
        facts.append(f"Links to MLflow open while `mlflow ui --backend-store-uri {tracker.tracking_uri}` runs.")
    return record.question + "\n\n" + " ".join(facts)
