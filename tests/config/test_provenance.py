"""Which code a process says that it has: of a checkout, changed or not, of an upload and by the
environment."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gram_platform.config.plain import from_plain
from gram_platform.config.provenance import (
    CHANGED,
    COMMIT_VARIABLE,
    NUM_KEPT,
    Provenance,
    Submissions,
    code_of_process,
    provenance,
    submissions_text,
)

ROOT = Path(__file__).resolve().parents[2]
ASK = (
    "from gram_platform.config.provenance import code_of_process as c; print(c().commit or '-',"
    " c().sources)"
)
NEWEST = Provenance(
    "2026-11-26T20:00:00+00:00",
    "python a.py",
    "abc",
    "123",
    "",
    {"Python": "3.11"},
    "this process on 2 cores",
    0.5,
)


def code_at(folder: Path, **environment: str) -> list[str]:
    """What a process says whose package is in a folder."""
    clean = {name: value for name, value in os.environ.items() if name != COMMIT_VARIABLE}
    command = [sys.executable, "-c", ASK]
    settings = clean | environment | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, cwd=folder, env=settings, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    return subprocess.run(
        ["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True
    ).stdout


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A repository with this package as its only content."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "gram_platform", tmp_path / "here/gram_platform", ignore=ignored)
    for arguments in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "all")):
        git(tmp_path / "here", *arguments)
    return tmp_path / "here"


def test_a_checkout_has_its_commit_and_says_that_it_was_changed(checkout):
    commit, sources = code_at(checkout)
    assert git(checkout, "rev-parse", "HEAD").startswith(commit)
    assert sources == code_of_process().sources
    (checkout / "gram_platform/note.txt").write_text(
        "untracked files are no change, but part of the sources"
    )
    assert code_at(checkout)[0] == commit
    with (checkout / "gram_platform/config/view.py").open("a") as file:
        file.write("# changed")
    changed, other = code_at(checkout)
    assert changed == commit + CHANGED
    assert other != sources


def test_an_upload_has_equal_sources_and_the_commit_that_it_is_told(checkout):
    expected = code_at(checkout)
    shutil.rmtree(checkout / ".git")
    assert code_at(checkout) == ["-", expected[1]]
    assert code_at(checkout, **{COMMIT_VARIABLE: expected[0]}) == expected


def test_a_wheel_in_somebodys_repository_has_not_its_commit(checkout):
    git(checkout, "rm", "-q", "-r", "--cached", "gram_platform")
    git(checkout, "commit", "-q", "--allow-empty", "-m", "no package")
    assert code_at(checkout)[0] == "-"


def test_the_command_has_no_password(monkeypatch):
    """Reports are shared."""
    command = ["experiments/scaling.py", "--tracking-uri", "postgresql://user:word@host/mlflow"]
    monkeypatch.setattr("sys.argv", command)
    assert (
        provenance("a machine").command
        == "experiments/scaling.py --tracking-uri postgresql://***@host/mlflow"
    )


def test_records_keep_the_first_submission_and_the_newest():
    rows = ()
    for hour in range(NUM_KEPT + 5):
        rows = replace(NEWEST, started=f"2026-11-26T{hour:02d}", node_hours=1.0).after(rows)
    assert [row["started"][-2:] for row in rows] == [
        "00",
        *(f"{hour:02d}" for hour in range(6, NUM_KEPT + 5)),
    ]
    assert from_plain(Submissions, {"submissions": list(rows)})["submissions"] == list(rows)


def test_the_text_has_the_newest_submission_and_other_code_of_earlier_ones():
    assert submissions_text(()) == ""
    alone = submissions_text(NEWEST.after(()))
    assert all(
        part in alone
        for part in (
            NEWEST.started,
            NEWEST.command,
            "commit abc",
            NEWEST.machine,
            "0.5 node",
        )
    )
    both = submissions_text(NEWEST.after(replace(NEWEST, commit="", node_hours=1.0).after(())))
    assert "sources 123" in both
    assert "1.5 node hours" in both
    row, *_ = NEWEST.after(())
    assert submissions_text([{**row, "newer": 1}]) == alone
