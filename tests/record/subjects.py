"""What is recorded, each subject as sections of lines: ids, flags, names, and the texts of dry runs."""

import ast
import contextlib
import functools
import hashlib
import inspect
import io
import os
import re
import runpy
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path

import gram_platform
from gram_platform.cli import COMMANDS
from gram_platform.cli import main as gram
from gram_platform.cli.run import OURS, find_study
from gram_platform.corpora import catalog_names
from gram_platform.methods import METHODS
from gram_platform.methods.nodes import Node, unique
from gram_platform.studies.build import Graph, build_graph
from gram_platform.studies.dry_run import describe
from gram_platform.studies.flags import Flags, checked
from gram_platform.studies.searches.definition import Search, checked_flags
from gram_platform.studies.searches.run import build_search

ROOT = Path(__file__).resolve().parents[2]
Section = tuple[str, list[str]]  # heading, lines
Wanted = Callable[[str], bool]  # of a heading

EVERYWHERE = {"installed": "stories"}  # a corpus whose text is this machine's, and the one in its place here
STORAGE = "STORAGE"  # in place of a path
WIDTH = "129"  # letters of a terminal: from 130 on, tyro sets the boxes of --help side by side
RETURNED = {  # classes of which public functions return objects
    "analysis.compute_ratio": "LearningCurve",
    "analysis.surface": "Optimum",
    "analysis.trends": "PowerLaw",
}
OUTSIDE = ("experiments", "dashboards")  # folders that import from rooms, beside the package


# ---------------------------------------------------------------------------------------------------- ids, dry runs


def presets() -> Iterator[tuple[str, str]]:
    """Yields the name of every study and search with each of its presets."""
    for name in OURS:
        for preset in find_study(name).presets:
            yield name, preset


@functools.cache
def graph_of(name: str, preset: str, storage: str) -> Graph:
    """Returns a study or a search in an empty storage."""
    study = find_study(name)
    corpus = EVERYWHERE.get(study.presets[preset].corpus, "")
    given = {"preset": preset, "storage": storage, "corpus": corpus}
    if isinstance(study, Search):
        return build_search(study, checked_flags(study, study.flags_type(**given))).planned()
    return build_graph(study, checked(study, Flags(**given)))


def graphs(wanted: Wanted) -> Iterator[tuple[str, Graph, str]]:
    """Yields every heading `STUDY PRESET` that is wanted, with its graph and its storage."""
    storage = empty_storage()
    for name, preset in presets():
        if wanted(heading := f"{name} {preset}"):
            yield heading, graph_of(name, preset, storage), storage


@functools.cache
def empty_storage() -> str:
    """Makes a storage that stays empty until this process ends."""
    folder = tempfile.TemporaryDirectory(prefix="gram-record-")
    empty_storage.folder = folder  # removed with the process
    return folder.name


def ids(wanted: Wanted) -> Iterator[Section]:
    """Yields, for each size and kind of node, the number of nodes with digests of their ids and of their tags."""
    for heading, graph, _ in graphs(wanted):
        of_kind: dict[tuple[str, str], list[Node]] = defaultdict(list)
        for node in graph.entries:
            of_kind[node.size, "attack" if node.is_attack else node.kind].append(node)
        lines = [f"data {graph.data_id}"]
        if isinstance(graph.study, Search):
            lines.append(f"search {graph.search_id}")
        for (size, kind), nodes in of_kind.items():
            found = sorted(node.id for node in unique(nodes))
            tags = sorted(f"{node.id} {node.tags}" for node in nodes)
            lines.append(f"{size} {kind}: {len(found)}, ids {digest(found)}, tags {digest(tags)}")
        yield heading, lines


def digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12]


def dry_runs(wanted: Wanted) -> Iterator[Section]:
    """Yields what `--dry-run` prints, with two blanks between columns and without the path of the storage."""
    for heading, graph, storage in graphs(wanted):
        text = describe(graph).replace(storage, STORAGE)
        yield heading, [re.sub(r"(?<=\S) {2,}", "  ", line) for line in text.splitlines() if line]


# ------------------------------------------------------------------------------------------------------------- flags


