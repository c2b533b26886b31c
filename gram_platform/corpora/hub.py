"""Downloads Hugging Face Hub datasets as compressed local files (parts).

`fetch` writes the parts of a dataset (`HubRow`) to `<folder>/<row id>/part-00000.jsonl.zst` and so
on. If a dataset has several shards (files), the parts of each shard are in a subfolder. After each
part, the position in the dataset is saved in `state.json`. So an interrupted fetch loses at most
one part, and resuming it gives the same bytes. Corpora with identical rows use the same parts.
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

# How many first records are searched for each field. `gram prepare --check` tests their labels.
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


# (number of a shard, number of shards of its row). The whole row is (0, 1).
Shard = tuple[int, int]
# (row, bytes of text to fetch, shard).
Amount = tuple[HubRow, int, Shard]
# The most shards of a row fetched at once.
MOST_SHARDS = 64


def fetch(
    source: HubSource, folder: Path, progress: Progress, workers: Workers = in_turn
) -> tuple[tuple[Unit, ...], dict[str, int]]:
    """Downloads the missing parts of every row (`HubRow`). Each worker fetches one shard (file).

    Returns (units, counts). The units are each row's first parts, as many as are needed for the
    row's value in `source.num_bytes`. `counts` maps each row's name to the number of its records
    that were skipped because they lack a field.

    Raises ValueError before the download if the Hub denies access to a row. Also raises ValueError
    if all of a row's first `FIRST_RECORDS` records lack the same field, or if a record has a label
    that its row does not list. Raises Unavailable if a server does not answer.
    """
    require_plain(folder)
    rows = source.rows
    num_shards = retry_unavailable(
        lambda: _require_all(workers(partial(_num_shards, folder), rows))
    )
    work = partial(_fetch_patiently, folder, progress if workers is in_turn else silent)
    parts_of: list[list[dict]] = [[] for _ in rows]
    firsts = zip(rows, source.num_bytes, ((0, number) for number in num_shards), strict=True)
    ahead: list[tuple[int, Amount]] = list(enumerate(firsts))
    while ahead:
        fetched = _in_order(workers(work, [amount for _, amount in ahead]))
        for (index, _), parts in zip(ahead, fetched, strict=True):
            parts_of[index] += parts
        done = [
            min(sum(part["bytes"] for part in parts), num_bytes)
            for parts, num_bytes in zip(parts_of, source.num_bytes, strict=True)
        ]
        progress("fetching", sum(done), sum(source.num_bytes))
        # `dict` keeps the last shard of each row.
        ahead = [
            (index, amount)
            for index, last in dict(ahead).items()
            for amount in _next_shards(last, source.num_bytes[index], done[index])
        ]
    units, skipped = [], {}
    for row, num_bytes, parts in zip(rows, source.num_bytes, parts_of, strict=True):
        starts = accumulate((part["bytes"] for part in parts), initial=0)
        parts = [part for part, start in zip(parts, starts, strict=False) if start < num_bytes]
        units += [
            Unit((folder / part["path"],), digest=part["digest"], held_out=row.held_out)
            for part in parts
        ]
        name = f"{row.dataset} {row.data_dir or row.split} [{row.label or row.label_field}]"
        skipped[name] = skipped.get(name, 0) + sum(part["skipped"] for part in parts)
    return tuple(units), {name: count for name, count in skipped.items() if count}


def _in_order(results: Iterator[tuple[int, Item]]) -> list[Item]:
    return [result for _, result in sorted(results, key=lambda item: item[0])]


def _next_shards(last: Amount, num_bytes: int, done: int) -> list[Amount]:
    row, _, (number, num_shards) = last
    share = max(1, done // (number + 1))
    count = min(-(-(num_bytes - done) // share), num_shards - number - 1, MOST_SHARDS)
    return [(row, num_bytes - done, (number + 1 + i, num_shards)) for i in range(max(0, count))]


def _require_all(answers: Iterator[tuple[int, int | ValueError | Unavailable]]) -> list[int]:
    """Returns each row's number of shards. If rows have errors, raises one that combines them.

    If any error is a ValueError, combines only the ValueErrors.
    """
    rows = _in_order(answers)
    for kind in (ValueError, Unavailable):
        if texts := [str(answer) for answer in rows if isinstance(answer, kind)]:
            text = "; ".join(dict.fromkeys(texts))
            raise kind(f"{len(texts)} of {len(rows)} rows: {text}" if len(rows) > 1 else text)
    return rows


def _num_shards(folder: Path, row: HubRow) -> int | ValueError | Unavailable:
    path = folder / row_id(row) / "shards.json"
    with contextlib.suppress(FileNotFoundError, ValueError):
        if (number := parse_json(path.read_text(), int)) > 0:
            return number
    try:
        number = _open_row(row).num_shards
    except (ValueError, Unavailable) as error:
        return error
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as temporary:
        Path(temporary).write_text(json.dumps(number))
    return number


def row_id(row: HubRow) -> str:
    """Returns the name of a row's folder, a hash of the values that determine its parts."""
    sizes = [recipe.FIRST_PART_BYTES, recipe.PART_BYTES, recipe.GROWTH]
    return short_hash({"row": row.identity, "part_bytes": sizes})


