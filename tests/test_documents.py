"""The documents hold: links, paths, every command against the real flags, the examples of code."""

import ast
import functools
import inspect
import re
import runpy
import shlex
from pathlib import Path

import pytest
import tyro

from gram_platform import PUBLIC, config
from gram_platform.cli import COMMANDS, find_command
from gram_platform.cli.run import find_study
from gram_platform.config.identity import require_choice
from gram_platform.corpora import catalog
from gram_platform.corpora.checking import check as check_corpus
from gram_platform.methods import METHODS, measurements
from gram_platform.methods.measurements import Losses
from gram_platform.studies import Study
from gram_platform.studies.flags import MemberFlags, parse_flags
from gram_platform.studies.make_plan import read_study
from tests.submitted import parse, study_plan
from tests.test_architecture import ROOMS, ROOT

PAGES = {str(p.relative_to(ROOT)): p.read_text() for p in sorted((ROOT / "docs").glob("*.md"))}
QUESTIONS = {
    str(p.relative_to(ROOT)): p.read_text()
    for p in sorted((ROOT / "docs" / "findings").glob("*.md"))
}
OTHERS = ("README.md", "CONTRIBUTING.md", "FINDINGS.md", "cluster/README.md")
DOCUMENTS = {name: (ROOT / name).read_text() for name in OTHERS} | PAGES | QUESTIONS
EXPERIMENTS = sorted((ROOT / "experiments").glob("*.py"))
DOCSTRINGS = {
    f"experiments/{p.name}": ast.get_docstring(ast.parse(p.read_text())) for p in EXPERIMENTS
}

