"""The Hugging Face hub, streamed: rows of the table become compressed local shards, resumed where they stopped.

`fetch` writes `<folder>/<row id>/part-00000.jsonl.zst`, ...; after each part, `state.json` holds the stream's position
(the `state_dict` of the `datasets` library), so an interrupted fetch loses one part at most and ends with equal bytes.
"""

import json
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

import zstandard

from gram_platform.corpora.recipe import HubRow, HubSource
from gram_platform.corpora.records import Digest, Unit
from gram_platform.corpora.sources import Progress
from gram_platform.identity import invalid, short_hash

PART_BYTES = 1 << 26  # of text in a part
LABELS_FROM = 2_000  # records whose labels a check compares with the table
CONNECT_TIMEOUT_S = 10


@dataclass(frozen=True)
class Record:
    """One record that passed a row's filters."""

    label: str
    text: str


def fetch(source: HubSource, folder: Path, progress: Progress) -> tuple[Unit, ...]:
    """Downloads what is missing of every row; returns the parts as units to read, in order.

    Raises ValueError naming the row when the hub cannot be reached, a field is missing or a label is not in the table.
    """
    units: list[Unit] = []
    for row, num_bytes in zip(source.rows, source.num_bytes, strict=True):
        units += _fetch_row(row, num_bytes, folder / row_id(row, num_bytes), progress)
    return tuple(units)


def row_id(row: HubRow, num_bytes: int) -> str:
    """Names a row's downloaded parts by what decides their contents."""
    return short_hash({"row": row.identity, "num_bytes": num_bytes, "part_bytes": PART_BYTES})


def open_row(row: HubRow):
    """The row's `datasets.IterableDataset`, unread. Raises ValueError naming the row."""
    import datasets

    revision = None if row.files and row.dataset in ("json", "parquet") else row.revision
    arguments = {"name": row.config or None, "split": row.split, "revision": revision, "streaming": True}
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
    stream = open_row(row)
    if row.label_field:
        _require_listed(row, stream.take(LABELS_FROM))
    found = next(_records(row, stream), None)
    if found is None:
        raise invalid(f"hub row {row.dataset}", row.keep, "filters that at least one record passes")
    return found


def _require_listed(row: HubRow, stream) -> None:
    found = {_field(row, record, row.label_field).strip() for record in _streamed(row, stream)}
    stray = sorted(found - set(row.labels))
    if stray:
        raise invalid(
            f"{row.dataset}: {row.label_field}", stray, "the labels of its row in the catalog: add these there"
        )


def _row_error(row: HubRow, error: Exception) -> ValueError:
    reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
    where = " ".join(part for part in (row.dataset, row.config, f"at {row.revision}") if part)
    return ValueError(f"hub dataset {where} cannot be read: {type(error).__name__}: {reason}")


def _records(row: HubRow, stream) -> Iterator[Record]:
    keep = [(name, re.compile(pattern)) for name, pattern in row.keep]
    drop = [(name, re.compile(pattern)) for name, pattern in row.drop]
    for record in _streamed(row, stream):
        kept = all(pattern.search(_field(row, record, name)) for name, pattern in keep)
        if not kept or any(pattern.search(_field(row, record, name)) for name, pattern in drop):
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
    texts = [_field(row, record, name).strip() for name in row.text_fields]
    text = "\n\n".join(part for part in texts if part)
    if not text:
        return None
    label = row.label or _field(row, record, row.label_field).strip()
    if label not in row.all_labels:
        allowed = f"one of the {len(row.labels)} labels of its row in the catalog: add it there"
        raise invalid(f"{row.dataset}: {row.label_field}", label, allowed)
    return Record(label, text)


def _field(row: HubRow, record: dict, name: str) -> str:
    """The text of a field; dots go into nested records, items of a list are joined by blanks, null is empty."""
    value: object = record
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            raise invalid(f"{row.dataset}: field", name, "one of " + ", ".join(sorted(map(str, record))))
        value = value[part]
    if value is None:
        return ""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _fetch_row(row: HubRow, num_bytes: int, folder: Path, progress: Progress) -> list[Unit]:
    folder.mkdir(parents=True, exist_ok=True)
    state = _load_state(folder)
    done = sum(part["bytes"] for part in state["parts"])
    if not state["complete"]:
        stream = open_row(row)
        if state["position"] is not None:
            stream.load_state_dict(state["position"])
        records = _records(row, stream)
    while not state["complete"]:
        part = _write_part(records, folder, len(state["parts"]), min(PART_BYTES, num_bytes - done))
        done += part["bytes"]
        ended = part.pop("ended")
        parts = state["parts"] + ([part] if part["documents"] else [])
        complete = ended or done >= num_bytes
        state = {"parts": parts, "position": None if complete else stream.state_dict(), "complete": complete}
        _save_state(folder, state)
        progress(f"fetching {row.dataset}", min(done, num_bytes), num_bytes)
    return [Unit((folder / part["name"],), digest=part["digest"]) for part in state["parts"]]


def _write_part(records: Iterator[Record], folder: Path, number: int, num_bytes: int) -> dict:
    """Writes records until they hold `num_bytes` of text; the file appears under its name only when it is whole."""
    name, digest = f"part-{number:05d}.jsonl.zst", Digest()
    temporary = folder / f".{name}.{os.getpid()}"
    documents = written = 0
    with zstandard.open(temporary, "wb") as handle:
        while written < num_bytes:
            record = next(records, None)
            if record is None:
                break
            line = json.dumps({"text": record.text, "label": record.label}, ensure_ascii=False)
            handle.write(line.encode() + b"\n")
            written += digest.add(record.label, record.text)
            documents += 1
    temporary.replace(folder / name)
    counts = {"bytes": written, "documents": documents, "digest": digest.hexdigest()}
    return {"name": name, **counts, "ended": written < num_bytes}


def _load_state(folder: Path) -> dict:
    """Where the last complete part ended; from the beginning when nothing usable is there."""
    try:
        state = json.loads((folder / "state.json").read_text())
        if all((folder / part["name"]).is_file() for part in state["parts"]):
            return state
    except (OSError, ValueError, KeyError, TypeError):
        pass  # no state, or half a state: fetched again
    return {"parts": [], "position": None, "complete": False}


def _save_state(folder: Path, state: dict) -> None:
    temporary = folder / f".state.{os.getpid()}"
    temporary.write_text(json.dumps(state))
    temporary.replace(folder / "state.json")