def first_record(row: HubRow) -> Document:
    """Returns the first record of a dataset that passes the filters in its `HubRow`.

    Raises ValueError if no record passes, or if one of the first `FIRST_RECORDS` has a label that
    the row does not list.
    """
    stream = _open_row(row)
    labels = _labels_in(row, stream.take(FIRST_RECORDS)) if row.label_field else set()
    if unknown := sorted(labels - set(row.labels)):
        raise invalid(
            f"{row.dataset}: {row.label_field}", unknown, f"labels that its row lists: {ADD_LABELS}"
        )
    record = next(filter(None, _records(row, stream, is_start=True)), None)
    if record is None:
        raise invalid(f"hub row {row.dataset}", row.keep, "filters that at least one record passes")
    return record


def read_labels(row: HubRow) -> tuple[str, ...]:
    """Returns the labels that the first `FIRST_RECORDS` records of a dataset have.

    Raises ValueError if none of these records has a label.
    """
    labels = retry_unavailable(lambda: _labels_in(row, _open_row(row).take(FIRST_RECORDS)))
    if not labels:
        raise invalid(
            f"{row.dataset}: field", row.label_field, "a field that records have, as their label"
        )
    return tuple(sorted(labels))


def _labels_in(row: HubRow, stream) -> set[str]:
    name = row.label_field
    return {
        _field(record, name).strip()
        for record in _stream(row, stream)
        if _value(record, name) is not None
    }


def _fetch_patiently(root: Path, progress: Progress, amount: Amount) -> list[dict]:
    row, _, (number, num_shards) = amount
    folder = root / row_id(row) / (f"shard-{number:05d}" if num_shards > 1 else "")
    parts = retry_unavailable(
        partial(_fetch_shard, folder, progress, amount), lambda: len(_load_state(folder)["parts"])
    )
    relative = folder.relative_to(root)
    return [{**part, "path": str(relative / part["name"])} for part in parts]


def _fetch_shard(folder: Path, progress: Progress, amount: Amount) -> list[Part]:
    row, num_bytes, shard = amount
    folder.mkdir(parents=True, exist_ok=True)
    state, stream, number, done = _load_state(folder), None, 0, 0
    while done < num_bytes:
        if number < len(state["parts"]):
            done += part_bytes(done)
            number += 1
            continue
        if state["exhausted"]:
            break
        if stream is None:
            stream = _open_row(row, state["position"], shard)
            records = _records(row, stream, is_start=number == 0 and shard[0] == 0)
        part = _write_part(records, folder, number, part_bytes(done))
        ended, parts = part.pop("ended"), state["parts"]
        # If only skipped records are left, the last part counts them.
        if number and not part["documents"]:
            parts[-1]["skipped"] += part["skipped"]
        else:
            parts.append(part)
        position = None if ended else stream.state_dict()
        state = {"parts": parts, "position": position, "exhausted": ended}
        with whole_file(folder / "state.json") as temporary:
            Path(temporary).write_text(json.dumps(state))
        progress(f"fetching {row.dataset}", min(done + part["bytes"], num_bytes), num_bytes)
    return state["parts"][:number]


