"""Packs the corpus of a recipe: splits, tokenises, cuts and writes, in constant memory, all or nothing."""

import errno
import hashlib
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from gram_platform.config.identity import invalid
from gram_platform.corpora.packed import (
    LAYOUT_VERSION,
    SPLITS,
    PackedCorpus,
    corpus_fingerprint,
    new_staging,
    open_complete,
    publish,
    sequence_path,
    sha256_file,
    token_dtype,
)
from gram_platform.corpora.recipe import BYTES_PER_TOKEN, MIN_SAMPLED, CorpusRecipe, HubSource
from gram_platform.corpora.records import documents
from gram_platform.corpora.sources import Progress
from gram_platform.corpora.splits import KEY_RANGE, DuplicateLog, Splitter
from gram_platform.corpora.tokenizer import (
    end_of_text_id,
    hub_tokenizer,
    load_tokenizer,
    require_usable,
    train_tokenizer,
)

BATCH_CHARS = 1 << 20  # characters tokenised at once
WRITE_TOKENS = 1 << 18  # tokens of a domain held before a write
REPORT_CHARS = 1 << 20  # of text between two reports of progress
PASSAGE_CHARS = 4096  # of a passage in a tokenizer's sample; fewer if the sample is small
GOLDEN = 0x9E3779B97F4A7C15  # KEY_RANGE / golden ratio: multiples spread evenly over the range
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def prepare(recipe: CorpusRecipe, root: Path | str, progress: Progress | None = None) -> PackedCorpus:
    """Packs a corpus into `root/<data_id>`, unless it is there and complete, and opens it.

    Calls `progress(activity, done, total)` from time to time, in bytes of text. ValueError for bad records, a domain
    without a sequence in a split, and a root that cannot be written or is full.
    """
    root = Path(root)
    target = root / recipe.data_id
    if (packed := open_complete(target)) is not None:
        return packed
    staging = new_staging(root, recipe.data_id)
    try:
        _fill(recipe, root, staging, progress or (lambda activity, done, total: None))
        publish(staging, target)
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise _disk_full(recipe, root, error) from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return PackedCorpus.open(target)


def _disk_full(recipe: CorpusRecipe, root: Path, error: OSError) -> ValueError:
    num_tokens = _num_bytes(recipe) / BYTES_PER_TOKEN
    needed_gb = num_tokens * token_dtype(recipe.vocab_size).itemsize / 1e9
    return invalid("storage", str(root), f"a disk with room for about {needed_gb:.3g} GB ({error.strerror})")


def _num_bytes(recipe: CorpusRecipe) -> int:
    return sum(domain.num_bytes for domain in recipe.domains_from)


