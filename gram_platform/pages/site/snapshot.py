"""Everything that one building of the site looks at, read at its beginning."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gram_platform.pages.results.record import LOCAL_UI
from gram_platform.pages.site.facts import Facts, NodeFacts, read_facts
from gram_platform.pages.site.studies import StudyFacts, Totals, read_studies, totals, uses
from gram_platform.pages.site.study_page import StudyPage
from gram_platform.store import Store
from gram_platform.tracking import Tracker, TrackingUnavailable
from gram_platform.tracking.frame import Frames


@dataclass(frozen=True)
class Mirror:
    """MLflow as far as it can be reached. `why_not` says why it cannot."""

    frames: Frames
    links: Mapping[str, str]  # {node id: its page}
    why_not: str = ""

    @property
    def tracking_uri(self) -> str | None:
        return self.frames.tracking_uri

    @property
    def said(self) -> str:
        """What links need, or why there are none."""
        if self.tracking_uri is None:
            return f"There are no links to MLflow: {self.why_not}."
        if self.tracking_uri.startswith("http"):
            return ""
        return f"Links to MLflow open while `mlflow ui --backend-store-uri {self.tracking_uri}` runs."


@dataclass(frozen=True)
class Contents:
    """What lies in the storage."""

    facts: Facts
    studies: tuple[StudyFacts, ...]

    @property
    def key(self) -> str:
        """Equal as long as nothing has happened in the storage."""
        return repr((self.facts, self.studies))


@dataclass(frozen=True)
class Snapshot:
    """The storage, MLflow, and what follows from them."""

    store: Store
    contents: Contents
    mirror: Mirror
    totals: Mapping[str, Totals]  # by study
    uses: Mapping[str, tuple[str, ...]]  # {node id: names of studies}
    is_beside: bool  # whether the site lies in the storage, so that it can refer to files of studies
    measurements: Mapping[str, StudyPage]  # by the name in a study's record

    @property
    def facts(self) -> Facts:
        return self.contents.facts

    @property
    def studies(self) -> Sequence[StudyFacts]:
        return self.contents.studies

    def num_shared(self, study: StudyFacts) -> int:
        """Of its runs, how many other studies have too."""
        return sum(len(self.uses[i]) > 1 for i in study.node_ids if i in self.facts.runs)

    def evaluations_by_run(self) -> dict[str, list[NodeFacts]]:
        """The evaluations of every run's views, in the order of their ids."""
        found: dict[str, list[NodeFacts]] = {}
        for node in self.facts.evaluations.values():
            found.setdefault(node.config.get("view", {}).get("run_id", ""), []).append(node)
        return found

    def branches_by_run(self) -> dict[str, list[NodeFacts]]:
        """The runs that start from every run."""
        found: dict[str, list[NodeFacts]] = {}
        for node in self.facts.runs.values():
            found.setdefault((node.config.get("start") or {}).get("run_id", ""), []).append(node)
        return found


def read_contents(store: Store) -> Contents:
    return Contents(read_facts(store), tuple(read_studies(store)))


def take_snapshot(
    store: Store,
    contents: Contents,
    tracking_uri: str | None,
    why_not: str,
    is_beside: bool,
    measurements: Mapping[str, StudyPage],
) -> Snapshot:
    found = {study.name: totals(study.node_ids, contents.facts) for study in contents.studies}
    mirror = read_mirror(store, tracking_uri, why_not)
    return Snapshot(store, contents, mirror, found, uses(contents.studies), is_beside, measurements)


def read_mirror(store: Store, tracking_uri: str | None, why_not: str = "") -> Mirror:
    """MLflow, or without `tracking_uri`, or where it is away, none of it."""
    if tracking_uri is None:
        return Mirror(Frames(store), {}, why_not)
    frames, tracker = Frames(store, tracking_uri), Tracker(tracking_uri)
    ui_url = None if tracking_uri.startswith("http") else LOCAL_UI
    try:
        links = {i: tracker.run_url(run.info.run_id, ui_url) for (_, i), run in frames.mlflow_runs.items()}
    except TrackingUnavailable as error:
        return Mirror(Frames(store), {}, f"MLflow is away ({error})")
    return Mirror(frames, {node_id: url for node_id, url in links.items() if url})