def _write_part(
    records: Iterator[Document | None], folder: Path, number: int, num_bytes: int
) -> dict:
    name, digest = f"part-{number:05d}.jsonl.zst", hashlib.sha256()
    documents = written = skipped = 0
    with whole_file(folder / name) as temporary, zstandard.open(temporary, "wb") as handle:
        for record in records:
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
    with contextlib.suppress(OSError, ValueError):
        state = parse_json((folder / "state.json").read_text(), RowState)
        names = [part["name"] for part in state["parts"]]
        if all(PART_NAME.fullmatch(name) and (folder / name).is_file() for name in names):
            return state
    return {"parts": [], "position": None, "exhausted": False}


def _open_row(row: HubRow, position: dict | None = None, shard: Shard = (0, 1)):
    import datasets

    revision = None if row.files and row.dataset in ("json", "parquet") else row.revision
    for file in filter(os.path.isfile, row.files):
        with reading(Path(file)):
            require_fetched("corpus", Path(file))
    # Escaped, because the library reads a path as a pattern.
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
        # The server's answer is a better reason than the library's error.
        require_readable(row, all_files=True)
        raise row_error(row, error) from error
    if shard[1] > 1:
        stream = stream.shard(num_shards=shard[1], index=shard[0])
    if position is not None:
        stream.load_state_dict(position)
    return stream


def _records(row: HubRow, stream, is_start: bool) -> Iterator[Document | None]:
    """Yields the records that have text and pass the row's filters.

    Yields None for a record that lacks one of `row.fields`. `is_start` means that `stream` begins
    with the row's first record. Then a ValueError is raised if the first `FIRST_RECORDS` records
    all lack the same field.
    """
    # The fields that no record has had yet, with the names in the last record.
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
        is_kept = all(re.search(pattern, _field(record, name)) for name, pattern in row.keep)
        is_dropped = any(re.search(pattern, _field(record, name)) for name, pattern in row.drop)
        if is_kept and not is_dropped and (document := _record(row, record)) is not None:
            yield document
    _require_seen(row, unseen if number else {})


def _require_seen(row: HubRow, unseen: Mapping[str, str]) -> None:
    for name, fields in unseen.items():
        raise invalid(f"{row.dataset}: field", name, f"one of {fields}: no record has it")


def _stream(row: HubRow, stream) -> Iterator[dict]:
    try:
        yield from stream
    except Exception as error:
        # A connection may break at any record.
        require_readable(row, all_files=True)
        raise row_error(row, error) from error


def _record(row: HubRow, record: dict) -> Document | None:
    texts = [_field(record, name).strip() for name in row.text_fields]
    text = "\n\n".join(part for part in texts if part)
    if not text:
        return None
    label = row.label or _field(record, row.label_field).strip()
    if label not in row.all_labels:
        raise invalid(
            f"{row.dataset}: {row.label_field}",
            label,
            f"one of the {len(row.labels)} labels of its row: {ADD_LABELS}",
        )
    return Document(label, text)


def _value(record: object, name: str) -> object:
    if not isinstance(record, dict):
        return None
    ends = [index for index in reversed(range(len(name))) if name[index] == "."]
    inner = (_value(record.get(name[:end]), name[end + 1 :]) for end in ends)
    return next((value for value in (record.get(name), *inner) if value is not None), None)


def _field(record: dict, name: str) -> str:
    value = _value(record, name)
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