def _fill(recipe: CorpusRecipe, root: Path, staging: Path, progress: Progress) -> None:
    """Writes all files of the packed corpus into `staging`, the manifest last."""
    tokenizer, units, skipped = _given_tokenizer(recipe), recipe.units, {}
    if isinstance(recipe.source, HubSource):
        from gram_platform.corpora.hub import fetch

        units, skipped = fetch(recipe.source, root / "hub", progress)

    def read(activity: str) -> Iterator[tuple[str, str]]:
        return _reported(documents(recipe, units), activity, _num_bytes(recipe), progress)

    held_out = tuple(unit for unit in units if unit.held_out)
    splitter = Splitter(recipe, lambda: read("splitting"), documents(recipe, held_out) if held_out else ())
    if tokenizer is None:
        tokenizer = _trained_tokenizer(recipe, splitter, read("training the tokenizer"))
    (staging / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    writers, duplicates = _write_sequences(recipe, staging, tokenizer, splitter, read("packing"))
    _write_manifest(recipe, staging, writers, {"duplicates": duplicates, "skipped": skipped})


def _reported(
    stream: Iterator[tuple[str, str]], activity: str, total: int, progress: Progress
) -> Iterator[tuple[str, str]]:
    """Passes (domain, text) on and reports progress every `REPORT_CHARS`."""
    done = since = 0
    for domain, text in stream:
        since += len(text)
        if since > REPORT_CHARS:
            done, since = done + since, 0
            progress(activity, min(done, total), total)
        yield domain, text
    progress(activity, total, total)


def _given_tokenizer(recipe: CorpusRecipe) -> Tokenizer | None:
    """Loads and checks the recipe's tokenizer before any long work; None for one to be trained."""
    given = recipe.tokenizer
    if given.is_trained:
        return None
    if given.kind == "hub":
        tokenizer = hub_tokenizer(given.source)
    else:
        if sha256_file(recipe.tokenizer_path) != given.source:
            raise invalid("tokenizer", str(recipe.tokenizer_path), "the unchanged file that the recipe was made with")
        tokenizer = load_tokenizer(recipe.tokenizer_path)
    require_usable(tokenizer, recipe.vocab_size)
    return tokenizer


def _trained_tokenizer(recipe: CorpusRecipe, splitter: Splitter, stream: Iterator[tuple[str, str]]) -> Tokenizer:
    """Trains a BPE on a sample of the training documents; ValueError for an empty sample."""
    sample = _sample(recipe, splitter, stream)
    first = next(sample, None)
    if first is None:
        raise invalid("sample_bytes", recipe.tokenizer.sample_bytes, "enough bytes to hold some text")
    return train_tokenizer(chain((first,), sample), recipe.vocab_size)


def _sample(recipe: CorpusRecipe, splitter: Splitter, stream: Iterator[tuple[str, str]]) -> Iterator[str]:
    """Yields about `sample_bytes` of the training documents, chosen by their keys.

    Keys are rotated by 32 bits, so that the sample is independent of the split. `bpe` takes whole documents.
    `bpe-passages` decides for each passage: consecutive passages step through the range of keys by the golden ratio, so
    that the same share of every long document is taken.
    """
    trained = recipe.tokenizer
    sampled = {domain.name: domain.num_bytes for domain in recipe.sampled_from}
    limit = min(1.0, trained.sample_bytes / sum(sampled.values())) * KEY_RANGE
    size = max(1, min(PASSAGE_CHARS, trained.sample_bytes // MIN_SAMPLED))
    for domain, text in stream:
        key = splitter.key(text)
        if domain not in sampled or splitter.split(domain, key) != "train":
            continue
        rotated = (key << 32 | key >> 32) % KEY_RANGE
        step = len(text) if trained.kind == "bpe" else size
        for number, start in enumerate(range(0, len(text), step)):
            if (rotated + number * GOLDEN) % KEY_RANGE < limit:
                yield text[start : start + step]


class SequenceFile:
    """Writes one domain's sequences of one split: cuts tokens into rows of seq_len + 1 and hashes them."""

    def __init__(self, path: Path, seq_len: int, dtype: np.dtype) -> None:
        path.parent.mkdir(exist_ok=True)
        self._path, self._seq_len, self._dtype = path, seq_len, dtype
        self._hash = hashlib.sha256()
        self._pending: list[np.ndarray] = []
        self._num_pending = 0
        self.num_sequences = self.num_documents = self.num_tokens = 0
        path.write_bytes(b"")

    def add(self, tokens: np.ndarray) -> None:
        """Appends one document's tokens, including the end of text."""
        self._pending.append(tokens)
        self._num_pending += len(tokens)
        self.num_documents += 1
        self.num_tokens += len(tokens)
        if self._num_pending >= WRITE_TOKENS:
            self._write()

    def close(self) -> str:
        """Writes the remaining sequences, drops tokens that fill none; returns the file's SHA-256."""
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


def _write_sequences(
    recipe: CorpusRecipe, staging: Path, tokenizer: Tokenizer, splitter: Splitter, stream: Iterator[tuple[str, str]]
) -> tuple[dict[tuple[str, str], SequenceFile], dict[str, int]]:
    """Tokenises every (domain, text) into a file below `staging`.

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
    """Yields batches of (domain, split, key) with their encodings, in order; tokenises one while reading the next."""
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


def _write_manifest(
    recipe: CorpusRecipe, staging: Path, writers: dict[tuple[str, str], SequenceFile], counted: dict[str, dict]
) -> None:
    files = {sequence_path(*pair): writer.close() for pair, writer in writers.items()}
    for (split, domain), writer in writers.items():
        if writer.num_sequences == 0:
            found = f"{writer.num_documents} documents, {writer.num_tokens} tokens in {split}"
            allowed = f"enough text for a sequence of {recipe.seq_len + 1} tokens there (equal documents share a split)"
            raise invalid(f"label {domain!r}", found, allowed)
    files["tokenizer.json"] = sha256_file(staging / "tokenizer.json")
    counts = ("num_sequences", "num_documents", "num_tokens")
    domains = {d: {s: {c: getattr(writers[s, d], c) for c in counts} for s in SPLITS} for d in recipe.domains}
    manifest = {
        "layout": LAYOUT_VERSION,
        "data_id": recipe.data_id,
        "recipe": recipe.plain(),
        "seq_len": recipe.seq_len,
        "vocab_size": recipe.vocab_size,
        "dtype": token_dtype(recipe.vocab_size).str,
        "domains": domains,
        "duplicates_across_splits": counted["duplicates"]["texts_in_both_splits"],
        **counted,
        "tokenizer_sha256": files["tokenizer.json"],
        "tokenizer_bytes": (staging / "tokenizer.json").stat().st_size,
        "fingerprint": corpus_fingerprint(files),
        "files": files,
    }
    (staging / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
