"""Finds the files of a local corpus, and scans each for labels, counts and a content hash."""

import contextlib
import fnmatch
import hashlib
import json
import os
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict, TypeVar

from gram_platform.config.crash_safe import A_FILE, A_FOLDER, require_plain, whole_file
from gram_platform.config.identity import invalid
from gram_platform.config.plain import parse_json
from gram_platform.config.terminal import warn
from gram_platform.config.written import read_json, target_kind
from gram_platform.corpora.compression import BLOCK_BYTES
from gram_platform.corpora.records import (
    FORMATS,
    Unit,
    add_record,
    is_data_file,
    read_unit,
    reading,
    size_of,
)

Item = TypeVar("Item")
# A callback with (activity, done, total or None).
Progress = Callable[[str, int, int | None], None]
# Increase this when a scan of the same file would have another result.
SCAN_VERSION = 5
REPORT_EVERY_RECORDS = 2000
# The cache's folders of scans and of fetched text.
SCANS, FETCHED = "scans", "hub"
MOST_SHOWN = 9
# The name of a split in a file's name, such as `train-00000-of-00001.parquet`.
SPLIT = re.compile(r"(?:^|[-_. ])(train|test|validation|valid|val|dev|eval)(?=[-_. ]|$)", re.I)
# The minimum bytes of a piece. Other values give the same packed corpus.
PIECE_BYTES = 1 << 22


def silent(activity: str, done: int, total: int | None) -> None:
    """Ignores progress reports."""


def find_units(corpus: Path) -> tuple[Unit, ...]:
    """Finds the units of a folder (with subfolders), a data file, or a .json file of `Globs`.

    Warns if it skips folders, or if it reads files of `train` and of other splits as one corpus.
    Raises ValueError if it finds no file.
    """
    if corpus.suffix.lower() == ".json" and target_kind("corpus", corpus) == A_FILE:
        return _glob_units(corpus)
    skipped = set()
    is_folder = target_kind("corpus", corpus) == A_FOLDER
    files = find_files(corpus, ["**"], is_data_file, skipped) if is_folder else (corpus,)
    folders = ", ".join(sorted(skipped)[:MOST_SHOWN])
    left_out = f"left out {len(skipped)} folders named _* or .*: {folders}" if skipped else ""
    if not files or not all(is_data_file(path.name) for path in files):
        names = "named *" + ", *".join(FORMATS)
        allowed = f"a folder with files {names}, such a file, or a .json of labelled globs"
        raise invalid("corpus", str(corpus), allowed + f" ({left_out})" * bool(left_out))
    if left_out:
        warn(f"{corpus}: {left_out}")
    parts = {part for path in files for part in path.relative_to(corpus).parts}
    splits = {match[1].lower() for part in parts for match in SPLIT.finditer(part)}
    if "train" in splits and len(splits) > 1:
        warn(f"{corpus}: files named {', '.join(sorted(splits))} are all read as one corpus")
    return tuple(Unit((path,)) for path in files)


class Globs(TypedDict):
    """File patterns by label, relative to `root`. `root` is relative to the JSON file's folder."""

    globs: dict[str, Any]
    root: NotRequired[str]


def _glob_units(path: Path) -> tuple[Unit, ...]:
    try:
        plain = {"root": "."} | read_json(path, Globs)
    except ValueError as error:
        allowed = (
            "records in a file named *.jsonl, with text and label a line, or globs in a .json, as"
            f' {{"globs": {{label: [patterns]}}}} ({error})'
        )
        raise invalid("corpus", str(path), allowed) from None
    if not plain["globs"]:
        raise invalid("globs", {}, "an object of labels, each with its list of patterns")
    return find_labelled_units(plain["globs"], path.parent / plain["root"])


def find_labelled_units(globs: Mapping[str, object], root: Path) -> tuple[Unit, ...]:
    """Finds the files of each label by glob patterns below `root`.

    Raises ValueError for a label without files, or for a file that has two labels.
    """
    label_of = {}
    return tuple(
        Unit(_matches(root, label, patterns, label_of), label)
        for label, patterns in sorted(globs.items())
    )


def _matches(
    root: Path, label: str, patterns: object, label_of: dict[str, str]
) -> tuple[Path, ...]:
    field = f"globs[{label}]"
    is_list = isinstance(patterns, list) and all(isinstance(p, str) and p for p in patterns)
    if not label.strip() or not is_list:
        raise invalid(field, patterns, "a non-empty label with a list of glob patterns")
    if any(Path(p).is_absolute() for p in patterns):
        raise invalid(field, patterns, 'patterns relative to their file, or to its "root"')
    parts = {part for pattern in patterns for part in pattern.split("/")}
    if any(ANY_FOLDERS in part for part in parts - {ANY_FOLDERS}):
        raise invalid(field, patterns, f"glob patterns with {ANY_FOLDERS} only between slashes")
    files = find_files(root, patterns)
    if not files:
        raise invalid(field, patterns, f"patterns that match at least one file below {root}")
    for file in files:
        if (other := label_of.setdefault(os.path.realpath(file), label)) != label:
            raise invalid(field, str(file), f"a file of one label only: it also matches {other!r}")
    return files


