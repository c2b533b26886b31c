"""Reads records from text files, and from .jsonl and .parquet files (plain, gzip or zstd).

A record has a label and a text. A .jsonl line can have `prompt` and `response` instead, and is then
labelled `instructions`.

A *unit* is one data file, or all text files of one label. A scan divides a large unit into
*pieces*, which several processes can read. Memory holds only one line, Parquet batch or text file
at a time.
"""

import codecs
import contextlib
import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from gram_platform.config.crash_safe import A_FILE
from gram_platform.config.identity import LONGEST_SHOWN, invalid, local_path, one_of
from gram_platform.config.view import Texts
from gram_platform.config.written import MAX_RECORD_BYTES, require_fetched, target_kind
from gram_platform.corpora.compression import open_unpacked, seekable
from gram_platform.corpora.recipe import LABELLED, CorpusRecipe, StoriesSource
from gram_platform.corpora.stories import INSTRUCTIONS, RESPONSE, instruction_text, story_documents

PACKED = ("", ".gz", ".zst")
PARQUET = tuple(".parquet" + packed for packed in PACKED)
FORMATS = tuple(".jsonl" + packed for packed in PACKED) + PARQUET
# The most consecutive empty lines. A small compressed file could hold hours of them.
MAX_EMPTY_LINES = 1_000_000
# The most unpacked bytes for each byte on disk. Text has 2 to 20.
MAX_EXPANSION = 200
# The most rows and bytes of a .parquet read at once.
BATCH_ROWS, BATCH_BYTES = 64, 1 << 26
RECORD_COLUMNS = ("text", "label")
# The label for validation and attacks, if it differs from the label that training sees.
TRUE_LABEL = "true_label"
# Fields of an instruction, in place of text and label.
ASKED = ("prompt", "response")
# The config of every view's evaluation has these texts.
MOST_TEXTS = 100


class ChangedText(ValueError):
    """Raised if records of a unit have changed since its scan. `paths` are the unit's files."""

    def __init__(self, name: str, paths: tuple[Path, ...]) -> None:
        # Unpickling needs these arguments.
        super().__init__(name, paths)
        self.name, self.paths = name, paths

    def __str__(self) -> str:
        return f"{self.name}: changed since the corpus was read; submit again to read it again"


class Document(NamedTuple):
    label: str
    text: str


@dataclass(frozen=True)
class Unit:
    """A data file (`label` is ""), the text files of one label, or a piece of such a unit.

    In an uncompressed .jsonl file, `span` is (first byte, end, number of lines before the first
    byte). The end None means the end of the file. For generated stories, the first two values are
    document numbers instead of bytes.
    """

    paths: tuple[Path, ...]
    label: str = ""
    held_out: bool = False
    # The hash of the records. This and the following fields are known after a scan.
    digest: str = ""
    # (documents, bytes of text) by label.
    labels: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    # Bytes of the longest document.
    largest: int = 0
    span: tuple[int, int | None, int] = (0, None, 0)
    cut: "tuple[Unit, ...]" = ()

    @property
    def pieces(self) -> "tuple[Unit, ...]":
        """The unit's pieces in order if a scan has divided it, otherwise the unit itself."""
        return self.cut or (self,)


def add_record(digest: "hashlib._Hash", label: str, text: str) -> int:
    """Adds a record's label and text to a hash. Returns the text's size in bytes.

    The hash does not depend on the file format.
    """
    label_bytes, text_bytes = label.encode(), text.encode()
    digest.update(b"%d,%d:" % (len(label_bytes), len(text_bytes)))
    digest.update(label_bytes)
    digest.update(text_bytes)
    return len(text_bytes)


def documents(recipe: CorpusRecipe, units: tuple[Unit, ...]) -> Iterator[tuple[str, str]]:
    """Yields (name of the `DomainRecipe`, text) of each document in the units.

    Raises ValueError for a bad record, a label without a domain, or a unit that has changed since
    its scan.
    """
    source = recipe.source
    pool_of = {label: pool.name for pool in recipe.domains_from for label in pool.labels}
    for piece in (piece for unit in units for piece in unit.pieces):
        is_told = isinstance(source, StoriesSource)
        for label, text in story_documents(source, *piece.span[:2]) if is_told else _read(piece):
            if label not in pool_of:
                raise invalid("label", label, one_of(label, sorted(pool_of)))
            yield pool_of[label], text


