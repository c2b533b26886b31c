"""Fuzzes every parser of text from outside: seeded mutations of valid inputs, a limit of time and
memory for each.

    python -m tests.fuzz                               # all parsers, a minute each
    python -m tests.fuzz records --first 412 --number 1    # one input again

A parser may refuse an input by its own errors alone. An input is made from its number, so a find
can be made again.
"""

import argparse
import contextlib
import gzip
import io
import json
import pickle
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow
import pyarrow.parquet
import zstandard
from safetensors.torch import load

from gram_platform.config import run_from_plain
from gram_platform.config.identity import canonical_json, to_plain
from gram_platform.config.plain import parse_json
from gram_platform.corpora.catalog import TextCorpus
from gram_platform.corpora.packed import SPLITS, parse_manifest
from gram_platform.corpora.recipe_file import read_description, text_units
from gram_platform.corpora.records import MAX_RECORD_BYTES, Unit, read_unit
from gram_platform.corpora.sources import find_units
from gram_platform.corpora.tokenizer import load_tokenizer, train_tokenizer
from gram_platform.release.files import INDEX, SINGLE, open_checkpoint
from gram_platform.release.importing import CONFIG, import_checkpoint, read_config
from gram_platform.release.serving.policy import (
    Policy,
    parse_policy,
    token_digest,
    update_policy,
)
from gram_platform.release.serving.requests import Refusal, parse_request
from gram_platform.release.stock_config import native_config
from gram_platform.store import Store
from gram_platform.store.files import seal, unseal
from tests import tiny
from tests.release.planted import checkpoint, entry_of
from tests.release.serving.planted import policy_rights, said_rights

CPU_S = 2.0  # for one input
MEMORY_BYTES = 2 << 30  # of addresses, beyond what the process has before it
LARGEST = 1 << 16  # bytes of an input
ODD = [
    b"[" * 50_000,
    b'{"a":' * 9_000,
    b"1e999",
    b"-0",
    b"NaN",
    b"1" * 5_000,
    b"1" + b"0" * 30,
    b'"\\ud800"',
    b"\0",
]
ODD += [
    b"\xff",
    b"\xef\xbb\xbf",
    b"\x1b[2J",
    b"null",
    b"true",
    b"[]",
    b"{}",
    b'""',
    b"\n",
    b"*",
    b"**/",
    b"'",
    b"\\",
]
VALUES = [
    None,
    True,
    -1,
    0,
    2**31,
    10**30,
    -1e308,
    "",
    "a" * 300,
    "../../x",
    "/etc/passwd",
    [],
    {},
    [[]],
    "\ud800",
]


@dataclass(frozen=True)
class Parser:
    """What is fuzzed: it reads an input, and raises only `refusals`; asserts hold what it promises
    of what it takes."""

    name: str
    valid: tuple[bytes, ...]
    read: Callable[[bytes, Path], object]  # (input, an empty folder)
    refusals: tuple[type[Exception], ...] = (ValueError,)


class OverLimit(BaseException):
    """An input took more processor time than any may."""


def mutated(draw: random.Random, valid: Sequence[bytes]) -> bytes:
    """One valid input, changed a few times: as JSON where it is some, else as bytes."""
    data = draw.choice(valid)
    for _ in range(draw.choice((1, 1, 2, 4, 16))):
        changed = _changed_json(draw, data) if draw.random() < 0.5 else None
        data = _changed_bytes(draw, data, valid) if changed is None else changed
    return data[:LARGEST]


