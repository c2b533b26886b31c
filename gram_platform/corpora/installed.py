"""The corpus `installed`: the text that the packages of the running Python have put on this disk, for real text
without a network.

Core is Python code; C++ headers, JavaScript, type stubs and licence texts are the auxiliary labels. The files are read
where they lie and never shipped: what is taken from them goes into one .jsonl file of the user's own storage, under the
licences that its packages came with. From there on the corpus is that file, and is read, hashed and packed like any
other: its `data_id` follows from the text, so another environment is another corpus.
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
from gram_platform.config.identity import invalid, short_hash
from gram_platform.corpora.records import Unit
from gram_platform.corpora.sources import Progress, new_staging

INSTALLED = "installed"  # the corpus's name, and the folder of its files
INSTALLED_VERSION = 1  # raised when the same files would give other text
BYTES_OF_LABEL = {CORE: 25_000_000, "cpp": 2_500_000, "javascript": 2_500_000, "stubs": 2_500_000}
BYTES_OF_LABEL |= {"licences": 1_000_000}  # many repeat another: hundreds of packages have less than 1 MB of them
FEWEST_SHARE = 0.2  # of a label's bytes: with less it is an error
LABEL_OF_ENDING = {".py": CORE, ".pyi": "stubs", ".js": "javascript", ".h": "cpp", ".hpp": "cpp", ".cuh": "cpp"}
LICENCE_NAME = re.compile(r"licen[cs]e|notice|copying", re.IGNORECASE)
NO_LICENCES = (".pyc", ".json", ".html", ".so")  # endings of files that only have such a name
DOCUMENT_CHARS = 3_000  # longer files are cut, at the end of a line where one is near
FEWEST_CHARS = 200  # of a document
FILE_CHARS = 30_000  # of one file at most, so that no file is much of a label
CODED = re.compile(r"[\w+/=]{200}")  # fonts, pictures and tables in base64, which JavaScript is full of
LONGEST_LINE = 2_000  # code with longer lines was made by a program; JavaScript is minified, and licences have no lines
OUR_NAME = __name__.partition(".")[0]  # our own files change with every edit, an editable install's finders with places


@dataclass(frozen=True)
class InstalledFile:
    """One file of a package."""

    relative: str  # to the packages' folder
    path: str
    label: str
    size: int
    modified_ns: int


def package_folders() -> tuple[Path, ...]:
    """Where the running Python has its packages, pure and compiled."""
    return tuple(dict.fromkeys(Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")))


def installed_text(
    cache_dir: Path,
    folders: tuple[Path, ...] | None = None,
    bytes_of_label: Mapping[str, int] = BYTES_OF_LABEL,
    progress: Progress | None = None,
) -> Path:
    """The .jsonl file of the corpus in `cache_dir`, written whole or not at all unless it is there.

    It is named by the paths, sizes and times of all files that it could be taken from, so it is written again after
    packages have changed; the earlier file stays. `folders` default to the running Python's. Raises ValueError for a
    label with too little text, and for a cache that cannot be written.
    """
    folders = package_folders() if folders is None else folders
    files = installed_files(folders)
    stats = [[file.relative, file.size, file.modified_ns] for file in files]
    target = cache_dir / INSTALLED / f"{short_hash([INSTALLED_VERSION, dict(bytes_of_label), stats])}.jsonl"
    if not target.is_file():
        staging = new_staging(target.parent, target.stem)
        try:
            with (staging / target.name).open("w", encoding="utf-8") as out:
                for label, text in _collected(files, folders, bytes_of_label, progress):
                    out.write(json.dumps({"label": label, "text": text}, ensure_ascii=False) + "\n")
            (staging / target.name).replace(target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return target


def first_units(folders: tuple[Path, ...] | None = None) -> list[Unit]:
    """The first file of every label, to look at; ValueError for a label without any."""
    folders = package_folders() if folders is None else folders
    first: dict[str, Unit] = {}
    for file in installed_files(folders):
        if file.label not in first and next(_documents(file), None):
            first[file.label] = Unit((Path(file.path),), file.label)
    for label, wanted in BYTES_OF_LABEL.items():
        if label not in first:
            raise _too_little(label, 0, wanted, folders)
    return [first[label] for label in BYTES_OF_LABEL]


def installed_files(folders: tuple[Path, ...]) -> list[InstalledFile]:
    """Every file of some label but our own, in an order that mixes packages: by the hash of the relative path."""
    files = [file for folder in folders for file in _files_below(folder)]
    return sorted(files, key=lambda file: (hashlib.sha256(os.fsencode(file.relative)).digest(), file.path))


def _files_below(folder: Path) -> Iterator[InstalledFile]:
    for place, inner, names in os.walk(folder):
        is_top = place == str(folder)
        inner[:] = [name for name in inner if not _is_left_out(name, is_top)]
        within = "" if is_top else Path(place).relative_to(folder).as_posix() + "/"
        for name, label in ((name, _label(name)) for name in names if not _is_left_out(name, is_top)):
            path = os.path.join(place, name)
            if label and os.path.isfile(path):
                stat = os.stat(path)
                yield InstalledFile(within + name, path, label, stat.st_size, stat.st_mtime_ns)


def _is_left_out(name: str, is_top: bool) -> bool:
    """Caches and what is hidden; at the top also our own and what editable installs leave."""
    return name.startswith((".", "__pycache__")) or (is_top and (OUR_NAME in name or name.startswith("__editable__")))


def _label(name: str) -> str:
    """The label of a file by its name; "" for none."""
    ending = os.path.splitext(name)[1].lower()
    is_licence = LICENCE_NAME.search(name) and ending not in NO_LICENCES
    return LABEL_OF_ENDING.get(ending, "licences" if is_licence else "")


def _collected(
    files: list[InstalledFile],
    folders: tuple[Path, ...],
    bytes_of_label: Mapping[str, int],
    progress: Progress | None,
) -> Iterator[tuple[str, str]]:
    """(label, text) of distinct documents, label by label, until each has its bytes; no file is read after that."""
    seen: set[bytes] = set()
    done, total = 0, sum(bytes_of_label.values())
    for label, wanted in bytes_of_label.items():
        found = 0
        for text in (text for file in files if file.label == label for text in _documents(file)):
            if found >= wanted:
                break
            digest = hashlib.sha256(text.encode()).digest()
            if digest in seen:
                continue
            seen.add(digest)
            found += len(text.encode())
            if progress:
                progress("collecting installed text", done + min(found, wanted), total)
            yield label, text
        if found < FEWEST_SHARE * wanted:
            raise _too_little(label, found, wanted, folders)
        done += wanted


def _too_little(label: str, found: int, wanted: int, folders: tuple[Path, ...]) -> ValueError:
    endings = ", ".join(f"*{ending}" for ending, own in LABEL_OF_ENDING.items() if own == label) or "licence files"
    allowed = f"at least {FEWEST_SHARE * wanted / 1e6:g} MB of text of every label: there are {found / 1e6:.3g} MB in "
    allowed += f"{endings} below {', '.join(map(str, folders))}. Install this package with its dependencies there "
    allowed += "(torch and pyarrow bring C++ headers), or name a folder of other text as the corpus"
    return invalid("corpus", f"{INSTALLED} [label {label}]", allowed)


def _documents(file: InstalledFile) -> Iterator[str]:
    """The file in pieces that are text; none of a file that cannot be read, is not UTF-8, or was made by a program."""
    try:
        text = Path(file.path).read_text(encoding="utf-8-sig")  # line ends become \n
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
