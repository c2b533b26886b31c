"""Reading `text` and `label` records from .jsonl and .parquet files, plain, gzip or zstd; errors name file and line.

A *unit* is what is read in one go: one such file, or all files that a glob gave one label. Every reader yields
`(label, text)` and holds one line (or one parquet batch) in memory.
"""

import codecs
import gzip
import hashlib
import io
import json
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gram_platform.config.identity import invalid
from gram_platform.corpora.recipe import CorpusRecipe, StoriesSource
from gram_platform.corpora.stories import story_documents

PACKED = ("", ".gz", ".zst")
PARQUET = tuple(".parquet" + packed for packed in PACKED)
FORMATS = tuple(".jsonl" + packed for packed in PACKED) + PARQUET
MAX_ZSTD_WINDOW = 1 << 31  # bytes, what `zstd --long=31` writes; the library alone takes 128 MB and no more
PARQUET_BATCH_ROWS = 1024


@dataclass(frozen=True)
class Unit:
    """One data file (`label` empty), or the plain text files that share `label`, each a document."""

    paths: tuple[Path, ...]
    label: str = ""
    digest: str = ""  # of its records, once scanned
    held_out: bool = False  # validation as a whole


class Digest:
    """SHA-256 of a sequence of records: equal for equal (label, text) sequences, whatever file format holds them."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, label: str, text: str) -> int:
        """Adds a record; returns the text's length in UTF-8 bytes."""
        label_bytes, text_bytes = label.encode(), text.encode()
        self._hash.update(b"%d,%d:" % (len(label_bytes), len(text_bytes)))
        self._hash.update(label_bytes)
        self._hash.update(text_bytes)
        return len(text_bytes)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def is_data_file(path: Path) -> bool:
    return path.name.lower().endswith(FORMATS)


def read_unit(unit: Unit) -> Iterator[tuple[str, str]]:
    """The `(label, text)` records of a unit, in order.

    Raises ValueError naming file and line (row, for parquet) for malformed or non-UTF-8 records, missing or empty text
    or label, and truncated or corrupted compression.
    """
    if unit.label:
        yield from _read_documents(unit)
        return
    for path in unit.paths:
        yield from _read_parquet(path) if path.name.lower().endswith(PARQUET) else _read_jsonl(path)


def _read_documents(unit: Unit) -> Iterator[tuple[str, str]]:
    """Whole files as documents, without a byte order mark; files without any text are no documents."""
    for path in unit.paths:
        raw = path.read_bytes().removeprefix(codecs.BOM_UTF8)
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1
            raise ValueError(f"{path}:{line}: is not UTF-8 text ({error.reason}): leave it out of the globs") from None
        if text.strip():
            yield unit.label, text


class _ZstdFile(io.RawIOBase):
    """The decompressed bytes of a .zst file of one or more frames, in as much memory as its writer's window.

    The library's own reader takes a truncated file for a shorter one; this one raises EOFError.
    """

    def __init__(self, path: Path) -> None:
        import zstandard

        self._decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW)
        self._file = path.open("rb")
        self._frame, self._ready = None, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        while not self._ready:
            packed = (self._frame.unused_data if self._frame and self._frame.eof else b"") or self._file.read(1 << 17)
            if not packed:
                if self._frame is not None and not self._frame.eof:
                    raise EOFError("it ends inside a frame")
                return 0
            if self._frame is None or self._frame.eof:
                self._frame = self._decompressor.decompressobj()
            self._ready = self._frame.decompress(packed)
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size

    def close(self) -> None:
        self._file.close()
        super().close()


