"""Local corpora: which files there are, and the scan that reads each once for its labels, counts and content hash."""

import hashlib
import json
import os
import shutil
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from gram_platform.config.crash_safe import process_is_alive, whole_file
from gram_platform.config.identity import invalid
from gram_platform.corpora.packed import CorruptCorpus, PackedCorpus
from gram_platform.corpora.records import FORMATS, Digest, Unit, is_data_file, read_unit

STALE_S = 86_400  # when another machine's unfinished folder counts as abandoned


def complete(target: Path) -> PackedCorpus | None:
    """The packed corpus in a folder; None when it is not there or not whole."""
    try:
        return PackedCorpus.open(target)
    except CorruptCorpus:
        return None


def new_staging(root: Path, data_id: str) -> Path:
    """A folder for this attempt; the folders of attempts that died are removed."""
    host = socket.gethostname()
    staging = root / f".{data_id}.{host}.{os.getpid()}.{uuid.uuid4().hex[:8]}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        for old in root.glob(f".{data_id}.*"):
            if _is_abandoned(old, host):
                shutil.rmtree(old, ignore_errors=True)
        staging.mkdir()
    except OSError as error:
        raise invalid("storage", str(root), f"a folder that can be written ({error.strerror})") from None
    return staging


def _is_abandoned(staging: Path, host: str) -> bool:
    pid = staging.name.split(".")[-2]
    try:
        if f".{host}.{pid}." not in staging.name:
            return time.time() - staging.stat().st_mtime > STALE_S
        return not process_is_alive(int(pid))
    except (FileNotFoundError, ValueError):  # published or removed meanwhile, or a name that is not ours
        return False


def publish(staging: Path, target: Path) -> None:
    """Renames the finished folder into place; a complete one that came first stays, a broken one is moved away."""
    for _ in range(3):
        try:
            staging.rename(target)
            return
        except OSError:
            if not target.exists():
                raise
        if complete(target) is not None:
            return
        broken = target.with_name(f"{staging.name}.broken")
        target.rename(broken)
        shutil.rmtree(broken, ignore_errors=True)
    raise OSError(f"{target} keeps coming back incomplete: is another program writing there?")


Progress = Callable[[str, int, int | None], None]  # (what, done, total or None)
SCAN_VERSION = 3  # raised when a scan would find other things
REPORT_EVERY_RECORDS = 2000
SCANS = "scans"  # their folder in the cache


@dataclass(frozen=True)
class Scan:
    """What one reading of a unit found."""

    digest: str
    labels: dict[str, tuple[int, int]]  # label -> documents, bytes of text
    largest: int  # bytes of text of the longest document


def find_units(corpus: Path) -> tuple[Unit, ...]:
    """The units of a folder, of one data file, or of a JSON file of labelled globs.

    A folder is searched through all its levels; hidden files and folders are passed over.
    Raises ValueError when there is nothing to read.
    """
    if corpus.is_dir():
        found = sorted(p for p in corpus.rglob("*") if is_data_file(p) and p.is_file() and not _hidden(p, corpus))
        if not found:
            raise invalid("corpus", str(corpus), "a folder that holds files named *" + ", *".join(FORMATS))
        return tuple(Unit((path,)) for path in found)
    if corpus.suffix.lower() == ".json":
        return _glob_units(corpus)
    if is_data_file(corpus):
        return (Unit((corpus,)),)
    raise invalid(
        "corpus", str(corpus), f"a folder, a .json file of labelled globs, or a file named *{', *'.join(FORMATS)}"
    )


def _hidden(path: Path, below: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(below).parts)