def scan_units(
    units: tuple[Unit, ...], cache_dir: Path | None, progress: Progress = silent
) -> list[Unit]:
    """Returns the scanned units, sorted by content hash. Reads only units that are not cached.

    Raises ValueError for the first bad record, with file and line, or if the cache is not writable.
    """
    if cache_dir is not None:
        require_plain(cache_dir / SCANS)
        try:
            (cache_dir / SCANS).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            allowed = f"a folder that can be written ({error.strerror})"
            raise invalid("storage", str(cache_dir), allowed) from None
    sizes = [sum(map(size_of, unit.paths)) for unit in units]
    done, total, scanned = 0, sum(sizes), []
    for unit, size in zip(units, sizes, strict=True):
        # Computed first, so that the name has the files' times before they are read.
        cache = cache_dir and _cache_path(unit, cache_dir)
        scan = cache and _read_cache(unit, cache)
        if not scan:
            scan = _scan(
                unit, lambda n, base=done: progress("reading", min(base + n, total), total)
            )
            if cache:
                _store(scan, cache)
        done += size
        progress("reading", done, total)
        scanned.append(scan)
    return sorted(scanned, key=lambda unit: unit.digest)


def content_of(units: Sequence[Unit]) -> str:
    return hashlib.sha256("\n".join(sorted(unit.digest for unit in units)).encode()).hexdigest()


def _scan(unit: Unit, report: Callable[[int], object]) -> Unit:
    digest, labels, total, largest, number = hashlib.sha256(), {}, 0, 0, 0
    pieces, cut = _pieces(unit), []
    for piece in pieces:
        inside = hashlib.sha256() if len(pieces) > 1 else None
        for label, text in read_unit(piece):
            num_bytes = add_record(digest, label, text)
            if inside is not None:
                add_record(inside, label, text)
            documents, so_far = labels.get(label, (0, 0))
            labels[label] = (documents + 1, so_far + num_bytes)
            total, number, largest = total + num_bytes, number + 1, max(largest, num_bytes)
            if number % REPORT_EVERY_RECORDS == 0:
                report(total)
        if inside is not None:
            cut.append(replace(piece, digest=inside.hexdigest()))
    return replace(unit, digest=digest.hexdigest(), labels=labels, largest=largest, cut=tuple(cut))


def _pieces(unit: Unit) -> tuple[Unit, ...]:
    if unit.label:
        return tuple(replace(unit, paths=paths) for paths in group_pieces(unit.paths, size_of))
    (path,) = unit.paths
    if not path.name.lower().endswith(".jsonl") or size_of(path) < 2 * PIECE_BYTES:
        return (unit,)
    return tuple(replace(unit, span=span) for span in _line_spans(path))


def group_pieces(items: Sequence[Item], size_of: Callable[[Item], int]) -> list[tuple[Item, ...]]:
    """Groups consecutive items. Only the last group may have less than `PIECE_BYTES` bytes."""
    groups, size = [], PIECE_BYTES
    for item in items:
        if size >= PIECE_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(item)
        size += size_of(item)
    return [tuple(group) for group in groups]


def _line_spans(path: Path) -> list[tuple[int, int | None, int]]:
    spans, first, before, position, lines = [], 0, 0, 0, 0
    with reading(path), path.open("rb") as handle:
        while block := handle.read(BLOCK_BYTES):
            end = block.rfind(b"\n") + 1
            if end and position + end - first >= PIECE_BYTES:
                spans.append((first, position + end, before))
                first, before = position + end, lines + block.count(b"\n", 0, end)
            position, lines = position + len(block), lines + block.count(b"\n")
    return [*spans, (first, None, before)]


def forget(units: Sequence[Unit], changed: Sequence[Path], cache_dir: Path) -> None:
    """Deletes the cached scans of `units`, and all paths in `changed` that `hub.fetch` wrote."""
    for unit in units:
        # A missing file has no scan.
        with contextlib.suppress(ValueError):
            _cache_path(unit, cache_dir).unlink(missing_ok=True)
    for path in changed:
        if path.is_relative_to(cache_dir / FETCHED):
            path.unlink(missing_ok=True)


def _cache_path(unit: Unit, cache_dir: Path) -> Path:
    stats = []
    for path in unit.paths:
        with reading(path):
            stats.append((os.path.realpath(path), path.stat().st_size, path.stat().st_mtime_ns))
    key = json.dumps([SCAN_VERSION, unit.label, stats])
    return cache_dir / SCANS / f"{hashlib.sha256(key.encode()).hexdigest()}.json"


