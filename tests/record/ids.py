"""The ids of every preset: what the code makes now, what `ids.txt` says, and where the two
differ."""

import difflib
import functools
import hashlib
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from gram_platform.cli.run import OURS, find_study
from gram_platform.methods.nodes import Node, unique
from gram_platform.studies.plan import StudyPlan
from gram_platform.studies.searches.definition import Search
from tests.submitted import flags_of, study_plan

RECORD = Path(__file__).with_name("ids.txt")
Sections = Mapping[str, list[str]]  # the lines under each heading `STUDY PRESET`
Wanted = Callable[[str], bool]  # of a heading

# A corpus whose text is this machine's, and the one in its place here.
EVERYWHERE = {"installed": "stories"}


def everything(heading: str) -> bool:
    return True


def presets() -> Iterator[tuple[str, str]]:
    """Yields the name of every study and search with each of its presets."""
    for name in OURS:
        for preset in find_study(name).presets:
            yield name, preset


@functools.cache
def graph_of(name: str, preset: str) -> StudyPlan:
    """Returns a study or a search in an empty storage."""
    study = find_study(name)
    corpus = EVERYWHERE.get(study.presets[preset].corpus, "")
    given = {"preset": preset, "storage": empty_storage(), "corpus": corpus}
    return study_plan(study, flags_of(study, **given))


@functools.cache
def empty_storage() -> str:
    """Makes a storage that stays empty until this process ends."""
    folder = tempfile.TemporaryDirectory(prefix="gram-record-")
    empty_storage.folder = folder  # removed with the process
    return folder.name


def graphs(wanted: Wanted = everything) -> Iterator[tuple[str, StudyPlan]]:
    """Yields every heading that is wanted, with its graph."""
    for name, preset in presets():
        if wanted(heading := f"{name} {preset}"):
            yield heading, graph_of(name, preset)


def found_ids(wanted: Wanted = everything) -> Sections:
    """Returns, for each size and kind of node, the number of nodes with digests of their ids and
    tags."""
    return {heading: _lines_of(graph) for heading, graph in graphs(wanted)}


def _lines_of(graph: StudyPlan) -> list[str]:
    of_kind: dict[tuple[str, str], list[Node]] = defaultdict(list)
    for node in graph.entries:
        of_kind[node.size, "attack" if node.is_attack else node.kind].append(node)
    lines = [f"data {graph.data_id}"]
    if isinstance(graph.study, Search):
        lines.append(f"search {graph.search_id}")
    for (size, kind), nodes in of_kind.items():
        found = sorted(node.id for node in unique(nodes))
        tags = sorted(f"{node.id} {node.tags}" for node in nodes)
        lines.append(f"{size} {kind}: {len(found)}, ids {_digest(found)}, tags {_digest(tags)}")
    return lines


def _digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12]


def recorded_ids(wanted: Wanted = everything) -> Sections:
    """Returns what the committed file says."""
    sections: dict[str, list[str]] = {}
    for line in RECORD.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            sections[line.removeprefix("# ")] = lines = []
        elif line:
            lines.append(line)
    return {heading: lines for heading, lines in sections.items() if wanted(heading)}


def write_ids() -> None:
    """Renews the committed file."""
    sections = ("\n".join([f"# {heading}", *lines, ""]) for heading, lines in found_ids().items())
    RECORD.write_text("\n".join(sections), encoding="utf-8")


def differences(before: Sections, now: Sections) -> list[str]:
    """Returns, under each heading that differs, the lines that are gone (-) and those that are new
    (+)."""
    lines = []
    for heading in dict.fromkeys([*before, *now]):
        pair = before.get(heading, []), now.get(heading, [])
        if heading in before and heading in now and pair[0] == pair[1]:
            continue
        changed = list(difflib.unified_diff(*pair, n=0, lineterm=""))[2:]
        lines += [f"# {heading}", *(line for line in changed if not line.startswith("@@"))]
    return lines
