"""Divides a corpus into parts, and writes the files of each part atomically.

A part is a group of consecutive pieces of the corpus's units (see `records.py`). Parts depend only
on the corpus, never on the number of workers.
"""

import json
import os
import secrets
import shutil
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from tokenizers import Encoding, Tokenizer

from gram_platform.config.crash_safe import sync
from gram_platform.config.identity import short_hash
from gram_platform.corpora.packed import SPLITS, token_dtype
from gram_platform.corpora.recipe import CorpusRecipe, StoriesSource
from gram_platform.corpora.records import Unit, documents, size_of
from gram_platform.corpora.sources import BLOCK_BYTES, Progress, group_pieces
from gram_platform.corpora.splits import Splitter, tag_keys
from gram_platform.corpora.tokenizer import Speller, configure, end_of_text_id, name_faults

STORIES_PER_PART = 1 << 13
BATCH_CHARS = 1 << 20
KEYS, COUNTS = "keys.bin", "counts.json"

Task, Result = TypeVar("Task"), TypeVar("Result")
Part = tuple[Unit, ...]
Workers = Callable[[Callable[[Task], Result], Sequence[Task]], Iterator[tuple[int, Result]]]


def in_turn(
    function: Callable[[Task], Result], tasks: Sequence[Task]
) -> Iterator[tuple[int, Result]]:
    """Calls `function` on each task in order. Yields each (index, result).

    Other functions of the type `Workers` may yield the results in any order.
    """
    return enumerate(map(function, tasks))


def call_on_one_core(function: Callable[[Task], Result], task: Task) -> Result:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return function(task)


def parts_of(recipe: CorpusRecipe, units: tuple[Unit, ...]) -> list[Part]:
    """Divides the text of a corpus into parts, in order."""
    if isinstance(recipe.source, StoriesSource):
        total = sum(number for _, number in recipe.source.num_documents)
        return [
            (Unit((), span=(first, min(first + STORIES_PER_PART, total), 0)),)
            for first in range(0, total, STORIES_PER_PART)
        ]
    return group_pieces([piece for unit in units for piece in unit.pieces], _num_bytes)


def _num_bytes(piece: Unit) -> int:
    first, stop, _ = piece.span
    return (stop or sum(map(size_of, piece.paths))) - first


@dataclass(frozen=True)
class PartFiles:
    """Writes each part to its own folder below `folder`, using `workers`."""

    folder: Path
    workers: Workers
    progress: Progress
    # Bytes of text in all parts.
    num_bytes: int

    def write(
        self,
        activity: str,
        write: Callable[[Task, Path], None],
        parts: Sequence[Task],
        *depends_on: object,
    ) -> list[Path]:
        """Calls `write(part, folder)` for each part that has no folder yet. Returns all folders.

        A folder's name contains a hash of the part and `depends_on`. The files in a folder may
        depend only on the corpus, the part and `depends_on`.
        """
        keys = [short_hash([str(part), *depends_on]) for part in parts]
        folders = [self.folder / f"{activity.partition(' ')[0]}-{key}" for key in keys]
        missing = [task for task in zip(parts, folders, strict=True) if not task[1].exists()]
        done, started = len(parts) - len(missing), time.monotonic()
        share = self.num_bytes / max(1, len(parts))
        for number, _ in enumerate(self.workers(partial(_write_whole, write), missing), start=1):
            rate = number * share / (time.monotonic() - started) / 1e6
            name = f"{activity}, part {done + number} of {len(parts)}, {rate:.1f} MB/s"
            self.progress(name, round((done + number) * share), self.num_bytes)
        return folders


