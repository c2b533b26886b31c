"""Tokenising a stream of documents into one file of sequences for each domain and split, in constant memory."""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from gram_platform.corpora.packed import SPLITS, sequence_path, token_dtype
from gram_platform.corpora.recipe import CorpusRecipe
from gram_platform.corpora.splits import DuplicateLog, Splitter
from gram_platform.corpora.tokenizer import end_of_text_id

BATCH_CHARS = 1 << 20  # of text handed to the tokenizer at once
WRITE_TOKENS = 1 << 18  # tokens of a domain held before they are written


class SequenceFile:
    """One domain's sequences of one split: tokens come in, rows of seq_len + 1 go out, hashed on the way."""

    def __init__(self, path: Path, seq_len: int, dtype: np.dtype) -> None:
        path.parent.mkdir(exist_ok=True)
        self._path, self._seq_len, self._dtype = path, seq_len, dtype
        self._hash = hashlib.sha256()
        self._pending: list[np.ndarray] = []
        self._num_pending = 0
        self.num_sequences = self.num_documents = self.num_tokens = 0
        path.write_bytes(b"")

    def add(self, tokens: np.ndarray) -> None:
        """Appends one document's tokens, its end of text included."""
        self._pending.append(tokens)
        self._num_pending += len(tokens)
        self.num_documents += 1
        self.num_tokens += len(tokens)
        if self._num_pending >= WRITE_TOKENS:
            self._write()

    def close(self) -> str:
        """Writes what is left, drops the part that fills no sequence; returns the file's SHA-256."""
        self._write()
        return self._hash.hexdigest()

    def _write(self) -> None:
        stream = np.concatenate(self._pending) if self._pending else np.empty(0, self._dtype)
        rows = max(0, (len(stream) - 1) // self._seq_len)
        if rows:
            windows = np.lib.stride_tricks.sliding_window_view(stream, self._seq_len + 1)
            raw = np.ascontiguousarray(windows[:: self._seq_len][:rows]).tobytes()
            self._hash.update(raw)
            with self._path.open("ab") as handle:
                handle.write(raw)
        rest = stream[rows * self._seq_len :].copy()
        self._pending, self._num_pending = [rest], len(rest)
        self.num_sequences += rows


def write_sequences(
    recipe: CorpusRecipe, staging: Path, tokenizer: Tokenizer, splitter: Splitter, stream: Iterator[tuple[str, str]]
) -> tuple[dict[tuple[str, str], SequenceFile], dict[str, int]]:
    """Tokenises every (domain, text) into its file below `staging`.

    Returns the files by (split, domain), still open, and the counts of duplicates.
    """
    dtype, end = token_dtype(recipe.vocab_size), end_of_text_id(tokenizer)
    pairs = [(split, domain) for split in SPLITS for domain in recipe.domains]
    writers = {p: SequenceFile(staging / sequence_path(*p), recipe.seq_len, dtype) for p in pairs}
    duplicates = DuplicateLog(staging / "keys.tmp", recipe.domains)
    for keyed, encodings in _encoded(tokenizer, splitter, stream):
        for (domain, split, key), encoding in zip(keyed, encodings, strict=True):
            duplicates.add(domain, split, key)
            ids = encoding.ids  # a new list each time
            ids.append(end)
            writers[split, domain].add(np.array(ids, dtype))
    return writers, duplicates.count()


def _encoded(tokenizer: Tokenizer, splitter: Splitter, stream: Iterator[tuple[str, str]]) -> Iterator[tuple]:
    """Batches of (domain, split, key) with their encodings, in order: one is tokenised while the next is read."""
    with ThreadPoolExecutor(1) as pool:
        running = None
        for domains, texts in _batches(stream):
            upcoming = pool.submit(tokenizer.encode_batch_fast, texts, add_special_tokens=False)
            if running is not None:
                yield running[0], running[1].result()
            keys = [splitter.key(text) for text in texts]
            keyed = [(d, splitter.split(d, key), key) for d, key in zip(domains, keys, strict=True)]
            running = keyed, upcoming
        if running is not None:
            yield running[0], running[1].result()


def _batches(stream: Iterator[tuple[str, str]]) -> Iterator[tuple[list[str], list[str]]]:
    domains: list[str] = []
    texts: list[str] = []
    num_chars = 0
    for domain, text in stream:
        domains.append(domain)
        texts.append(text)
        num_chars += len(text)
        if num_chars >= BATCH_CHARS:
            yield domains, texts
            domains, texts, num_chars = [], [], 0
    if texts:
        yield domains, texts
