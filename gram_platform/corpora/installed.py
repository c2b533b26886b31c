"""Builds the corpus `installed` from the packages of the running Python interpreter.

Core is Python code. The auxiliary labels are C++ headers, JavaScript, type stubs and licence texts.
The text is copied to one .jsonl file in the user's storage. It remains under the packages'
licences.
"""

import hashlib
import json
import os
import re
import shutil
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gram_platform.config import CORE
from gram_platform.config.crash_safe import require_plain
from gram_platform.config.identity import invalid, short_hash
from gram_platform.corpora.packed import new_staging
from gram_platform.corpora.records import Document, Unit
from gram_platform.corpora.sources import Progress, silent

# The name of the corpus and of its folder in the cache.
INSTALLED = "installed"
# Increase this when the same files would give other text.
INSTALLED_VERSION = 1
BYTES_OF_LABEL = {CORE: 25_000_000, "cpp": 2_500_000, "javascript": 2_500_000, "stubs": 2_500_000}
# Most licences are equal, so hundreds of packages have less than 1 MB.
BYTES_OF_LABEL |= {"licences": 1_000_000}
# Each label must have this share of its bytes.
FEWEST_SHARE = 0.2
LABEL_OF_ENDING = {
    ".py": CORE,
    ".pyi": "stubs",
    ".js": "javascript",
    ".h": "cpp",
    ".hpp": "cpp",
    ".cuh": "cpp",
}
LICENCE_NAME = re.compile(r"licen[cs]e|notice|copying", re.IGNORECASE)
NO_LICENCES = (".pyc", ".json", ".html", ".so")
# The most and the fewest characters of a document. Longer files are cut, if possible after lines.
DOCUMENT_CHARS = 3_000
FEWEST_CHARS = 200
# The most characters read from a file, so that no file dominates a label.
FILE_CHARS = 30_000
# Base64 of fonts, pictures and tables.
CODED = re.compile(r"[\w+/=]{200}")
# Code with longer lines is generated, except minified JavaScript.
LONGEST_LINE = 2_000
# Files of this package are skipped, because they change with every edit.
OUR_NAME = __name__.partition(".")[0]


@dataclass(frozen=True)
class InstalledFile:
    """A file of an installed package. `relative` is its path in site-packages."""

    relative: str
    path: str
    label: str
    size: int
    modified_ns: int


def package_folders() -> tuple[Path, ...]:
    folders = (Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib"))
    return tuple(dict.fromkeys(folders))


def provide_installed_text(
    cache_dir: Path,
    folders: tuple[Path, ...] | None = None,
    bytes_of_label: Mapping[str, int] = BYTES_OF_LABEL,
    progress: Progress = silent,
) -> Path:
    """Returns the path of the corpus's .jsonl file in `cache_dir`. Writes it if it is missing.

    The file name is a hash of the packages' file paths, sizes and modification times. Raises
    ValueError if a label has too little text, or if the cache is not writable.
    """
    require_plain(cache_dir / INSTALLED)
    folders = package_folders() if folders is None else folders
    files = list_installed_files(folders)
    stats = [[file.relative, file.size, file.modified_ns] for file in files]
    name = short_hash([INSTALLED_VERSION, dict(bytes_of_label), stats])
    target = cache_dir / INSTALLED / f"{name}.jsonl"
    if not target.is_file():
        staging = new_staging(target.parent, target.stem)
        try:
            with (staging / target.name).open("w", encoding="utf-8") as out:
                for label, text in _collect(files, folders, bytes_of_label, progress):
                    out.write(json.dumps({"label": label, "text": text}, ensure_ascii=False) + "\n")
            (staging / target.name).replace(target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return target


def first_units() -> list[Unit]:
    """Returns, for each label, the first file that contains a document.

    Raises ValueError if a label has no such file.
    """
    first = {}
    for file in list_installed_files(package_folders()):
        if file.label not in first and next(_documents(file), None):
            first[file.label] = Unit((Path(file.path),), file.label)
    for label, num_bytes in BYTES_OF_LABEL.items():
        if label not in first:
            raise _too_little(label, 0, num_bytes, package_folders())
    return [first[label] for label in BYTES_OF_LABEL]


def list_installed_files(folders: tuple[Path, ...]) -> list[InstalledFile]:
    """Lists the packages' files that have a label, sorted by the hashes of their paths."""
    files = [file for folder in folders for file in _files_below(folder)]
    return sorted(
        files, key=lambda file: (hashlib.sha256(os.fsencode(file.relative)).digest(), file.path)
    )


def _files_below(folder: Path) -> Iterator[InstalledFile]:
    for parent, subfolders, names in os.walk(folder):
        is_top = parent == str(folder)
        subfolders[:] = [name for name in subfolders if not _is_left_out(name, is_top)]
        prefix = "" if is_top else Path(parent).relative_to(folder).as_posix() + "/"
        for name in names:
            path, label = os.path.join(parent, name), _label(name)
            if label and not _is_left_out(name, is_top) and os.path.isfile(path):
                stat = os.stat(path)
                yield InstalledFile(prefix + name, path, label, stat.st_size, stat.st_mtime_ns)


def _is_left_out(name: str, is_top: bool) -> bool:
    return name.startswith((".", "__pycache__")) or (
        is_top and (OUR_NAME in name or name.startswith("__editable__"))
    )


def _label(name: str) -> str:
    ending = os.path.splitext(name)[1].lower()
    is_licence = LICENCE_NAME.search(name) and ending not in NO_LICENCES
    return LABEL_OF_ENDING.get(ending, "licences" if is_licence else "")


def _collect(
    files: list[InstalledFile],
    folders: tuple[Path, ...],
    bytes_of_label: Mapping[str, int],
    progress: Progress,
) -> Iterator[Document]:
    seen = set()
    done, total = 0, sum(bytes_of_label.values())
    for label, most in bytes_of_label.items():
        num_bytes = 0
        for text in (text for file in files if file.label == label for text in _documents(file)):
            if num_bytes >= most:
                break
            digest = hashlib.sha256(text.encode()).digest()
            if digest in seen:
                continue
            seen.add(digest)
            num_bytes += len(text.encode())
            progress("collecting installed text", done + min(num_bytes, most), total)
            yield Document(label, text)
        if num_bytes < FEWEST_SHARE * most:
            raise _too_little(label, num_bytes, most, folders)
        done += most


def _too_little(label: str, num_bytes: int, most: int, folders: tuple[Path, ...]) -> ValueError:
    patterns = [f"*{ending}" for ending, name in LABEL_OF_ENDING.items() if name == label]
    files = ", ".join(patterns) or "licence files"
    allowed = (
        f"at least {FEWEST_SHARE * most / 1e6:g} MB of text of every label: there are"
        f" {num_bytes / 1e6:.3g} MB in {files} below {', '.join(map(str, folders))}. Install this"
        " package with its dependencies there, or name a folder of other text as the corpus"
    )
    return invalid("corpus", f"{INSTALLED} [label {label}]", allowed)


def _documents(file: InstalledFile) -> Iterator[str]:
    try:
        # All line ends become \n.
        text = Path(file.path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return
    if file.label in (CORE, "cpp", "stubs") and max(map(len, text.split("\n"))) > LONGEST_LINE:
        return
    start, end = 0, min(len(text), FILE_CHARS)
    while start < end:
        stop = min(start + DOCUMENT_CHARS, end)
        if stop < len(text):
            stop = text.rfind("\n", start + DOCUMENT_CHARS // 2, stop) + 1 or stop
        piece, start = text[start:stop], stop
        if len(piece.strip()) >= FEWEST_CHARS and not CODED.search(piece):
            yield piece
