"""The Hugging Face hub, streamed: rows of the table become compressed local shards, resumed where they stopped.

`fetch` writes `<folder>/<row id>/part-00000.jsonl.zst`, ...; after each part, `state.json` holds the stream's position
(the `state_dict` of the `datasets` library), so an interrupted fetch loses one part at most and ends with equal bytes.
A corpus that needs less of a row reads its first parts, one that needs more goes on where they end.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import zstandard

from gram_platform.config.identity import short_hash
from gram_platform.corpora import rows
from gram_platform.corpora.hub_records import Lacking, Record, open_row, records
from gram_platform.corpora.records import Digest, Unit
from gram_platform.corpora.rows import HubRow, HubSource, part_bytes
from gram_platform.corpora.sources import Progress


@dataclass(frozen=True)
class Fetched:
    """The parts of all rows as units to read, in order, and for each row how many records lacked a field."""

    units: tuple[Unit, ...]
    skipped: dict[str, int]


def fetch(source: HubSource, folder: Path, progress: Progress) -> Fetched:
    """Downloads what is missing of every row.

    Raises ValueError naming the row when the hub cannot be reached, when no record has a field or a label is not in the
    table.
    """
    units, skipped = [], {}
    for row, num_bytes in zip(source.rows, source.num_bytes, strict=True):
        own = folder / row_id(row)
        parts = _fetch_row(row, num_bytes, own, progress)
        units += [Unit((own / part["name"],), digest=part["digest"], held_out=row.held_out) for part in parts]
        name = f"{row.dataset} {row.data_dir or row.split} [{row.label or row.label_field}]"
        skipped[name] = skipped.get(name, 0) + sum(part["skipped"] for part in parts)
    return Fetched(tuple(units), {name: count for name, count in skipped.items() if count})


def row_id(row: HubRow) -> str:
    """Names a row's downloaded parts by what decides their contents, whatever part of the row a corpus takes."""
    sizes = [rows.FIRST_PART_BYTES, rows.PART_BYTES, rows.GROWTH]
    return short_hash({"row": row.identity, "part_bytes": sizes})


def _fetch_row(row: HubRow, num_bytes: int, folder: Path, progress: Progress) -> list[dict]:
    """The parts that hold `num_bytes`, or all there are."""
    folder.mkdir(parents=True, exist_ok=True)
    state, stream, number, done = _load_state(folder), None, 0, 0
    while done < num_bytes:
        if number == len(state["parts"]):
            if state["exhausted"]:
                break
            if stream is None:
                stream, lacking = _resumed(row, state["position"]), Lacking(row, from_start=number == 0)
                found = records(row, stream, lacking)
            before = lacking.num_skipped
            part = _write_part(found, folder, number, part_bytes(done))
            if number == 0:
                lacking.require_fields()
            part["skipped"], ended = lacking.num_skipped - before, part.pop("ended")
            parts = [*state["parts"], part]
            if not part["documents"] and number:  # nothing but records without a field came behind the last part
                parts = [*parts[:-2], {**parts[-2], "skipped": parts[-2]["skipped"] + part["skipped"]}]
            state = {"parts": parts, "position": None if ended else stream.state_dict(), "exhausted": ended}
            _save_state(folder, state)
            progress(f"fetching {row.dataset}", min(done + part["bytes"], num_bytes), num_bytes)
            continue
        done += part_bytes(done)
        number += 1
    return state["parts"][:number]


def _resumed(row: HubRow, position: dict | None):
    stream = open_row(row)
    if position is not None:
        stream.load_state_dict(position)
    return stream


def _write_part(found: Iterator[Record], folder: Path, number: int, num_bytes: int) -> dict:
    """Writes records until they hold `num_bytes` of text; the file appears under its name only when it is whole."""
    name, digest = f"part-{number:05d}.jsonl.zst", Digest()
    temporary = folder / f".{name}.{os.getpid()}"
    documents = written = 0
    with zstandard.open(temporary, "wb") as handle:
        while written < num_bytes:
            record = next(found, None)
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
    return {"parts": [], "position": None, "exhausted": False}


def _save_state(folder: Path, state: dict) -> None:
    temporary = folder / f".state.{os.getpid()}"
    temporary.write_text(json.dumps(state))
    temporary.replace(folder / "state.json")
