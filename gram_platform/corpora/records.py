"""Reads records, a label and a text, from .jsonl and .parquet files (plain, gzip, zstd) and from plain text files.

A line of .jsonl with `prompt` and `response` instead is an instruction, whose label is `instructions`.

A *unit* is one data file, or all text files that a glob gave one label. A scan cuts a large one into *pieces*, which
several processes can read. Readers hold one line, one parquet batch or one text file in memory. Errors name file and
line.
"""

import codecs
import gzip
import hashlib
import io
import json
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from gram_platform.config.identity import invalid
from gram_platform.corpora.recipe import CorpusRecipe, StoriesSource
from gram_platform.corpora.stories import INSTRUCTIONS, RESPONSE, instruction_text, story_documents

PACKED = ("", ".gz", ".zst")
PARQUET = tuple(".parquet" + packed for packed in PACKED)
FORMATS = tuple(".jsonl" + packed for packed in PACKED) + PARQUET
MAX_ZSTD_WINDOW = 1 << 31  # bytes, as `zstd --long=31` writes; the library's default is 128 MB
MAX_RECORD_BYTES = 1 << 28  # of a line, a text of .parquet, a text file: a small file must not fill the memory
ASKED = ("prompt", "response")  # fields of an instruction, in place of text and label
PARQUET_BATCH_ROWS = 1024
WHOLE = (0, None, 0)  # the span of a unit that is not cut


class Record(NamedTuple):
    """A document with its label."""

    label: str
    text: str


@dataclass(frozen=True)
class Unit:
    """One data file (`label` empty), or the plain text files of one label, each a document; or a piece of either.

    `span`: of a plain .jsonl, the bytes (first, end or None) that are read, and the number of lines before them; of
    generated stories, the documents.
    """

    paths: tuple[Path, ...]
    label: str = ""
    held_out: bool = False  # all of it is validation
    # once scanned:
    digest: str = ""  # hash of the records
    labels: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # label -> documents, bytes of text
    largest: int = 0  # bytes of text of the longest document
    span: tuple[int, int | None, int] = WHOLE
    cut: "tuple[Unit, ...]" = ()

    @property
    def pieces(self) -> "tuple[Unit, ...]":
        """Returns what it was cut into, in order; the unit itself unless it was cut."""
        return self.cut or (self,)


def add_record(digest: "hashlib._Hash", label: str, text: str) -> int:
    """Adds a record to the hash of a sequence of records, whatever their files' format; returns the text's bytes."""
    label_bytes, text_bytes = label.encode(), text.encode()
    digest.update(b"%d,%d:" % (len(label_bytes), len(text_bytes)))
    digest.update(label_bytes)
    digest.update(text_bytes)
    return len(text_bytes)


def documents(recipe: CorpusRecipe, units: tuple[Unit, ...]) -> Iterator[tuple[str, str]]:
    """Yields (domain, text) of `units`; of generated stories, each has a span of documents.

    ValueError for a bad record, a label that no domain has, or a unit that changed since the scan.
    """
    domain_of, source = recipe.domain_of, recipe.source
    for piece in (piece for unit in units for piece in unit.pieces):
        first, stop, _ = piece.span
        is_told = isinstance(source, StoriesSource)
        for label, text in story_documents(source, first, stop) if is_told else _read(piece):
            if label not in domain_of:
                raise invalid("label", label, "one of " + ", ".join(sorted(domain_of)))
            yield domain_of[label], text


def _read(piece: Unit) -> Iterator[Record]:
    digest = hashlib.sha256()
    for record in read_unit(piece):
        add_record(digest, *record)
        yield record
    if piece.digest and digest.hexdigest() != piece.digest:
        name = piece.label or piece.paths[0]
        raise ValueError(f"{name}: changed since the corpus was read for its recipe; resolve the corpus again")


def is_data_file(path: Path) -> bool:
    return path.name.lower().endswith(FORMATS)


def read_unit(unit: Unit) -> Iterator[Record]:
    """Yields the records of a unit, in order.

    ValueError naming file and line (parquet: row) for malformed or non-UTF-8 records, missing or empty text or label,
    and truncated or corrupt compression.
    """
    if unit.label:
        yield from _read_documents(unit)
        return
    for path in unit.paths:
        yield from _read_parquet(path) if path.name.lower().endswith(PARQUET) else _read_jsonl(path, unit.span)