def _decompressed(path: Path) -> io.BufferedIOBase:
    name = path.name.lower()
    if name.endswith(".gz"):
        return gzip.open(path, "rb")
    if name.endswith(".zst"):
        return io.BufferedReader(_ZstdFile(path), 1 << 20)
    return path.open("rb")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered lines; a broken compressed stream is an error at the line it was reached."""
    import zstandard

    number = 0
    with _decompressed(path) as handle:
        while True:
            try:
                line = handle.readline()
            except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
                raise ValueError(f"{path}:{number + 1}: the compressed file is broken here ({error})") from None
            if not line:
                return
            number += 1
            yield number, line


def _read_jsonl(path: Path) -> Iterator[tuple[str, str]]:
    for number, raw in _lines(path):
        if not raw.strip():
            continue
        where = f"{path}:{number}"
        try:
            record = json.loads(raw.decode("utf-8-sig" if number == 1 else "utf-8"))
        except UnicodeDecodeError as error:
            raise ValueError(f"{where}: is not UTF-8 (byte {error.start}: {error.reason})") from None
        except (ValueError, RecursionError) as error:  # ValueError: no JSON, or an integer of thousands of digits
            raise ValueError(f"{where}: is not one JSON object that can be read ({error})") from None
        if not isinstance(record, dict):
            raise ValueError(f"{where}: is a {type(record).__name__}, not a JSON object with text and label")
        yield _checked(where, record.get("label"), "label"), _checked(where, record.get("text"), "text")


def _read_parquet(path: Path) -> Iterator[tuple[str, str]]:
    import pyarrow
    import pyarrow.parquet
    import zstandard

    row = 0
    try:
        with _seekable(path) as handle:
            table = pyarrow.parquet.ParquetFile(handle)
            names = table.schema_arrow.names
            for number, state in ((0, "no column"), (2, "two columns")):
                wrong = [name for name in ("text", "label") if min(names.count(name), 2) == number]
                if wrong:
                    found = ", ".join(names)
                    raise ValueError(f"{path}: has {state} {' and '.join(wrong)}; its columns are {found}")
            for batch in table.iter_batches(PARQUET_BATCH_ROWS, columns=["text", "label"]):
                for text, label in zip(
                    batch.column("text").to_pylist(), batch.column("label").to_pylist(), strict=True
                ):
                    row += 1
                    where = f"{path}:{row}"
                    yield _checked(where, label, "label"), _checked(where, text, "text")
    except (pyarrow.ArrowException, OSError, EOFError, zlib.error, zstandard.ZstdError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read as parquet after row {row} ({error})") from None


def _seekable(path: Path) -> io.BufferedIOBase:
    """Parquet is read from its end, so a compressed file is unpacked to the disk first."""
    if not path.name.lower().endswith((".gz", ".zst")):
        return path.open("rb")
    target = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    with _decompressed(path) as packed:
        shutil.copyfileobj(packed, target, 1 << 20)
    target.seek(0)
    return target


def _checked(where: str, value: object, name: str) -> str:
    """The field's text, or a ValueError that says what is wrong with it."""
    if not isinstance(value, str):
        state = "is missing" if value is None else f"is {value!r:.60}, not a string"
        raise ValueError(f"{where}: {name} {state}")
    if not value or value.isspace():
        raise ValueError(f"{where}: {name} is empty")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{where}: {name} holds half a surrogate pair, which is no text ({error.reason})") from None
    return value


def documents(recipe: CorpusRecipe, units: tuple[Unit, ...]) -> Iterator[tuple[str, str]]:
    """Yields (domain, text); `units` are the local files to read, unused for generated stories.

    Raises ValueError for a bad record, for a label that no domain has, and for a unit that changed since its scan.
    """
    domain_of = recipe.domain_of
    for label, text in story_documents(recipe.source) if isinstance(recipe.source, StoriesSource) else _read(units):
        if label not in domain_of:
            raise invalid("label", label, "one of " + ", ".join(sorted(domain_of)))
        yield domain_of[label], text


def _read(units: tuple[Unit, ...]) -> Iterator[tuple[str, str]]:
    for unit in units:
        digest = Digest()
        for label, text in read_unit(unit):
            digest.add(label, text)
            yield label, text
        if unit.digest and digest.hexdigest() != unit.digest:
            name = unit.label or unit.paths[0]
            raise ValueError(f"{name}: changed since the corpus was read for its recipe; resolve the corpus again")
