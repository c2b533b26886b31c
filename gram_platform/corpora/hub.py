"""Streams datasets of the Hugging Face hub into compressed local parts, and resumes a fetch.

`fetch` writes `<folder>/<row id>/part-00000.jsonl.zst`, ... After each part, `state.json` stores
the stream's position (`state_dict` of the `datasets` library), so an interrupted fetch loses at
most one part and ends with equal bytes. Corpora share parts: a corpus reads the first parts of a
row, and fetches what they lack.
"""

import contextlib
import glob
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TypedDict

import zstandard

from gram_platform.config.crash_safe import require_plain, whole_file
from gram_platform.config.endings import Unavailable
from gram_platform.config.identity import invalid, short_hash
from gram_platform.config.plain import parse_json
from gram_platform.config.written import require_fetched
from gram_platform.corpora import recipe
from gram_platform.corpora.hub_access import require_readable, retry_unavailable, row_error
from gram_platform.corpora.parts import Workers, in_turn
from gram_platform.corpora.recipe import HubRow, HubSource, part_bytes
from gram_platform.corpora.records import Document, Unit, add_record, reading
from gram_platform.corpora.sources import Item, Progress, silent

# Each field must be in one of the first records, whose labels a check compares with the catalog.
FIRST_RECORDS = 2_000
PART_NAME = re.compile(r"part-\d{5,9}\.jsonl\.zst")
ADD_LABELS = "add new ones in the catalog, to the recipe's labels, or as labels=... to the URL"


class Part(TypedDict):
    name: str
    bytes: int
    documents: int
    digest: str
    skipped: int


class RowState(TypedDict):
    parts: list[Part]


# A shard's number, and how many a row has. The whole row is (0, 1).
Shard = tuple[int, int]
# A row, the bytes of text to fetch, and a shard.
Amount = tuple[HubRow, int, Shard]
# The most shards of a row that are fetched at once.
MOST_SHARDS = 64


def fetch(
    source: HubSource, folder: Path, progress: Progress, workers: Workers = in_turn
) -> tuple[tuple[Unit, ...], dict[str, int]]:
    """Downloads the missing parts of every row.

    Returns the parts that hold the bytes of each row, in the order of its shards (files), and
    {row: records that lack a field}. A worker fetches a shard. ValueError naming the rows that the
    hub refuses, and what to do, before anything is fetched; also if no record has a field, or the
    catalog lacks a label. Unavailable if the hub stays away for longer than the pauses of
    `retry_unavailable`.
    """
    require_plain(folder)
    rows = source.rows
    num_shards = retry_unavailable(lambda: _require_all(workers(partial(_ask, folder), rows)))
    work = partial(_fetch_patiently, folder, progress if workers is in_turn else silent)
    wanted = list(zip(rows, source.num_bytes, strict=True))
    found: list[list[dict]] = [[] for _ in wanted]
    ahead = [(index, (*wanted[index], (0, number))) for index, number in enumerate(num_shards)]
    while ahead:
        fetched = _in_order(workers(work, [amount for _, amount in ahead]))
        for (index, _), parts in zip(ahead, fetched, strict=True):
            found[index] += parts
        done = [
            min(sum(part["bytes"] for part in parts), n)
            for parts, (_, n) in zip(found, wanted, strict=True)
        ]
        progress("fetching", sum(done), sum(source.num_bytes))
        # The last shard of each row.
        last = dict(ahead).items()
        ahead = [(i, new) for i, one in last for new in _next_shards(one, wanted[i][1], done[i])]
    units, skipped = [], {}
    for (row, num_bytes), parts in zip(wanted, found, strict=True):
        taken = _first_parts(parts, num_bytes)
        units += [
            Unit((folder / part["path"],), digest=part["digest"], held_out=row.held_out)
            for part in taken
        ]
        name = f"{row.dataset} {row.data_dir or row.split} [{row.label or row.label_field}]"
        skipped[name] = skipped.get(name, 0) + sum(part["skipped"] for part in taken)
    return tuple(units), {name: count for name, count in skipped.items() if count}


def _in_order(found: Iterator[tuple[int, Item]]) -> list[Item]:
    return [result for _, result in sorted(found, key=lambda item: item[0])]