CODE_BLOCK = re.compile(r"^```.*?\n.*?^```|(?:^    [^\n]*\n)+", re.MULTILINE | re.DOTALL)
CLASS = re.compile(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(
    r"\b(?:gram_platform|tests|experiments|benchmarks|dashboards|cluster|docs)/[\w./-]*\w"
)
EXPERIMENT = re.compile(r"python (?:/opt/gram/)?experiments/(\w+)\.py(.*)")
COMMAND = re.compile(r"(?:(?<=`)|^ *)gram ([a-z]+\b.*)")


def anchors(path: Path) -> set[str]:
    """The fragments of a page's headings, as code hosts make them."""
    headings = re.findall(
        r"^#+ (.*)$", re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_site_leads_to_every_document():
    listed = re.findall(r"(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(
        [*DOCUMENTS, "SECURITY.md", "CHANGELOG.md", "benchmarks/HISTORY.md", "docs/api.md"]
    )


def test_the_site_can_describe_every_public_name():
    """It reads the source, and only folders that are regular packages."""
    rooms = {module.split(".")[0] for module in PUBLIC.values()}
    assert not [
        room for room in rooms if not (ROOT / "gram_platform" / room / "__init__.py").exists()
    ]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name):
    for link in LINK.findall(CODE_BLOCK.sub("", DOCUMENTS[name])):
        if "://" in link:
            continue
        target, _, fragment = link.partition("#")
        path = (ROOT / name).parent / target if target else ROOT / name
        assert path.exists(), link
        assert not fragment or fragment in anchors(path), link


def test_every_page_is_linked_from_the_readme():
    assert set(PAGES) <= set(LINK.findall(DOCUMENTS["README.md"]))


def test_every_question_is_linked_from_the_findings():
    assert QUESTIONS.keys() == {
        link for link in LINK.findall(DOCUMENTS["FINDINGS.md"]) if "docs/findings/" in link
    }


def examples() -> dict[str, str]:
    """{file: code} of the examples in docs/extend.md, each under the file that it is written
    into."""
    return dict(
        re.findall(
            r"`([\w/]+\.py)`[^`]*:\n\n```python\n(.*?)```", DOCUMENTS["docs/extend.md"], re.DOTALL
        )
    )


@pytest.mark.parametrize("name", DOCUMENTS)
def test_named_files_exist(name):
    paths = {
        path for path in PATH.findall(DOCUMENTS[name]) if "NAME" not in path
    } - examples().keys()
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_named_classes_exist():
    code = "".join(path.read_text() for path in (ROOT / "gram_platform").rglob("*.py")) + "".join(
        examples().values()
    )
    named = {name for text in DOCUMENTS.values() for name in CLASS.findall(text)}
    assert "RunConfig" in named
    assert not [name for name in sorted(named) if not re.search(rf"\b{name}\b", code)]


def test_the_rooms_are_those_of_the_import_rule():
    rows = re.findall(
        r"^\|[^|]*\| `(\w+)/` \|[^|]*\|([^|]*)\|$", DOCUMENTS["docs/architecture.md"], re.MULTILINE
    )
    assert {room: tuple(libraries.replace(",", " ").split()) for room, libraries in rows} == ROOMS
    assert [room for room, _ in rows] == list(ROOMS)


def code_of(text: str) -> list[str]:
    """The lines of code blocks, joined where a backslash ends them, and code within lines with its
    backticks."""
    joined = text.replace("\\\n", " ")
    blocks = CODE_BLOCK.findall(joined)
    return [line for block in blocks for line in block.splitlines()] + re.findall(
        r"`[^`\n]+`", CODE_BLOCK.sub("", joined)
    )


def commands_in(text: str) -> list[tuple[str, list[str]]]:
    """(`experiments/NAME` or `gram`, arguments) of every command line."""
    found = []
    for line in code_of(text):
        for pattern, name in ((EXPERIMENT, ""), (COMMAND, "gram")):
            if match := pattern.search(line):
                *names, arguments = match.groups()
                words = shlex.split(arguments.rstrip("`"), comments=True)
                found.append((name or f"experiments/{names[0]}", words))
    return found


@functools.cache
def declared(name: str) -> dict:
    """The names of an experiment's file, or of the study in docs/extend.md."""
    if f"{name}.py" in examples():
        return example("gram_platform/studies/library/widths.py")
    return runpy.run_path(str(ROOT / f"{name}.py"), run_name="documented")


def example(path: str, **names: object) -> dict:
    """What an example of docs/extend.md defines, executed where `names` are defined."""
    exec(examples()[path], names)
    return names


def is_own(main, names) -> bool:
    """Whether a file defines the function itself, and takes its arguments from the signature."""
    return (
        main is not None
        and main.__module__ == names["__name__"]
        and bool(inspect.signature(main).parameters)
    )


def check_flags(study: Study, arguments: list[str]) -> None:
    """ValueError for values that no storage and no corpus could make right."""
    flags = parse(study, arguments)
    read_study(study, flags, flags.subject.changes)


def check(name: str, arguments: list[str]) -> None:
    """SystemExit or ValueError unless the command takes these arguments; nothing is started."""
    if name == "gram" and len(arguments) == 1:  # the command as a name, within a sentence
        require_choice("gram", arguments[0], tuple(COMMANDS))
        return
    if name == "gram" and arguments[0] == "run":
        study = find_study(arguments[1])
        check_flags(study, arguments[2:])
        return
    if name == "gram":
        require_choice("gram", arguments[0], tuple(COMMANDS))
        tyro.cli(
            functools.wraps(find_command(arguments[0]))(lambda *_, **__: None), args=arguments[1:]
        )
        return
    names = declared(name)
    if is_own(names.get("main"), names):  # one_run.py
        tyro.cli(functools.wraps(names["main"])(lambda *_, **__: None), args=arguments)
    elif "STUDIES" in names:
        parse_flags(MemberFlags, "", arguments)
    elif "STUDY" in names:
        check_flags(names["STUDY"], arguments)
    elif "SEARCH" in names:
        check_flags(names["SEARCH"], arguments)
    else:  # bench.py, whose parser is inside
        known = re.findall(r'"(--[\w-]+)"', (ROOT / f"{name}.py").read_text())
        assert {word for word in arguments if word.startswith("--")} <= set(known)


@pytest.mark.parametrize("name", [*DOCUMENTS, *DOCSTRINGS])
def test_every_command_parses(name, monkeypatch, tmp_path):
    monkeypatch.setenv("GRAM_STORAGE", str(tmp_path))
    monkeypatch.setitem(METHODS, "core_only", example("gram_platform/methods/core_only.py")["plan"])
    commands = commands_in((DOCUMENTS | DOCSTRINGS)[name])
    for command, arguments in commands:
        if "--help" in arguments:
            continue
        try:
            check(command, arguments)
        except (SystemExit, ValueError) as error:
            raise AssertionError(f"{command} {shlex.join(arguments)}: {error}") from error
    if name in DOCSTRINGS or name == "cluster/README.md":
        assert commands


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    lines = [line for text in DOCUMENTS.values() for line in code_of(text)]
    asked = {word for line in lines for word in re.findall(r"(?:^ *|`|&& )make ([a-z-]+)", line)}
    assert {"demo", "test", "setup"} <= asked <= targets


def test_the_example_of_a_corpus_can_be_opened(monkeypatch):
    (entry,) = re.findall(
        r"in `STORIES`:\n\n```python\n(.*?)```", DOCUMENTS["docs/extend.md"], re.DOTALL
    )
    ((name, corpus),) = eval("{" + entry + "}", {**vars(catalog)}).items()
    monkeypatch.setitem(catalog.CORPORA, name, corpus)
    (found,) = check_corpus(name)
    assert found.ok, found
    assert f"gram prepare {name} --check" in DOCUMENTS["docs/extend.md"]


def test_the_example_of_a_study_builds(tmp_path):
    study = declared("experiments/widths")["STUDY"]
    assert isinstance(study, Study)
    assert set(study.presets) == {"smoke", "demo"}
    graph = study_plan(study, ["--preset", "smoke", "--seeds", "1", "--storage", str(tmp_path)])
    assert sum(node.is_run and not node.is_attack for node in graph.nodes) == 1 + len(
        graph.preset.variants
    )


def test_the_example_of_a_measurement_has_the_runs_of_the_study(tmp_path):
    names = example(
        "gram_platform/methods/measurements.py", **{**vars(config), **vars(measurements)}
    )
    study = declared("experiments/scaling")["STUDY"]
    flags = parse(
        study, ["--preset", "smoke", "--seeds", "1", "--sizes", "tiny", "--storage", str(tmp_path)]
    )
    (setting,) = study_plan(study, flags).settings
    nodes, plain = names["CoreTokens"]().nodes("gram", setting), Losses().nodes("gram", setting)
    assert [n for n in nodes if n.is_run] == [n for n in plain if n.is_run and not n.is_attack]
    assert {n.config.domains for n in nodes if not n.is_run} == {("core",)}
