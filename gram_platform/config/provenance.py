"""Records the code, machine, command and start time of each submission."""

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypedDict

from gram_platform.config.identity import mask_secrets
from gram_platform.config.terminal import say

PACKAGE = Path(__file__).resolve().parents[1]
# Holds `Code.commit` in an upload, which has no .git.
COMMIT_VARIABLE = "GRAM_COMMIT"
CHANGED = "+changes"
# When this process began, UTC, ISO 8601. Everything that a submission sends carries it.
STARTED = datetime.now(UTC).isoformat(timespec="seconds")
PACKAGES = ("gram-platform", "torch", "ray", "mlflow")


@dataclass(frozen=True)
class Code:
    """Identifies the code of a process.

    `commit` is the checkout's commit, or "" if unknown. It ends with CHANGED if tracked files have
    uncommitted changes. `sources` is a hash of the package's files. It is the same in a
    checkout, an upload and a wheel.
    """

    commit: str
    sources: str

    def __str__(self) -> str:
        return f"commit {self.commit}" if self.commit else f"sources {self.sources}"


@dataclass(frozen=True)
class Provenance:
    """Describes one submission of a study or a search.

    `started` is in UTC and ISO 8601. `upload` is Ray's hash of the job's files, or "" outside a
    job. `node_hours` sums hours x ranks over executed nodes, and is 0 until the submission ends.
    """

    started: str
    command: str
    commit: str
    sources: str
    upload: str
    versions: Mapping[str, str]
    machine: str
    node_hours: float = 0.0

    @property
    def code(self) -> Code:
        return Code(self.commit, self.sources)

    def after(self, earlier: Sequence[Mapping]) -> tuple[Mapping, ...]:
        """Returns `earlier` and this submission.

        Keeps at most `NUM_KEPT` submissions: the first one and the newest ones.
        """
        rows: list[Mapping] = [*earlier, {**asdict(self), "versions": dict(self.versions)}]
        return tuple(rows if len(rows) <= NUM_KEPT else [rows[0], *rows[1 - NUM_KEPT :]])


class SubmissionRow(TypedDict):
    """A `Provenance` in the stored record of a study or a search."""

    started: str
    command: str
    commit: str
    sources: str
    upload: str
    versions: dict[str, str]
    machine: str
    node_hours: float


class Submissions(TypedDict, total=False):
    submissions: list[SubmissionRow]


NUM_KEPT = 20


def code_text(rows: Sequence[Mapping]) -> str:
    return str(_read_code(rows[-1])) if rows else ""


def submissions_text(rows: Sequence[Mapping]) -> str:
    """Describes the newest submission, and summarises the earlier ones and their commits."""
    if not rows:
        return ""
    *earlier, newest = rows
    code = _read_code(newest)
    upload = f", upload {newest['upload']}" if newest["upload"] else ""
    versions = ", ".join(f"{name} {number}" for name, number in newest["versions"].items())
    before = ""
    if earlier:
        codes = ", ".join(dict.fromkeys(str(c) for c in map(_read_code, earlier) if c != code))
        of_codes = f", of {codes}" if codes else ""
        before = f" After {len(earlier)} more since {earlier[0]['started']}{of_codes}."
    node_hours = sum(row["node_hours"] for row in rows)
    return (
        f"Submitted {newest['started']} as {newest['command']}, {code}{upload}; {versions};"
        f" {newest['machine']}.{before} {node_hours:.3g} node hours in all."
    )


def _read_code(row: Mapping) -> Code:
    return Code(row["commit"], row["sources"])


def provenance(machine: str, upload: str = "") -> Provenance:
    """Returns the provenance of a submission that starts now in this process."""
    code, versions = code_of_process(), {"Python": platform.python_version()}
    for name in PACKAGES:
        # A checkout may not be installed, and a machine that only reads may lack packages.
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    return Provenance(started, command_line(), code.commit, code.sources, upload, versions, machine)


def command_line() -> str:
    program, *arguments = sys.argv
    is_ours = Path(program).name in ("gram", "__main__.py")
    return mask_secrets(shlex.join(["gram" if is_ours else program, *arguments]))


@cache
def code_of_process() -> Code:
    digest = sha256()
    for path in sorted(PACKAGE.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(
                path.relative_to(PACKAGE).as_posix().encode() + b"\0" + path.read_bytes() + b"\0"
            )
    return Code(os.environ.get(COMMIT_VARIABLE) or _commit(), digest.hexdigest()[:12])


def _commit() -> str:
    try:
        if not _git("ls-files", "--error-unmatch", "--", str(PACKAGE / "__init__.py")):
            return ""
        commit = _git("rev-parse", "--short=12", "HEAD")
        return commit + CHANGED if _git("status", "--porcelain", "--untracked-files=no") else commit
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(PACKAGE), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=10.0, check=True
    ).stdout.strip()


if __name__ == "__main__":
    say(f"commit {code_of_process().commit or 'unknown'}, sources {code_of_process().sources}")
