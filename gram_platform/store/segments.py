"""Committed metric records: one file of JSON lines a commit, and the chain of files that makes a run's history.

Every checkpoint lists its whole chain, so a history is exact whichever attempts wrote it: what an attempt wrote after
the checkpoint that another one continued from belongs to no chain, and no step appears twice.
"""

import hashlib
import json
from collections.abc import Sequence

from gram_platform.config.identity import invalid
from gram_platform.store.files import CorruptFile, Folder

NORM = "norm/"  # + gradient/<set> or weights/<set>: metrics that stay in the storage, they would crowd MLflow's table
PROBE = NORM + "probe/"  # + <domain>/<module>: see `train/probe.py`


def write_segment(attempt: Folder, attempt_id: str, records: Sequence[dict], after_step: int) -> dict:
    """Write records (steps rising, all above `after_step`) and return the chain's entry for them."""
    steps = [record["step"] for record in records]
    if any(b <= a for a, b in zip([after_step, *steps], steps, strict=False)):
        raise invalid("records", steps, f"rising steps above {after_step}, the last one committed")
    lines = (json.dumps(record, sort_keys=True, separators=(",", ":")) for record in records)  # NaN is a value here
    data = "".join(line + "\n" for line in lines).encode()
    name = f"{steps[0]:09d}-{steps[-1]:09d}.jsonl"
    attempt.child("segments").write(name, data)
    digest = hashlib.sha256(data).hexdigest()
    return {"attempt": attempt_id, "file": name, "sha256": digest, "last_step": steps[-1]}


def read_segment(attempts: Folder, entry: dict) -> list[dict]:
    """The records of one entry of a chain; CorruptFile when the file is missing or altered."""
    folder = attempts.child(entry["attempt"], "segments")
    try:
        data = folder.read(entry["file"])
    except FileNotFoundError as error:
        raise CorruptFile(f"{folder.path}/{entry['file']} is missing") from error
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise CorruptFile(f"{folder.path}/{entry['file']} does not match its sha256")
    return [json.loads(line) for line in data.splitlines()]


def last_step(chain: Sequence[dict]) -> int:
    """The last step a chain has records of; -1 for an empty chain."""
    return chain[-1]["last_step"] if chain else -1
