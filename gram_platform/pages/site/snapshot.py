"""Reads everything that the pages of one build of the site show."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gram_platform.pages.results.record import links_note, mlflow_links
from gram_platform.pages.site.facts import Facts, NodeFacts, read_facts
from gram_platform.pages.site.studies import StudyFacts, Totals, read_studies, totals, uses
from gram_platform.pages.site.study_page import StudyPage
from gram_platform.store import Store
from gram_platform.tracking import Tracker, TrackingUnavailable
from gram_platform.tracking.frame import Frames


@dataclass(frozen=True)
class MirrorState:
    """MLflow's frames and links if it can be reached, else `why_not` says why it cannot."""

    frames: Frames
    links: Mapping[str, str]  # {node id: its page}
    why_not: str = ""

    @property
    def tracking_uri(self) -> str | None:
        return self.frames.tracking_uri

    @property
    def note(self) -> str:
        """Says what the links need, or why there are none."""
        if self.tracking_uri is None:
            return f"There are no links to MLflow: {self.why_not}."
        return links_note(self.tracking_uri)


@dataclass(frozen=True)
class Contents:
    """The storage's nodes and studies."""

    facts: Facts
    studies: tuple[StudyFacts, ...]

    @property
    def key(self) -> str:
        """Equal for two reads between which nothing has changed."""
        return repr((self.facts, self.studies))


@dataclass(frozen=True)
class Snapshot:
    """The storage, the state of its mirror in MLflow, and sums over both."""

    store: Store
    contents: Contents
    mirror: MirrorState
    totals: Mapping[str, Totals]  # by study
    uses: Mapping[str, tuple[str, ...]]  # {node id: names of the studies that have it}
    is_beside: bool  # whether the site lies in the storage, where it can link to files of studies
    measurements: Mapping[str, StudyPage]  # by the name in a study's record

    @property
    def facts(self) -> Facts:
        return self.contents.facts

    @property
    def studies(self) -> Sequence[StudyFacts]:
        return self.contents.studies

    def num_shared(self, study: StudyFacts) -> int:
        """Counts the study's runs that other studies have too."""
        return sum(len(self.uses[i]) > 1 for i in study.node_ids if i in self.facts.runs)

    def evaluations_by_run(self) -> dict[str, list[NodeFacts]]:
        """Returns {run id: evaluations of its views, by id}."""
        found: dict[str, list[NodeFacts]] = {}
        for node in self.facts.evaluations.values():
            found.setdefault(node.config.get("view", {}).get("run_id", ""), []).append(node)
        return found

    def branches_by_run(self) -> dict[str, list[NodeFacts]]:
        """Returns {run id: runs that start from it}."""
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


def read_mirror(store: Store, tracking_uri: str | None, why_not: str = "") -> MirrorState:
    """Reads MLflow's runs and their links; none without `tracking_uri` or while MLflow is away."""
    if tracking_uri is None:
        return MirrorState(Frames(store), {}, why_not)
    frames, tracker = Frames(store, tracking_uri), Tracker(tracking_uri)
    try:
        links = mlflow_links(tracker, frames.mlflow_runs)
    except TrackingUnavailable as error:
        return MirrorState(Frames(store), {}, f"MLflow is away ({error})")
    return MirrorState(frames, links)