def _read_documents(unit: Unit) -> Iterator[Record]:
    """Reads each file as one document, without its byte order mark; skips files without text."""
    for path in unit.paths:
        if path.stat().st_size > MAX_RECORD_BYTES:
            raise _too_large(str(path))
        raw = path.read_bytes().removeprefix(codecs.BOM_UTF8)
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1
            raise ValueError(f"{path}:{line}: is not UTF-8 text ({error.reason}): leave it out of the globs") from None
        if text.strip():
            yield Record(unit.label, text)


class _ZstdFile(io.RawIOBase):
    """Decompresses a .zst file of one or more frames, with as much memory as the writer's window.

    Raises EOFError for a truncated file, where the library's reader just ends.
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


def _lines(path: Path, span: tuple[int, int | None, int]) -> Iterator[tuple[int, bytes]]:
    """Yields numbered lines of a span; ValueError naming the line at which a compressed stream is broken."""
    import zstandard

    position, stop, number = span
    with _decompressed(path) as handle:
        if position:
            handle.seek(position)
        while stop is None or position < stop:
            try:
                line = handle.readline(MAX_RECORD_BYTES + 1)
            except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
                raise ValueError(f"{path}:{number + 1}: the compressed file is broken here ({error})") from None
            if not line:
                return
            number += 1
            position += len(line)
            if len(line) > MAX_RECORD_BYTES:
                raise _too_large(f"{path}:{number}")
            yield number, line


def _read_jsonl(path: Path, span: tuple[int, int | None, int]) -> Iterator[Record]:
    for number, raw in _lines(path, span):
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
        if not {"text", "label", *ASKED} & set(record):
            raise ValueError(f"{where}: has neither text and label nor prompt and response")
        if {"text", "label"} & set(record):
            yield _checked(where, record.get("label"), record.get("text"))
        else:
            yield _instruction(where, *(_text_of(where, name, record.get(name)) for name in ASKED))


def _instruction(where: str, prompt: str, response: str) -> Record:
    for name, text in zip(ASKED, (prompt, response), strict=True):
        if RESPONSE in text:
            raise ValueError(f"{where}: {name} holds {RESPONSE!r}, which separates a prompt from its response")
    return Record(INSTRUCTIONS, instruction_text(prompt.strip(), response.strip()))


def _read_parquet(path: Path) -> Iterator[Record]:
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
                texts, labels = (batch.column(name).to_pylist() for name in ("text", "label"))
                for text, label in zip(texts, labels, strict=True):
                    row += 1
                    yield _checked(f"{path}:{row}", label, text)
    except (pyarrow.ArrowException, OSError, EOFError, zlib.error, zstandard.ZstdError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read as parquet after row {row} ({error})") from None


def _seekable(path: Path) -> io.BufferedIOBase:
    """Opens a parquet file; unpacks a compressed one to disk first, because parquet is read from the end."""
    if not path.name.lower().endswith((".gz", ".zst")):
        return path.open("rb")
    target = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    with _decompressed(path) as packed:
        shutil.copyfileobj(packed, target, 1 << 20)
    target.seek(0)
    return target


def _checked(where: str, label: object, text: object) -> Record:
    return Record(_text_of(where, "label", label), _text_of(where, "text", text))


def _text_of(where: str, name: str, value: object) -> str:
    if not isinstance(value, str):
        state = "is missing" if value is None else f"is {value!r:.60}, not a string"
        raise ValueError(f"{where}: {name} {state}")
    if not value or value.isspace():
        raise ValueError(f"{where}: {name} is empty")
    try:
        num_bytes = len(value.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"{where}: {name} holds half a surrogate pair, which is no text ({error.reason})") from None
    if num_bytes > MAX_RECORD_BYTES:
        raise _too_large(where)
    return value


def _too_large(where: str) -> ValueError:
    return ValueError(f"{where}: has more than {MAX_RECORD_BYTES:,} bytes: split this record")
