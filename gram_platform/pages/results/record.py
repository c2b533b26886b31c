"""A study in its storage, `study.json`: its nodes by name. Tables and reports are built from it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from gram_platform.analysis.elicited import ELICITED
from gram_platform.config import LOSSES
from gram_platform.config.identity import invalid
from gram_platform.store import Store


@dataclass(frozen=True)
class StudyRecord:
    """A study as its tables need it. `entries` has every node as each method names it: id, kind and tags."""

    name: str
    title: str
    question: str
    facts: tuple[str, ...]  # how it was run, in sentences
    params: Mapping[str, str]  # what it was asked for, as MLflow shows it
    sizes: tuple[str, ...]
    parameters: Mapping[str, int]  # of each size's dense model
    profile: str  # the compared one, or mean
    entries: tuple[Mapping, ...]
    costs: tuple[Mapping, ...] = ()  # size, method, and `method_costs` of it: over the baseline's
    compare_with: str = ""  # of the paper's tables
    varies: str = ""  # the column of the variants
    variants: tuple[str, ...] = ()  # in order; () in studies that vary nothing beside method, size and profile
    unit: str = ""  # see Study
    own_baseline: bool = False
    measurement: str = LOSSES  # what is measured of every view: see `outcomes.py`
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
