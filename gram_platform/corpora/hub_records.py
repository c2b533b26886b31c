"""The records of a row of the hub's table: which are used, and what of them.

A record that lacks a field of its row, or has null there, is left out and counted; a field that none of the first
records has is an error.
"""

import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit
from urllib.request import getproxies

from gram_platform.config.identity import invalid
from gram_platform.corpora.rows import HubRow

FIRST_RECORDS = 2_000  # of which one must have each field, and whose labels a check compares with the table
CONNECT_TIMEOUT_S = 10


@dataclass(frozen=True)
class Record:
    """One record that passed a row's filters."""

    label: str
    text: str


class Lacking:
    """Counts the records that lack a field of the row."""

    def __init__(self, row: HubRow, from_start: bool) -> None:
        self._row = row
        self._never = dict.fromkeys(row.fields if from_start else (), "")  # fields not seen: what records have instead
        self.num_records = self.num_skipped = 0

    def has_all(self, record: dict) -> bool:
        """Whether the row can use the record; ValueError once the first records all lack the same field."""
        missing = [name for name in self._row.fields if not _has(record, name)]
        self.num_records += 1
        self.num_skipped += bool(missing)
        if self._never:
            self._never = {name: ", ".join(sorted(record)) for name in self._never if name in missing}
            if self.num_records == FIRST_RECORDS:
                self.require_fields()
        return not missing

    def require_fields(self) -> None:
        """ValueError naming a field that no record has had."""
        for name, found in self._never.items() if self.num_records else ():
            raise invalid(f"{self._row.dataset}: field", name, f"one of {found}: no record has it")


def open_row(row: HubRow):
    """The row's `datasets.IterableDataset`, unread. Raises ValueError naming the row."""
    import datasets

    revision = None if row.files and row.dataset in ("json", "parquet") else row.revision
    arguments = {"name": row.config or None, "split": row.split, "revision": revision, "streaming": True}
    if row.data_dir:
        arguments["data_dir"] = row.data_dir
    if row.files:
        arguments["data_files"] = {row.split: list(row.files)}
    try:
        _require_reachable(row)
        return datasets.load_dataset(row.dataset, **arguments)
    except Exception as error:  # the library raises its own, fsspec's and the HTTP client's errors
        raise _row_error(row, error) from error


def _require_reachable(row: HubRow) -> None:
    """Raises OSError within seconds when the row's server does not answer; the libraries retry for much longer."""
    import datasets

    url = urlsplit(row.files[0] if row.files else datasets.config.HF_ENDPOINT)
    if not url.hostname or url.scheme in getproxies():
        return  # a local file, or a proxy that knows the way
    port = url.port or (80 if url.scheme == "http" else 443)
    try:
        socket.create_connection((url.hostname, port), CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise ConnectionError(f"{url.hostname} does not answer ({error})") from None


def first_record(row: HubRow) -> Record:
    """The first record that passes the row's filters; raises ValueError naming the row."""
    stream, lacking = open_row(row), Lacking(row, from_start=True)
    if row.label_field:
        _require_listed(row, stream.take(FIRST_RECORDS))
    found = next(records(row, stream, lacking), None)
    if found is None:
        lacking.require_fields()
        raise invalid(f"hub row {row.dataset}", row.keep, "filters that at least one record passes")
    return found


def _require_listed(row: HubRow, stream) -> None:
    name = row.label_field
    found = {_field(record, name).strip() for record in _streamed(row, stream) if _has(record, name)}
    stray = sorted(found - set(row.labels))
    if stray:
        raise invalid(f"{row.dataset}: {name}", stray, "labels that its row in the catalog lists: add new ones there")


def _row_error(row: HubRow, error: Exception) -> ValueError:
    reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
    where = " ".join(part for part in (row.dataset, row.config, row.data_dir, f"at {row.revision}") if part)
    return ValueError(f"hub dataset {where} cannot be read: {type(error).__name__}: {reason}")


def records(row: HubRow, stream, lacking: Lacking) -> Iterator[Record]:
    keep = [(name, re.compile(pattern)) for name, pattern in row.keep]
    drop = [(name, re.compile(pattern)) for name, pattern in row.drop]
    for record in _streamed(row, stream):
        if not lacking.has_all(record):
            continue
        kept = all(pattern.search(_field(record, name)) for name, pattern in keep)
        if not kept or any(pattern.search(_field(record, name)) for name, pattern in drop):
            continue
        found = _record(row, record)
        if found is not None:
            yield found


def _streamed(row: HubRow, stream) -> Iterator[dict]:
    records = iter(stream)
    while True:
        try:
            record = next(records)
        except StopIteration:
            return
        except Exception as error:  # as in open_row: a connection may break at any record
            raise _row_error(row, error) from error
        yield record


def _record(row: HubRow, record: dict) -> Record | None:
    """The row's text and label; None for a record without text."""
    texts = [_field(record, name).strip() for name in row.text_fields]
    text = "\n\n".join(part for part in texts if part)
    if not text:
        return None
    label = row.label or _field(record, row.label_field).strip()
    if label not in row.all_labels:
        allowed = f"one of the {len(row.labels)} labels of its row in the catalog: add it there"
        raise invalid(f"{row.dataset}: {row.label_field}", label, allowed)
    return Record(label, text)


def _has(record: dict, name: str) -> bool:
    value: object = record
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            return False
        value = value[part]
    return value is not None  # `datasets` gives null for a key that a file of JSON lines lacks


def _field(record: dict, name: str) -> str:
    """The text of a field that the record has; dots go into nested records, items of a list are joined by blanks."""
    value: object = record
    for part in name.split("."):
        value = value[part]
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
