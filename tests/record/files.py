"""The committed files of the record: `# HEADING`, then its lines; and differences from them for people."""

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.record.subjects import SUBJECTS, Section, Wanted

FOLDER = Path(__file__).parent
Record = Mapping[str, list[str]]  # the lines under each heading


def everything(heading: str) -> bool:
    return True


def found(subject: str, wanted: Wanted = everything) -> Record:
    """Returns what the code says now, under the headings that are wanted."""
    return dict(SUBJECTS[subject](wanted))


def recorded(subject: str, wanted: Wanted = everything) -> Record:
    """Returns what the file of a subject says, under the headings that are wanted."""
    sections: dict[str, list[str]] = {}
    for line in (FOLDER / f"{subject}.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            sections[line.removeprefix("# ")] = lines = []
        elif line:
            lines.append(line)
    return {heading: lines for heading, lines in sections.items() if wanted(heading)}


def write(subject: str, sections: Record) -> None:
    (FOLDER / f"{subject}.txt").write_text(text_of(sections.items()), encoding="utf-8")


def text_of(sections: Iterable[Section]) -> str:
    return "\n".join("\n".join([f"# {heading}", *lines, ""]) for heading, lines in sections)


def differences(before: Record, now: Record) -> list[str]:
    """Returns, under each heading that differs, the lines that are gone (-) and those that are new (+)."""
    lines = []
    for heading in dict.fromkeys([*before, *now]):
        pair = before.get(heading, []), now.get(heading, [])
        if heading in before and heading in now and pair[0] == pair[1]:
            continue
        changed = list(difflib.unified_diff(*pair, n=0, lineterm=""))[2:]
        lines += [f"# {heading}", *(line for line in changed if not line.startswith("@@"))]
    return lines