def _changed_bytes(draw: random.Random, data: bytes, valid: Sequence[bytes]) -> bytes:
    first = draw.randint(0, len(data))
    stop = min(len(data), first + draw.choice((1, 1, 4, 64, 1024)))
    match draw.randrange(5):
        case 0:
            return data[:first] + data[stop:]
        case 1:
            return data[:stop] + data[first:stop] * draw.choice((1, 2, 100)) + data[stop:]
        case 2:
            other = draw.choice(valid)
            return data[:first] + other[draw.randint(0, len(other)) :]
        case 3:
            return data[:first] + draw.choice(ODD) + data[stop:]
    changed = bytearray(data)
    for place in range(first, min(stop, first + 4)):
        changed[place] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _changed_json(draw: random.Random, data: bytes) -> bytes | None:
    """Changes a value somewhere in the JSON, or removes it; None for other data."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    places = list(_places(value))
    if not places:
        return json.dumps(draw.choice(VALUES)).encode()
    holder, key = draw.choice(places)
    if draw.random() < 0.2:
        del holder[key]
    else:
        holder[key] = draw.choice(VALUES)
    return json.dumps(value).encode()


def _places(value: object) -> Iterator[tuple]:
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in items:
        yield value, key
        yield from _places(inner)


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """Raises OverLimit after `CPU_S` of processor time; lets allocations beyond `MEMORY_BYTES`
    fail."""

    def stop(*_) -> None:
        raise OverLimit(f"more than {CPU_S} s of processor time")

    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, CPU_S)
    resource.setrlimit(resource.RLIMIT_AS, (in_use + MEMORY_BYTES, hard))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def fuzz(
    parser: Parser, folder: Path, numbers: Sequence[int], seconds: float = float("inf")
) -> tuple[int, list[str]]:
    """Reads the inputs of these numbers for so long; returns how many, and a line for each find."""
    deadline, finds, done = time.monotonic() + seconds, [], 0
    for number in numbers:
        if time.monotonic() > deadline:
            break
        data, place = (
            mutated(random.Random(f"{parser.name} {number}"), parser.valid),
            folder / "input",
        )
        place.mkdir()
        try:
            with limits():
                parser.read(data, place)
        except parser.refusals as refusal:
            str(refusal)
        except BaseException as error:  # a panic of the tokenizers library is no Exception
            if isinstance(error, KeyboardInterrupt):
                raise
            finds.append(
                f"{parser.name} --first {number} --number 1: {type(error).__name__}: {error}"[:300]
            )
        shutil.rmtree(place)
        done += 1
    return done, finds


def read_request(data: bytes, _: Path) -> None:
    request = parse_request(data)
    assert 1 <= request.max_tokens <= 2**31
    assert 0.0 <= request.temperature <= 100.0
    assert 0.0 <= request.top_p <= 1.0
    assert -(2**63) <= request.seed < 2**63
    assert isinstance(request.prompt, tuple) or request.prompt.encode() is not None


def read_policy(data: bytes, _: Path) -> None:
    """An edit never raises, and grants nothing that its text does not say; one without an error is
    followed."""
    text = data.decode()
    followed_now, errors = update_policy(text, PLANTED, ("lisp", "virology"))
    assert policy_rights(followed_now) <= said_rights(text)
    assert pickle.loads(pickle.dumps(followed_now)) == followed_now
    policy = parse_policy(text)
    assert errors or followed_now == policy
    assert pickle.loads(pickle.dumps(policy)) == policy


def read_sealed(data: bytes, _: Path) -> None:
    fields = unseal(data)
    assert seal({key: value for key, value in fields.items() if key != "sha256"}) == data


def read_run(data: bytes, _: Path) -> None:
    run = run_from_plain(parse_json(data, dict))
    assert run_from_plain(json.loads(canonical_json(run))).run_id == run.run_id


def read_import(name: str) -> Callable[[bytes, Path], None]:
    """Imports the planted checkpoint with one file of it replaced."""

    def read(data: bytes, folder: Path) -> None:
        foreign = checkpoint(folder / "foreign")
        (foreign / name).write_bytes(data)
        import_checkpoint(foreign, Store(folder / "storage").open_for_writing(min_free_bytes=0))

    return read


def read_foreign_config(data: bytes, folder: Path) -> None:
    (folder / CONFIG).write_bytes(data)
    native_config(read_config(folder))


def read_index(data: bytes, folder: Path) -> None:
    (folder / INDEX).write_bytes(data)
    (folder / "a.safetensors").write_bytes(TENSORS)
    with open_checkpoint(folder) as tensors:
        assert all(tensors[name] is not None for name in tensors)


def read_globs(data: bytes, folder: Path) -> None:
    for name in ("a.txt", "b.py", "sub/c.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("words\n")
    (folder / "corpus.json").write_bytes(data)
    for unit in find_units(folder / "corpus.json"):
        assert unit.paths
        assert unit.label.strip()


def read_recipe(data: bytes, folder: Path) -> None:
    """The recipe of text that is beside it, or of rows of the hub, which is not asked."""
    for name in ("a.txt", "b.py", "sub/c.py", "a.jsonl"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("words\n")
    (folder / "sub" / "up").symlink_to("..")
    path = folder / "recipe.toml"
    path.write_bytes(data)
    if isinstance(read_description(path), TextCorpus):
        assert all(unit.paths for unit in text_units(path))


def read_manifest(data: bytes, _: Path) -> None:
    manifest = parse_manifest(data, "manifest.json")
    assert not any(".." in name.split("/") or name.startswith("/") for name in manifest["files"])


def read_tokenizer(data: bytes, folder: Path) -> None:
    (folder / "tokenizer.json").write_bytes(data)
    load_tokenizer(folder / "tokenizer.json").encode("some words")


def read_records(
    ending: str, wrap: Callable[[bytes], bytes] = bytes
) -> Callable[[bytes, Path], None]:
    def read(data: bytes, folder: Path) -> None:
        (folder / f"a.{ending}").write_bytes(wrap(data))
        for label, text in read_unit(Unit((folder / f"a.{ending}",))):
            assert label.strip()
            assert 0 < len(text.encode()) <= MAX_RECORD_BYTES

    return read


RECORDS = [
    {"text": "some words\nä", "label": "core"},
    {"text": "\U0001f600 病", "label": "a label"},
] * 3
LINES = "".join(json.dumps(record) + "\n" for record in RECORDS).encode()
PROFILES = '[profiles.core]\nmodules = []\n\n[profiles."core+lisp"]\nmodules = { lisp = 0.5 }\n'
TOKENS = [entry_of(name, name * 20, ("core", "core+lisp"), name == "a") for name in ("a", "b")]
PLANTED = Policy(parse_policy(PROFILES).profiles, parse_policy(PROFILES + "".join(TOKENS)).tokens)
REQUEST = {
    "model": "core",
    "prompt": "Once",
    "max_tokens": 3,
    "temperature": 0.5,
    "top_p": 0.9,
    "seed": 1,
}
MANIFEST = {
    "data_id": "0" * 12,
    "fingerprint": "1" * 16,
    "seq_len": 8,
    "vocab_size": 300,
    "tokenizer_bytes": 9,
    "dtype": "<u2",
    "layout": 1,
    "domains": {
        d: {s: {"num_sequences": 3, "num_documents": 2} for s in SPLITS} for d in ("core", "lisp")
    },
    "files": dict.fromkeys(
        ("tokenizer.json", *(f"{s}/{d}.bin" for s in SPLITS for d in ("core", "lisp"))), "0" * 64
    ),
}


def _parquet() -> bytes:
    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(RECORDS), out)
    return out.getvalue()


def _plain(value: object) -> bytes:
    return json.dumps(to_plain(value)).encode()


with tempfile.TemporaryDirectory() as _folder:
    TENSORS = (checkpoint(Path(_folder)) / SINGLE).read_bytes()
    FOREIGN = (Path(_folder) / CONFIG).read_bytes()
INDEX_JSON = json.dumps({"weight_map": dict.fromkeys(load(TENSORS), "a.safetensors")}).encode()
TOKENIZER = train_tokenizer(["some words"] * 3, 260).to_str().encode()
RECIPES = [
    (
        'core_labels = ["core"]\nrecords = ["a.jsonl"]\nroot = "."\n[globs]\ncore = ["*.txt"]\ncode'
        ' = ["**/*.py"]\n'
    ),
    '[globs]\ncore = ["**"]\n',
    (
        '[[rows]]\ndataset = "json"\nfiles = ["a.json"]\nlabel_field = "a.b"\nlabels = ["x"]\nkeep'
        ' = [["a", "^b"]]\n'
    ),
]
GLOBS = [
    {"globs": {"core": ["*.txt"], "code": ["*.py", "**/c.py"]}},
    {"globs": {"a": ["[a-c]?py"]}, "root": "sub"},
]
assert token_digest("a" * 20) in TOKENS[0]

PARSERS = {
    parser.name: parser
    for parser in (
        Parser(
            "request",
            (_plain(REQUEST), _plain({"prompt": [1, 2], "stop": ["a"], "n": 1})),
            read_request,
            (Refusal,),
        ),
        Parser("policy", ((PROFILES + "".join(TOKENS)).encode(), PROFILES.encode()), read_policy),
        Parser("sealed", (seal({"loss": 1.5, "ä": [1, {"b": None}]}), seal({})), read_sealed),
        Parser(
            "run",
            (_plain(tiny.run_config()), _plain(tiny.run_config(False))),
            read_run,
            (ValueError,),
        ),
        Parser("config", (FOREIGN,), read_foreign_config),
        Parser("index", (INDEX_JSON,), read_index),
        Parser("checkpoint", (TENSORS,), read_import(SINGLE)),
        Parser("import", (FOREIGN,), read_import(CONFIG)),
        Parser("globs", tuple(map(_plain, GLOBS)), read_globs),
        Parser("recipe", tuple(text.encode() for text in RECIPES), read_recipe),
        Parser("manifest", (_plain(MANIFEST),), read_manifest),
        Parser("tokenizer", (TOKENIZER,), read_tokenizer),
        Parser("records", (LINES,), read_records("jsonl")),
        Parser("gzip", (LINES,), read_records("jsonl.gz", gzip.compress)),
        Parser(
            "broken-gzip",
            (gzip.compress(LINES, mtime=0), gzip.compress(LINES * 500, mtime=0)),
            read_records("jsonl.gz"),
        ),
        Parser(
            "zstd",
            (zstandard.compress(LINES), zstandard.compress(LINES * 500)),
            read_records("jsonl.zst"),
        ),
        Parser("parquet", (_parquet(),), read_records("parquet")),
    )
}


def main() -> int:
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument(
        "parsers", nargs="*", help="names of parsers, default all: " + ", ".join(PARSERS)
    )
    flags.add_argument("--seconds", type=float, default=60.0, help="of each parser")
    flags.add_argument("--first", type=int, default=0, help="number of the first input")
    flags.add_argument("--number", type=int, default=10**9, help="of inputs, at most")
    asked = flags.parse_args()
    failed = 0
    for name in asked.parsers or PARSERS:
        with tempfile.TemporaryDirectory() as folder:
            numbers = range(asked.first, asked.first + asked.number)
            done, finds = fuzz(PARSERS[name], Path(folder), numbers, asked.seconds)
        print("\n".join([f"{name}: {done:,} inputs, {len(finds)} finds", *finds[:20]]), flush=True)
        failed += len(finds)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