def _read_cache(unit: Unit, cache: Path) -> Unit | None:
    try:
        plain = parse_json(cache.read_bytes())
        labels = {label: tuple(counts) for label, counts in plain["labels"].items()}
        scanned = replace(unit, digest=plain["digest"], labels=labels, largest=plain["largest"])
        return replace(scanned, cut=tuple(_piece(unit, *piece) for piece in plain["cut"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _piece(unit: Unit, first: int, num_paths: int, span: list, digest: str) -> Unit:
    start, stop, before = span
    paths = unit.paths[first : first + num_paths]
    return replace(unit, paths=paths, span=(start, stop, before), digest=digest)


def _store(unit: Unit, cache: Path) -> None:
    plain = {name: getattr(unit, name) for name in ("digest", "labels", "largest")}
    cut = [[unit.paths.index(p.paths[0]), len(p.paths), p.span, p.digest] for p in unit.cut]
    with whole_file(cache) as temporary:
        Path(temporary).write_text(json.dumps({**plain, "cut": cut}))


ANY_FOLDERS = "**"
MAGIC = re.compile(r"[*?[]")

# A pattern, split at its slashes.
Parts = tuple[str, ...]


def find_files(
    root: Path,
    patterns: Sequence[str],
    is_wanted: Callable[[str], bool] = lambda name: True,
    skipped: set[str] | None = None,
) -> tuple[Path, ...]:
    """Returns the files below `root` that match one of `patterns`, sorted by path.

    Leaves out files whose name does not pass `is_wanted`, and hidden files and folders. `**`
    matches any number of folders. If `skipped` is given, folders named `_*` are left out too, and
    the paths of all folders that were left out are added to it. A file with several paths is
    returned once, if possible with a path without links. Raises ValueError for an unreadable
    folder, a broken link, a pipe, a socket or a device.
    """
    # (is a link, path) of each file, by its path without links.
    found: dict[str, tuple[bool, Path]] = {}
    todo = deque((str(root), os.path.realpath(root), _parts(pattern)) for pattern in patterns)
    # Links may lead to the same folder again.
    seen: set[tuple[str, Parts]] = set()
    while todo:
        folder, real, (part, *rest) = todo.pop()
        if (real, (part, *rest)) in seen:
            continue
        seen.add((real, (part, *rest)))
        if part == ANY_FOLDERS:
            todo.append((folder, real, tuple(rest)))
        for name in _names(folder, part, skipped):
            path = os.path.join(folder, name)
            is_link = os.path.islink(path)
            real_path = os.path.realpath(path) if is_link else os.path.join(real, name)
            is_last = not rest and part != ANY_FOLDERS
            if is_last and not is_wanted(name) and not is_link:
                continue
            kind = target_kind("corpus", path)
            if not kind:
                allowed = "a file or folder that stays: it was there when its folder was listed"
                raise invalid("corpus", path, allowed)
            if kind == A_FILE and is_last and is_wanted(name):
                file = (is_link, Path(path))
                found[real_path] = min(found.get(real_path, file), file)
            elif kind == A_FOLDER and not is_last:
                below = (path, real_path, (part, *rest) if part == ANY_FOLDERS else tuple(rest))
                # Links are searched last, so that a file gets a path without a link.
                todo.appendleft(below) if is_link else todo.append(below)
    return tuple(sorted(path for _, path in found.values()))


def _parts(pattern: str) -> Parts:
    parts = []
    for part in pattern.split("/"):
        if part not in ("", ".") and not (part == ANY_FOLDERS and parts[-1:] == [ANY_FOLDERS]):
            parts.append(part)
    return (*parts, "*") if parts[-1:] in ([], [ANY_FOLDERS]) else tuple(parts)


def _names(folder: str, part: str, skipped: set[str] | None) -> list[str]:
    # Looking up a plain name needs no permission to list the folder.
    if not MAGIC.search(part):
        path = os.path.join(folder, part)
        is_there = os.path.islink(path) or target_kind("corpus", path)
        return [part] if is_there and not part.startswith(".") else []
    matches = re.compile(fnmatch.translate(part)).match
    try:
        with os.scandir(folder) as entries:
            listed = list(entries)
    except OSError as error:
        raise invalid("corpus", folder, f"a folder that can be read ({error.strerror})") from None
    if part == ANY_FOLDERS:
        listed = [e for e in listed if e.is_symlink() or e.is_dir(follow_symlinks=False)]
        if skipped is not None:
            hidden = [entry.path for entry in listed if entry.name.startswith(("_", "."))]
            skipped.update(filter(os.path.isdir, hidden))
            listed = [entry for entry in listed if entry.path not in skipped]
    names = [entry.name for entry in listed if not entry.name.startswith(".")]
    return names if part == ANY_FOLDERS else list(filter(matches, names))
