"""Packages that add methods, corpora, measurements and studies: one is installed and used by
name."""

import json
import os
import re
import subprocess
import sys

import pandas as pd
import pytest

from gram_platform.cli.run import OFFERED
from gram_platform.config.plugins import Table
from gram_platform.corpora.catalog import CORPORA
from gram_platform.methods import METHODS
from tests.conftest import ROOT

COMMANDS = """
import contextlib, io, json, sys
from gram_platform.cli import main
for arguments in json.loads(sys.argv[1]):
    out, error, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            main(arguments)
        except SystemExit as end:
            code = end.code
    print(json.dumps([code, out.getvalue(), error.getvalue()]))
"""
FLAGS = ("--preset", "smoke", "--in-process")
SCALING = ("run", "scaling", "--dry-run", "--preset", "smoke", "--methods")


def gram(*commands: tuple, site: object) -> list[tuple[int, str, str]]:
    """Runs commands in one process that finds packages in the folder `site`; returns exit codes,
    outputs, errors."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(site)])}
    words = json.dumps([[str(word) for word in command] for command in commands])
    command = [sys.executable, "-c", COMMANDS, words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder into which pip has installed tests/plugin."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    for path in (ROOT / "tests/plugin").iterdir():
        if path.is_file():
            # A build of setuptools lies beside the source.
            (source / path.name).write_bytes(path.read_bytes())
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--quiet",
    ]
    subprocess.run(
        [*pip, "--target", str(target), str(source)], check=True, capture_output=True, text=True
    )
    return target


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_a_package_offers_is_used_by_name(installed, tmp_path):
    run, tokens = ("run", "example", *FLAGS), ("run", "core_tokens_of_example", *FLAGS)
    where = ("--storage", tmp_path)
    lists = [("list", what, "--json") for what in ("methods", "corpora", "studies")]
    own = [
        ("run", "example", "--help"),
        (*SCALING, "core_only"),
        ("report", "core_tokens_of_example", *where),
    ]
    sync = ("sync", *where, "--to", "text-lines", "--folder", tmp_path / "lines")
    found = gram(
        *lists, (*run, *where), (*run, *where), (*tokens, *where), *own, sync, site=installed
    )
    assert [code for code, _, _ in found] == [0] * len(found), found
    methods, corpora, studies = (
        {row["name"]: row for row in json.loads(out)} for _, out, _ in found[:3]
    )
    first, again, _, usage, of_ours, report, sent = (out for _, out, _ in found[3:])
    assert list(methods)[-1] == "core_only"
    assert "example-stories" in corpora
    assert studies["example"]["title"] == "Core alone"
    assert "core_only" in usage
    assert "core_only tiny" in " ".join(of_ours.split())
    assert "core_tokens" in report
    lines = [path.read_text() for path in (tmp_path / "lines").glob("*/points.txt")]
    assert f"{len(lines)} written" in sent
    assert sum("evaluation 0 loss/core" in text for text in lines) >= 3, (
        "its one method's and the two of ours"
    )

    rows = pd.read_csv(tmp_path / "studies/example/table.csv").set_index(["method", "profile"])
    assert rows.loc[("core_only", "core"), "forget"] < rows.loc[("gram", "core"), "core"]
    assert "core_only" in (tmp_path / "studies/example/report.html").read_text()
    record = json.loads((tmp_path / "studies/example/study.json").read_text())
    assert json.loads(record["params"]["recipe"])["core_documents"] == 1_500
    number = len({entry["id"] for entry in record["entries"]})
    assert re.search(rf"{number} of {number} .*\b{number} now", first)
    assert re.search(rf"{number} of {number} .*\b0 now", again)

    commands = (
        ("report", "core_tokens_of_example", *where),
        (*SCALING, "core_only"),
        ("list", "studies"),
    )
    (code, _, error), (other, _, _), (_, names, _) = gram(*commands, site="")  # without the package
    assert (code, other) == (2, 2)
    assert "measurement='core_tokens': " in error
    assert "example" not in names


@pytest.fixture
def packaged(tmp_path, monkeypatch):
    """Writes a package with one entry point; returns its folder, which is on the path."""

    def write(name: str, group: str, entry: str, module: str = "") -> object:
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{entry}\n")
        (tmp_path / f"{name}.py").write_text(module)
        return tmp_path

    monkeypatch.syspath_prepend(str(tmp_path))
    return write


def test_a_package_that_cannot_be_imported_is_named_when_it_is_used(packaged):
    site = packaged("broken", "gram.methods", "magic = broken:plan", "import a_missing_library")
    (code, _, error), (other, _, _) = gram((*SCALING, "magic"), (*SCALING, "gram"), site=site)
    assert (code, other) == (2, 0)
    assert "broken:plan" in error
    assert "ModuleNotFoundError" in error


@pytest.mark.parametrize(
    ("table", "name"),
    [(METHODS, "gram"), (CORPORA, "installed"), (CORPORA, "stories"), (OFFERED, "scaling")],
)
def test_a_name_that_is_taken_is_refused(table, name, packaged):
    fresh = Table(table.group, dict(table), table.is_usable, table.reserved)
    packaged("greedy", table.group, f"{name} = greedy:thing", "thing = print")
    with pytest.raises(ValueError, match="greedy"):
        list(fresh)


def test_a_thing_of_another_kind_and_two_packages_of_one_name_are_refused(packaged):
    packaged("first", "gram.things", "word = first:word", "word = 'a'")
    table = Table("gram.things", {"ours": print})
    assert list(table) == ["ours", "word"]
    assert len(table) == 2
    with pytest.raises(ValueError, match="first:word"):
        table["word"]
    with pytest.raises(KeyError):
        table["nothing"]
    packaged("second", "gram.things", "word = second:word")
    with pytest.raises(ValueError):
        list(Table("gram.things", {}))