def _glob_units(path: Path) -> tuple[Unit, ...]:
    """{"globs": {"label": ["src/**/*.py", ...], ...}}, relative to the JSON file's own folder (or to its "root")."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8-sig"))
        globs, root = plain["globs"], path.parent / plain.get("root", ".")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise invalid("corpus", str(path), f'a JSON object {{"globs": {{label: [patterns]}}}} ({error!r})') from None
    if not isinstance(globs, dict) or not globs:
        raise invalid("globs", globs, "an object of labels, each with its list of patterns")
    owner: dict[Path, str] = {}
    units = [Unit(_matches(root, label, patterns, owner), label) for label, patterns in sorted(globs.items())]
    return tuple(units)


def _matches(root: Path, label: str, patterns: object, owner: dict[Path, str]) -> tuple[Path, ...]:
    field = f"globs[{label}]"
    if not label.strip() or not isinstance(patterns, list) or not all(isinstance(p, str) and p for p in patterns):
        raise invalid(field, patterns, "a non-empty label with a list of glob patterns")
    if any(Path(p).is_absolute() for p in patterns):
        raise invalid(field, patterns, 'patterns relative to the JSON file, or to the "root" it names')
    matches = (p for pattern in patterns for p in root.glob(pattern))
    files = sorted({p for p in matches if p.is_file() and not _hidden(p, root)})
    if not files:
        raise invalid(field, patterns, f"patterns that match at least one file below {root}")
    for file in files:
        if owner.setdefault(file, label) != label:
            raise invalid(field, str(file), f"a file of one label only: it also matches {owner[file]!r}")
    return tuple(files)


def scan_units(units: tuple[Unit, ...], cache_dir: Path | None, progress: Progress | None) -> list[tuple[Unit, Scan]]:
    """Reads every unit that is not in the cache; returns units with their digests, in the order of those.

    The order is the contents' and not the names', so that moving files changes nothing. Raises ValueError (file and
    line) for the first bad record, and for a cache that cannot be written, before anything is read.
    """
    if cache_dir is not None:
        _make_cache(cache_dir)
    sizes = [sum(path.stat().st_size for path in unit.paths) for unit in units]
    done, total, scanned = 0, sum(sizes), []
    for unit, size in zip(units, sizes, strict=True):
        scan = _cached(unit, cache_dir)
        if scan is None:
            scan = _scan(unit, lambda part, base=done: progress and progress("reading", min(base + part, total), total))
            _keep(unit, cache_dir, scan)
        done += size
        if progress:
            progress("reading", done, total)
        scanned.append((replace(unit, digest=scan.digest), scan))
    return sorted(scanned, key=lambda pair: pair[1].digest)


def content_of(units: list[Unit]) -> str:
    """One hash for all units' records."""
    return hashlib.sha256("\n".join(sorted(unit.digest for unit in units)).encode()).hexdigest()


def _scan(unit: Unit, report: Callable[[int], object]) -> Scan:
    digest, labels, total, largest = Digest(), {}, 0, 0
    for number, (label, text) in enumerate(read_unit(unit), start=1):
        num_bytes = digest.add(label, text)
        documents, so_far = labels.get(label, (0, 0))
        labels[label] = (documents + 1, so_far + num_bytes)
        total += num_bytes
        largest = max(largest, num_bytes)
        if number % REPORT_EVERY_RECORDS == 0:
            report(total)
    return Scan(digest.hexdigest(), labels, largest)


def _make_cache(cache_dir: Path) -> None:
    try:
        (cache_dir / SCANS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise invalid("storage", str(cache_dir), f"a folder that can be written ({error.strerror})") from None


def _cache_path(unit: Unit, cache_dir: Path) -> Path:
    stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in unit.paths]
    key = json.dumps([SCAN_VERSION, unit.label, stats])
    return cache_dir / SCANS / f"{hashlib.sha256(key.encode()).hexdigest()}.json"


def _cached(unit: Unit, cache_dir: Path | None) -> Scan | None:
    if cache_dir is None:
        return None
    try:
        plain = json.loads(_cache_path(unit, cache_dir).read_text())
        labels = {label: tuple(counts) for label, counts in plain["labels"].items()}
        return Scan(plain["digest"], labels, plain["largest"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # nothing kept, or not readable: the file is scanned again


def _keep(unit: Unit, cache_dir: Path | None, scan: Scan) -> None:
    if cache_dir is None:
        return
    with whole_file(_cache_path(unit, cache_dir)) as temporary:
        Path(temporary).write_text(json.dumps(asdict(scan)))