def flags(wanted: Wanted) -> Iterator[Section]:
    """Yields the flags and arguments of every command as its `--help` has them, each with its default."""
    if wanted("gram"):
        yield "gram", list(COMMANDS)
    for name in COMMANDS:
        if wanted(heading := f"gram {name}"):
            yield heading, flags_in(help_of(functools.partial(gram, [name, "--help"])))
    for path in [*sorted((ROOT / "experiments").glob("*.py")), ROOT / "dashboards/build.py"]:
        if wanted(heading := str(path.relative_to(ROOT))):
            run = functools.partial(runpy.run_path, str(path), run_name="__main__")
            yield heading, flags_in(help_of(run, [heading, "--help"]))


def help_of(command: Callable[[], object], arguments: list[str] | None = None) -> str:
    """Returns what a command prints before it ends the process; `arguments`: of the process, with its name."""
    old_arguments, old_width, printed = sys.argv, os.environ.get("COLUMNS"), io.StringIO()
    sys.argv, os.environ["COLUMNS"] = arguments or old_arguments, WIDTH
    try:
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            command()
    finally:
        sys.argv = old_arguments
        os.environ.pop("COLUMNS")
        os.environ |= {} if old_width is None else {"COLUMNS": old_width}
    return printed.getvalue()


ENTRY = re.compile(r"^[│ ] (\S.*?)(?:  |$)")  # a flag is indented by two letters, the text about it by more
ENDING = re.compile(r"\((default: [^()]*|required)\)$")


def flags_in(text: str) -> list[str]:
    """Returns the flags and arguments of a `--help`, as `--seeds INT (default: 0)`."""
    entries: list[list[str]] = []
    for line in (line.rstrip("│ ") for line in text.splitlines()):
        if (entry := ENTRY.match(line)) and entry[1] != "-h, --help":
            entries.append([entry[1], line])
        elif entries and line.startswith(("│  ", "   ")) and not entry:
            entries[-1][1] += f" {line.removeprefix('│').strip()}"
    endings = [ENDING.search(text) for _, text in entries]
    return [f"{named} {ending[0]}" if ending else named for (named, _), ending in zip(entries, endings, strict=True)]


# ------------------------------------------------------------------------------------------------------------- names


def names(wanted: Wanted) -> Iterator[Section]:
    """Yields what people and other programs call by name, and what each room gives to others."""
    public = {
        "gram_platform": [parameters_of(name) for name in gram_platform.PUBLIC],
        **{name: members_of(module, name) for module, name in RETURNED.items()},
        "make": re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE),
        "methods": list(METHODS),
        "corpora": list(catalog_names()),
    }
    rooms = {f"room {room}": sorted(found) for room, found in sorted(names_across_rooms().items())}
    yield from ((heading, lines) for heading, lines in (public | rooms).items() if wanted(heading))


def parameters_of(name: str) -> str:
    """Returns a public function with its parameters and their defaults."""
    signature, no_type = inspect.signature(getattr(gram_platform, name)), inspect.Signature.empty
    parameters = [one.replace(annotation=no_type) for one in signature.parameters.values()]
    return f"{name}{inspect.Signature(parameters)}"


def members_of(module: str, name: str) -> list[str]:
    """Returns the public fields, properties and methods of a class."""
    found = getattr(import_module(f"gram_platform.{module}"), name)
    return sorted({member for member in (*dir(found), *found.__annotations__) if not member.startswith("_")})


def names_across_rooms() -> dict[str, set[str]]:
    """Returns `MODULE: NAME` of every name of a room that another room or a folder beside the package imports."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in (path for folder in ("gram_platform", *OUTSIDE) for path in (ROOT / folder).rglob("*.py")):
        own = path.relative_to(ROOT).parts[1]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gram_platform."):
                _, room, *rest = node.module.split(".")
                if room != own:
                    found[room] |= {": ".join([".".join(rest) or "the room", alias.name]) for alias in node.names}
    return found


SUBJECTS: dict[str, Callable[[Wanted], Iterator[Section]]] = {
    "ids": ids,
    "flags": flags,
    "names": names,
    "dry_runs": dry_runs,
}