def _read(piece: Unit) -> Iterator[Document]:
    digest = hashlib.sha256()
    try:
        for record in read_unit(piece):
            add_record(digest, *record)
            yield record
    except ValueError as error:
        # The scan found no error, so the file has changed.
        raise (ChangedText(str(error), piece.paths) if piece.digest else error) from None
    if piece.digest and digest.hexdigest() != piece.digest:
        raise ChangedText(piece.label or str(piece.paths[0]), piece.paths)


def is_data_file(name: str) -> bool:
    return name.lower().endswith(FORMATS)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Context manager that converts an OSError to a ValueError that names the file."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror or error})") from None


def size_of(path: Path) -> int:
    with reading(path):
        return path.stat().st_size


def read_unit(unit: Unit) -> Iterator[Document]:
    """Yields a unit's records in order.

    Raises ValueError with the file and line (or row) if a record or file cannot be read.
    """
    for path in unit.paths:
        with reading(path):
            require_fetched("corpus", path)
            if unit.label:
                yield from _read_text(path, unit.label)
            elif path.name.lower().endswith(PARQUET):
                yield from _read_parquet(path)
            else:
                yield from _read_jsonl(path, unit.span)


def _read_text(path: Path, label: str) -> Iterator[Document]:
    if size_of(path) > MAX_RECORD_BYTES:
        raise _too_large(str(path))
    raw = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path}:{line}: is not UTF-8 text ({error.reason}): leave it out of the globs"
        ) from None
    if text.strip():
        yield Document(label, text)


def _lines(path: Path, span: tuple[int, int | None, int]) -> Iterator[tuple[int, bytes]]:
    import zstandard

    position, stop, number = span
    with open_unpacked(path) as handle:
        if position:
            handle.seek(position)
        while stop is None or position < stop:
            try:
                line = handle.readline(MAX_RECORD_BYTES + 1)
            except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
                raise ValueError(
                    f"{path}:{number + 1}: the compressed file is broken here ({error})"
                ) from None
            if not line:
                return
            number += 1
            position += len(line)
            if len(line) > MAX_RECORD_BYTES:
                raise _too_large(f"{path}:{number}")
            yield number, line


def _read_jsonl(path: Path, span: tuple[int, int | None, int]) -> Iterator[Document]:
    # The number of the last line with a record.
    last = span[2]
    for number, raw in _lines(path, span):
        raw = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
        where = f"{path}:{number}"
        if not raw.strip():
            if number - last > MAX_EMPTY_LINES:
                raise ValueError(
                    f"{where}: follows {MAX_EMPTY_LINES:,} empty lines: leave them out"
                )
            continue
        last = number
        if b"\0" in raw:
            raise ValueError(f"{where}: holds NUL bytes, as UTF-16 does: write it as UTF-8")
        try:
            record = json.loads(raw.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{where}: is not UTF-8 (byte {error.start}: {error.reason})"
            ) from None
        except (ValueError, RecursionError) as error:
            # The line is not JSON, or has an integer of thousands of digits.
            raise ValueError(
                f"{where}: is not one JSON object that can be read ({error})"
            ) from None
        if not isinstance(record, dict):
            kind = type(record).__name__
            raise ValueError(f"{where}: is a {kind}, not a JSON object with text and label")
        is_asked = record.keys() & ASKED and not record.keys() & RECORD_COLUMNS
        names = ASKED if is_asked else RECORD_COLUMNS
        if missing := [name for name in names if name not in record]:
            found = ", ".join(record)[:LONGEST_SHOWN] or "no field"
            raise ValueError(f"{where}: {' and '.join(missing)} missing (found {found})")
        if not is_asked:
            yield _make_record(where, *map(record.get, (*RECORD_COLUMNS, TRUE_LABEL)))
            continue
        texts = {name: _text_of(where, name, record[name]).strip() for name in ASKED}
        for name, text in texts.items():
            if RESPONSE in text:
                text = f"{where}: {name} holds {RESPONSE!r}, which separates"
                raise ValueError(f"{text} a prompt from its response")
        yield Document(INSTRUCTIONS, instruction_text(**texts))


