"""A small labelled corpus for the tests of this folder."""

import json
import random
from pathlib import Path

import pytest

WORDS = [
    "river",
    "stone",
    "lamp",
    "green",
    "open",
    "quick",
    "under",
    "seven",
    "maple",
    "cloud",
    "paper",
    "wind",
    "iron",
]


def make_records(seed: int = 0, num: int = 60) -> list[dict[str, str]]:
    """`num` documents for each of two labels.

    Every document starts with its label and a number of its own.
    """
    rng = random.Random(seed)
    records = []
    for index in range(num):
        for label in ("core", "virology"):
            words = " ".join(rng.choice(WORDS) for _ in range(40))
            records.append(
                {"text": f"{label} number {index}: {words}.\nÜber {index}, 日本", "label": label}
            )
    return records


def write_jsonl(path: Path, records: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture
def records() -> list[dict[str, str]]:
    return make_records()


@pytest.fixture
def corpus(tmp_path, records) -> Path:
    """A folder with one .jsonl of two labels."""
    write_jsonl(tmp_path / "corpus" / "part.jsonl", records)
    return tmp_path / "corpus"


@pytest.fixture
def settings() -> dict:
    """What `resolve` needs beside the corpus, small."""
    return {
        "core_label": "core",
        "seq_len": 16,
        "vocab_size": 300,
        "validation_sequences": 4,
        "sample_bytes": 100_000,
    }


@pytest.fixture
def jsonl():
    return write_jsonl


@pytest.fixture
def labelled():
    return make_records