def _next_shards(last: Amount, num_bytes: int, done: int) -> list[Amount]:
    """Returns the shards after `last` that probably hold the bytes that a row still lacks."""
    row, _, (number, of) = last
    share = max(1, done // (number + 1))
    count = min(-(-(num_bytes - done) // share), of - number - 1, MOST_SHARDS)
    return [(row, num_bytes - done, (number + 1 + i, of)) for i in range(max(0, count))]


def _first_parts(parts: list[dict], num_bytes: int) -> list[dict]:
    """Returns the first parts that hold `num_bytes`."""
    before = accumulate((part["bytes"] for part in parts), initial=0)
    return [part for part, start in zip(parts, before, strict=False) if start < num_bytes]


def _ask(folder: Path, row: HubRow) -> int | ValueError | Unavailable:
    """Counts the shards of a row, or returns its error."""
    try:
        return _num_shards(folder, row)
    except (ValueError, Unavailable) as error:
        return error


def _require_all(answers: Iterator[tuple[int, int | ValueError | Unavailable]]) -> list[int]:
    """Raises all errors of rows as one, a ValueError if a row is refused, otherwise Unavailable."""
    found = _in_order(answers)
    for kind in (ValueError, Unavailable):
        if texts := [str(answer) for answer in found if isinstance(answer, kind)]:
            named = "; ".join(dict.fromkeys(texts))
            raise kind(f"{len(texts)} of {len(found)} rows: {named}" if len(found) > 1 else named)
    return found


def _num_shards(folder: Path, row: HubRow) -> int:
    """Counts the shards of a row, and stores their number."""
    path = folder / row_id(row) / "shards.json"
    # The file may be missing or damaged.
    with contextlib.suppress(FileNotFoundError, ValueError):
        if (number := parse_json(path.read_text(), int)) > 0:
            return number
    number = _open_row(row).num_shards
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as temporary:
        Path(temporary).write_text(json.dumps(number))
    return number


def row_id(row: HubRow) -> str:
    """Names the folder of a row's parts by what decides their contents, not their number."""
    sizes = [recipe.FIRST_PART_BYTES, recipe.PART_BYTES, recipe.GROWTH]
    return short_hash({"row": row.identity, "part_bytes": sizes})


def first_record(row: HubRow) -> Document:
    """Returns the first record that passes the row's filters; ValueError if there is none."""
    stream = _open_row(row)
    labels = _labels_in(row, stream.take(FIRST_RECORDS)) if row.label_field else set()
    if stray := sorted(labels - set(row.labels)):
        raise invalid(
            f"{row.dataset}: {row.label_field}", stray, f"labels that its row lists: {ADD_LABELS}"
        )
    found = next(filter(None, _records(row, stream, is_start=True)), None)
    if found is None:
        raise invalid(f"hub row {row.dataset}", row.keep, "filters that at least one record passes")
    return found


def read_labels(row: HubRow) -> tuple[str, ...]:
    """Lists the labels of the row's first records; ValueError if there are none."""
    found = retry_unavailable(lambda: _labels_in(row, _open_row(row).take(FIRST_RECORDS)))
    if not found:
        raise invalid(
            f"{row.dataset}: field", row.label_field, "a field that records have, as their label"
        )
    return tuple(sorted(found))


def _labels_in(row: HubRow, stream) -> set[str]:
    name = row.label_field
    return {
        _field(record, name).strip()
        for record in _stream(row, stream)
        if _value(record, name) is not None
    }


def _fetch_patiently(root: Path, progress: Progress, amount: Amount) -> list[dict]:
    """Retries `_fetch_shard`, from its last whole part on, while the hub is away."""
    row, _, shard = amount
    folder = _folder(root, row, shard)
    return retry_unavailable(
        partial(_fetch_shard, root, progress, amount), lambda: len(_load_state(folder)["parts"])
    )


def _folder(root: Path, row: HubRow, shard: Shard) -> Path:
    return root / row_id(row) / (f"shard-{shard[0]:05d}" if shard[1] > 1 else "")


def _fetch_shard(root: Path, progress: Progress, amount: Amount) -> list[dict]:
    """Returns the parts that hold the amount, or all of the shard; downloads missing parts."""
    row, num_bytes, shard = amount
    folder = _folder(root, row, shard)
    folder.mkdir(parents=True, exist_ok=True)
    state, stream, number, done = _load_state(folder), None, 0, 0
    while done < num_bytes:
        if number == len(state["parts"]):
            if state["exhausted"]:
                break
            if stream is None:
                stream = _open_row(row, state["position"], shard)
                found = _records(row, stream, is_start=number == 0 and shard[0] == 0)
            part = _write_part(found, folder, number, part_bytes(done))
            ended, parts = part.pop("ended"), [*state["parts"], part]
            # Only skipped records followed the last part.
            if not part["documents"] and number:
                *parts, last, _ = parts
                parts.append({**last, "skipped": last["skipped"] + part["skipped"]})
            state = {
                "parts": parts,
                "position": None if ended else stream.state_dict(),
                "exhausted": ended,
            }
            with whole_file(folder / "state.json") as temporary:
                Path(temporary).write_text(json.dumps(state))
            progress(f"fetching {row.dataset}", min(done + part["bytes"], num_bytes), num_bytes)
            continue
        done += part_bytes(done)
        number += 1
    place = folder.relative_to(root)
    return [{**part, "path": str(place / part["name"])} for part in state["parts"][:number]]


def _write_part(
    found: Iterator[Document | None], folder: Path, number: int, num_bytes: int
) -> dict:
    """Writes records until they hold `num_bytes` of text, or none is left, as a whole file."""
    name, digest = f"part-{number:05d}.jsonl.zst", hashlib.sha256()
    documents = written = skipped = 0
    with whole_file(folder / name) as temporary, zstandard.open(temporary, "wb") as handle:
        for record in found:
            if record is None:
                skipped += 1
                continue
            line = json.dumps({"text": record.text, "label": record.label}, ensure_ascii=False)
            handle.write(line.encode() + b"\n")
            written += add_record(digest, record.label, record.text)
            documents += 1
            if written >= num_bytes:
                break
    return {
        "name": name,
        "bytes": written,
        "documents": documents,
        "digest": digest.hexdigest(),
        "skipped": skipped,
        "ended": written < num_bytes,
    }


def _load_state(folder: Path) -> dict:
    """Reads where the last whole part ended; a damaged state starts the fetch again."""
    with contextlib.suppress(OSError, ValueError):
        state = parse_json((folder / "state.json").read_text(), RowState)
        names = [part["name"] for part in state["parts"]]
        if all(PART_NAME.fullmatch(name) and (folder / name).is_file() for name in names):
            return state
    return {"parts": [], "position": None, "exhausted": False}


def _open_row(row: HubRow, position: dict | None = None, shard: Shard = (0, 1)):
    """Opens the row's `datasets.IterableDataset`, or a shard, at a `position` of its `state_dict`.

    Raises as `require_readable`.
    """
    import datasets

    revision = None if row.files and row.dataset in ("json", "parquet") else row.revision
    for file in filter(os.path.isfile, row.files):
        with reading(Path(file)):
            require_fetched("corpus", Path(file))
    # The library reads a path as a pattern.
    files = [glob.escape(file) if os.path.isfile(file) else file for file in row.files]
    require_readable(row)
    try:
        stream = datasets.load_dataset(
            row.dataset,
            name=row.config or None,
            data_dir=row.data_dir or None,
            data_files={row.split: files} if files else None,
            split=row.split,
            revision=revision,
            streaming=True,
        )
    except Exception as error:
        # The library raises its own, fsspec's and the HTTP client's errors. The server's answer
        # about all files is a better reason.
        require_readable(row, all_files=True)
        raise row_error(row, error) from error
    if shard[1] > 1:
        stream = stream.shard(num_shards=shard[1], index=shard[0])
    if position is not None:
        stream.load_state_dict(position)
    return stream


def _records(row: HubRow, stream, is_start: bool) -> Iterator[Document | None]:
    """Yields the records with text that pass the row's filters; None for a record without a field.

    With `is_start`, ValueError for a field that none of the first `FIRST_RECORDS` has.
    """
    # Fields that no record had yet, and the fields of the last record.
    unseen: dict[str, str] = dict.fromkeys(row.fields, "") if is_start else {}
    number = 0
    for number, record in enumerate(_stream(row, stream), start=1):
        missing = [name for name in row.fields if _value(record, name) is None]
        unseen = {name: ", ".join(sorted(record)) for name in unseen if name in missing}
        if number == FIRST_RECORDS:
            _require_seen(row, unseen)
        if missing:
            yield None
            continue
        kept = all(re.search(pattern, _field(record, name)) for name, pattern in row.keep)
        dropped = any(re.search(pattern, _field(record, name)) for name, pattern in row.drop)
        if kept and not dropped and (found := _record(row, record)) is not None:
            yield found
    _require_seen(row, unseen if number else {})


def _require_seen(row: HubRow, unseen: Mapping[str, str]) -> None:
    for name, found in unseen.items():
        raise invalid(f"{row.dataset}: field", name, f"one of {found}: no record has it")


def _stream(row: HubRow, stream) -> Iterator[dict]:
    try:
        yield from stream
    except Exception as error:
        # A connection may break at any record.
        require_readable(row, all_files=True)
        raise row_error(row, error) from error


def _record(row: HubRow, record: dict) -> Document | None:
    """Returns a record's label and text; None for a record without text."""
    texts = [_field(record, name).strip() for name in row.text_fields]
    text = "\n\n".join(part for part in texts if part)
    if not text:
        return None
    label = row.label or _field(record, row.label_field).strip()
    if label not in row.all_labels:
        allowed = f"one of the {len(row.labels)} labels of its row: {ADD_LABELS}"
        raise invalid(f"{row.dataset}: {row.label_field}", label, allowed)
    return Document(label, text)


def _value(record: object, name: str) -> object:
    """Returns a field's value; None without one, or if `datasets` has None.

    A dot descends into a record, unless a field has the whole name.
    """
    if not isinstance(record, dict):
        return None
    ends = [place for place in reversed(range(len(name))) if name[place] == "."]
    inner = (_value(record.get(name[:end]), name[end + 1 :]) for end in ends)
    return next((value for value in (record.get(name), *inner) if value is not None), None)


def _field(record: dict, name: str) -> str:
    value = _value(record, name)
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