def _read_parquet(path: Path) -> Iterator[Document]:
    import pyarrow
    import pyarrow.parquet
    import zstandard

    row, most = 0, max(MAX_RECORD_BYTES, MAX_EXPANSION * size_of(path))
    try:
        with seekable(path, most) as handle:
            table = pyarrow.parquet.ParquetFile(handle, buffer_size=1 << 20)
            names = _find_columns(path, table.schema_arrow)
            for group in range(table.num_row_groups):
                unpacked = table.metadata.row_group(group).total_byte_size
                if unpacked > most:
                    raise ValueError(
                        f"{path}: a row group unpacks to {unpacked:,} bytes: write smaller ones"
                    )
                # The file may store a text only once if all rows of the group repeat it.
                num_rows = min(max(1, BATCH_BYTES // max(1, unpacked)), BATCH_ROWS)
                for batch in table.iter_batches(num_rows, row_groups=[group], columns=names):
                    columns = (batch.column(name).to_pylist() for name in names)
                    for values in zip(*columns, strict=True):
                        row += 1
                        yield _make_record(f"{path}:{row}", *values)
    except (
        pyarrow.ArrowException,
        OSError,
        EOFError,
        zlib.error,
        zstandard.ZstdError,
        UnicodeDecodeError,
    ) as error:
        raise ValueError(f"{path}: cannot be read as parquet after row {row} ({error})") from None


def _find_columns(path: Path, schema) -> list[str]:
    import pyarrow

    columns = [*RECORD_COLUMNS, *[TRUE_LABEL] * (TRUE_LABEL in schema.names)]
    for number, state in ((0, "no column"), (2, "two columns")):
        wrong = [name for name in columns if min(schema.names.count(name), 2) == number]
        if wrong:
            raise ValueError(
                f"{path}: has {state} {' and '.join(wrong)}; its columns are"
                f" {', '.join(schema.names)}"
            )
    for name in columns:
        if pyarrow.types.is_nested(kind := schema.field(name).type):
            raise ValueError(f"{path}: column {name} holds {str(kind)[:60]}, not strings")
    return columns


def _make_record(where: str, text: object, label: object, true_label: object = None) -> Document:
    """Makes a record. If another `true_label` is given, joins it to `label` by `LABELLED`."""
    seen = _text_of(where, "label", label)
    if true_label not in (None, label):
        seen = _text_of(where, TRUE_LABEL, true_label) + LABELLED + seen
    return Document(seen, _text_of(where, "text", text))


def _text_of(where: str, name: str, value: object) -> str:
    if not isinstance(value, str):
        state = "is null" if value is None else f"is {value!r:.60}, not a string"
        raise ValueError(f"{where}: {name} {state}")
    if not value or value.isspace():
        raise ValueError(f"{where}: {name} is empty")
    try:
        num_bytes = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where}: {name} holds half a surrogate pair, which is no text ({error.reason})"
        ) from None
    if num_bytes > MAX_RECORD_BYTES:
        raise _too_large(where)
    return value


def _too_large(where: str) -> ValueError:
    return ValueError(f"{where}: has more than {MAX_RECORD_BYTES:,} bytes: split this record")


def find_jsonl(field: str, place: str, fields: str) -> Unit:
    """Returns the unit of a user's .jsonl file. Raises ValueError if there is no such file."""
    path = local_path(field, place)
    if target_kind(field, path) != A_FILE or not path.name.lower().endswith(".jsonl"):
        raise invalid(field, place, f"a file named *.jsonl that exists, of lines with {fields}")
    with reading(path):
        require_fetched(field, path)
    return Unit((path,))


def read_texts(place: str) -> Texts:
    """Reads a user's (domain, text) pairs from the fields `label` and `text` of a .jsonl file.

    Raises ValueError for an invalid line, an empty file or more than `MOST_TEXTS` lines.
    """
    unit = find_jsonl("texts", place, "text, label")
    texts = tuple((label, text) for label, text in islice(read_unit(unit), MOST_TEXTS + 1))
    if not 0 < len(texts) <= MOST_TEXTS:
        raise invalid("texts", f"{place}: {len(texts)} lines", f"1 to {MOST_TEXTS} lines")
    return texts