def _write_whole(write: Callable[[Task, Path], None], task: tuple[Task, Path]) -> None:
    """Writes a part to a temporary folder and renames it, unless the part is already finished.

    Does not flush .bin files to disk, because this is slow. If the power fails, their checksums
    reveal the damage.
    """
    part, target = task
    if target.exists():
        return
    staging = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}")
    staging.mkdir(parents=True)
    try:
        write(part, staging)
        for path in staging.iterdir():
            if path.suffix != ".bin":
                sync(str(path))
        staging.rename(target)
    except OSError:
        if not target.exists():
            raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def write_tokens(
    recipe: CorpusRecipe, splitter: Splitter, tokenizer_json: str, part: Part, folder: Path
) -> None:
    """Tokenises a part. Writes one token file per domain and split.

    Also writes the counts, and each document's key with its domain and split (`tag_keys`).
    """
    tokenizer, dtype = _tokenizer(tokenizer_json), token_dtype(recipe.vocab_size)
    end = end_of_text_id(tokenizer)
    order = {domain: number for number, domain in enumerate(recipe.pools)}
    true_domain = {pool.name: pool.domain for pool in recipe.domains_from}
    speller = None if recipe.tokenizer.is_trained else Speller(tokenizer, end)
    # Sums of `Speller.lost`, by domain.
    lost: dict[str, np.ndarray] = {}
    # (documents, tokens, checksum) by split and domain.
    counts: dict[tuple[str, str], tuple[int, int, int]] = {}
    checksum = 0
    with (folder / KEYS).open("wb") as log:
        batches = _encode(tokenizer, splitter, documents(recipe, part), recipe.tokenizer_name)
        for domains, texts, keys, are_validation, encodings in batches:
            raw = tag_keys(keys, [order[domain] for domain in domains], are_validation).tobytes()
            checksum = zlib.crc32(raw, checksum)
            log.write(raw)
            found: dict[tuple[str, str], list[np.ndarray]] = {}
            for domain, text, is_validation, encoding in zip(
                domains, texts, are_validation.tolist(), encodings, strict=True
            ):
                if speller is not None:
                    with name_faults(recipe.tokenizer_name, "one that can decode the corpus"):
                        counted = speller.lost(text, encoding.ids)
                    lost[domain] = lost.get(domain, 0) + np.array(counted)
                tokens = np.array([*encoding.ids, end], dtype)
                # Otherwise, a text that contains the end token would end early.
                tokens = np.append(tokens[tokens != end], tokens[-1:])
                pair = SPLITS[is_validation], true_domain[domain] if is_validation else domain
                found.setdefault(pair, []).append(tokens)
            for pair, arrays in found.items():
                num_documents, num_tokens, before = counts.get(pair, (0, 0, 0))
                raw = np.concatenate(arrays).tobytes()
                with token_path(folder, *pair).open("ab") as file:
                    file.write(raw)
                num_tokens += len(raw) // dtype.itemsize
                counts[pair] = num_documents + len(arrays), num_tokens, zlib.crc32(raw, before)
    written = {
        "keys": checksum,
        "files": [[*pair, *numbers] for pair, numbers in counts.items()],
        "lost": {domain: numbers.tolist() for domain, numbers in lost.items()},
    }
    (folder / COUNTS).write_text(json.dumps(written))


def counts_of(folder: Path) -> dict:
    return json.loads((folder / COUNTS).read_text())


def read_blocks(path: Path, checksum: int) -> Iterator[bytes]:
    """Yields a file's blocks. Raises ValueError at the end if the checksum does not match."""
    found = 0
    with path.open("rb") as handle:
        while block := handle.read(BLOCK_BYTES):
            found = zlib.crc32(block, found)
            yield block
    if found != checksum:
        raise ValueError(f"{path} is damaged, as by a power failure: prepare its corpus again")


@lru_cache(maxsize=1)
def _tokenizer(text: str) -> Tokenizer:
    return configure(Tokenizer.from_str(text))


def token_path(folder: Path, split: str, domain: str) -> Path:
    return folder / f"{split}-{domain}.bin"


def _encode(
    tokenizer: Tokenizer, splitter: Splitter, stream: Iterator[tuple[str, str]], source: str
) -> Iterator[tuple]:

    def encodings(texts: list[str]) -> list[Encoding]:
        with name_faults(source, "a tokenizer that can encode the corpus"):
            return tokenizer.encode_batch_fast(texts, add_special_tokens=False)

    with ThreadPoolExecutor(1) as pool:
        running = None
        for domains, texts in _batches(stream):
            upcoming = pool.submit(encodings, texts)
            if running is not None:
                yield *running[0], running[1].result()
            keys = np.array([splitter.key(text) for text in texts], np.uint64)
            running = (domains, texts, keys, splitter.are_validation(domains, keys)), upcoming
        if running is not None:
            yield *running[0], running[1].result()


def _batches(stream: Iterator[tuple[str, str]]) -> Iterator[tuple[list[str], list[str]]]:
    domains, texts, num_chars = [], [], 0
    for domain, text in stream:
        domains.append(domain)
        texts.append(text)
        num_chars += len(text)
        if num_chars >= BATCH_CHARS:
            yield domains, texts
            domains, texts, num_chars = [], [], 0
    if texts:
        yield domains, texts
