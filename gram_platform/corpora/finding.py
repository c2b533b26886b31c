"""Finds files below a folder by glob patterns, in linked folders too; what matches and cannot be read is an error."""

import fnmatch
import os
import re
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from gram_platform.config.crash_safe import A_FILE, A_FOLDER
from gram_platform.config.identity import invalid
from gram_platform.config.user_files import target_kind

ANY_FOLDERS = "**"  # the part of a pattern that stands for any number of folders
MAGIC = re.compile(r"[*?[]")

Parts = tuple[str, ...]  # of a pattern, between its slashes


class PatternError(ValueError):
    """Raised for text that is no glob pattern."""


def find_files(
    root: Path, patterns: Sequence[str], is_wanted: Callable[[str], bool] = lambda name: True
) -> tuple[Path, ...]:
    """Returns the files below `root` that match a pattern and whose names are wanted, sorted by path.

    `**` stands for any number of folders. Leaves out hidden files and folders. Enters linked folders; a file that
    several links lead to is returned once, by its own path if that is found too. ValueError for a folder that cannot be
    read, a link whose target is gone, and a pipe, socket or device that is wanted.
    """
    found: dict[str, tuple[bool, Path]] = {}  # by the path without links; a file's own path comes before a link
    todo = deque((str(root), os.path.realpath(root), _parts(pattern)) for pattern in patterns)
    seen: set[tuple[str, Parts]] = set()  # a folder that was searched for the same: a loop of links, or a second link
    while todo:
        folder, real, (part, *rest) = todo.pop()
        if (real, (part, *rest)) in seen:
            continue
        seen.add((real, (part, *rest)))
        if part == ANY_FOLDERS:
            todo.append((folder, real, tuple(rest)))
        for name in _names(folder, part):
            path = os.path.join(folder, name)
            is_link = os.path.islink(path)
            real_path = os.path.realpath(path) if is_link else os.path.join(real, name)
            is_last = not rest and part != ANY_FOLDERS
            if is_last and not is_wanted(name) and not is_link:
                continue
            kind = target_kind("corpus", path)
            if not kind:
                raise invalid("corpus", path, "a file or folder that stays: it was there when its folder was listed")
            if kind == A_FILE and is_last and is_wanted(name):
                found[real_path] = min(found.get(real_path, (True, Path(path))), (is_link, Path(path)))
            elif kind == A_FOLDER and not is_last:
                below = (path, real_path, (part, *rest) if part == ANY_FOLDERS else tuple(rest))
                todo.appendleft(below) if is_link else todo.append(below)  # links last: a folder's own path is shorter
    return tuple(sorted(path for _, path in found.values()))


def _parts(pattern: str) -> Parts:
    """Splits a pattern at its slashes; ValueError for `**` beside other letters."""
    parts: list[str] = []
    for part in pattern.split("/"):
        if ANY_FOLDERS in part and part != ANY_FOLDERS:
            raise PatternError(f"{ANY_FOLDERS} stands alone between slashes")
        if part not in ("", ".") and not (part == ANY_FOLDERS and parts[-1:] == [ANY_FOLDERS]):
            parts.append(part)
    return (*parts, "*") if parts[-1:] in ([], [ANY_FOLDERS]) else tuple(parts)


def _names(folder: str, part: str) -> list[str]:
    """Lists the visible names in a folder that a part of a pattern matches; `**` matches folders and links."""
    if not MAGIC.search(part):  # needs no right to list the folder
        return [part] if not part.startswith(".") and _is_there(os.path.join(folder, part)) else []
    matches = re.compile(fnmatch.translate(part)).match
    try:
        with os.scandir(folder) as entries:
            visible = [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise invalid("corpus", folder, f"a folder that can be read ({error.strerror})") from None
    if part == ANY_FOLDERS:
        return [entry.name for entry in visible if entry.is_symlink() or entry.is_dir(follow_symlinks=False)]
    return [entry.name for entry in visible if matches(entry.name)]


def _is_there(path: str) -> bool:
    return os.path.islink(path) or bool(target_kind("corpus", path))
